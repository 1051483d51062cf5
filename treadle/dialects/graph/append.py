"""Tensors that a program keeps between calls, and new elements that are written into them where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    ArrayAttr,
    BoolAttr,
    IndexType,
    IntAttr,
    IntegerAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, ParametrizedAttribute, SSAValue
from xdsl.irdl import (
    EqAttrConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    traits_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import Pure

from treadle.dialects.graph.definition import DefinitionBuilder, MovesElements, Operator, Scalar, integer, require
from treadle.dialects.graph.movement import extent

STATES = "states"
"""The attribute of @main that lists its states."""


@irdl_attr_definition
class StateAttr(ParametrizedAttribute):
    """A tensor that @main's program keeps between calls: an argument of @main, by its number, and the result that is
    the argument of the next call.

    ```mlir
    func.func @main(%ids: tensor<1x8xi64>, %past: tensor<1x2x128x64xf32>)
        -> (tensor<1x8x1000xf32>, tensor<1x2x128x64xf32>) attributes {states = [#graph.state<1 -> 1>]}
    ```
    `in_place`, as `memory-plan` writes it, says that both are one buffer: `#graph.state<1 -> 1 in_place>`. Otherwise
    the runtime has two, which take turns. Callers neither give nor get states; at first all their elements are 0.
    """

    name = "graph.state"
    argument: IntAttr
    result: IntAttr
    in_place: BoolAttr

    @classmethod
    def of(cls, argument: int, result: int, in_place: bool = False) -> StateAttr:
        return cls(IntAttr(argument), IntAttr(result), BoolAttr.from_bool(in_place))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            word = " in_place" if self.in_place.value.data else ""
            printer.print_string(f"{self.argument.data} -> {self.result.data}{word}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            argument = parser.parse_integer(allow_negative=False)
            parser.parse_punctuation("->")
            result = parser.parse_integer(allow_negative=False)
            in_place = parser.parse_optional_keyword("in_place") is not None
        return IntAttr(argument), IntAttr(result), BoolAttr.from_bool(in_place)


@irdl_op_definition
class AppendOp(Operator):
    """A tensor whose elements from position `begin` on, along dimension `dim`, are those of another.

    ```mlir
    %y = graph.append %past, %new at %begin count %n {dim = 2 : i64}
        : (tensor<1x2x1024x64xf32>, tensor<1x2x16x64xf32>) -> tensor<1x2x1024x64xf32>
    ```
    `begin` is data, and so is `n`, if it is given: only the first `n` of the new elements are written. What would lie
    outside is dropped. Where the first operand and the result are a state of @main (`#graph.state`), and nothing else
    reads that operand, nothing is copied but the new elements.

    Rejected: operands of other ranks, element types or extents in other dimensions; a dimension out of range; a begin
    or a count that is no `tensor<i64>`.
    """

    name = "graph.append"
    past = operand_def(TensorType)
    new = operand_def(TensorType)
    begin = operand_def(EqAttrConstraint(TensorType(i64, [])))
    count = opt_operand_def(EqAttrConstraint(TensorType(i64, [])))
    dim = prop_def(IntegerAttr)
    traits = traits_def(Pure(), MovesElements())
    assembly_format = (
        "$past `,` $new `at` $begin (`count` $count^)? attr-dict `:` `(` type($past) `,` type($new) `)` `->` "
        "type($result)"
    )

    def __init__(self, past: SSAValue, new: SSAValue, begin: SSAValue, count: SSAValue | None, dim: int):
        super().__init__([past, new, begin, *([] if count is None else [count])], dim=dim)

    @classmethod
    def group(
        cls, operands: Sequence[SSAValue], properties: Mapping[str, Attribute]
    ) -> Sequence[SSAValue | Sequence[SSAValue]]:
        return [*operands[:3], operands[3:]]

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        past, new, dim = types[0], types[1], integer(properties, "dim")
        kept, added = (list(type.get_shape()) for type in (past, new))
        require(past.get_element_type() == new.get_element_type(), f"{new} is appended to {past}: element types differ")
        require(len(kept) == len(added), f"{new} is appended to {past}: ranks differ")
        require(0 <= dim < len(kept), f"dimension {dim} of {past}")
        del kept[dim], added[dim]
        require(kept == added, f"{new} is appended to {past}: extents differ beside those of dimension {dim}")
        for type in types[2:]:
            require(type == TensorType(i64, []), f"a begin or a count {type}: expected tensor<i64>")
        return past

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dim = self.dim.value.data
        place = b.binary("sub", index[dim], self.first(b, b.at(self.begin, [])))
        inside = b.binary("and", b.binary("ge", place, 0), b.binary("lt", place, self.written(b)))
        kept = b.at(self.past, index)
        return b.at(self.new, [place if d == dim else i for d, i in enumerate(index)], inside, kept)

    def first(self, b: DefinitionBuilder, begin: Scalar) -> Scalar:
        """The position of the first new element as an index, within those that are told apart."""
        # A GPU's index may have 32 bits: the number is brought into range before it is truncated.
        most, least = self.shape[self.dim.value.data], -self._new_extent
        given = b.binary("max", b.binary("min", begin, b.constant(most, i64)), b.constant(least, i64))
        return b.insert(arith.IndexCastOp(given, IndexType()))

    def written(self, b: DefinitionBuilder, count: Scalar | None = None) -> Scalar:
        """How many new elements there are, as an index; `count` is the operand's value, if that was read already."""
        if self.count is None:
            return b.constant(self._new_extent)
        return extent(b, b.at(self.count, []) if count is None else count, self._new_extent)

    @property
    def _new_extent(self) -> int:
        assert isinstance(self.new.type, TensorType)
        return self.new.type.get_shape()[self.dim.value.data]


def states_of(main: FuncOp) -> tuple[StateAttr, ...]:
    """The states of @main."""
    listed = main.attributes.get(STATES)
    return tuple(each for each in listed.data if isinstance(each, StateAttr)) if isinstance(listed, ArrayAttr) else ()


def is_in_place(op: AppendOp) -> bool:
    """Whether an append is the only reader of a state's argument, and its result is what that state becomes."""
    main, past = op.parent_op(), op.past
    if not isinstance(main, FuncOp) or not isinstance(past, BlockArgument) or len(list(past.uses)) != 1:
        return False
    end = main.body.block.last_op
    returned = [use.index for use in op.result.uses if use.operation is end]
    pairs = [(past.index, each) for each in returned]
    known = {(each.argument.data, each.result.data) for each in states_of(main)}
    return isinstance(end, ReturnOp) and len(returned) == 1 and pairs[0] in known


__all__ = ["STATES", "AppendOp", "StateAttr", "is_in_place", "states_of"]
