"use strict";
// Texts of `treadle explore`: IR or C, alone or as a difference, of which only the rows in sight are elements. Text becomes
// part of the page through `textContent` alone.

const by = (selector) => document.querySelector(selector);

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const button = (text, onclick, properties = {}) => make("button", { type: "button", onclick, ...properties }, text);
const link = (text, onclick) => button(text, onclick, { className: "link" });

// A text, or two of them side by side, of which only the rows in sight are elements.

const CONTEXT = 4;
const SPLIT = 700; // pixels from which on texts stand side by side
const TOKENS = /"(?:[^"\\]|\\.)*"|%[\w.$-]+/g;

class Viewer {
  // texts: one, or the one before and the one after, each { number, lines }; blocks: of their difference
  constructor(home, texts, blocks, onValue, onLine) {
    Object.assign(this, { home, texts, blocks, onValue, onLine, expanded: new Set(), here: null, chosen: null });
    this.divide();
    new ResizeObserver(() => this.resized()).observe(home);
  }

  resized() {
    if (this.isSplit === this.fits()) this.draw();
    else this.divide();
    if (this.wanted !== undefined) this.scroll(this.wanted);
  }

  fits() {
    return this.texts.length === 2 && this.home.clientWidth > SPLIT;
  }

  // One pane or two, as there is room.
  divide() {
    const top = this.panes?.[0].element.scrollTop ?? 0;
    this.isSplit = this.fits();
    const panes = this.isSplit ? [0, 1] : [this.texts.length - 1];
    this.panes = panes.map((side) => this.pane(side));
    this.home.replaceChildren(...this.panes.map((pane) => pane.element));
    this.arrange();
    for (const pane of this.panes) pane.element.scrollTop = top;
  }

  pane(side) {
    const rows = make("div", { className: "rows" });
    const space = make("div", { className: "space" }, rows);
    const element = make("div", { className: "pane", tabIndex: 0 }, space);
    const pane = { side, element, space, rows };
    element.onscroll = () => {
      for (const other of this.panes) {
        if (other === pane) continue;
        if (other.element.scrollTop !== element.scrollTop) other.element.scrollTop = element.scrollTop;
        if (other.element.scrollLeft !== element.scrollLeft) other.element.scrollLeft = element.scrollLeft;
      }
      this.draw();
    };
    element.onclick = (event) => this.clicked(event);
    element.onkeydown = (event) => {
      if (event.key === "Enter") this.clicked(event);
    };
    return pane;
  }

  // Rows: [kind, line before, line after]; a gap has its block and how many lines it hides.
  arrange() {
    this.rows = [];
    const last = this.blocks.length - 1;
    this.blocks.forEach(([equal, a, aEnd, b, bEnd], number) => {
      if (!equal) this.addChanged(a, aEnd, b, bEnd);
      else this.addEqual(number, a, b, aEnd - a, number > 0, number < last);
    });
    const longest = Math.max(1, ...this.texts.map((text) => text.lines.reduce((most, line) => Math.max(most, line.length), 0)));
    for (const pane of this.panes) pane.space.style.width = `calc(${longest + 2}ch + 5.5ch)`;
    this.rowHeight = Number.parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));
    for (const pane of this.panes) pane.space.style.height = `${this.rows.length * this.rowHeight}px`;
    this.draw(true);
  }

  addEqual(number, a, b, count, before, after) {
    const head = before ? CONTEXT : 0;
    const tail = after ? CONTEXT : 0;
    const hidden = count - head - tail;
    const all = this.blocks.length === 1 || this.expanded.has(number) || hidden < 3;
    for (let n = 0; n < count; n++) {
      if (!all && n === head) {
        this.rows.push(["gap", number, hidden]);
        n += hidden;
        if (n >= count) return;
      }
      this.rows.push(["same", a + n, b + n]);
    }
  }

  addChanged(a, aEnd, b, bEnd) {
    const paired = Math.min(aEnd - a, bEnd - b);
    if (this.isSplit) {
      for (let n = 0; n < paired; n++) this.rows.push(["changed", a + n, b + n]);
      for (let n = a + paired; n < aEnd; n++) this.rows.push(["gone", n, -1]);
      for (let n = b + paired; n < bEnd; n++) this.rows.push(["new", -1, n]);
      return;
    }
    for (let n = a; n < aEnd; n++) this.rows.push(["gone", n, n - a < paired ? b + n - a : -1]);
    for (let n = b; n < bEnd; n++) this.rows.push(["new", n - b < paired ? a + n - b : -1, n]);
  }

  // Makes the rows in sight, and some around them; not again while enough of them are there, unless they changed.
  draw(changed = false) {
    for (const pane of this.panes) {
      const first = Math.floor(pane.element.scrollTop / this.rowHeight);
      const last = Math.min(this.rows.length, first + Math.ceil(pane.element.clientHeight / this.rowHeight) + 1);
      if (!changed && first >= pane.top && last <= pane.end) continue;
      const top = Math.max(0, first - 40);
      const end = Math.min(this.rows.length, last + 40);
      Object.assign(pane, { top, end });
      pane.rows.style.transform = `translateY(${top * this.rowHeight}px)`;
      pane.rows.replaceChildren(...this.rows.slice(top, end).map((row, n) => this.row(row, top + n, pane.side)));
    }
  }

  // Which text a row shows in a pane, the line of it, and the line that it is compared with.
  shown([kind, before, after], side) {
    if (this.texts.length === 1) return [0, after, -1];
    if (this.isSplit) return side === 0 ? [0, before, after] : [1, after, before];
    return kind === "gone" ? [0, before, after] : [1, after, before];
  }

  row(row, number, side) {
    const [kind] = row;
    if (kind === "gap") return make("div", { className: "row gap", "data-row": number }, make("i", {}, "…"), `${row[2]} equal lines`);
    const [text, line, other] = this.shown(row, side);
    if (line < 0) return make("div", { className: "row none" });
    const differs = kind !== "same";
    const name = !differs ? "row" : text === 0 ? "row gone" : "row new";
    const compared = differs && other >= 0 ? this.texts[1 - text].lines[other] : null;
    const isHere = this.here && this.here.text === text && this.here.lines.has(line);
    return make("div", { className: isHere ? `${name} here` : name, "data-row": number, "data-text": text, "data-line": line },
      make("i", {}, String(line + 1)), make("code", {}, ...this.pieces(text, line, compared)));
  }

  // A line's values, quoted texts, and the part in which it differs from another line, as elements.
  pieces(text, line, compared) {
    const content = this.texts[text].lines[line];
    let [from, to] = [content.length, content.length];
    if (compared !== null) {
      [from, to] = [0, content.length];
      while (from < to && content[from] === compared[from]) from++;
      let back = compared.length;
      while (to > from && back > from && content[to - 1] === compared[back - 1]) [to, back] = [to - 1, back - 1];
      if (2 * (to - from) > content.trim().length) from = to; // another line
    }
    const found = [];
    const add = (start, end, wrap) => {
      for (const [low, high] of [[start, Math.min(end, from)], [Math.max(start, from), Math.min(end, to)], [Math.max(start, to), end]]) {
        if (low >= high) continue;
        const part = wrap(content.slice(low, high));
        found.push(low >= from && high <= to && from < to ? make("mark", {}, part) : part);
      }
    };
    const chosen = this.chosen && this.chosen.text === text ? this.chosen : null;
    let at = 0;
    let order = 0;
    for (const match of content.matchAll(TOKENS)) {
      add(at, match.index, (part) => part);
      at = match.index + match[0].length;
      const place = match[0][0] === "%" ? order++ : -1;
      const isOn = chosen && place >= 0 && chosen.lines[line]?.[place] === chosen.id;
      const look = place >= 0 ? { className: isOn ? "v on" : "v", tabIndex: 0, "data-place": place } : { className: "s" };
      add(match.index, at, (part) => make("span", look, part));
    }
    add(at, content.length, (part) => part);
    return found;
  }

  clicked(event) {
    const row = event.target.closest("[data-row]");
    if (!row) return;
    const [kind, block] = this.rows[row.dataset.row];
    if (kind === "gap") {
      this.expanded.add(block);
      this.arrange();
      return;
    }
    const [text, line] = [Number(row.dataset.text), Number(row.dataset.line)];
    const value = event.target.closest(".v");
    if (value && this.onValue) this.onValue(this.texts[text].number, line, Number(value.dataset.place));
    else if (this.onLine) this.onLine(this.texts[text].number, line);
  }

  // Marks a value wherever it stands.
  choose(number, id, lines) {
    const text = this.texts.findIndex((each) => each.number === number);
    this.chosen = text < 0 || id === null ? null : { text, id, lines };
    this.draw(true);
  }

  // Marks some lines of a text, and shows the first of them.
  go(number, lines) {
    const text = this.texts.findIndex((each) => each.number === number);
    if (text < 0) return false;
    this.here = { text, lines: new Set(lines) };
    const column = text === 0 && this.texts.length === 2 ? 1 : 2;
    const block = this.blocks.findIndex(([, a, aEnd, b, bEnd]) => (column === 1 ? lines[0] >= a && lines[0] < aEnd : lines[0] >= b && lines[0] < bEnd));
    if (block >= 0 && this.blocks[block][0]) this.expanded.add(block);
    this.arrange();
    const row = this.rows.findIndex((each) => each[0] !== "gap" && each[column] === lines[0] && this.shown(each, this.isSplit ? text : 0)[0] === text);
    this.scroll(row);
    return true;
  }

  scroll(row) {
    const { element } = this.panes[0];
    this.wanted = element.clientHeight ? undefined : row; // what is hidden cannot scroll
    element.scrollTop = Math.max(0, row * this.rowHeight - element.clientHeight / 3);
    this.draw();
  }

  // The next row, or the one before, that satisfies a condition, from where the panes stand.
  next(step, holds) {
    const { element } = this.panes[0];
    let at = this.at ?? Math.floor(element.scrollTop / this.rowHeight) - (step > 0 ? 1 : 0);
    for (let left = this.rows.length; left > 0; left--) {
      at = (at + step + this.rows.length) % this.rows.length;
      if (!holds(this.rows[at], this.rows[at - 1])) continue;
      this.at = at;
      this.scroll(at);
      return at;
    }
    return -1;
  }
}

const isChange = (row, before) => !["same", "gap"].includes(row[0]) && (!before || ["same", "gap"].includes(before[0]));
