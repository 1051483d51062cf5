"""Several decisions for one group, and which of them a call takes by its extents."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, SymbolRefAttr
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from treadle.decision_tree import Tree
from treadle.dialects.dispatch_tree import PredictedAttr, Prediction, TreeAttr
from treadle.dialects.schedule.attributes import UseAttr

MOST_KERNELS = 8
"""Alternatives of one group: each is code to compile and to keep; DietCode (MLSys 2022) ends with up to eight."""


@irdl_attr_definition
class DispatchAttr(ParametrizedAttribute):
    """A group's alternatives, each a decision or a program's symbol, and the tree that says which a call takes.

    ```mlir
    #schedule.dispatch<#schedule.tree<e0 <= 16 ? 0 : 1>,
                       [#schedule.use<"matmul_cpu", {rows = 4, ...}>, #schedule.use<"matmul_cpu", {rows = 8, ...}>]>
    ```
    `e0` is the extent that the first entry of @main's `extents` names. A third parameter, `#schedule.predicted<...>`,
    keeps what was predicted of the alternatives. Rejected: leaves that are not just the numbers of the alternatives,
    more than MOST_KERNELS of them, predictions of another number.
    """

    name = "schedule.dispatch"
    tree: TreeAttr
    alternatives: ArrayAttr[Attribute]
    predicted: PredictedAttr

    @classmethod
    def get(
        cls, tree: Tree[int], alternatives: Sequence[Attribute], predicted: Sequence[Prediction] = ()
    ) -> DispatchAttr:
        return cls(TreeAttr(tree), ArrayAttr(alternatives), PredictedAttr(tuple(predicted)))

    def verify(self) -> None:
        count = len(self.alternatives.data)
        if not 1 <= count <= MOST_KERNELS:
            raise VerifyException(f"{count} alternatives: expected 1 to {MOST_KERNELS}")
        for each in self.alternatives.data:
            if not isinstance(each, UseAttr | SymbolRefAttr):
                raise VerifyException(f"an alternative is {each}: expected #schedule.use<...> or a program's symbol")
        self.tree.check(count)
        self.predicted.check(count)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.tree)
            printer.print_string(", ")
            printer.print_attribute(self.alternatives)
            if self.predicted.data:
                printer.print_string(", ")
                printer.print_attribute(self.predicted)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        position = parser.pos
        found = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, parser.parse_attribute)
        given = [*found, PredictedAttr(())] if len(found) == 2 else found
        match given:
            case [TreeAttr(), ArrayAttr(), PredictedAttr()]:
                return given
            case _:
                parser.raise_error(
                    "expected #schedule.tree<...>, [alternatives] and #schedule.predicted<...>", position
                )


__all__ = ["MOST_KERNELS", "DispatchAttr"]
