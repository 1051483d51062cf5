"""Pictures of task mappings as one SVG, for light and dark pages: black text on the colours of workers or warps, no
fonts or files from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from treadle.dialects.task.mapping import Task
from treadle.tools.map_picture import Cell, Picture, Slice

_CELL, _MARGIN, _LINE, _CHARACTER = 44, 40, 20, 9
"""Pixels: a cell's side, what is around a grid, a line of text, a character's width."""
_STYLE = (
    "text{font:14px monospace;fill:#000}.title{font-weight:bold}.axis{fill:#444;font-size:12px}"
    ".note{font-size:12px}.mid{text-anchor:middle}.end{text-anchor:end}.step{font-size:11px;text-anchor:end}"
    ".cell rect{stroke:#000;stroke-width:1}.route{fill:none;stroke:#000;stroke-opacity:.45;stroke-width:2}"
    ".page{fill:#fff}"
    "@media(prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e6edf3}.axis{fill:#9da7b3}.cell text{fill:#000}}"
)
LEGEND = "large: the worker (its colour, too); small: its step; the arrow: the order of worker 0"
LEGEND_OF_WARPS = "large: the worker (its warp's colour); small: its step; the arrow: the order of worker 0"


def draw_svg(pictures: Sequence[Picture]) -> str:
    """The pictures below one another.

    Each task is a group of class `cell` with the attributes `data-task`, `data-workers` and `data-step`.
    """
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    SubElement(root, "title").text = "; ".join(p.title or p.facts for p in pictures)
    SubElement(root, "desc").text = "Task mappings: who does which task, and when."
    SubElement(root, "style").text = _STYLE
    _add_arrowhead(root)
    SubElement(root, "rect", {"class": "page", "width": "100%", "height": "100%"})
    right, bottom = 0, 0
    for picture in pictures:
        width, bottom = _add_picture(root, picture, bottom)
        right = max(right, width)
    root.set("width", str(right))
    root.set("height", str(bottom))
    root.set("viewBox", f"0 0 {right} {bottom}")
    indent(root)
    return tostring(root, encoding="unicode") + "\n"


def _add_picture(root: Element, picture: Picture, top: int) -> tuple[int, int]:
    """Adds a picture below `top`; its right and its bottom."""
    group = SubElement(root, "g", {"class": "picture"})
    legend = LEGEND_OF_WARPS if picture.by_warp else LEGEND
    lines = [line for line in (picture.title, picture.facts, legend, picture.left_out) if line]
    for number, line in enumerate(lines):
        top += _LINE
        _add_text(group, line, _MARGIN // 2, top, "title" if number == 0 else "note")
    right = _MARGIN + max(map(len, lines)) * _CHARACTER
    for part in picture.slices:
        if part.outer:
            top += _LINE + _LINE // 2
            _add_text(group, f"({', '.join(map(str, part.outer))}, *, *)", _MARGIN // 2, top, "slice")
        _add_slice(group, part, top + _MARGIN)
        top += _MARGIN + len(part.rows) * _CELL
        right = max(right, 2 * _MARGIN + len(part.rows[0]) * _cell_width(part))
    return right, top + _MARGIN // 2


def _add_slice(group: Element, part: Slice, top: int) -> None:
    width = _cell_width(part)
    stops: dict[Task, tuple[int, int]] = {}
    for column, cell in enumerate(part.rows[0]):
        _add_text(group, str(cell.task[-1]), _MARGIN + column * width + width // 2, top - 6, "axis mid")
    for number, row in enumerate(part.rows):
        y = top + number * _CELL
        if len(row[0].task) > 1:
            _add_text(group, str(row[0].task[-2]), _MARGIN - 6, y + _CELL // 2 + 4, "axis end")
        for column, cell in enumerate(row):
            x = _MARGIN + column * width
            _add_cell(group, cell, x, y, width)
            stops[cell.task] = (x + 6, y + _CELL // 2)
    for run in part.route(0):
        points = " ".join(f"{x},{y}" for x, y in (stops[task] for task in run))
        SubElement(group, "polyline", {"class": "route", "points": points, "marker-end": "url(#arrow)"})


def _add_cell(group: Element, cell: Cell, x: int, y: int, width: int) -> None:
    data = {
        "class": "cell",
        "data-task": " ".join(map(str, cell.task)),
        "data-workers": " ".join(map(str, cell.workers)),
        "data-step": str(cell.step),
    }
    box = {"x": str(x), "y": str(y), "width": str(width), "height": str(_CELL), "fill": cell.colour}
    drawn = SubElement(group, "g", data)
    SubElement(drawn, "rect", box)
    _add_text(drawn, cell.who, x + width // 2 + 4, y + _CELL // 2 - 4, "mid")
    _add_text(drawn, str(cell.step), x + width - 4, y + _CELL - 5, "step")


def _cell_width(part: Slice) -> int:
    """Wide enough for the longest name of workers."""
    return max(_CELL, max(len(cell.who) for row in part.rows for cell in row) * _CHARACTER + _CHARACTER)


def _add_text(parent: Element, text: str, x: int, y: int, kind: str) -> None:
    SubElement(parent, "text", {"class": kind, "x": str(x), "y": str(y)}).text = text


def _add_arrowhead(root: Element) -> None:
    size = {"viewBox": "0 0 8 8", "refX": "7", "refY": "4", "markerWidth": "6", "markerHeight": "6", "orient": "auto"}
    marker = SubElement(SubElement(root, "defs"), "marker", {"id": "arrow", **size})
    SubElement(marker, "path", {"d": "M0 0L8 4L0 8z", "fill-opacity": ".6"})
