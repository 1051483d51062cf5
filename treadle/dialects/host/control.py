"""`host.loop` and `host.if`: planned functions that a call runs as often as its data say."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, MemRefType, SymbolRefAttr, i1, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.model_nodes import NamesNodes


@irdl_op_definition
class LoopOp(IRDLOperation, NamesNodes):
    """Runs a planned function again and again.

    ```mlir
    host.loop @body while(%limit, %going) from(%x) to(%y) spare(%s) reads(%w) rows() counter(%n) again(%c) arena(%a)
        : (memref<i64>, memref<i1>) (memref<4xf32>) (memref<4xf32>) (memref<4xf32>) (memref<4x4xf32>) () memref<i64>
          (memref<i1>) memref<256xi8>
    host.loop @step times 9 while() from(%x) to(%y) spare(%s) reads() rows(%z) counter(%n) again() arena(%a) : ...
    ```
    The inputs of the function are the counter, the state, and what is read; its outputs `again` (of a loop with
    `while`), the state, and a row of each buffer of `rows`. The first iteration reads the state in `from`; after that
    it is read where the last one wrote it, and written in turn to `to` and to `spare`. Behind the last, it is in `to`.
    `arena` is the function's. A loop with a number has so many iterations, or those of the limit where that is less;
    one without at most as many as the limit, and none once the condition is false. Rejected: a number and a condition,
    or neither; states of different numbers or types; a limit or counter that is no i64, a condition that is no i1, an
    arena that is no bytes.
    """

    name = "host.loop"
    body = prop_def(SymbolRefAttr)
    times = opt_prop_def(IntegerAttr)
    tests = var_operand_def(MemRefType)
    initial = var_operand_def(MemRefType)
    final = var_operand_def(MemRefType)
    spare = var_operand_def(MemRefType)
    read = var_operand_def(MemRefType)
    rows = var_operand_def(MemRefType)
    counter = operand_def(MemRefType)
    again = var_operand_def(MemRefType)
    arena = operand_def(MemRefType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$body (`times` $times^)? `while` `(` $tests `)` `from` `(` $initial `)` `to` `(` $final `)` `spare` `(` "
        "$spare `)` `reads` `(` $read `)` `rows` `(` $rows `)` `counter` `(` $counter `)` `again` `(` $again `)` "
        "`arena` `(` $arena `)` attr-dict `:` `(` type($tests) `)` `(` type($initial) `)` `(` type($final) `)` `(` "
        "type($spare) `)` `(` type($read) `)` `(` type($rows) `)` type($counter) `(` type($again) `)` type($arena)"
    )

    def __init__(
        self,
        body: str,
        times: int | None,
        tests: Sequence[SSAValue],
        states: tuple[Sequence[SSAValue], Sequence[SSAValue], Sequence[SSAValue]],
        read: Sequence[SSAValue],
        rows: Sequence[SSAValue],
        own: tuple[SSAValue, Sequence[SSAValue], SSAValue],
    ):
        properties: dict[str, Attribute] = {"body": SymbolRefAttr(body)}
        if times is not None:
            properties["times"] = IntegerAttr(times, i64)
        super().__init__(operands=[tests, *states, read, rows, *own], properties=properties)

    def verify_(self) -> None:
        counts = (len(self.tests), len(self.again))
        if counts not in ([(2, 1)] if self.times is None else [(0, 0), (1, 0)]):
            raise VerifyException(
                "expected either a number of times with at most a limit, or two tests and a condition"
            )
        if not list(self.initial.types) == list(self.final.types) == list(self.spare.types):
            raise VerifyException("the state's buffers differ: expected the same types in from, to and spare")
        integers, conditions = [*self.tests[:1], self.counter], [*self.tests[1:], *self.again]
        for values, element in ((integers, i64), (conditions, i1)):
            wrong = next((v for v in values if not _is_one(v.type, element)), None)
            if wrong is not None:
                raise VerifyException(f"a buffer of type {wrong.type}: expected one {element}")


@irdl_op_definition
class IfOp(IRDLOperation, NamesNodes):
    """Runs one of two planned functions, the first if the condition is true.

    ```mlir
    host.if %c @then @else reads(%x) to(%y) arena(%a)
        : memref<i1> (memref<4xf32>) (memref<4xf32>) memref<64xi8>
    ```
    Both read and write the same buffers, and have the same arena. Rejected: a condition that is no i1.
    """

    name = "host.if"
    then = prop_def(SymbolRefAttr)
    otherwise = prop_def(SymbolRefAttr)
    condition = operand_def(MemRefType)
    read = var_operand_def(MemRefType)
    final = var_operand_def(MemRefType)
    arena = operand_def(MemRefType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$condition $then $otherwise `reads` `(` $read `)` `to` `(` $final `)` `arena` `(` $arena `)` attr-dict `:` "
        "type($condition) `(` type($read) `)` `(` type($final) `)` type($arena)"
    )

    def __init__(
        self,
        condition: SSAValue,
        branches: tuple[str, str],
        read: Sequence[SSAValue],
        final: Sequence[SSAValue],
        arena: SSAValue,
    ):
        properties = {"then": SymbolRefAttr(branches[0]), "otherwise": SymbolRefAttr(branches[1])}
        super().__init__(operands=[condition, read, final, arena], properties=properties)

    def verify_(self) -> None:
        if not _is_one(self.condition.type, i1):
            raise VerifyException(f"a condition of type {self.condition.type}: expected one {i1}")


def _is_one(type: Attribute, element: Attribute) -> bool:
    return isinstance(type, MemRefType) and type.get_element_type() == element and prod(type.get_shape()) == 1


__all__ = ["IfOp", "LoopOp"]
