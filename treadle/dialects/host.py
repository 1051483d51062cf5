"""The host dialect: the program that launches a module's kernels, in order, on planned memory; loops and branches.

It refers to buffers by kind and offset, and to kernels by their symbols; it does not depend on what a kernel computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, MemRefType, StringAttr, SymbolRefAttr, i1, i64
from xdsl.ir import Attribute, Dialect, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import IsTerminator, MemoryReadEffect, MemoryWriteEffect, NoTerminator, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.dispatch_tree import DISPATCH, PredictedAttr, TreeAttr
from treadle.dialects.graph.attributes import BlobAttr, InlineAttr
from treadle.dialects.location import NamesNodes
from treadle.dialects.syntax import MEMREF, Body, Literal, Word


def _is_extent(type: MemRefType) -> bool:
    return type.get_element_type() == i64 and prod(type.get_shape()) == 1


@irdl_op_definition
class BufferOp(IRDLOperation):
    """A buffer of the whole program: an input, an output, a constant, a range of the arena, or of the memory that
    is zero between launches.

    ```mlir
    %x = host.buffer input 0 : memref<1x3x48x320xf32>
    %h = host.buffer arena 4096 : memref<1x16x24x160xf32>
    %w = host.buffer constant #graph.blob<"sha256:...", 864> : memref<216xf32>
    %n = host.buffer zeroed 0 : memref<16xi32>
    ```
    Inputs and outputs are numbered, the arena and the zeroed memory are addressed in bytes. Launches run one after
    another, and each leaves the zeroed memory zero, so that all may use the same. Rejected: a kind without its number
    or value.
    """

    name = "host.buffer"
    kind = prop_def(StringAttr)
    position = opt_prop_def(IntegerAttr.constr(i64))
    value = opt_prop_def(BlobAttr | InlineAttr)
    buffer = result_def(MEMREF)
    traits = traits_def()
    custom_directives = (Literal, Word)
    assembly_format = "custom<Word>($kind) custom<Literal>($position) ($value^)? attr-dict `:` type($buffer)"

    def __init__(
        self,
        kind: str,
        type: MemRefType,
        position: int | None = None,
        value: BlobAttr | InlineAttr | None = None,
    ):
        number = None if position is None else IntegerAttr(position, i64)
        properties = {"kind": StringAttr(kind), "position": number, "value": value}
        super().__init__(properties=properties, result_types=[type])

    @property
    def type(self) -> MemRefType:
        return self.buffer.type

    def verify_(self) -> None:
        kind = self.kind.data
        if kind not in ("input", "output", "arena", "constant", "zeroed"):
            raise VerifyException(f"unknown kind {kind!r}: expected input, output, arena, constant or zeroed")
        if (self.value is None) == (kind == "constant") or (self.position is None) != (kind == "constant"):
            raise VerifyException(f"{kind} buffer: a constant has a value, the others a number")


@irdl_op_definition
class LaunchOp(IRDLOperation, NamesNodes):
    """Runs a kernel on buffers; launches run in program order.

    ```mlir
    host.launch @matmul(%x, %w, %h) : memref<98304xf32>, memref<589824xf32>, memref<393216xf32>
    ```
    Its location says which nodes of the model it computes; a kernel may be launched for several.
    """

    name = "host.launch"
    kernel = prop_def(SymbolRefAttr)
    buffers = var_operand_def(MemRefType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$kernel `(` $buffers `)` attr-dict `:` type($buffers)"

    def __init__(self, kernel: str, buffers: Sequence[SSAValue]):
        super().__init__(properties={"kernel": SymbolRefAttr(kernel)}, operands=[buffers])


@irdl_op_definition
class DispatchOp(IRDLOperation, NamesNodes):
    """Runs one of its launches, the one whose number the tree gives for the extents, which are inputs.

    ```mlir
    host.dispatch #schedule.tree<e0 <= 16 ? 0 : 1> (%seq : memref<i64>) {
      host.launch @matmul(%x, %w, %h, %seq) : ...
      host.launch @matmul_2(%x, %w, %h, %seq) : ...
    }
    ```
    Rejected: leaves that are not just the numbers of the launches, anything but launches in the region, an extent that
    is no buffer of one i64.
    """

    name = "host.dispatch"
    tree = prop_def(TreeAttr)
    predicted = opt_attr_def(PredictedAttr)
    extents = var_operand_def(MemRefType)
    launches = region_def("single_block")
    traits = traits_def(NoTerminator(), RecursiveMemoryEffect())
    custom_directives = (Body,)
    assembly_format = f"{DISPATCH} custom<Body>($launches) attr-dict-with-keyword"

    def __init__(self, tree: TreeAttr, extents: Sequence[SSAValue], launches: Region):
        super().__init__(operands=[extents], properties={"tree": tree}, regions=[launches])

    def verify_(self) -> None:
        ops = list(self.launches.block.ops)
        wrong = next((op for op in ops if not isinstance(op, LaunchOp)), None)
        if wrong is not None:
            raise VerifyException(f"{wrong.name} in a dispatch: expected host.launch")
        self.tree.check(len(ops), len(self.extents))
        if self.predicted is not None:
            self.predicted.check(len(ops))
        if not all(isinstance(t, MemRefType) and _is_extent(t) for t in self.extents.types):
            raise VerifyException(f"extents of types {', '.join(map(str, self.extents.types))}: expected one i64 each")


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Ends the planned program.

    ```mlir
    host.return
    ```
    """

    name = "host.return"
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict"


# `host.loop` and `host.if`: planned functions that a call runs as often as its data say.


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
        properties = {"body": SymbolRefAttr(body), "times": None if times is None else IntegerAttr(times, i64)}
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


HOST = Dialect("host", [BufferOp, DispatchOp, IfOp, LaunchOp, LoopOp, ReturnOp], [])

__all__ = ["HOST", "BufferOp", "DispatchOp", "IfOp", "LaunchOp", "LoopOp", "ReturnOp"]
