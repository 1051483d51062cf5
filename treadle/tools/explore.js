"use strict";
// The page of `treadle explore`. All that it shows comes as documents of JSON by name (treadle/tools/explore_page.py):
// from the server that edits, or in an export from scripts that call `treadleDocument`, and packed (explore_packed.js).
// explore_text.js draws the texts.

const LIVE = document.body.dataset.live === "yes";
const TOKEN = new URLSearchParams(location.search).get("token") ?? "";

// Documents.

const CHANGING = /^(state|options)/;
const documents = new Map();
const waiting = new Map();
window.treadleDocument = (name, content) => waiting.get(name)?.(content);

async function ask(path, body) {
  const options = { headers: { "X-Treadle-Token": TOKEN } };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  const answer = await fetch(path, options);
  const content = answer.headers.get("Content-Type") === "application/json" ? await answer.json() : await answer.text();
  if (!answer.ok) throw new Error(content.error ?? `the server answered ${answer.status}`);
  return content;
}

function fromScript(name) {
  return new Promise((done, failed) => {
    waiting.set(name, done);
    const script = make("script", { src: `data/${name}.js` });
    script.onerror = () => failed(new Error(`the export has no ${name}`));
    script.onload = () => script.remove();
    document.head.append(script);
  });
}

function load(name) {
  if (!documents.has(name) || (LIVE && CHANGING.test(name))) {
    const found = LIVE ? ask(`data/${name}`) : fromScript(name).then((content) => unpacked(name, content, load));
    found.catch(() => documents.delete(name));
    documents.set(name, found);
  }
  return documents.get(name);
}

const linesOf = async (number) => (await load(`text-${number}`)).text.replace(/\n$/, "").split("\n");

// What is shown.

const now = { version: null, pass: -1, tab: "passes", value: null, kernel: 0, busy: false };
const viewers = {};

function tell(text, failed = false) {
  const status = by("#status");
  status.hidden = !text;
  status.className = failed ? "failed" : "";
  status.replaceChildren(text, ...(failed ? [button("×", () => tell(""), { "aria-label": "close" })] : []));
}

async function guarded(action) {
  try {
    await action();
  } catch (error) {
    tell(error.message, true);
  }
}

function show(tab) {
  now.tab = tab;
  for (const each of document.querySelectorAll("nav [data-tab]")) {
    if (each.dataset.tab === tab) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
    by(`#${each.dataset.tab}`).hidden = each.dataset.tab !== tab;
  }
}

const nodeName = ([name, kind]) => `${kind} ${name}`;

function someNames(nodes, most = 40) {
  const names = nodes.slice(0, most).map(nodeName).join(", ");
  return nodes.length > most ? `${names} and ${nodes.length - most} more` : names;
}

// The passes.

function passesList() {
  const { version } = now;
  const list = by("#passes .list");
  const entries = [];
  const all = make("input", { type: "checkbox", id: "unchanged", checked: by("#unchanged")?.checked ?? false, onchange: passesList });
  entries.push(make("label", {}, all, " passes that changed nothing"));
  entries.push(item(-1, "import", null));
  let stage = "";
  version.passes.forEach((pass, number) => {
    const changed = pass.before !== pass.after;
    if (!changed && !all.checked && number !== now.pass) return;
    if (pass.stage !== stage) entries.push(make("h3", { title: version.stages[pass.stage] }, pass.stage));
    stage = pass.stage;
    entries.push(item(number, pass.name, pass));
  });
  list.replaceChildren(...entries);
  list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

function item(number, name, pass) {
  const changed = pass && pass.before !== pass.after;
  const counts = !pass ? [] : changed
    ? [make("span", { className: "plus" }, `+${pass.added}`), make("span", { className: "minus" }, `−${pass.removed}`)]
    : [make("span", { className: "number" }, "no change")];
  const entry = button(make("span", { className: "name" }, name), () => guarded(() => showPass(number)), { className: changed || !pass ? "item" : "item same" });
  entry.append(...counts, ...(pass ? [make("span", { className: "number" }, `${pass.ms < 10 ? pass.ms : Math.round(pass.ms)} ms`)] : []));
  if (number === now.pass) entry.setAttribute("aria-current", "true");
  return entry;
}

async function showPass(number) {
  const { version } = now;
  now.pass = number;
  passesList();
  const pass = version.passes[number];
  const after = pass ? pass.after : version.first;
  const other = by("#against")?.checked ? await sameInVersionBefore(number) : null;
  const before = other ?? (pass ? pass.before : after);
  const panes = make("div", { className: "panes" });
  const about = pass && pass.about ? make("details", { className: "about" }, make("summary", {}, "what the pass does"), make("pre", {}, `${pass.options}\n\n${pass.about}`)) : null;
  const title = pass ? `${pass.stage}: ${pass.name}` : "import: the model as it is";
  by("#passes .view").replaceChildren(make("h2", {}, title), ...(about ? [about] : []), toolsOfPass(number, before === after), panes);
  const isDiff = before !== after;
  const lines = await linesOf(after);
  const texts = isDiff ? [{ number: before, lines: await linesOf(before) }, { number: after, lines }] : [{ number: after, lines }];
  const blocks = isDiff ? (await load(`diff-${before}-${after}`)).blocks : [[1, 0, lines.length, 0, lines.length]];
  viewers.passes = new Viewer(panes, texts, blocks, (text, line, place) => guarded(() => chooseValue(text, line, place)));
  if (isDiff) viewers.passes.next(1, isChange);
  viewers.passes.at = undefined;
  history.replaceState(null, "", `#pass-${number + 1}`);
  await follow(texts);
}

function toolsOfPass(number, isSame) {
  const { passes } = now.version;
  const step = (by) => () => {
    let at = number + by;
    while (at >= 0 && at < passes.length && passes[at].before === passes[at].after) at += by;
    if (at >= -1 && at < passes.length) guarded(() => showPass(Math.max(at, -1)));
  };
  const field = make("input", { type: "search", placeholder: "find", "aria-label": "find in the text", size: 14 });
  const find = (by) => {
    const word = field.value;
    const has = (row) => row[0] !== "gap" && viewers.passes.texts.some((text, side) => text.lines[row[side + (viewers.passes.texts.length === 1 ? 2 : 1)]]?.includes(word));
    if (word && viewers.passes.next(by, has) < 0) tell(`“${word}” is in no line that is shown`, true);
  };
  field.onkeydown = (event) => {
    if (event.key === "Enter") find(event.shiftKey ? -1 : 1);
  };
  const tools = make("div", { className: "tools" }, button("‹ pass", step(-1), { "aria-label": "the pass before that changed something" }),
    button("pass ›", step(1), { "aria-label": "the next pass that changed something" }));
  if (!isSame) tools.append(button("‹ change", () => viewers.passes.next(-1, isChange)), button("change ›", () => viewers.passes.next(1, isChange)));
  tools.append(field, button("find ›", () => find(1)));
  if (isSame && number >= 0) tools.append("changed nothing");
  if (now.state.versions.length > 1 && now.version.number !== now.state.versions[0].number) {
    const against = make("input", { type: "checkbox", id: "against", checked: by("#against")?.checked ?? false, onchange: () => guarded(() => showPass(now.pass)) });
    tools.append(make("label", {}, against, " compare with the version before, after this pass"));
  }
  return tools;
}

async function sameInVersionBefore(number) {
  const { versions } = now.state;
  const at = versions.findIndex((each) => each.number === now.version.number);
  const before = await load(`version-${versions[Math.max(at - 1, 0)].number}`);
  const pass = now.version.passes[number];
  if (!pass) return before.first;
  const same = (each) => each.stage === pass.stage && each.name === pass.name;
  const order = now.version.passes.slice(0, number).filter(same).length; // some passes run several times
  return before.passes.filter(same)[order]?.after ?? null;
}

// A value.

async function chooseValue(text, line, place) {
  const values = await load(`values-${text}`);
  const id = values.lines[line]?.[place];
  if (id !== undefined) await showValue(text, id, values);
}

// Keeps the chosen value where the texts have it: of the same name and nodes in the later one, or in the earlier one.
async function follow(texts) {
  const wanted = now.value;
  if (!wanted) return;
  const { number } = texts[texts.length - 1];
  const values = await load(`values-${number}`);
  const isWanted = (name, id) => name === wanted.name && String(values.NODES[values.nodes[id]]) === wanted.nodes && values.FUNCTION[values.function[id]] === wanted.symbol;
  const id = number === wanted.text ? wanted.id : values.names.findIndex(isWanted);
  if (id >= 0) await showValue(number, id, values);
  else if (texts[0].number === wanted.text) viewers.passes.choose(wanted.text, wanted.id, (await load(`values-${wanted.text}`)).lines);
  else closeValue();
}

async function showValue(text, id, values) {
  const nodes = values.NODES[values.nodes[id]];
  const symbol = values.FUNCTION[values.function[id]];
  now.value = { text, id, name: values.names[id], nodes: String(nodes), symbol };
  viewers.passes?.choose(text, id, values.lines);
  const panel = by("#value");
  const type = values.TYPE[values.type[id]];
  const at = values.at[id];
  const users = [];
  values.lines.forEach((line, number) => {
    if (number !== at && line.includes(id)) users.push(number);
  });
  const goTo = (line) => link(String(line + 1), () => viewers.passes.go(text, [line]));
  const rows = [["type", type], ["given by", make("span", {}, values.OP[values.op[id]], ", line ", goTo(at))]];
  const pass = now.version.passes.find((each) => each.after === text);
  rows.push(["in", `@${symbol || "?"}, ${pass ? `after ${pass.name}` : "the model as it is"}`]);
  rows.push(["users", users.length ? make("span", {}, ...listed(users, goTo)) : "none"]);
  rows.push(["nodes", nodes.length ? nodes.map(nodeName).join(", ") : "none named"]);
  const code = make("dd", {}, "…");
  const held = make("div", {}, "evaluating …");
  panel.hidden = false;
  panel.replaceChildren(button("×", closeValue, { className: "close", "aria-label": "close" }), make("h2", {}, values.names[id]),
    facts(rows, make("dt", {}, "code"), code), held);
  guarded(() => addCode(code, text, at, symbol, nodes));
  guarded(() => addNumbers(held, text, id, type, symbol));
}

function listed(lines, goTo, most = 12) {
  const found = lines.slice(0, most).flatMap((line, n) => [n ? ", " : "line ", goTo(line)]);
  return lines.length > most ? [...found, ` and ${lines.length - most} more`] : found;
}

function facts(rows, ...more) {
  return make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]), ...more);
}

function closeValue() {
  now.value = null;
  by("#value").hidden = true;
  viewers.passes?.choose(0, null, []);
}

async function addCode(home, text, at, symbol, nodes) {
  const { kernels } = await load(`code-${now.version.number}`);
  const found = [];
  kernels.forEach((kernel, number) => {
    const exact = text === now.version.last && kernel.symbol === symbol ? kernel.lines[at] ?? [] : null;
    const shares = kernel.nodes.some((node) => nodes.some((each) => each[0] === node[0] && each[1] === node[1]));
    if (kernel.symbol !== symbol && (symbol !== "main" || !shares)) return;
    const lines = exact ?? kernel.written;
    const what = exact === null ? "lines that write its result: " : exact.length ? "lines " : "no line";
    found.push(make("div", {}, link(kernel.symbol, () => guarded(() => showKernel(number, lines))), `, ${what}${lines.slice(0, 8).map((line) => line + 1).join(", ")}`));
  });
  home.replaceChildren(...(found.length ? found : ["no kernel: computed at compile time, or only moved"]));
}

async function addNumbers(home, text, id, type, symbol) {
  const isTensor = /^(tensor|memref)</.test(type);
  const none = isTensor ? "It has no value of its own in a call: nothing writes it by itself." : "Another one for each task, or for each element that is folded: it has no value to show.";
  if (symbol !== "main" || type === "index") {
    home.replaceChildren(make("p", { className: "faint" }, none));
    return;
  }
  let content;
  try {
    content = await load(`numbers-${text}`);
  } catch (error) {
    const why = LIVE ? error.message : "An export has values at the end of each stage: choose the last pass of one.";
    home.replaceChildren(make("p", { className: "faint" }, why));
    return;
  }
  const value = content.values[id];
  if (!value) {
    home.replaceChildren(make("p", { className: "faint" }, content.note ?? none));
    return;
  }
  const rows = [[isTensor ? "value" : "of all elements", `${value.dtype}[${value.shape.join(", ")}]`]];
  if (value.min !== undefined) rows.push(["from", `${value.min} to ${value.max}`], ["mean", `${value.mean}, deviation ${value.deviation}`]);
  if (value.other) rows.push(["not finite", value.other]);
  rows.push(["first", value.first.join(", ")]);
  if (value.error) rows.push(["error against float64", value.error]);
  home.replaceChildren(facts(rows));
  if (value.histogram) home.append(bins(value));
}

function bins(value) {
  const most = Math.max(...value.histogram);
  const bars = value.histogram.map((count) => {
    const bar = make("b", { title: String(count) });
    bar.style.height = `${(100 * count) / most}%`;
    return bar;
  });
  const title = `how many elements lie where, from ${value.min} to ${value.max}`;
  return make("div", { className: "bins", role: "img", "aria-label": title, title }, ...bars);
}

// The kernels' text.

async function showKernel(number, lines = [], compare = false) {
  now.kernel = number;
  show("code");
  const { kernels } = await load(`code-${now.version.number}`);
  const entries = kernels.map((kernel, n) => {
    const entry = button(make("span", { className: "name" }, kernel.symbol), () => guarded(() => showKernel(n)), { className: "item" });
    if (kernel.launches) entry.append(make("span", { className: "number" }, `${kernel.launches}×`));
    if (n === number) entry.setAttribute("aria-current", "true");
    return entry;
  });
  by("#code .list").replaceChildren(...entries);
  const kernel = kernels[number];
  if (!kernel) return;
  const before = await kernelBefore(kernel);
  const texts = [{ number: kernel.text, lines: await linesOf(kernel.text) }];
  const isDiff = compare && before !== null;
  if (isDiff) texts.unshift({ number: before, lines: await linesOf(before) });
  const count = texts[texts.length - 1].lines.length;
  const blocks = isDiff ? (await load(`diff-${before}-${kernel.text}`)).blocks : [[1, 0, count, 0, count]];
  const panes = make("div", { className: "panes" });
  const tools = make("div", { className: "tools" }, "a click on a line leads to its IR");
  if (before !== null) tools.append(button(compare ? "text alone" : "compare with the version before", () => guarded(() => showKernel(number, [], !compare))));
  by("#code .view").replaceChildren(make("h2", {}, kernel.symbol), make("p", { className: "faint" }, someNames(kernel.nodes)), tools, panes);
  viewers.code = new Viewer(panes, texts, blocks, null, (text, line) => guarded(() => toIr(kernel, text, line)));
  if (lines.length) viewers.code.go(kernel.text, lines);
}

async function kernelBefore(kernel) {
  const { versions } = now.state;
  const at = versions.findIndex((each) => each.number === now.version.number);
  if (at < 1) return null;
  const { kernels } = await load(`code-${versions[at - 1].number}`);
  const other = kernels.find((each) => each.symbol === kernel.symbol);
  return other && other.text !== kernel.text ? other.text : null;
}

async function toIr(kernel, text, line) {
  if (text !== kernel.text) return;
  const found = Object.keys(kernel.lines).filter((each) => kernel.lines[each].includes(line)).map(Number);
  if (!found.length) {
    tell("The line is not of an operation.", true);
    return;
  }
  show("passes");
  await showPass(now.version.passes.length - 1);
  viewers.passes.go(now.version.last, found);
}

// Decisions.

function showDecisions() {
  const { versions } = now.state;
  const home = by("#decisions");
  const heads = ["version", "change", "beside the version before", "how many times as fast", "against the definition"];
  const ratios = (each) => (each.ratio ? `${each.ratio}${each.groupRatio ? `; its launches ${each.groupRatio}` : ""}` : "");
  const rows = versions.map((each) => {
    const cells = [[String(each.number)], [make("code", {}, each.change)], [each.timed ?? each.note], [ratios(each)], verdicts(each)];
    const isWrong = each.verdicts.some((one) => !one.agrees);
    return make("tr", { className: isWrong ? "failed" : "" }, ...cells.map((content, n) => make("td", { "data-name": heads[n] }, ...content)));
  });
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))), make("tbody", {}, ...rows));
  const tools = make("div", { className: "tools" });
  if (LIVE) {
    tools.append(button("undo the last edit", () => act("undo"), { disabled: now.busy || versions.length < 2, id: "undo" }),
      button(versions.length < 2 ? "compare with the definition" : "time and check again", () => act("measure"), { disabled: now.busy, id: "measure" }),
      button("save the IR with these decisions", () => guarded(save), { id: "save" }));
  }
  const filter = make("input", { type: "search", placeholder: "filter groups", "aria-label": "filter groups" });
  const groups = make("div", {}, ...now.version.groups.map(groupEntry));
  filter.oninput = () => {
    const word = filter.value.toLowerCase();
    for (const each of groups.children) each.hidden = !each.textContent.toLowerCase().includes(word);
  };
  home.replaceChildren(make("h2", {}, "versions"), tools, make("div", { className: "scroll" }, table), make("h2", {}, `groups (${now.version.groups.length})`),
    make("p", { className: "faint" }, LIVE ? "Open a group to edit its schedule." : "treadle explore, without --export, edits them."), filter, groups);
}

function verdicts(version) {
  if (!version.verdicts.length) return ["not compared yet"];
  return version.verdicts.map((each) => make("div", { className: each.agrees ? "agrees" : "error" }, each.where ? `${each.where}: ` : "", each.text));
}

function groupEntry(group, number) {
  const names = group.nodes.map(nodeName).join(", ");
  const summary = make("summary", {}, make("b", {}, group.label), make("span", { className: "faint" }, group.type), make("code", {}, group.schedule), make("span", { className: "faint" }, names));
  const place = make("div", {}, link("where it stands in the IR", () => guarded(() => toGroup(group))));
  const form = make("div");
  const entry = make("details", { className: "group", "data-group": number }, summary, place, form);
  entry.ontoggle = () => {
    if (LIVE && entry.open && !form.hasChildNodes()) guarded(() => addForm(form, group, number));
  };
  return entry;
}

async function toGroup(group) {
  show("passes");
  await showPass(now.version.passes.map((pass) => pass.after).lastIndexOf(now.version.scheduled));
  viewers.passes.go(now.version.scheduled, [group.line]);
}

const USE = /^#schedule\.use<"([^"]*)"(?:, \{(.*)\})?>$/;

function knobsOf(schedule) {
  const found = schedule.match(USE);
  if (!found) return [null, new Map()];
  const pairs = (found[2] ?? "").split(/, (?=\w+ = )/).filter(Boolean).map((pair) => [pair.slice(0, pair.indexOf(" = ")), pair.slice(pair.indexOf(" = ") + 3)]);
  return [found[1], new Map(pairs)];
}

async function addForm(home, group, number) {
  const options = await load(`options-${number}`);
  const text = make("textarea", { rows: 3, value: group.schedule, "aria-label": "the schedule as text", spellcheck: false });
  const knobs = make("div", { className: "knobs" });
  const names = options.templates.map((each) => each.name);
  const [current] = knobsOf(group.schedule);
  const template = make("select", { "aria-label": "template" }, ...[...new Set([current ?? "", ...names])].map((name) => make("option", { value: name, selected: name === current }, name || "(as text)")));
  const write = (name, values) => {
    text.value = `#schedule.use<"${name}", {${[...values].map(([key, value]) => `${key} = ${value}`).join(", ")}}>`;
  };
  const arrange = () => {
    const [name, values] = knobsOf(text.value.trim());
    const found = options.templates.find((each) => each.name === name);
    knobs.replaceChildren(...(found?.knobs ?? []).flatMap((knob) => {
      const choices = [...new Set([...(values.has(knob.name) ? [values.get(knob.name)] : [""]), ...knob.values])];
      const select = make("select", { "aria-label": knob.name, "data-knob": knob.name, onchange: () => write(name, values.set(knob.name, select.value)) },
        ...choices.map((value) => make("option", { value, selected: value === (values.get(knob.name) ?? "") }, value || "(not given)")));
      return [make("b", {}, knob.name), select, make("span", { className: "faint" }, knob.meaning)];
    }));
  };
  template.onchange = () => {
    text.value = options.templates.find((each) => each.name === template.value)?.default ?? group.schedule;
    arrange();
  };
  text.oninput = arrange;
  const equal = make("input", { type: "checkbox", checked: group.equal > 1 });
  const error = make("p", { className: "error", role: "alert" });
  const apply = button("compile, time and check", () => act("edit", { group: number, schedule: text.value, equal: equal.checked }, error), { disabled: now.busy, className: "apply" });
  home.replaceChildren(make("label", {}, "template ", template), knobs, text,
    make("div", { className: "tools" }, apply, button("default", () => { text.value = options.default; arrange(); }),
      ...(group.equal > 1 ? [make("label", {}, equal, ` the ${group.equal} groups that are equal`)] : [])), error);
  arrange();
}

async function save() {
  const file = URL.createObjectURL(new Blob([await ask("module")], { type: "text/plain" }));
  make("a", { href: file, download: "schedule.mlir" }).click();
  setTimeout(() => URL.revokeObjectURL(file), 1000);
}

// Has the server do something, and shows meanwhile what it does.
async function act(what, body = {}, error = null) {
  if (now.busy) return;
  now.busy = true;
  if (error) error.textContent = "";
  for (const each of document.querySelectorAll(".apply,#undo,#measure")) each.disabled = true;
  tell("…");
  const clock = setInterval(() => ask("progress").then(({ step }) => now.busy && tell(step || "…"), () => {}), 500);
  try {
    const state = await ask(what, body);
    now.busy = false;
    await enter(state);
    tell("");
  } catch (problem) {
    if (error) error.textContent = problem.message;
    tell(error ? "" : problem.message, true);
  } finally {
    clearInterval(clock);
    now.busy = false;
    for (const each of document.querySelectorAll(".apply,#measure")) each.disabled = false;
    if (by("#undo")) by("#undo").disabled = now.state.versions.length < 2;
  }
}

// Shows the last version of a state.
async function enter(state) {
  const last = state.versions[state.versions.length - 1];
  const isNew = now.version?.number !== last.number;
  const [tab, open] = [now.tab, [...document.querySelectorAll(".group[open]")].map((each) => each.dataset.group)];
  now.state = state;
  now.version = await load(`version-${last.number}`);
  by("#facts").textContent = [...state.facts, now.version.compiling].join(" · ");
  showDecisions();
  for (const number of open) by(`.group[data-group="${number}"]`)?.setAttribute("open", "");
  if (!isNew) return;
  const asked = /^#pass-(\d+)$/.exec(location.hash);
  const edit = now.version.passes.findLastIndex((pass) => pass.name === "edit");
  const first = edit >= 0 ? edit : now.version.passes.findIndex((pass) => pass.before !== pass.after);
  await showPass(asked && !now.started ? Math.min(Number(asked[1]) - 1, now.version.passes.length - 1) : first);
  now.started = true;
  if (tab === "code") await showKernel(0);
}

for (const each of document.querySelectorAll("nav [data-tab]")) {
  each.onclick = () => guarded(async () => {
    show(each.dataset.tab);
    if (each.dataset.tab === "code") await showKernel(now.kernel);
    if (each.dataset.tab === "decisions") by("#value").hidden = true;
    else by("#value").hidden = !now.value;
    for (const viewer of Object.values(viewers)) viewer.draw();
  });
}
guarded(async () => {
  tell("loading …");
  show("passes");
  await enter(await load("state"));
  tell("");
});
