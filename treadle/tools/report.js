"use strict";
// The script of `treadle report`. Everything that belongs to a node, a group, a kernel or a launch has its id among the
// words of `data-r`: choosing an id marks all of it, in pictures, tables and texts. Without scripts, links still lead.

const bar = document.getElementById("bar");
const KINDS = { n: "node", g: "group", l: "launch", k: "kernel" };

function choose(id) {
  for (const element of document.querySelectorAll(".on")) element.classList.remove("on");
  const marked = [...document.querySelectorAll(`[data-r~="${CSS.escape(id)}"]`)];
  for (const element of marked) element.classList.add("on");
  bar.replaceChildren();
  bar.hidden = marked.length === 0;
  if (bar.hidden) return;
  const close = document.createElement("button");
  close.textContent = "×";
  close.setAttribute("aria-label", "choose nothing");
  close.onclick = () => choose("");
  const name = document.createElement("b");
  const target = document.getElementById(id);
  name.textContent = `${KINDS[id[0]] ?? ""} ${target?.dataset.name ?? target?.cells?.[0].textContent ?? id}`;
  bar.append(close, name);
  for (const section of document.querySelectorAll("section[id]")) {
    const inside = marked.filter((element) => section.contains(element) && !element.querySelector(":scope .on"));
    if (inside.length) bar.append(walker(section, inside));
  }
}

// A button that shows one after the other of some elements.
function walker(section, elements) {
  const button = document.createElement("button");
  button.textContent = `${section.dataset.name} (${elements.length})`;
  let next = 0;
  button.onclick = () => show(elements[next++ % elements.length]);
  return button;
}

function show(element) {
  for (let each = element; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  element.closest("tr")?.classList.remove("off");
  element.scrollIntoView({ block: "center", inline: element.closest("svg") ? "center" : "nearest" });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#']");
  if (!link) return;
  const id = link.getAttribute("href").slice(1);
  const target = document.getElementById(id);
  if (!target || target.tagName === "SECTION") return;
  event.preventDefault(); // the bar at the bottom leads on; a jump would leave the picture that was clicked
  if (!link.closest("svg")) show(target);
  choose(id);
  history.replaceState(null, "", `#${id}`);
});

// Tables: a click on a heading sorts by it, and again backwards; a field filters.

function sort(table, column, button) {
  const heading = button.closest("th");
  const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const each of table.tHead.querySelectorAll("th")) each.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const text = row.cells[column]?.dataset.v ?? row.cells[column]?.textContent ?? "";
    return { row, text, number: text === "" ? NaN : Number.parseFloat(text) };
  });
  const numeric = heading.classList.contains("number");
  keyed.sort((a, b) => {
    if (!numeric) return sign * a.text.localeCompare(b.text, undefined, { numeric: true });
    if (Number.isNaN(a.number) || Number.isNaN(b.number)) return Number.isNaN(a.number) - Number.isNaN(b.number);
    return sign * (a.number - b.number);
  });
  body.append(...keyed.map((each) => each.row));
}

const FEW = 5;
for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    button.onclick = () => sort(table, column, button);
    heading.append(button);
  });
  if (table.tBodies[0].rows.length < FEW) continue;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "filter rows";
  field.setAttribute("aria-label", `filter rows: ${table.caption?.textContent ?? ""}`);
  field.oninput = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.classList.toggle("off", !words.every((word) => text.includes(word)));
    }
  };
  table.parentElement.before(field);
}

// Pictures that are larger than the window: smaller, larger, or as wide as it.

for (const frame of document.querySelectorAll(".frame")) {
  const picture = frame.querySelector("svg");
  const width = Number(picture.getAttribute("width"));
  const tools = document.createElement("div");
  tools.className = "tools";
  let scale = 1;
  const sized = (to) => {
    scale = Math.min(Math.max(to, 0.05), 3);
    picture.style.width = `${width * scale}px`;
    picture.style.height = "auto";
  };
  for (const [text, label, to] of [["−", "smaller", () => scale / 1.4], ["+", "larger", () => scale * 1.4],
    ["100 %", "as large as drawn", () => 1], ["fit", "as wide as the frame", () => (frame.clientWidth - 8) / width]]) {
    const button = document.createElement("button");
    button.textContent = text;
    button.setAttribute("aria-label", label);
    button.onclick = () => sized(to());
    tools.append(button);
  }
  frame.before(tools);
}

if (location.hash.length > 1) choose(decodeURIComponent(location.hash.slice(1)));
