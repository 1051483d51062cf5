"""`treadle certify`: proves that every call of an artifact for a range of shapes is served by exactly one kernel."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle, pairwise, product
from math import prod
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from treadle.artifact.artifact import MODULE, Artifact
from treadle.backends.c_like.folding import written_buffers
from treadle.backends.program import read_program
from treadle.compiler.request import read_module
from treadle.dialects.cuda import KernelOp
from treadle.dialects.dispatch_tree import PredictedAttr
from treadle.dialects.host import BufferOp, DispatchOp, LaunchOp
from treadle.errors import TreadleError
from treadle.shapes.decision_tree import Box, boxes, kernel_for, tree_text
from treadle.shapes.dim import Dim
from treadle.shapes.dynamic import ExtentExpression
from treadle.support.output import output_stream
from treadle.tools import charts

# The chart of a certificate: what each kernel of a dispatch takes at the points, and where the borders are. Kernels
# differ in their dashes.

_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 4", "1 4", "14 3 3 3")
_KEY = 26
"""Pixels of a line in the legend."""


def predicted_times(certificate: Certificate, name: str) -> Element:
    """The seconds of each kernel over the extent that varies most, both axes logarithmic; over the numbers of the
    points where several extents vary. Rhombs are the kernels that calls take, the dashed line the best micro-kernels.

    There has to be a point.
    """
    places, heading = _places(certificate)
    times = [seconds for point in certificate.points for seconds in (*point.seconds, point.best)]
    across = charts.across(places)
    up = charts.up([seconds * 1e6 for seconds in times])
    worst = max(point.loss for point in certificate.points)
    root = charts.chart(
        f"{name}: predicted times of its kernels",
        f"{len(certificate.kernels)} kernels at {len(places)} points; calls lose at most {worst:.1%}. "
        "The table below has the same numbers.",
    )
    charts.draw_axes(root, across, up, f"{heading}, log scale", "predicted, µs, log scale")
    order = sorted(range(len(places)), key=places.__getitem__)
    for number, dashes in zip(range(len(certificate.kernels)), cycle(_DASHES), strict=False):
        curve = [(across(places[n]), up(certificate.points[n].seconds[number] * 1e6)) for n in order]
        charts.line(root, "kernel", curve).set("stroke-dasharray", dashes or "none")
    charts.line(root, "ideal", [(across(places[n]), up(certificate.points[n].best * 1e6)) for n in order])
    borders = _borders(certificate, places, order)
    for border in borders:
        charts.line(root, "border", [(across(border), up(up.low)), (across(border), up(up.high))])
    for n in order:
        point = certificate.points[n]
        at = ", ".join(f"{name} = {extent}" for name, extent in zip(certificate.names, point.extents, strict=True))
        tooltip = f"{at}: {certificate.kernels[point.kernel]}, {point.loss:.1%} lost"
        charts.mark(root, "chosen", across(places[n]), up(point.seconds[point.kernel] * 1e6), tooltip)
    _legend(root, certificate.kernels, bool(borders))
    return root


def _along(certificate: Certificate) -> int | None:
    """The number of the only extent that varies among the points; None where there are several, or one may be 0."""
    points = certificate.points
    varying = [n for n in range(len(certificate.names)) if len({point.extents[n] for point in points}) > 1]
    return varying[0] if len(varying) == 1 and all(point.extents[varying[0]] > 0 for point in points) else None


def _places(certificate: Certificate) -> tuple[list[float], str]:
    """Where the points are along the picture, and what that is."""
    axis = _along(certificate)
    if axis is not None:
        return [float(point.extents[axis]) for point in certificate.points], certificate.names[axis]
    return [float(n) for n in range(1, len(certificate.points) + 1)], "number of the point"


def _borders(certificate: Certificate, places: Sequence[float], order: Sequence[int]) -> list[float]:
    """Where calls change their kernel: between the extents of two leaves; over the numbers of the points, between
    neighbours that take different kernels."""
    axis = _along(certificate)
    if axis is None:
        points = [certificate.points[n] for n in order]
        return [n + 1.5 for n, (a, b) in enumerate(pairwise(points)) if a.kernel != b.kernel]
    others = certificate.points[0].extents
    crossed = [
        leaf for leaf in certificate.leaves if leaf.serves((*others[:axis], leaf.extents[axis][0], *others[axis + 1 :]))
    ]
    crossed.sort(key=lambda leaf: leaf.extents[axis])
    last = [a.extents[axis][1] for a, b in pairwise(crossed) if a.kernel != b.kernel]
    return [each + 0.5 for each in last if min(places) <= each < max(places)]


def _legend(root: Element, kernels: Sequence[str], has_borders: bool) -> None:
    """The kernels' lines, and what else is drawn, at the left inside of the plot."""
    lines = [
        ("kernel", dashes, f"{n}: {kernel}")
        for n, (kernel, dashes) in enumerate(zip(kernels, cycle(_DASHES), strict=False))
    ]
    lines += [("ideal", "", "best micro-kernel at each point")]
    lines += [("border", "", "where calls change their kernel")] if has_borders else []
    y = charts.TOP + 14
    for kind, dashes, meaning in lines:
        drawn = charts.line(root, kind, [(charts.LEFT + 8, y), (charts.LEFT + 8 + _KEY, y)])
        if kind == "kernel":
            drawn.set("stroke-dasharray", dashes or "none")
        charts.label(root, charts.LEFT + 14 + _KEY, y + 4, meaning)
        y += 16
    charts.mark(root, "chosen", charts.LEFT + 8 + _KEY / 2, y)
    charts.label(root, charts.LEFT + 14 + _KEY, y + 4, "the kernel that a call takes")


# The page that `treadle certify --report` writes: one HTML file without scripts, fonts or files from elsewhere.

LOSS_HEADINGS = ("points", "worst loss", "mean loss")


def certificate_page(title: str, symbols: str, certificates: Sequence[Certificate], others: Sequence[str]) -> str:
    """The whole page: for each dispatch its leaves, a picture of the predictions, and their numbers; then the kernels
    that every call runs.

    symbols: the range, as text; others: the kernels that no dispatch chooses
    """
    root, body = charts.page(f"{title}: certificate")
    SubElement(body, "h1").text = f"{title}: certificate"
    proved = f"Every call of {symbols} takes exactly one kernel of each group, which was proved from the artifact's IR."
    SubElement(body, "p").text = proved
    add_certificates(SubElement(body, "main"), certificates, others)
    return charts.page_text(root)


def add_certificates(main: Element, certificates: Sequence[Certificate], others: Sequence[str]) -> None:
    """What the page consists of, as sections of another one."""
    for number, certificate in enumerate(certificates):
        _add(main, number, certificate)
    if others:
        section = SubElement(main, "section")
        SubElement(section, "h2").text = "without a dispatch"
        _table(section, "Kernels that every call runs, in order", ("kernel",), [(name,) for name in others])


def loss_texts(loss: Losses | None) -> tuple[str, str, str]:
    """What stands below LOSS_HEADINGS."""
    return ("0", "", "") if loss is None else (str(loss.points), f"{loss.worst:.1%}", f"{loss.mean:.1%}")


def _add(main: Element, number: int, certificate: Certificate) -> None:
    section = SubElement(main, "section")
    SubElement(section, "h2").text = f"dispatch {number}: {', '.join(dict.fromkeys(certificate.kernels))}"
    names = "; ".join(f"e{n} is {name}" for n, name in enumerate(certificate.names))
    paragraph = SubElement(section, "p", {"class": "faint"})
    SubElement(paragraph, "code").text = certificate.tree
    SubElement(paragraph, "span").text = f", where {names}"
    leaves = [
        (*(f"{low} to {high}" for low, high in leaf.extents), leaf.kernel, *loss_texts(Losses.of(certificate.at(leaf))))
        for leaf in certificate.leaves
    ]
    _table(section, "The leaves", (*certificate.names, "kernel", *LOSS_HEADINGS), leaves)
    if not certificate.points:
        SubElement(section, "p").text = "Nothing was predicted of its kernels."
        return
    figure = SubElement(section, "figure")
    figure.append(predicted_times(certificate, f"dispatch {number}"))
    points = [
        (
            *map(str, point.extents), f"{point.weight:.1%}", certificate.kernels[point.kernel],
            *(f"{seconds * 1e6:.1f}" for seconds in (*point.seconds, point.best)), f"{point.loss:.1%}",
        )
        for point in certificate.points
    ]  # fmt: skip
    times = (*(f"{kernel}, µs" for kernel in certificate.kernels), "best micro-kernel, µs")
    headings = (*certificate.names, "weight", "takes", *times, "loss")
    _table(section, "What was predicted, or measured by a search", headings, points)


def _table(parent: Element, caption: str, headings: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    body = charts.table(parent, caption, headings, ())
    for row in rows:
        cells = SubElement(body, "tr")
        for cell in row:
            kind = {"class": "number"} if cell[:1].isdigit() else {}
            SubElement(cells, "td", kind).text = cell


# A certificate of an artifact's dispatch: every point of its range is served by exactly one kernel.

_INTEGERS = (-(1 << 63), (1 << 63) - 1)
"""The values of an extent, which is an i64."""


@dataclass(frozen=True)
class Served:
    """One leaf: the kernel, and the least and greatest value of each extent with which a call comes here."""

    kernel: str
    extents: tuple[tuple[int, int], ...]

    def serves(self, extents: Sequence[int]) -> bool:
        """Whether a call with these extents comes here."""
        return all(low <= extent <= high for extent, (low, high) in zip(extents, self.extents, strict=True))


@dataclass(frozen=True)
class Foreseen:
    """A call that was predicted, or measured by a search.

    kernel: the number of the one that it takes; seconds: of each kernel; best: of all micro-kernels that there were
    """

    extents: tuple[int, ...]
    weight: float
    kernel: int
    seconds: tuple[float, ...]
    best: float

    @property
    def loss(self) -> float:
        """The part of the best micro-kernel's time that the call takes longer."""
        return self.seconds[self.kernel] / self.best - 1


@dataclass(frozen=True)
class Losses:
    """What some calls lose, the worst and the mean by their weights."""

    points: int
    worst: float
    mean: float

    @classmethod
    def of(cls, points: Sequence[Foreseen]) -> Losses | None:
        """None without calls."""
        if not points:
            return None
        total = sum(point.weight for point in points)
        weights = [point.weight / total if total else 1 / len(points) for point in points]
        mean = sum(weight * point.loss for weight, point in zip(weights, points, strict=True))
        return cls(len(points), max(point.loss for point in points), mean)


@dataclass(frozen=True)
class Certificate:
    """One dispatch, proved. names: of the extents; kernels: by the numbers of the tree; points: calls that were
    predicted."""

    tree: str
    names: tuple[str, ...]
    kernels: tuple[str, ...]
    leaves: tuple[Served, ...]
    points: tuple[Foreseen, ...]

    def at(self, leaf: Served) -> list[Foreseen]:
        """The predicted calls that come to a leaf."""
        return [point for point in self.points if leaf.serves(point.extents)]


def certify(artifact: Artifact) -> list[Certificate]:
    """The certificate of each place where a call takes one of several kernels, in order.

    Proved, for all values of the extents, of which the range's are some: the leaves' boxes are disjoint and cover all
    values; each leaf names a kernel that the module has; the kernels of a dispatch write the same tensors; a CUDA
    program's launcher has the same trees. That each kernel computes what is required is not proved anew: every
    alternative is the whole group, of which `loop-skip-padding` drops stores of elements that are not required, and no
    others.

    TreadleError that names the place where one of this does not hold, or where a file is missing or changed.
    """
    where = str(artifact.folder / MODULE)
    module = read_module(artifact.module_text(), where)
    manifest = artifact.manifest
    program = read_program(module)
    if (program.symbols, program.extents) != (manifest.symbols, manifest.extents):
        raise TreadleError("the module has another range than the manifest", where, "the range of the manifest")
    if manifest.kind == "cuda" and program.dispatches != manifest.dispatches:
        raise TreadleError("the launcher has other trees than the module", where, "the manifest's dispatches")
    ranges = [_range(text, manifest.symbols) for text in manifest.extents]
    kernels = _kernels(module)
    found: list[Certificate] = []
    for number, op in enumerate(op for op in module.walk() if isinstance(op, DispatchOp)):
        found.append(_certificate(op, kernels, manifest.extents, ranges, f"{where}, dispatch {number}"))
    return found


def kernels_of_every_call(artifact: Artifact) -> list[str]:
    """The kernels that no dispatch chooses, each once, in the order in which a call runs them."""
    module = read_module(artifact.module_text(), str(artifact.folder / MODULE))
    launches = [op for op in module.walk() if isinstance(op, LaunchOp) and not isinstance(op.parent_op(), DispatchOp)]
    return list(dict.fromkeys(launch.kernel.string_value() for launch in launches))


def _certificate(
    op: DispatchOp,
    kernels: dict[str, Block],
    names: Sequence[str],
    ranges: Sequence[tuple[int, int]],
    where: str,
) -> Certificate:
    tree, count = op.tree.data, len(op.extents)
    check_partition([_sides(box, count) for _, box in boxes(tree)], count, where)
    launches = [each for each in op.launches.block.ops if isinstance(each, LaunchOp)]
    _check_kernels(launches, kernels, where)
    inside = dict(enumerate(ranges))
    leaves = [Served(launches[kernel].kernel.string_value(), _sides(box, count)) for kernel, box in boxes(tree, inside)]
    reached = tuple(leaf for leaf in leaves if all(low <= high for low, high in leaf.extents))
    symbols = tuple(launch.kernel.string_value() for launch in launches)
    return Certificate(tree_text(tree), tuple(names), symbols, reached, _foreseen(op))


def check_partition(leaves: Sequence[Sequence[tuple[int, int]]], extents: int, where: str) -> None:
    """TreadleError unless boxes are disjoint and cover all values of so many extents.

    Disjoint boxes cover a space just if their sizes add up to its size.
    """
    for (n, a), (m, b) in combinations(enumerate(leaves), 2):
        if all(max(x[0], y[0]) <= min(x[1], y[1]) for x, y in zip(a, b, strict=True)):
            raise TreadleError(f"leaves {n} and {m} both serve a point", where, "leaves that are disjoint")
    total = (_INTEGERS[1] - _INTEGERS[0] + 1) ** extents
    if sum(prod(high - low + 1 for low, high in leaf) for leaf in leaves) != total:
        raise TreadleError("no leaf serves some points", where, "leaves that cover the range")


def _sides(box: Box, extents: int) -> tuple[tuple[int, int], ...]:
    """The least and the greatest value of each extent in a box."""
    sides = [box.get(n, (None, None)) for n in range(extents)]
    low, high = _INTEGERS
    return tuple((low if a is None else a, high if b is None else b) for a, b in sides)


def _check_kernels(launches: Sequence[LaunchOp], kernels: dict[str, Block], where: str) -> None:
    """TreadleError unless all launches have a kernel, and write the same tensors."""
    written: list[set[SSAValue]] = []
    for launch in launches:
        symbol = launch.kernel.string_value()
        if symbol not in kernels:
            raise TreadleError(f"there is no kernel @{symbol}", where, sorted(f"@{name}" for name in kernels))
        block = kernels[symbol]
        stored = written_buffers(block)
        arguments = zip(block.args, launch.buffers, strict=False)
        written.append({buffer for argument, buffer in arguments if argument in stored and not _is_scratch(buffer)})
    if any(each != written[0] for each in written) or not written[0]:
        raise TreadleError("the kernels write different tensors", where, "alternatives of one group")


def _is_scratch(buffer: SSAValue) -> bool:
    """Whether only one launch knows a buffer of temporary memory."""
    op = buffer.owner
    return isinstance(op, BufferOp) and op.kind.data in ("arena", "zeroed") and len(list(buffer.uses)) == 1


def _kernels(module: ModuleOp) -> dict[str, Block]:
    """The body of each kernel, by its symbol."""
    found: dict[str, Block] = {}
    for op in module.ops:
        body = _body(op)
        if body is not None:
            name = op.properties["sym_name"]
            found[str(name).strip('"')] = body
    return found


def _body(op: Operation) -> Block | None:
    if isinstance(op, KernelOp) or (isinstance(op, func.FuncOp) and op.body.blocks and op.sym_name.data != "main"):
        return op.regions[0].block
    return None


def _range(text: str, symbols: Sequence[Dim]) -> tuple[int, int]:
    """The values of an extent at the corners of the range, between which those of a monotone expression lie."""
    expression = ExtentExpression(text, [dim.name for dim in symbols])
    corners = product(*((dim.least, dim.greatest) for dim in symbols))
    values = [expression.value(dict(zip([d.name for d in symbols], each, strict=True))) for each in corners]
    return min(values), max(values)


def _foreseen(op: DispatchOp) -> tuple[Foreseen, ...]:
    """The calls that the decision keeps predictions of."""
    predicted = op.predicted.data if isinstance(op.predicted, PredictedAttr) else ()
    return tuple(
        Foreseen(each.extents, each.weight, kernel_for(op.tree.data, each.extents), each.seconds[:-1], each.seconds[-1])
        for each in predicted
    )


def certify_command(args: argparse.Namespace) -> int:
    """Prints a table a dispatch: each leaf's kernel, the extents with which a call comes to it, and what such calls
    were predicted to lose; `--report` writes a page with pictures."""
    artifact = Artifact(Path(args.artifact))
    found = certify(artifact)
    console = Console(highlight=False, soft_wrap=True)
    for number, certificate in enumerate(found):
        console.print(certificate_table(number, certificate))
        console.print(Text(_losses(certificate)))
    symbols = ", ".join(map(str, artifact.manifest.symbols)) or "one shape"
    if args.report is not None:
        page = certificate_page(artifact.folder.name, symbols, found, kernels_of_every_call(artifact))
        with output_stream(args.report) as stream:
            stream.write(page)
    several = (
        f"{len(found)} groups take one of several kernels, each call exactly one" if found else "one kernel a group"
    )
    console.print(Text(f"certified for {symbols}: {several}"))
    return 0


def certificate_table(number: int, certificate: Certificate) -> Table:
    """The leaves of one dispatch."""
    table = Table(box=box.SIMPLE_HEAD, title=f"dispatch {number}: {certificate.tree}", title_justify="left")
    losses = [Losses.of(certificate.at(leaf)) for leaf in certificate.leaves]
    has_losses = any(loss is not None for loss in losses)
    for name in (*certificate.names, "kernel", *(LOSS_HEADINGS if has_losses else ())):
        table.add_column(name, overflow="fold")
    for leaf, loss in zip(certificate.leaves, losses, strict=True):
        extents = (f"{low} to {high}" for low, high in leaf.extents)
        table.add_row(*extents, Text(leaf.kernel), *(loss_texts(loss) if has_losses else ()))
    return table


def _losses(certificate: Certificate) -> str:
    loss = Losses.of(certificate.points)
    if loss is None:
        return "nothing was predicted of its kernels"
    found = f"worst {loss.worst:.1%}, mean {loss.mean:.1%}"
    return f"predicted loss against the best micro-kernel at {loss.points} points: {found}"


__all__: Sequence[str] = ["certificate_table", "certify_command"]
