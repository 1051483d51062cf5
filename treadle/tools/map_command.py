"""`treadle map`: draws a task mapping, or that of every `task.for` in an IR file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from treadle.dialects.location import LocatedParser, location_of
from treadle.dialects.registry import treadle_context
from treadle.dialects.task import ForOp, Mapping, parse_mapping
from treadle.errors import TreadleError
from treadle.tools.map_picture import Picture, picture
from treadle.tools.map_svg import draw_svg
from treadle.tools.map_text import columns_within, draw_text
from treadle.tools.output import is_regular, output_stream

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
