"""`treadle map`: draws a task mapping, or that of every `task.for` in an IR file."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from rich.console import Console
from rich.text import Text
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from treadle.dialects.location import LocatedParser, location_of
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.registry import treadle_context
from treadle.dialects.task import ForOp, Mapping, parse_mapping
from treadle.dialects.task.mapping import Task, prove_cover
from treadle.errors import TreadleError
from treadle.support.output import is_regular, output_stream
from treadle.tools import charts

# A task mapping's picture as text: `worker:step` in each cell, on the worker's colour where there are colours.

_TEXT_LEGEND = "each cell is worker:step"
_COLOURS_OF_WARPS = "; a colour is a warp"


def draw_text(picture: Picture) -> Text:
    """The picture as lines; a task's column is its last coordinate, its row the one before."""
    text = Text()
    legend = _TEXT_LEGEND + (_COLOURS_OF_WARPS if picture.by_warp else "")
    for line in (picture.title, picture.facts, legend, picture.left_out):
        text.append(f"{line}\n" if line else "")
    for part in picture.slices:
        text.append("\n")
        if part.outer:
            text.append(f"({', '.join(map(str, part.outer))}, *, *)\n")
        _draw_slice(part, text, _margin(picture), _width(picture))
    return text


def columns_within(picture: Picture, width: int) -> int:
    """How many columns of the picture fit into `width` characters; at least 1."""
    return max(1, (width - _margin(picture)) // (_width(picture) + 1))


def _draw_slice(part: Slice, text: Text, margin: int, width: int) -> None:
    columns = (str(cell.task[-1]) for cell in part.rows[0])
    text.append(" " * margin + "".join(f" {column:>{width}}" for column in columns) + "\n")
    for row in part.rows:
        text.append(f"{_row_name(row[0]):>{margin}}")
        for cell in row:
            text.append(f" {_label(cell):>{width}}", style=f"black on {cell.colour}")
        text.append("\n")


def _row_name(cell: Cell) -> str:
    return str(cell.task[-2]) if len(cell.task) > 1 else ""


def _label(cell: Cell) -> str:
    return f"{cell.who}:{cell.step}"


def _margin(picture: Picture) -> int:
    return max(len(_row_name(cell)) for cell in picture.cells)


def _width(picture: Picture) -> int:
    return max(len(_label(cell)) for cell in picture.cells)


# Pictures of task mappings as one SVG, for light and dark pages: black text on the colours of workers or warps, no
# fonts or files from elsewhere.

_CELL, _MARGIN, _LINE, _CHARACTER = 44, 40, 20, 9
"""Pixels: a cell's side, what is around a grid, a line of text, a character's width."""
_STYLE = (
    "text{font:14px monospace;fill:#000}.title{font-weight:bold}.axis{fill:#444;font-size:12px}"
    ".note{font-size:12px}.mid{text-anchor:middle}.end{text-anchor:end}.step{font-size:11px;text-anchor:end}"
    ".cell rect{stroke:#000;stroke-width:1}.route{fill:none;stroke:#000;stroke-opacity:.45;stroke-width:2}"
    ".page{fill:#fff}.arrowhead{fill-opacity:.6}"
    "@media(prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e6edf3}.axis{fill:#9da7b3}.cell text{fill:#000}}"
)
LEGEND = "large: the worker (its colour, too); small: its step; the arrow: the order of worker 0"
LEGEND_OF_WARPS = "large: the worker (its warp's colour); small: its step; the arrow: the order of worker 0"


def draw_svg(pictures: Sequence[Picture]) -> str:
    """The pictures below one another.

    Each task is a group of class `cell` with the attributes `data-task`, `data-workers` and `data-step`.
    """
    root = charts.picture("; ".join(p.title or p.facts for p in pictures), _STYLE)
    right, bottom = 0, 0
    for picture in pictures:
        width, bottom = _add_picture(root, picture, bottom)
        right = max(right, width)
    return charts.picture_text(root, right, bottom)


def _add_picture(root: Element, picture: Picture, top: int) -> tuple[int, int]:
    """Adds a picture below `top`; its right and its bottom."""
    group = SubElement(root, "g", {"class": "picture"})
    legend = LEGEND_OF_WARPS if picture.by_warp else LEGEND
    lines = [line for line in (picture.title, picture.facts, legend, picture.left_out) if line]
    for number, line in enumerate(lines):
        top += _LINE
        charts.label(group, _MARGIN // 2, top, line, "title" if number == 0 else "note")
    right = _MARGIN + max(map(len, lines)) * _CHARACTER
    for part in picture.slices:
        if part.outer:
            top += _LINE + _LINE // 2
            charts.label(group, _MARGIN // 2, top, f"({', '.join(map(str, part.outer))}, *, *)", "slice")
        _add_slice(group, part, top + _MARGIN)
        top += _MARGIN + len(part.rows) * _CELL
        right = max(right, 2 * _MARGIN + len(part.rows[0]) * _cell_width(part))
    return right, top + _MARGIN // 2


def _add_slice(group: Element, part: Slice, top: int) -> None:
    width = _cell_width(part)
    stops: dict[Task, tuple[int, int]] = {}
    for column, cell in enumerate(part.rows[0]):
        charts.label(group, _MARGIN + column * width + width // 2, top - 6, str(cell.task[-1]), "axis mid")
    for number, row in enumerate(part.rows):
        y = top + number * _CELL
        if len(row[0].task) > 1:
            charts.label(group, _MARGIN - 6, y + _CELL // 2 + 4, str(row[0].task[-2]), "axis end")
        for column, cell in enumerate(row):
            x = _MARGIN + column * width
            _add_cell(group, cell, x, y, width)
            stops[cell.task] = (x + 6, y + _CELL // 2)
    for run in part.route(0):
        charts.line(group, "route", (stops[task] for task in run)).set("marker-end", "url(#arrow)")


def _add_cell(group: Element, cell: Cell, x: int, y: int, width: int) -> None:
    data = {
        "class": "cell",
        "data-task": " ".join(map(str, cell.task)),
        "data-workers": " ".join(map(str, cell.workers)),
        "data-step": str(cell.step),
    }
    drawn = SubElement(group, "g", data)
    charts.box(drawn, "task", x, y, width, _CELL).set("fill", cell.colour)
    charts.label(drawn, x + width // 2 + 4, y + _CELL // 2 - 4, cell.who, "mid")
    charts.label(drawn, x + width - 4, y + _CELL - 5, str(cell.step), "step")


def _cell_width(part: Slice) -> int:
    """Wide enough for the longest name of workers."""
    return max(_CELL, max(len(cell.who) for row in part.rows for cell in row) * _CHARACTER + _CHARACTER)


# The layout of a task mapping's picture: which worker does which task of the grid, and when; no output.

COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#CCCC99")
"""Backgrounds for black text that colour-blind readers can distinguish, after Paul Tol's scheme 'light'
(https://sronpersonalpages.nl/~pault/)."""
MOST_VISITS = 1 << 20
"""The largest number of tasks, counted once for each worker that does them, of which a picture is made."""
_UNPRINTABLE = re.compile("[^\t\n\u0020-\u007e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Cell:
    """One task: the workers that do it (several only where the mapping replicates), and its number among their
    tasks."""

    task: Task
    workers: tuple[int, ...]
    step: int
    colour: str

    @property
    def who(self) -> str:
        """The workers in few characters: `3`, `0-3`, `0,4`, `0,4..60`."""
        first, last = self.workers[0], self.workers[-1]
        if len(self.workers) > 2 and last - first == len(self.workers) - 1:
            return f"{first}-{last}"
        if len(self.workers) > 3:
            return f"{first},{self.workers[1]}..{last}"
        return ",".join(map(str, self.workers))


@dataclass(frozen=True)
class Slice:
    """The tasks that share all coordinates but the last two; a grid of one dimension is one row."""

    outer: Task
    rows: tuple[tuple[Cell, ...], ...]

    def route(self, worker: int) -> list[list[Task]]:
        """The route of `worker` through the slice: runs of tasks that it does directly after each other."""
        mine = sorted((c for row in self.rows for c in row if worker in c.workers), key=lambda c: c.step)
        runs: list[list[Task]] = []
        for before, cell in zip([None, *mine], mine, strict=False):
            if before is None or before.step != cell.step - 1:
                runs.append([])
            runs[-1].append(cell.task)
        return [run for run in runs if len(run) > 1]


@dataclass(frozen=True)
class Picture:
    """The picture of one mapping. `left_out` says what is not drawn; it is empty if everything is."""

    title: str
    facts: str
    slices: tuple[Slice, ...]
    left_out: str
    by_warp: bool = False
    """Whether the workers of a warp share a colour: several warps fill the mapping."""

    @property
    def cells(self) -> list[Cell]:
        """Every cell that is drawn."""
        return [cell for part in self.slices for row in part.rows for cell in row]


def picture(mapping: Mapping, limit: int, title: str = "", columns: int | None = None) -> Picture:
    """The picture of `mapping`, of at most `limit` slices, rows and columns (and at most `columns` columns).

    Raises TreadleError for a mapping that is no exact cover, naming the first task, and for one with no tasks or with
    more than MOST_VISITS.
    """
    _check(mapping, title or None)
    *outer, rows, width = (1, *mapping.shape) if mapping.rank == 1 else mapping.shape
    shown = _limited(tuple(outer), limit), min(rows, limit), min(width, limit, columns or limit)
    inside = (*(() if mapping.rank == 1 else (shown[1],)), shown[2])
    cells = _cells(mapping, shown[0], inside)
    slices = tuple(
        Slice(
            at,
            tuple(
                tuple(cells[*at, *row, column] for column in range(shown[2]))
                for row in itertools.product(*map(range, inside[:-1]))
            ),
        )
        for at in shown[0]
    )
    left_out = _left_out((prod(outer), rows, width), (len(shown[0]), *shown[1:]), limit)
    return Picture(printable(title), _facts(mapping), slices, left_out, _has_warps(mapping))


def _has_warps(mapping: Mapping) -> bool:
    return mapping.workers > WARP and mapping.workers % WARP == 0


def colour_of(worker: int, by_warp: bool = False) -> str:
    """The colour of a worker, or of its warp: that of the number's digits to the base 8, weighted so that numbers that
    differ by a power of two, which are often neighbours in a grid, seldom share one."""
    weight, total = 1, 0
    worker = worker // WARP if by_warp else worker
    while worker:
        total += weight * (worker % len(COLOURS))
        worker //= len(COLOURS)
        weight = 4 - weight
    return COLOURS[total % len(COLOURS)]


def printable(text: str) -> str:
    """`text` without control characters and those that XML does not allow."""
    return _UNPRINTABLE.sub("\ufffd", text)


def _check(mapping: Mapping, where: str | None) -> None:
    if mapping.rank == 0:
        raise TreadleError(f"{mapping} has no tasks", where, "a mapping with a shape")
    if max(prod(mapping.shape), mapping.workers * prod(mapping.loops)) > MOST_VISITS:
        raise TreadleError(
            "the mapping has too many tasks to be checked and drawn",
            where,
            f"at most {MOST_VISITS}, counted for each worker that does them",
        )
    failure = prove_cover(mapping)
    if failure is not None:
        raise TreadleError(f"{mapping} is no exact cover: {failure}", where, "each task done once")


def _limited(outer: tuple[int, ...], limit: int) -> list[Task]:
    return list(itertools.islice(itertools.product(*map(range, outer)), limit))


def _cells(mapping: Mapping, slices: list[Task], inside: tuple[int, ...]) -> dict[Task, Cell]:
    """The cells of some slices whose last coordinates are below `inside`."""
    wanted, depth = set(slices), mapping.rank - len(inside)
    doers: dict[Task, list[int]] = {}
    steps: dict[Task, int] = {}
    for worker in range(mapping.workers):
        for step, task in enumerate(mapping(worker)):
            if task[:depth] in wanted and all(t < d for t, d in zip(task[depth:], inside, strict=True)):
                doers.setdefault(task, []).append(worker)
                steps[task] = step  # replicas differ in nothing but their number, so all of them have this step
    by_warp = _has_warps(mapping)
    return {
        task: Cell(task, tuple(workers), steps[task], colour_of(workers[0], by_warp)) for task, workers in doers.items()
    }


def _facts(mapping: Mapping) -> str:
    shape, steps = " x ".join(map(str, mapping.shape)), prod(mapping.loops)
    workers = "1 worker" if mapping.workers == 1 else f"{mapping.workers} workers"
    return f"{mapping}: {shape} tasks, {workers}, {steps} {'step' if steps == 1 else 'steps'} each"


def _left_out(whole: tuple[int, int, int], shown: tuple[int, int, int], limit: int) -> str:
    names = ("slices", "rows", "columns")
    cut = [f"{name} 0 to {s - 1} of {w}" for name, s, w in zip(names, shown, whole, strict=True) if s < w]
    if not cut:
        return ""
    only_limited = all(s in (w, limit) for s, w in zip(shown, whole, strict=True))
    hint = f"--limit {max(whole)} draws all" if only_limited else "the terminal is too narrow, -o FILE.svg has room"
    return f"only {', '.join(cut)}; {hint}"


Draw = Callable[[int | None], Picture]
"""Makes a picture of at most that many columns."""
_MAPPING_FORM = "a mapping such as 'spatial(4, 2) * repeat(2, 2)', or an .mlir file"


def map_command(args: argparse.Namespace) -> int:
    """Prints text, or writes the SVG of `-o`; raises TreadleError before anything is drawn."""
    if args.limit < 1:
        raise TreadleError(f"{args.limit} is not a number of tasks", "--limit", "1 upwards")
    output: str | None = args.output
    if output is not None and is_regular(output) and not output.endswith(".svg"):
        raise TreadleError("unknown format of a picture", output, "a name that ends in .svg")
    try:
        draws = list(_draws(args.mapping, args.limit))
        pictures = [draw(None) for draw in draws]
    except RecursionError:
        raise TreadleError("nested too deeply", "the mapping", "a shorter expression") from None
    if output is None:
        _print(draws, pictures)
        return 0
    _write(output, pictures)
    return 0


def _draws(argument: str, limit: int) -> Iterator[Draw]:
    """How to draw each mapping that the argument stands for; one that several loops have is drawn once."""
    if argument.endswith(".mlir"):
        alike: dict[Mapping, list[ForOp]] = {}
        for loop in _task_loops(Path(argument)):
            alike.setdefault(loop.mapping.data, []).append(loop)
        for mapping, loops in alike.items():
            yield partial(picture, mapping, limit, _title(loops))
        return
    if "(" not in argument:
        raise TreadleError(f"'{argument}' is neither a mapping nor a file of IR", accepted=_MAPPING_FORM)
    yield partial(picture, parse_mapping(argument), limit, "")


def _print(draws: list[Draw], pictures: list[Picture]) -> None:
    """Prints the pictures, each with as many columns as fit the terminal."""
    console = Console(highlight=False, soft_wrap=True)
    for number, (draw, drawn) in enumerate(zip(draws, pictures, strict=True)):
        fitting = columns_within(drawn, console.width) if console.is_terminal else len(drawn.slices[0].rows[0])
        fits = fitting >= len(drawn.slices[0].rows[0])
        console.print("" if number == 0 else "\n", draw_text(drawn if fits else draw(fitting)), sep="", end="")


def _write(output: str, pictures: list[Picture]) -> None:
    """Writes the SVG and says what it shows: on stdout, unless the picture itself may be there."""
    with output_stream(output) as stream:
        stream.write(draw_svg(pictures))
    says = sys.stdout if is_regular(output) else sys.stderr
    print(f"{output}: {'1 picture' if len(pictures) == 1 else f'{len(pictures)} pictures'}", file=says)
    for drawn in pictures:
        if drawn.left_out:
            print(f"{drawn.title or drawn.facts}: {drawn.left_out}", file=says)


def _task_loops(path: Path) -> list[ForOp]:
    loops = [op for op in _read(path).walk() if isinstance(op, ForOp)]
    if not loops:
        accepted = "IR from stage 'kernels', which makes them (treadle-opt --to kernels), to pass 'task-lower'"
        raise TreadleError("holds no task.for", path, accepted)
    return loops


def _read(path: Path) -> ModuleOp:
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise TreadleError(f"cannot read: {error.strerror}", path, "a file that exists and can be read") from error
    except UnicodeDecodeError as error:
        raise TreadleError(f"not text: {error.reason} at byte {error.start}", path, "IR as UTF-8 text") from error
    context = treadle_context()
    context.allow_unregistered = True  # operations of other dialects may surround a mapping
    return LocatedParser(context, text, str(path)).parse_module()


def _title(loops: Sequence[ForOp]) -> str:
    """The kernel around the first loop and its location, and how many loops more have the mapping."""
    more = len(loops) - 1
    others = "" if not more else f" and {more} other loop{'s' if more > 1 else ''}"
    return _place(loops[0]) + others


def _place(loop: ForOp) -> str:
    """The kernel around the loop, and the loop's location."""
    where = location_of(loop)
    enclosing: Operation | None = loop
    while enclosing is not None:
        symbol = enclosing.properties.get("sym_name") or enclosing.attributes.get("sym_name")
        if isinstance(symbol, StringAttr):
            return f"@{symbol.data} at {where}"
        enclosing = enclosing.parent_op()
    return str(where)
