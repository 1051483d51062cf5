"""Lists of numbers of which some are sampled: `(%t, 4, %r)`, kept as operands and an array with -1 for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import DenseArrayBase, IntegerType, i64
from xdsl.ir import SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer

from treadle.dialects.schedule.types import PARAM

SAMPLED = -1
MOST_RESULTS = 64
"""Of one operation, given by a number: two for each dimension that a tensor may have."""
Size: TypeAlias = int | SSAValue
"""A number, or the parameter that holds it."""


def sizes_attribute(sizes: Sequence[Size]) -> DenseArrayBase[IntegerType]:
    """The array of the numbers."""
    numbers = [size if isinstance(size, int) else SAMPLED for size in sizes]
    return DenseArrayBase.from_list(i64, numbers)


def sampled(sizes: Sequence[Size]) -> list[SSAValue]:
    """The parameters, in order."""
    return [size for size in sizes if not isinstance(size, int)]


def joined(numbers: DenseArrayBase[IntegerType], parameters: Sequence[SSAValue]) -> list[Size]:
    """The list, from what an operation keeps of it."""
    left = iter(parameters)
    return [next(left) if number == SAMPLED else number for number in numbers.iter_values()]


def values_of(sizes: Sequence[Size], decisions: Mapping[SSAValue, int]) -> list[int]:
    """The numbers, given what the parameters were decided to be. KeyError for one that was not."""
    return [size if isinstance(size, int) else decisions[size] for size in sizes]


def parse_size(parser: Parser) -> Size:
    """`4` or `%t`."""
    unresolved = parser.parse_optional_unresolved_operand()
    if unresolved is not None:
        return parser.resolve_operand(unresolved, PARAM)
    return parser.parse_integer(allow_negative=False)


def parse_count(parser: Parser) -> int:
    """The number of some results, at most `MOST_RESULTS`."""
    start = parser.pos
    count = parser.parse_integer(allow_negative=False)
    if count > MOST_RESULTS:
        parser.raise_error(f"{count} results, at most {MOST_RESULTS} are accepted", start, parser.pos)
    return count


def print_size(printer: Printer, size: Size) -> None:
    """`4` or `%t`."""
    if isinstance(size, int):
        printer.print_string(str(size))
    else:
        printer.print_ssa_value(size)


__all__ = [
    "MOST_RESULTS", "SAMPLED", "Size", "joined", "parse_count", "parse_size", "print_size", "sampled",
    "sizes_attribute", "values_of",
]  # fmt: skip
