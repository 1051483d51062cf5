"""A task mapping's picture as text: `worker:step` in each cell, on the worker's colour where there are colours."""

from __future__ import annotations

from rich.text import Text

from treadle.tools.map_picture import Cell, Picture, Slice

LEGEND = "each cell is worker:step"
_COLOURS_OF_WARPS = "; a colour is a warp"


def draw_text(picture: Picture) -> Text:
    """The picture as lines; a task's column is its last coordinate, its row the one before."""
    text = Text()
    legend = LEGEND + (_COLOURS_OF_WARPS if picture.by_warp else "")
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
