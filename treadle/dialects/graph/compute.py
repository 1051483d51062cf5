"""The definition language: what each element of a tensor is.

`graph.compute` holds one scalar expression per output element, `graph.at` reads an element of a tensor,
`graph.reduce` folds a range of indices; this is Hidet's `compute`/`reduce` (ASPLOS 2023, section 5) as IR.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, IndexType, StringAttr, TensorType, i1, i64
from xdsl.ir import Attribute, BlockArgument, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.location import NamesNodes
from treadle.dialects.syntax import TENSOR, Body, Clause, ElementType, Indices, Literal, parse_range, print_range
from treadle.index.expr import Range
from treadle.index.reader import HasIndexRanges

REDUCTIONS = ("add", "mul", "max", "min", "and", "or")
"""The monoids that a reduction folds with."""

index = IndexType()


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends a region of the graph dialect and gives its value; a group may give several.

    ```mlir
    graph.yield %p : f32
    ```
    """

    name = "graph.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "$values attr-dict `:` type($values)"

    def __init__(self, *values: SSAValue):
        super().__init__(operands=[values])

    @property
    def value(self) -> SSAValue:
        """The one value of a definition or a reduction, the first of a group."""
        return self.values[0]


@irdl_op_definition
class AtOp(IRDLOperation):
    """One element of a tensor. With `where`, the element is read only if the predicate holds.

    ```mlir
    %a = graph.at %x[%i, %k] : tensor<4x8xf32>
    %b = graph.at %x[%i, %h] where %inside else %zero : tensor<4x8xf32>
    ```

    Rejected: a number of indices that is not the tensor's rank; an `else` value or a result of another type than
    the tensor's elements. An index out of bounds where the predicate holds is undefined.
    """

    name = "graph.at"
    source = operand_def(TENSOR)
    indices = var_operand_def(IndexType)
    predicate = opt_operand_def(i1)
    otherwise = opt_operand_def()
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())
    custom_directives = (Clause, ElementType)
    assembly_format = (
        "$source `[` $indices `]` custom<Clause>(`where`, $predicate) custom<Clause>(`else`, $otherwise) attr-dict `:` "
        "type($source) custom<ElementType>(ref(type($source)), type($result)) "
        "custom<ElementType>(ref(type($source)), type($otherwise))"
    )

    def __init__(
        self,
        source: SSAValue,
        indices: Sequence[SSAValue],
        predicate: SSAValue | None = None,
        otherwise: SSAValue | None = None,
    ):
        if not isinstance(source.type, TensorType):
            raise VerifyException(f"graph.at reads a tensor, not {source.type}")
        super().__init__(
            operands=[source, indices, predicate, otherwise],
            result_types=[source.type.get_element_type()],
        )

    def verify_(self) -> None:
        type = self.source.type
        assert isinstance(type, TensorType)
        if len(self.indices) != type.get_num_dims():
            raise VerifyException(f"{len(self.indices)} indices into {type}: expected {type.get_num_dims()}")
        if self.result.type != type.get_element_type():
            raise VerifyException(f"an element of {type} is not {self.result.type}")
        if (self.predicate is None) != (self.otherwise is None):
            raise VerifyException("'where' and 'else' come together")
        if self.otherwise is not None and self.otherwise.type != self.result.type:
            raise VerifyException(f"'else' gives {self.otherwise.type}: expected {self.result.type}")


def _extent_range(op: ReduceOp | ComputeOp, value: SSAValue) -> Range | None:
    """The bounds of an index of a definition; nothing is said of one that takes no value."""
    if not isinstance(value, BlockArgument):
        return None
    extent = op.shape[value.index]
    return (0, extent - 1) if extent > 0 else None


@irdl_op_definition
class ReduceOp(IRDLOperation, HasIndexRanges):
    """Folds a scalar expression over a range of indices, from the identity of its monoid.

    ```mlir
    %s = graph.reduce add (%k in 768) {
      ...
      graph.yield %p : f32
    }
    ```

    Rejected: an unknown monoid, an extent below 0, a number of indices that is not the number of extents.
    """

    name = "graph.reduce"
    kind = prop_def(StringAttr)
    extents = prop_def(DenseArrayBase.constr(i64))
    body = region_def("single_block")
    result = result_def()
    traits = traits_def(RecursiveMemoryEffect())

    def __init__(self, kind: str, extents: Sequence[int], body: Region, result_type: Attribute):
        super().__init__(
            properties={"kind": StringAttr(kind), "extents": DenseArrayBase.from_list(i64, extents)},
            regions=[body],
            result_types=[result_type],
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents.get_values()

    def index_range(self, value: SSAValue) -> Range | None:
        return _extent_range(self, value)

    def verify_(self) -> None:
        if self.kind.data not in REDUCTIONS:
            raise VerifyException(f"unknown reduction {self.kind.data!r}: expected one of {', '.join(REDUCTIONS)}")
        if len(self.body.block.args) != len(self.shape):
            raise VerifyException(f"{len(self.body.block.args)} indices for {len(self.shape)} extents")
        if any(e < 0 for e in self.shape):
            raise VerifyException(f"extents {self.shape}: each is at least 0")
        if yielded(self.body).type != self.result.type:
            raise VerifyException(f"yields {yielded(self.body).type}, result is {self.result.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind.data} ")
        with printer.in_parens():
            pairs = zip(self.body.block.args, self.shape, strict=True)
            printer.print_list(pairs, lambda pair: print_range(printer, *pair))
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> ReduceOp:
        position = parser.pos
        kind = parser.parse_identifier()
        if kind not in REDUCTIONS:
            parser.raise_error(f"unknown reduction {kind!r}: expected one of {', '.join(REDUCTIONS)}", position)
        pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_range(parser))
        body = parser.parse_region([arg for arg, _ in pairs])
        return cls(kind, [extent for _, extent in pairs], body, yielded(body).type)


@irdl_op_definition
class ComputeOp(IRDLOperation, HasIndexRanges, NamesNodes):
    """Defines every element of a tensor by one scalar expression of its indices.

    ```mlir
    %y = graph.compute (%i, %j) {
      %a = graph.at %x[%j, %i] : tensor<4x3xf32>
      graph.yield %a : f32
    } : tensor<3x4xf32>
    ```

    The tensors it reads are captured. The optional attribute `operators` keeps the names of the operators it stands
    for. Rejected: a number of indices that is not the result's rank, a yielded type that is not the element type.
    """

    name = "graph.compute"
    body = region_def("single_block")
    operators = opt_prop_def(StringAttr)
    result = result_def(TENSOR)
    traits = traits_def(RecursiveMemoryEffect())
    custom_directives = (Body, Indices, Literal)
    assembly_format = (
        "custom<Literal>($operators) custom<Indices>(ref($body)) custom<Body>($body) attr-dict `:` type($result)"
    )

    def __init__(self, body: Region, result_type: TensorType, operators: str | None = None):
        name = None if operators is None else StringAttr(operators)
        super().__init__(regions=[body], result_types=[result_type], properties={"operators": name})

    @property
    def type(self) -> TensorType:
        return self.result.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.get_shape()

    def index_range(self, value: SSAValue) -> Range | None:
        return _extent_range(self, value)

    def reads(self) -> list[AtOp]:
        """Every element read in the body, in program order."""
        return [op for op in self.body.walk() if isinstance(op, AtOp)]

    def tensors(self) -> list[SSAValue]:
        """The tensors that the body reads, each once, in the order of first use."""
        return list(dict.fromkeys(at.source for at in self.reads()))

    def verify_(self) -> None:
        if len(self.body.block.args) != len(self.shape):
            raise VerifyException(f"{len(self.body.block.args)} indices define {self.type}: expected its rank")
        if yielded(self.body).type != self.type.get_element_type():
            raise VerifyException(f"yields {yielded(self.body).type}, elements are {self.type.get_element_type()}")


def only_reduce(compute: ComputeOp) -> ReduceOp | None:
    """The reduction of a definition that has exactly one, with no other inside it."""
    reduces = [op for op in compute.body.walk() if isinstance(op, ReduceOp)]
    return reduces[0] if len(reduces) == 1 and reduces[0].parent_op() is compute else None


def yielded(region: Region) -> SSAValue:
    """The one value that a definition or a reduction ends with; VerifyException if it ends otherwise."""
    values = yielded_values(region)
    if len(values) != 1:
        raise VerifyException(f"graph.yield gives {len(values)} values: expected one")
    return values[0]


def yielded_values(region: Region) -> Sequence[SSAValue]:
    """The values that a region of the graph dialect ends with; VerifyException if it ends otherwise."""
    last = region.block.last_op
    if not isinstance(last, YieldOp):
        raise VerifyException("the region does not end with graph.yield")
    return last.values
