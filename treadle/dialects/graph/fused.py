"""`graph.fused`: the operators of one kernel, and which of its operations read a tensor."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import ArrayAttr, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Attribute, Operation, Region
from xdsl.irdl import IRDLOperation, irdl_op_definition, opt_prop_def, prop_def, region_def, traits_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.compute import yielded_values
from treadle.dialects.graph.demanded import check_demands, parse_demands, print_demands
from treadle.dialects.model_nodes import NamesNodes
from treadle.dialects.schedule.attributes import UseAttr
from treadle.dialects.schedule.dispatch import DispatchAttr


@irdl_op_definition
class FusedOp(IRDLOperation, NamesNodes):
    """A group of operators that becomes one kernel: an anchor with its prologues and epilogues.

    ```mlir
    %y = graph.fused "conv1_relu" {
      %m = graph.matmul %a, %b : ...
      %r = graph.compute (%i, %j) { ... } : tensor<64x64xf32>
      graph.yield %r : tensor<64x64xf32>
    } schedule #schedule.use<"matmul_cpu", {tile = [8, 32]}> : tensor<64x64xf32>
    ```

    The schedule may also be the symbol of a `schedule.program`: `schedule @tiled`, or, where extents are data, several
    decisions and a tree: `schedule #schedule.dispatch<...>`. Tensors from outside are captured.
    A group whose intermediate result others read, too, gives several tensors: `%m, %y = graph.fused ... { ...
    graph.yield %m, %r : ... } : tensor<64x64xf32>, tensor<64x64xf32>`. After the schedule, `demands
    [#graph.demanded<d0 < 0>, #graph.demanded<>]` says which elements of each result anybody needs; without it, all.
    Rejected: result types that are not the yielded ones, a group without any, demands that do not fit the results.
    """

    name = "graph.fused"
    label = prop_def(StringAttr)
    body = region_def("single_block")
    schedule = opt_prop_def(UseAttr | SymbolRefAttr | DispatchAttr)
    demands = opt_prop_def(ArrayAttr)
    outputs = var_result_def()
    traits = traits_def(RecursiveMemoryEffect())

    def __init__(self, label: str, body: Region, schedule: UseAttr | SymbolRefAttr | DispatchAttr | None = None):
        properties: dict[str, Attribute] = {"label": StringAttr(label)}
        if schedule is not None:
            properties["schedule"] = schedule
        types = [value.type for value in yielded_values(body)]
        super().__init__(regions=[body], result_types=[types], properties=properties)

    def verify_(self) -> None:
        yields = [value.type for value in yielded_values(self.body)]
        if not yields:
            raise VerifyException("yields nothing: expected at least one tensor")
        if yields != list(self.outputs.types):
            raise VerifyException(f"yields {_listed(yields)}, result is {_listed(self.outputs.types)}")
        if self.demands is not None:
            check_demands(self.demands, [t.get_num_dims() for t in yields if isinstance(t, TensorType)])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.label.data)
        printer.print_string(" ")
        printer.print_region(self.body)
        if self.schedule is not None:
            printer.print_string(" schedule ")
            printer.print_attribute(self.schedule)
        print_demands(printer, self.demands)
        printer.print_string(" : ")
        printer.print_list(self.outputs.types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> FusedOp:
        label = parser.parse_str_literal()
        body = parser.parse_region()
        schedule = None
        if parser.parse_optional_keyword("schedule") is not None:
            position = parser.pos
            schedule = parser.parse_attribute()
            if not isinstance(schedule, UseAttr | SymbolRefAttr | DispatchAttr):
                accepted = "#schedule.use<...>, #schedule.dispatch<...> or a program's symbol"
                parser.raise_error(f"expected {accepted}, got {schedule}", position)
        demands = parse_demands(parser)
        parser.parse_punctuation(":")
        position = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        yields = [value.type for value in yielded_values(body)]
        if types != yields:
            parser.raise_error(f"yields {_listed(yields)}, result is {_listed(types)}", position)
        fused = cls(label, body, schedule)
        fused.demands = demands
        return fused


def _listed(types: Iterable[Attribute]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def enclosing_compute(op: Operation) -> Operation:
    """The outermost operation between `op` and the function that holds it: the tensor-level user of a read."""
    while (parent := op.parent_op()) is not None and not isinstance(parent, FusedOp) and parent.name != "func.func":
        op = parent
    return op
