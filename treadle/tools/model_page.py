"""The page of `treadle report`: one HTML file with pictures, tables, texts, and a small script that links them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from treadle.backends.c_like.names import comment_text
from treadle.bench.interleave import Times
from treadle.bench.model import Benchmark, KernelTime
from treadle.dialects.location import ModelNode
from treadle.tools import charts
from treadle.tools.bench_command import kernel_cells, peaks_text
from treadle.tools.certify_command import Certificate, add_certificates
from treadle.tools.graph_picture import STYLE, Box, Edge, Lifetime, Row, arena_picture, graph_picture
from treadle.tools.model_report import HOST, Kernel, ModelReport, Step, Value
from treadle.tools.oracle import Comparison
from treadle.tools.report_page import add_tuning

_SCRIPT = Path(__file__).with_name("report.js")
_PAGE_STYLE = """
:root{--hot:#e8590c;--mark:#fff3bf}
@media (prefers-color-scheme:dark){:root{--hot:#e8590c;--mark:#4a3d12}}
html{scroll-padding:60px 0 76px}body{padding:0 20px 90px}header{padding-top:16px}
nav{position:sticky;top:0;z-index:2;background:var(--page);border-bottom:1px solid var(--line);padding:8px 0;
display:flex;gap:14px;overflow-x:auto;white-space:nowrap}
main>section{content-visibility:auto;contain-intrinsic-size:auto 900px}
section:first-of-type h2{border:0;margin-top:4px}
.frame,.scroll{overflow:auto;max-height:76vh;border:1px solid var(--line);border-radius:4px;margin:6px 0}
.frame{padding:4px}.frame svg{display:block;margin:0 auto}.scroll table{margin:0 8px}
.scroll thead th{position:sticky;top:0;background:var(--page)}.scroll caption{padding:4px 0}
td{min-width:6em;max-width:420px;overflow-wrap:anywhere}td.number{min-width:0;overflow-wrap:normal}
td.links,td code,#launches td:nth-child(2),#kernels td:nth-child(-n+2),#nodes td:first-child,
#decisions td:first-child,#fusion td:not(:nth-child(3)){min-width:14em}figure{margin:8px 0}td code{display:block}
tr.on td{background:var(--mark)}tr.off{display:none}
details.on>summary{background:var(--mark)}
th button{all:unset;cursor:pointer}th button:focus-visible{outline:2px solid var(--timed)}
th[aria-sort=ascending] button::after{content:" \\2191"}th[aria-sort=descending] button::after{content:" \\2193"}
input[type=search]{font:inherit;padding:4px 8px;width:min(320px,100%);margin-top:6px}
.tools{display:flex;gap:6px;margin-top:6px}.tools button,#bar button{font:inherit;padding:2px 10px}
.bar{min-width:130px}.bar span{display:block;height:9px;border-radius:2px;background:var(--hot);margin-top:6px}
.bar span span{background:var(--timed);margin:0}
.key{display:inline-block;width:12px;height:9px;border-radius:2px;background:var(--hot)}.key.least{background:var(--timed)}
pre .line{display:block}pre .line:has(a.on){background:var(--mark)}
#bar{position:fixed;left:0;right:0;bottom:0;z-index:3;display:flex;gap:8px;align-items:center;overflow-x:auto;
padding:8px 16px;background:var(--panel);border-top:2px solid var(--chosen);white-space:nowrap}
#bar[hidden]{display:none}#bar b{max-width:40vw;overflow:hidden;text-overflow:ellipsis;flex-shrink:0}
"""
_MOST_TEXT = 4_000_000
"""Letters of texts on a page, those of kernels that take most of the time first; the folder has all."""
_MANY = 3_000
"""Nodes of a model, and pairs of neighbours, above which tables leave out what makes a page too large for a browser."""
_FEW_NODES = 6
"""Nodes that a box of the graph lists, and the row of a launch."""


def model_page(report: ModelReport) -> str:
    """The whole page."""
    root, body = charts.page(report.title)
    head = root.find("head")
    assert head is not None
    SubElement(head, "style").text = STYLE + _PAGE_STYLE
    page = _Page(report)
    header = SubElement(body, "header")
    SubElement(header, "h1").text = report.title
    facts = SubElement(header, "dl")
    for name, value in report.facts:
        SubElement(facts, "dt").text = name
        SubElement(facts, "dd").text = value
    for note in report.notes:
        SubElement(header, "p", {"class": "faint"}).text = note
    menu, main = SubElement(body, "nav", {"aria-label": "sections"}), SubElement(body, "main")
    page.add_graph(main)
    page.add_launches(main)
    page.add_kernels(main)
    page.add_nodes(main)
    page.add_groups(main)
    page.add_fusion(main)
    page.add_memory(main)
    page.add_errors(main)
    page.add_range(main)
    if report.tuning is not None:
        section = _section(main, "tuning", "tuning")
        add_tuning(section, section, report.tuning)
    page.add_texts(main)
    for section in main.findall("section"):
        SubElement(menu, "a", {"href": f"#{section.get('id')}"}).text = section.get("data-name")
    SubElement(body, "div", {"id": "bar", "hidden": "", "role": "status"})
    SubElement(body, "script").text = _SCRIPT.read_text()
    return charts.page_text(root)


class _Page:
    """Adds the sections of a report. Ids: `n3` is a node, `g3` a group, `l3` a step, `k3` a kernel, by number."""

    def __init__(self, report: ModelReport):
        self.report = report
        self.node_ids = {node: f"n{n}" for n, node in enumerate(report.nodes)}
        self.kernel_ids = {kernel.name: f"k{n}" for n, kernel in enumerate(report.kernels)}
        self.steps_of_group: dict[int, list[int]] = {}
        self.steps_of_kernel: dict[str, list[int]] = {}
        self.steps_of_node: dict[ModelNode, list[int]] = {}
        self.groups_of_node: dict[ModelNode, list[int]] = {}
        for number, step in enumerate(report.steps):
            if step.group is not None:
                self.steps_of_group.setdefault(step.group, []).append(number)
            for kernel in step.kernels:
                self.steps_of_kernel.setdefault(kernel, []).append(number)
            for node in step.nodes:
                self.steps_of_node.setdefault(node, []).append(number)
        for number, group in enumerate(report.decisions.groups):
            for node in group.nodes:
                self.groups_of_node.setdefault(node, []).append(number)

    @cached_property
    def heats(self) -> tuple[list[float], str]:
        """For each step, how much it takes of what the hottest takes, and what that is."""
        steps = self.report.steps
        timed = self.report.benchmark is not None and any(step.time and step.time.seconds for step in steps)
        taken = [
            0.0 if step.time is None else step.time.seconds if timed else float(step.time.nbytes) for step in steps
        ]
        most = max(taken, default=0.0) or 1.0
        return [each / most for each in taken], "time" if timed else "bytes"

    def ids(self, steps: Iterable[int] = (), groups: Iterable[int] = (), nodes: Iterable[ModelNode] = ()) -> list[str]:
        """The ids of these, and of the steps' kernels."""
        numbers = list(steps)
        kernels = [kernel for n in numbers for kernel in self.report.steps[n].kernels]
        found = [*(f"l{n}" for n in numbers), *(f"g{n}" for n in groups)]
        found += [self.kernel_ids[kernel] for kernel in kernels if kernel in self.kernel_ids]
        return list(dict.fromkeys((*found, *(self.node_ids[node] for node in nodes))))

    def around(self, number: int) -> list[str]:
        """Everything that belongs to a step, itself first."""
        step = self.report.steps[number]
        return self.ids([number], [] if step.group is None else [step.group], step.nodes)

    # Pictures.

    def add_graph(self, main: Element) -> None:
        """Boxes of inputs, steps and outputs."""
        report = self.report
        given = [value for value in report.values if value.writer is None]
        results = [value for value in report.values if value.kind == "output"]
        boxes = [Box(f"input {value.name}", "") for value in given]
        boxes += [self._box(number, step) for number, step in enumerate(report.steps)]
        boxes += [Box(f"output {value.name}", "") for value in results]
        edges = _edges(report.values, given, results, len(report.steps))
        heat = self.heats[1]
        section = _section(main, "graph", "graph")
        _say(
            section,
            f"What a call launches, from above to below, with the model's nodes in it; the redder, the more {heat}. "
            "Choose a node or a launch to mark all that belongs to it.",
        )
        frame = SubElement(section, "div", {"class": "frame"})
        frame.append(graph_picture(boxes, edges, f"{report.title}: {len(report.steps)} steps of a call"))

    def _box(self, number: int, step: Step) -> Box:
        rows: list[Row] = []
        if step.time is not None and step.time.seconds and self.report.benchmark is not None:
            _, _, us, share, *_ = kernel_cells(step.time, self.report.benchmark)
            rows.append(Row(f"{us} µs, {share}"))
        rows += [Row(_name(node), self.node_ids[node]) for node in step.nodes[:_FEW_NODES]]
        if len(step.nodes) > _FEW_NODES:
            rows.append(Row(f"and {len(step.nodes) - _FEW_NODES} more"))
        link, *related = self.around(number)
        name = ", ".join(step.kernels) if step.kind == "launch" else f"{step.kind}: {', '.join(step.kernels)}"
        return Box(f"{number} {name}", link, tuple(rows), tuple(related), self.heats[0][number])

    def add_memory(self, main: Element) -> None:
        """The arena as a picture, and its tensors as a table."""
        report = self.report
        held = [value for value in report.values if value.kind == "arena" and value.writer is not None]
        if not held:
            return
        section = _section(main, "memory", "memory")
        _say(
            section,
            f"The arena of {report.arena_bytes / 1e6:.3f} MB, in which tensors share memory: from the launch that "
            "writes one to the last that reads it.",
        )
        lives = [self._lifetime(value) for value in held]
        frame = SubElement(section, "div", {"class": "frame"})
        frame.append(arena_picture(lives, report.arena_bytes, len(report.steps), lambda n: f"l{n}"))
        headings = ("bytes", "from byte", "first launch", "last launch")
        rows = charts.table(section, "tensors in the arena", ["tensor"], headings)
        for life in lives:
            row = SubElement(rows, "tr", {"data-r": life.link})
            SubElement(SubElement(row, "td"), "a", {"href": f"#{life.link}"}).text = life.name
            _numbers(row, (life.nbytes, life.start, life.first, life.last))

    def _lifetime(self, value: Value) -> Lifetime:
        assert value.writer is not None
        last = max(value.readers, default=value.writer)
        name = value.name or f"result of launch {value.writer}"
        link, *related = self.around(value.writer)
        return Lifetime(name, value.start, value.nbytes, value.writer, last, link, tuple(related))

    # Tables.

    def add_launches(self, main: Element) -> None:
        """A row a step, with a bar of its time and of the attainable one."""
        report, result = self.report, self.report.benchmark
        section = _section(main, "launches", "launches")
        timed = result if result is not None and result.kernels else None
        _add_rates(section, timed)
        numbers, after = _headings(timed)
        rows = charts.table(
            section, "steps of a call, in order", ["number", "runs", "nodes of the model", "decision"], numbers, after
        )
        most = max((step.time.seconds for step in report.steps if step.time), default=0.0)
        for number, step in enumerate(report.steps):
            row = SubElement(rows, "tr", {"id": f"l{number}"})
            row.set("data-r", " ".join(self.around(number)))
            SubElement(SubElement(row, "td"), "a", {"href": f"#l{number}"}).text = str(number)
            self._links(row, [(kernel, self.kernel_ids.get(kernel, "")) for kernel in step.kernels])
            self._nodes(row, step.nodes, _FEW_NODES)
            groups = [] if step.group is None else [(report.decisions.groups[step.group].label, f"g{step.group}")]
            self._links(row, groups)
            _add_time(row, step.time, timed, most)

    def add_kernels(self, main: Element) -> None:
        """A row a kernel, as `treadle bench` prints them."""
        report, result = self.report, self.report.benchmark
        timed = result if result is not None and result.kernels else None
        section = _section(main, "kernels", "kernels")
        numbers, after = _headings(timed)
        caption = "kernels; equal launches share one"
        rows = charts.table(section, caption, ["kernel", "computes", "launches"], numbers, after)
        together = {kernel.name: kernel for kernel in timed.kernels} if timed else {}
        most = max((kernel.seconds for kernel in together.values()), default=0.0)
        ordered = sorted(report.kernels, key=lambda each: -self._taken(each, together))
        for kernel in ordered:
            steps = self.steps_of_kernel.get(kernel.name, [])
            name = self.kernel_ids[kernel.name]
            row = SubElement(rows, "tr", {"data-r": " ".join(self._around_kernel(kernel))})
            SubElement(SubElement(row, "td"), "a", {"href": f"#{name}"}).text = kernel.name
            SubElement(row, "td").text = kernel.comment
            self._links(row, [(str(n), f"l{n}") for n in steps])
            _add_time(row, together.get(kernel.name) or self._counted(kernel), timed, most)

    def _around_kernel(self, kernel: Kernel) -> list[str]:
        steps = self.steps_of_kernel.get(kernel.name, [])
        groups = [group for n in steps if (group := self.report.steps[n].group) is not None]
        nodes = [node for n in steps for node in self.report.steps[n].nodes]
        return [self.kernel_ids[kernel.name], *self.ids((), groups, nodes), *(f"l{n}" for n in steps)]

    def _counted(self, kernel: Kernel) -> KernelTime | None:
        """Operations and bytes of a kernel's launches, where these are known."""
        times = [self.report.steps[n].time for n in self.steps_of_kernel.get(kernel.name, [])]
        launches = tuple(launch for time in times if time is not None for launch in time.launches)
        return KernelTime(kernel.name, launches, 0.0) if launches else None

    def _taken(self, kernel: Kernel, together: Mapping[str, KernelTime]) -> float:
        time = together.get(kernel.name) or self._counted(kernel)
        return 0.0 if time is None else time.seconds if together else float(time.nbytes)

    def add_nodes(self, main: Element) -> None:
        """A row a node of the model."""
        section = _section(main, "nodes", "nodes")
        timed = self.heats[1] == "time"
        numbers = ["µs of its launches"] if timed else []
        rows = charts.table(
            section, "nodes of the model; a launch computes several", ["node", "kind", "launches", "groups"], numbers
        )
        for node, name in self.node_ids.items():
            steps, groups = self.steps_of_node.get(node, []), self.groups_of_node.get(node, [])
            row = SubElement(rows, "tr", {"id": name})
            row.set("data-r", " ".join([name, *self.ids(steps, groups)]))
            SubElement(SubElement(row, "td"), "a", {"href": f"#{name}"}).text = node.name
            SubElement(row, "td").text = node.kind
            self._links(row, [(str(n), f"l{n}") for n in steps], "none: computed at compile time, or no work")
            self._links(row, [(self.report.decisions.groups[n].label, f"g{n}") for n in groups])
            if timed:
                found = [self.report.steps[n].time for n in steps]
                _numbers(row, [f"{sum(each.seconds for each in found if each) * 1e6:.1f}" if steps else ""])

    def add_groups(self, main: Element) -> None:
        """A row a group: the schedule that was decided on."""
        groups = self.report.decisions.groups
        if not groups:
            return
        section = _section(main, "decisions", "decisions")
        _say(section, "Groups of operators that share a kernel, and the schedule of each. Not every group is a launch: "
                      "some results are written where they are needed at once.")  # fmt: skip
        rows = charts.table(section, "groups", ["group", "schedule", "launches", "nodes of the model"], ())
        for number, group in enumerate(groups):
            steps = self.steps_of_group.get(number, [])
            row = SubElement(rows, "tr", {"id": f"g{number}"})
            row.set("data-r", " ".join([f"g{number}", *self.ids(steps, (), group.nodes)]))
            SubElement(SubElement(row, "td"), "a", {"href": f"#g{number}"}).text = group.label
            SubElement(SubElement(row, "td"), "code").text = group.schedule
            self._links(row, [(str(n), f"l{n}") for n in steps])
            self._nodes(row, group.nodes)

    def add_fusion(self, main: Element) -> None:
        """A row for each pair of neighbours: fused or not, and why."""
        remarks = self.report.decisions.remarks
        if not remarks:
            return
        section = _section(main, "fusion", "fusion")
        fused = sum(remark.fused for remark in remarks)
        said = f"{fused} of {len(remarks)} pairs of neighbours were fused."
        shown = remarks
        if len(remarks) > _MANY:
            shown = sorted(remarks, key=lambda remark: remark.fused)[:_MANY]
            said += f" The table has {_MANY} of them, those first that were not."
        _say(section, said)
        rows = charts.table(section, "pairs of neighbours", ["producer", "user", "fused", "why, or why not"], ())
        for remark in shown:
            nodes = [self.node_ids[node] for node in remark.nodes if node in self.node_ids]
            row = SubElement(rows, "tr", {"data-r": " ".join(nodes)})
            for text in (remark.producer, remark.consumer, "yes" if remark.fused else "no", remark.reason):
                SubElement(row, "td").text = text

    def add_errors(self, main: Element) -> None:
        """A row an output and a comparison with the definition."""
        if not self.report.checks:
            return
        section = _section(main, "errors", "errors")
        _say(section, "Outputs compared with the model's definition, evaluated in float64; each element has a limit "
                      "of its rounding error.")  # fmt: skip
        headings = ("largest error", "of its limit", "root mean square", "undecided", "elements")
        rows = charts.table(section, "errors", ["output", "at", "computed by"], headings, ["verdict"])
        for where, check in self.report.checks:
            compared = [*(("treadle", each) for each in check.own), *((check.peer, each) for each in check.reference)]
            for who, each in compared:
                row = SubElement(rows, "tr", {} if each.agrees else {"class": "failed"})
                for text in (each.name, where, who):
                    SubElement(row, "td").text = text
                _numbers(row, _error_cells(each))
                SubElement(row, "td").text = "agrees" if each.agrees else f"differs {each.problem}".strip()

    # Ranges, and texts.

    def add_range(self, main: Element) -> None:
        """Times along the range, and which kernel a call takes."""
        report = self.report
        if not report.symbols:
            return
        section = _section(main, "range", "range")
        _say(section, f"One artifact serves every call of {report.symbols}.")
        if report.along:
            figure = SubElement(section, "figure")
            figure.append(times_along(report.along, report.certificates, report.title))
            rows = charts.table(
                section, "milliseconds a call", (), (*report.along[0][0], "median", "first quartile", "third quartile")
            )
            for values, times in report.along:
                low, middle, high = (f"{each * 1e3:.3f}" for each in times.quartiles)
                _numbers(SubElement(rows, "tr"), (*values.values(), middle, low, high))
        add_certificates(section, report.certificates, report.always)

    def add_texts(self, main: Element) -> None:
        """The program that launches, and the kernels, each line that names nodes or a launch linked to them."""
        section = _section(main, "texts", "texts")
        left = _MOST_TEXT - len(self.report.program)
        if self.report.program and left > 0:
            self._add_program(section)
        order = sorted(self.report.kernels, key=lambda each: -max(
            (self.heats[0][n] for n in self.steps_of_kernel.get(each.name, [])), default=0.0))  # fmt: skip
        for kernel in order:
            left -= len(kernel.text)
            details = SubElement(section, "details", {"data-r": " ".join(self._around_kernel(kernel))})
            SubElement(details, "summary").text = f"{kernel.name}: {kernel.comment}" if kernel.comment else kernel.name
            named = {"id": self.kernel_ids[kernel.name], "data-name": kernel.name}
            if left < 0 or not kernel.text:
                SubElement(details, "p", named).text = f"The text is in the folder: {kernel.file}"
                continue
            self._add_lines(SubElement(details, "pre", named), kernel)
            left -= len(kernel.ir)
            if left > 0 and kernel.ir:
                inner = SubElement(details, "details")
                SubElement(inner, "summary").text = "the operations that it was printed from"
                SubElement(SubElement(inner, "pre"), "code").text = kernel.ir

    def _add_lines(self, pre: Element, kernel: Kernel) -> None:
        """A kernel's text; the comment that names nodes leads to them."""
        located = [self.report.steps[n].located for n in self.steps_of_kernel.get(kernel.name, [])]
        linked = {node: self.node_ids[node] for nodes in located for node in nodes}
        before, comment, behind = _comment_of(kernel.text, linked)
        code = SubElement(pre, "code")
        code.text = before
        if not comment:
            return
        rest, last = comment, code
        for node, name in linked.items():
            head, found, tail = rest.partition(comment_text(str(node)))
            if not found or head.strip(", "):
                continue
            _append_text(code, last, head)
            last = SubElement(code, "a", {"href": f"#{name}", "data-r": name})
            last.text, rest = found, tail
        _append_text(code, last, rest + behind)

    def _add_program(self, section: Element) -> None:
        """The text of `treadle_run`; its calls of kernels lead to the launches, if all of them are in @main."""
        details = SubElement(section, "details")
        SubElement(details, "summary").text = HOST.rpartition("/")[2]
        code = SubElement(SubElement(details, "pre"), "code")
        calls = [line for line in self.report.program.splitlines() if _CALL in line]
        is_straight = len(calls) == len(self.report.steps)
        number, last = 0, code
        for line in self.report.program.splitlines(keepends=True):
            if not is_straight or _CALL not in line:
                _append_text(code, last, line)
                continue
            indent = line[: len(line) - len(line.lstrip())]
            _append_text(code, last, indent)
            last = SubElement(code, "a", {"href": f"#l{number}", "data-r": f"l{number}"})
            last.text, number = line.strip(), number + 1
            _append_text(code, last, "\n")

    def _nodes(self, row: Element, nodes: Sequence[ModelNode], most: int | None = None) -> None:
        """A cell of so many nodes; of a model of very many, only their kinds, whose links lead to the names."""
        many = len(self.node_ids) > _MANY
        shown = [(node.kind if many else _name(node), self.node_ids[node]) for node in nodes[:most]]
        self._links(row, [*shown, *([(f"and {len(nodes) - len(shown)} more", "")] if len(shown) < len(nodes) else [])])

    def _links(self, row: Element, links: Sequence[tuple[str, str]], otherwise: str = "") -> None:
        """A cell of links, with commas."""
        cell = SubElement(row, "td", {"class": "links"} if len(links) > 1 else {})
        if not links:
            cell.text = otherwise
        for number, (text, name) in enumerate(links):
            part = SubElement(cell, "a", {"href": f"#{name}"}) if name else SubElement(cell, "span")
            part.text = text
            part.tail = ", " if number + 1 < len(links) else ""


_CALL = "treadle_pool_run(pool, "


def _append_text(parent: Element, last: Element, text: str) -> None:
    """Text behind the last child of an element, or in it if there is none yet."""
    if last is parent:
        parent.text = (parent.text or "") + text
    else:
        last.tail = (last.tail or "") + text


def _comment_of(text: str, nodes: Iterable[ModelNode]) -> tuple[str, str, str]:
    """A kernel's text before, in and behind the comment that names its nodes; all before it if there is none."""
    for opening, closing in (("/* ", " */\n"), ("// ", "\n")):
        start = text.find(f"\n{opening}") + 1
        end = text.find(closing, start)
        start += len(opening)
        if (
            start > len(opening)
            and end > start
            and any(text.startswith(comment_text(str(each)), start) for each in nodes)
        ):
            return text[:start], text[start:end], text[end:]
    return text, "", ""


def _edges(
    values: Sequence[Value], given: Sequence[Value], results: Sequence[Value], steps: int
) -> list[Edge]:  # fmt: skip
    """The edges between boxes: inputs, then steps, then outputs."""
    first = {id(value): n for n, value in enumerate(given)}
    found = dict.fromkeys(
        (first[id(value)] if value.writer is None else len(given) + value.writer, len(given) + reader)
        for value in values
        for reader in value.readers
    )
    ends = [
        (len(given) + value.writer, len(given) + steps + n)
        for n, value in enumerate(results)
        if value.writer is not None
    ]
    return [edge for edge in (*found, *ends) if edge[0] < edge[1]]


def _section(main: Element, name: str, heading: str) -> Element:
    section = SubElement(main, "section", {"id": name, "data-name": heading})
    SubElement(section, "h2").text = heading
    return section


def _say(section: Element, text: str) -> None:
    SubElement(section, "p").text = text


def _name(node: ModelNode) -> str:
    """A node with its whole name."""
    return f"{node.kind} '{node.name}'"


def _add_rates(section: Element, timed: Benchmark | None) -> None:
    """What the bars mean, and the roofline."""
    if timed is None:
        return
    said = SubElement(section, "p")
    SubElement(
        said, "span", {"class": "key"}
    ).tail = f" measured; beside the kernels a call takes {timed.overhead_seconds * 1e3:.3f} ms "
    if timed.is_disturbed:
        return
    SubElement(said, "span", {"class": "key least"}).tail = (
        f" attainable: {timed.least_seconds * 1e3:.3f} of {timed.kernel_seconds * 1e3:.3f} ms at this machine's peaks, "
        f"{peaks_text(timed.peaks)}; each kernel's data are taken to be in the smallest level of memory that holds all "
        "that its launches touch in a call"
    )


def _headings(timed: Benchmark | None) -> tuple[list[str], list[str]]:
    """Of what a launch or a kernel takes."""
    counts = ["operations", "bytes"]
    return (
        (["µs", "share", "GFLOP/s", "GB/s", "of the roofline", "data in", *counts], ["time"]) if timed else (counts, [])
    )


def _add_time(row: Element, time: KernelTime | None, timed: Benchmark | None, most: float) -> None:
    """Cells below `_headings`; most: the seconds of the longest bar."""
    counts = ("", "") if time is None else (str(time.operations), str(time.nbytes))
    if timed is None:
        _numbers(row, counts)
        return
    cells = [""] * 6 if time is None else kernel_cells(time, timed)[2:8]
    _numbers(row, (*cells, *counts))
    cell = SubElement(row, "td", {"class": "bar"})
    if time is not None and time.seconds and most:
        bar = SubElement(cell, "span", {"style": f"width:{100 * time.seconds / most:.2f}%"})
        least = 0.0 if timed.is_disturbed else min(time.of_the_roofline(timed.peaks), 1.0)
        SubElement(bar, "span", {"style": f"width:{100 * least:.1f}%"})


def _numbers(row: Element, cells: Iterable[object]) -> None:
    for cell in cells:
        SubElement(row, "td", {"class": "number"}).text = str(cell)


def _error_cells(each: Comparison) -> tuple[str, ...]:
    if each.absolute == inf or each.undecided == each.size:
        return ("", "", "", str(each.undecided), str(each.size))
    return (f"{each.absolute:.3g}", f"{each.worst:.3g}", f"{each.mean:.3g}", str(each.undecided), str(each.size))


def times_along(
    along: Sequence[tuple[Mapping[str, int], Times]], certificates: Sequence[Certificate], name: str
) -> Element:
    """The median times of calls, with their quartiles, over the symbol that varies, both axes logarithmic; over the
    numbers of the points where several vary. Dashed lines are where a dispatch takes another kernel."""
    varying = [key for key in along[0][0] if len({values[key] for values, _ in along}) > 1]
    is_one = len(varying) == 1 and all(values[varying[0]] > 0 for values, _ in along)
    places = [float(values[varying[0]]) if is_one else n + 1.0 for n, (values, _) in enumerate(along)]
    across = charts.across(places)
    quartiles = [tuple(each * 1e3 for each in times.quartiles) for _, times in along]
    up = charts.up([value for each in quartiles for value in each])
    root = charts.chart(f"{name}: times along the range", f"{len(along)} points. The table below has the same numbers.")
    charts.draw_axes(root, across, up, f"{varying[0] if is_one else 'point'}, log scale", "ms a call, log scale")
    borders = {
        high + 0.5
        for certificate in certificates
        if is_one and certificate.names == (varying[0],)
        for leaf in certificate.leaves
        for _, high in leaf.extents
    }
    for border in sorted(each for each in borders if min(places) <= each < max(places)):
        charts.line(root, "border", [(across(border), up(up.low)), (across(border), up(up.high))])
    charts.line(root, "kernel", [(across(x), up(each[1])) for x, each in zip(places, quartiles, strict=True)])
    for x, (low, middle, high), (values, _) in zip(places, quartiles, along, strict=True):
        charts.line(root, "axis", [(across(x), up(low)), (across(x), up(high))])
        at = ", ".join(f"{key} = {value}" for key, value in values.items())
        charts.mark(root, "timed", across(x), up(middle), f"{at}: {middle:.3f} ms")
    return root
