"""Dispatch by a tree over extents: its attribute, what was predicted of the alternatives, and the syntax of operations.

Several dialects have it: a decision of the schedule dialect, kernels on tensors, launches on buffers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from treadle.shapes.decision_tree import Leaf, Split, Tree, boxes, symbols_of, tree_text

_EXTENT = re.compile(r"e(\d{1,3})")


@irdl_attr_definition
class TreeAttr(Data[Tree[int]]):
    """A decision tree over extents, whose leaves are numbers of alternatives.

    ```mlir
    #schedule.tree<e0 <= 16 ? 0 : (e1 <= 4 ? 1 : 2)>
    ```
    Every point has one leaf. In the generic form `<=` is the word `le`: MLIR takes `<` for an opening bracket.
    Rejected: a leaf that no point reaches.
    """

    name = "schedule.tree"

    def verify(self) -> None:
        for kernel, box in boxes(self.data):
            for symbol, (least, greatest) in box.items():
                if least is not None and greatest is not None and least > greatest:
                    raise VerifyException(f"no point reaches leaf {kernel}: e{symbol} is from {least} to {greatest}")

    def check(self, alternatives: int, extents: int | None = None) -> None:
        """VerifyException unless the leaves are just the numbers of the alternatives, and the extents are given."""
        found = {kernel for kernel, _ in boxes(self.data)}
        wrong = found.symmetric_difference(range(alternatives))
        if wrong:
            what = "is none" if min(wrong) in found else "has no leaf"
            raise VerifyException(f"alternative {min(wrong)} {what}: expected leaves 0 to {alternatives - 1}")
        missing = set[int]() if extents is None else symbols_of(self.data).difference(range(extents))
        if missing:
            raise VerifyException(f"e{min(missing)} is not given: there are {extents} extents")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Tree[int]:
        with parser.in_angle_brackets():
            return _tree(parser)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(tree_text(self.data, "le" if printer.print_generic_format else "<="))


def _tree(parser: AttrParser) -> Tree[int]:
    if parser.parse_optional_punctuation("(") is not None:
        inner = _tree(parser)
        parser.parse_punctuation(")")
        return inner
    number = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
    if number is not None:
        return Leaf(number)
    position = parser.pos
    match = _EXTENT.fullmatch(
        word := parser.parse_identifier("an extent, e0, e1, ..., or the number of an alternative")
    )
    if match is None:
        parser.raise_error(f"{word!r} is no extent: expected e0, e1, and so on", position)
    if parser.parse_optional_keyword("le") is None:
        parser.parse_punctuation("<")
        parser.parse_punctuation("=")
    at_most = parser.parse_integer(allow_boolean=False)
    parser.parse_punctuation("?")
    left = _tree(parser)
    parser.parse_punctuation(":")
    return Split(int(match[1]), at_most, left, _tree(parser))


@dataclass(frozen=True)
class Prediction:
    """What each alternative takes at one point.

    extents: the point, by the numbers of the extents that a tree compares; weight: how often it occurs
    seconds: of each alternative, then of the best micro-kernel of all that were considered
    """

    extents: tuple[int, ...]
    weight: float
    seconds: tuple[float, ...]


@irdl_attr_definition
class PredictedAttr(Data[tuple[Prediction, ...]]):
    """The predicted seconds of a dispatch's alternatives at some points.

    ```mlir
    #schedule.predicted<[1] 0.5 [1.2e-05, 2.4e-05, 1.2e-05], [512] 0.5 [3.1e-03, 2.0e-03, 1.9e-03]>
    ```
    Of each point: the extents, its weight, the seconds of every alternative (`inf` of one that is never taken there)
    and, last, of the best micro-kernel that was considered. Rejected: points of different lengths.
    """

    name = "schedule.predicted"

    def verify(self) -> None:
        if len({(len(each.extents), len(each.seconds)) for each in self.data}) > 1:
            raise VerifyException("the points have different numbers of extents or seconds")

    def check(self, alternatives: int) -> None:
        """VerifyException unless there are seconds for so many alternatives and for the best micro-kernel."""
        if self.data and len(self.data[0].seconds) != alternatives + 1:
            raise VerifyException(f"{len(self.data[0].seconds)} predictions a point for {alternatives} alternatives")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Prediction, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: _prediction(parser)))

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(", ".join(map(_text, self.data)))


def _text(each: Prediction) -> str:
    return f"{list(each.extents)} {each.weight:.6e} [{', '.join(f'{s:.6e}' for s in each.seconds)}]"


def _prediction(parser: AttrParser) -> Prediction:
    def seconds() -> float:
        return math.inf if parser.parse_optional_keyword("inf") else float(parser.parse_number())

    extents = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
    weight = float(parser.parse_number())
    times = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, seconds)
    return Prediction(tuple(extents), weight, tuple(times))


DISPATCH = "qualified($tree) ` ` `(` $extents `:` type($extents) `)`"
"""The first part of the assembly format of operations that have a tree and extents."""


__all__ = ["DISPATCH", "PredictedAttr", "Prediction", "TreeAttr"]
