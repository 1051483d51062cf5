"""The stages, their passes and the dialects between them as one SVG, from the tables that the compiler itself reads.

On the left, from top to bottom, a box for the IR after each stage, and on the arrow to it the stage's passes. On the
right a column for each dialect, filled where its operations may remain. Colours follow the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from textwrap import wrap
from xml.etree.ElementTree import Element, SubElement

from treadle.compiler.pipeline import PASSES, STAGES, Stage, Step
from treadle.dialects.registry import UPSTREAM, dialect_factories
from treadle.passes.instruments import LEGAL
from treadle.target import KINDS, TargetKind
from treadle.tools import charts

BOTH = frozenset(KINDS)
_CPU, _CUDA = (frozenset[TargetKind]((kind,)) for kind in KINDS)

_OF_ALL_STAGES = ("builtin",)
_IN_ATTRIBUTES: Mapping[str, Sequence[str]] = {"schedule": ("schedule",)}
"""Stages after which a dialect remains that has no operations, but attributes only."""
_ENDS = {"cpu": ("print C", "C text and a shared library"), "cuda": ("print CUDA", "CUDA C++ text and cubins")}

_MARGIN, _LEFT, _COLUMN, _BAR = 28, 584, 32, 18
_HEADER, _BOX, _CHIP, _GAP, _ARROW = 134, 46, 22, 7, 34
_CHARACTER = 6.7
"""Width of a character of a pass's name, in pixels like all lengths."""
_PURPOSE_CHARACTERS = 68

_LIGHT = {
    "paper": "#ffffff", "text": "#1f2328", "muted": "#59636e", "line": "#8c959f", "grid": "#e4e8ec", "box": "#f6f8fa",
    "edge": "#d1d9e0", "own": "#8250df", "upstream": "#9aa4af", "cpu": "#0969da", "cpu-chip": "#ddf4ff",
    "cuda": "#1a7f37", "cuda-chip": "#dafbe1",
}  # fmt: skip
_DARK = {
    "paper": "#0d1117", "text": "#e6edf3", "muted": "#9198a1", "line": "#7d8590", "grid": "#21262d", "box": "#161b22",
    "edge": "#3d444d", "own": "#a371f7", "upstream": "#6e7681", "cpu": "#58a6ff", "cpu-chip": "#0c2d6b",
    "cuda": "#3fb950", "cuda-chip": "#0f3d1e",
}  # fmt: skip


@dataclass(frozen=True)
class Chip:
    """A pass on an arrow, and the kinds of target that run it."""

    name: str
    kinds: frozenset[TargetKind]

    @property
    def width(self) -> float:
        return len(self.name) * _CHARACTER + 16


def steps_of(stage: str) -> list[tuple[Step, frozenset[TargetKind]]]:
    """The steps of a stage for all kinds of target, in one order that is that of each kind."""
    cpu, cuda = PASSES["cpu"][stage], PASSES["cuda"][stage]
    found: list[tuple[Step, frozenset[TargetKind]]] = []
    for what, *places in SequenceMatcher(None, list(map(_name, cpu)), list(map(_name, cuda))).get_opcodes():
        ours, theirs = cpu[slice(*places[:2])], cuda[slice(*places[2:])]
        if what != "equal":
            found += [(step, _CPU) for step in ours] + [(step, _CUDA) for step in theirs]
            continue
        for one, other in zip(ours, theirs, strict=True):
            found += [(one, BOTH)] if one == other else [(one, _CPU), (other, _CUDA)]
    return found


def _name(step: Step) -> str:
    return step.text.partition("{")[0]


def chips_of(steps: Iterable[tuple[Step, frozenset[TargetKind]]]) -> list[Chip]:
    """The passes of a stage in order; the same pass with other options for each kind of target is one chip."""
    return [
        Chip(name, frozenset[TargetKind]().union(*(kinds for _, kinds in same)))
        for name, same in groupby(steps, key=lambda each: _name(each[0]))
    ]


def kinds_with(dialect: str, stage: str) -> frozenset[TargetKind]:
    """The kinds of target for which a dialect may remain after a stage."""
    if stage in _IN_ATTRIBUTES.get(dialect, ()):
        return BOTH
    return frozenset(kind for kind in KINDS if dialect in _dialects(LEGAL.get(f"{stage} {kind}") or LEGAL[stage]))


def draw_pipeline() -> str:
    """The picture as SVG text."""
    return _Drawing().draw()


def _dialects(operations: Iterable[str]) -> set[str]:
    return {operation.partition(".")[0] for operation in operations}


def _columns() -> list[str]:
    """Treadle's dialects in the order in which stages reach them, then the upstream ones."""

    def order(dialect: str) -> tuple[int, int]:
        present = [number for number, stage in enumerate(STAGES) if kinds_with(dialect, stage.name)]
        return present[0], present[-1]

    shown = [name for name in UPSTREAM if name not in _OF_ALL_STAGES]
    return [*sorted(dialect_factories(), key=order), *sorted(shown, key=order)]


class _Drawing:
    """Draws from top to bottom; `_y` is where the next part begins."""

    def __init__(self) -> None:
        self._root = charts.picture("The stages of the compiler, their passes, and the dialects between them", _style())
        self._columns = _columns()
        self._first_column = _MARGIN + _LEFT + 36
        self._right = self._first_column + len(self._columns) * _COLUMN + _MARGIN
        self._y = 0.0
        self._rows: dict[str, float] = {}
        """The top of each stage's box."""

    def draw(self) -> str:
        """The whole picture."""
        bars = SubElement(self._root, "g")
        self._legend()
        self._y = _HEADER
        self._pill(_MARGIN, 118, "ONNX model")
        self._y += 30
        for number, stage in enumerate(STAGES):
            self._arrow(chips_of(steps_of(stage.name)) if number else [Chip("frontends/onnx", BOTH)])
            self._stage(stage)
        self._ends()
        self._bars(bars)
        return charts.picture_text(self._root, self._right, self._y + _MARGIN)

    def _legend(self) -> None:
        self._text(_MARGIN, 40, "Stages, passes and dialects", "title")
        self._text(_MARGIN, 62, "A box is the IR after a stage, text that can be saved, edited and resumed.", "note")
        self._text(_MARGIN, 79, "On the arrow to it: the passes of the stage. On the right: what may remain.", "note")
        x = float(_MARGIN)
        for chip in (Chip("every target", BOTH), *(Chip(f"{kind} only", frozenset((kind,))) for kind in KINDS)):
            self._chip(chip, x, 92)
            x += chip.width + _GAP

    def _arrow(self, chips: Sequence[Chip]) -> None:
        """An arrow downwards, with chips beside it."""
        lines = list(_filled(chips, _LEFT - _ARROW))
        top, bottom = self._y, self._y + 16 + len(lines) * (_CHIP + _GAP)
        x = _MARGIN + _ARROW // 2
        self._line(x, top + 3, bottom - 3)
        for number, line in enumerate(lines):
            left = float(_MARGIN + _ARROW)
            for chip in line:
                self._chip(chip, left, top + 11 + number * (_CHIP + _GAP))
                left += chip.width + _GAP
        self._y = bottom

    def _stage(self, stage: Stage) -> None:
        self._rows[stage.name] = self._y
        self._box(_MARGIN, _LEFT, _BOX)
        self._text(_MARGIN + 16, self._y + _BOX / 2 + 5, stage.name, "name")
        lines = _balanced(stage.purpose, _PURPOSE_CHARACTERS)
        for number, line in enumerate(lines):
            self._text(_MARGIN + 112, self._y + _BOX / 2 + 4 + (number - (len(lines) - 1) / 2) * 16, line, "purpose")
        self._y += _BOX

    def _ends(self) -> None:
        """What follows the last stage, side by side for the kinds of target."""
        start, width = self._y, (_LEFT - 16) / 2
        for number, kind in enumerate(KINDS):
            action, result = _ENDS[kind]
            x, self._y = _MARGIN + number * (width + 16), start
            middle = x + _ARROW // 2
            self._line(middle, start + 3, start + 42)
            self._chip(Chip(action, frozenset((kind,))), x + _ARROW, start + 11)
            self._y = start + 45
            self._pill(x, width, result)
        self._y += 30

    def _bars(self, group: Element) -> None:
        """The columns of the dialects, behind which each stage's row continues."""
        left, right = self._first_column - 20, self._right - _MARGIN + 4
        for top in self._rows.values():
            y = top + _BOX / 2
            charts.line(group, "grid", [(_MARGIN + _LEFT + 4, y), (right, y)])
        own = len(dialect_factories())
        top = min(self._rows.values())
        self._text(left + 20, top - 92, "Treadle's dialects", "head")
        self._text(left + 20 + own * _COLUMN, top - 92, "upstream dialects", "head")
        for number, dialect in enumerate(self._columns):
            x = self._first_column + number * _COLUMN
            spot = f"rotate(-48 {x + _BAR / 2 + 2:g} {top - 14:g})"
            text = self._text(x + _BAR / 2 + 2, top - 14, dialect, "dialect" if number < own else "dialect other")
            text.set("transform", spot)
            self._bar(group, dialect, x, "own" if number < own else "upstream")

    def _bar(self, group: Element, dialect: str, x: float, kind: str) -> None:
        """One dialect's column: a piece for each run of stages after which it remains for the same targets."""
        present = [(stage.name, kinds_with(dialect, stage.name)) for stage in STAGES]
        for kinds, run in groupby(present, key=lambda each: each[1]):
            stages = [name for name, _ in run]
            if not kinds:
                continue
            top, bottom = self._rows[stages[0]] + 3, self._rows[stages[-1]] + _BOX - 3
            name = kind if kinds == BOTH else next(iter(kinds))
            bar = charts.box(group, f"bar {name}", x, top, _BAR, bottom - top)
            only = "" if kinds == BOTH else f", {name} only"
            SubElement(bar, "title").text = f"{dialect}: after {', '.join(stages)}{only}"

    def _chip(self, chip: Chip, x: float, y: float) -> None:
        kind = "every" if chip.kinds == BOTH else next(iter(chip.kinds))
        charts.box(self._root, f"chip {kind}-chip", x, y, chip.width, _CHIP)
        self._text(x + 8, y + 15, chip.name, f"pass {kind}-pass")

    def _pill(self, x: float, width: float, text: str) -> None:
        self._box(x, width, 30, "box pill")
        self._text(x + width / 2, self._y + 20, text, "purpose middle")

    def _box(self, x: float, width: float, height: float, kind: str = "box") -> None:
        charts.box(self._root, kind, x, self._y, width, height)

    def _line(self, x: float, top: float, bottom: float) -> None:
        charts.line(self._root, "arrow", [(x, top), (x, bottom)]).set("marker-end", "url(#arrow)")

    def _text(self, x: float, y: float, text: str, kind: str) -> Element:
        return charts.label(self._root, x, y, text, kind)


def _filled(chips: Sequence[Chip], room: float) -> Iterator[list[Chip]]:
    """The chips in lines of at most that width."""
    line: list[Chip] = []
    for chip in chips:
        if line and sum(each.width + _GAP for each in line) + chip.width > room:
            yield line
            line = []
        line.append(chip)
    if line:
        yield line


def _balanced(text: str, width: int) -> list[str]:
    """As few lines of at most `width` characters as possible, of similar lengths."""
    lines = wrap(text, width)
    return wrap(text, min(width, len(text) // len(lines) + max(map(len, text.split()))))


def _style() -> str:
    """Shapes once, colours for light and for dark readers."""
    dark = _colours(_DARK)
    return f"{_SHAPES}{_colours(_LIGHT)}@media (prefers-color-scheme: dark){{{dark}}}"


_SHAPES = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:12.5px}"
    ".title{font-size:19px;font-weight:600}.head{font-size:12px;font-weight:600}"
    ".name,.pass,.dialect{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".name{font-size:14.5px;font-weight:700}.pass{font-size:11px}.dialect{font-size:12px;font-weight:600}"
    ".middle{text-anchor:middle}.box,.chip{stroke-width:1}.arrow{fill:none;stroke-width:1.6}.grid{stroke-width:1}"
    ".page{rx:10px}.box{rx:8px}.pill{rx:15px}.chip{rx:6px}.bar{rx:5px}"
)


def _colours(c: Mapping[str, str]) -> str:
    targets = "".join(
        f".{kind}-chip{{fill:{c[f'{kind}-chip']};stroke:{c[kind]}}}.{kind}-pass{{fill:{c['text']}}}"
        f".bar.{kind}{{fill:{c[kind]}}}"
        for kind in KINDS
    )
    return (
        f".page{{fill:{c['paper']}}}text{{fill:{c['text']}}}.note,.other{{fill:{c['muted']}}}"
        f".box,.every-chip{{fill:{c['box']};stroke:{c['edge']}}}.grid{{stroke:{c['grid']}}}"
        f".arrow{{stroke:{c['line']}}}.arrowhead{{fill:{c['line']}}}"
        f".bar.own{{fill:{c['own']}}}.bar.upstream{{fill:{c['upstream']}}}{targets}"
    )


__all__ = ["BOTH", "KINDS", "Chip", "chips_of", "draw_pipeline", "kinds_with"]
