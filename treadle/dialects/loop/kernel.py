"""One launch: `loop.kernel` on tensors, `loop.func` after memory planning, and `loop.dispatch` among several."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import cast

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    IntAttr,
    IntegerAttr,
    MemRefType,
    StringAttr,
    SymbolNameConstraint,
    TensorType,
    UnitAttr,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, BlockArgument, Operation, Region, SSAValue
from xdsl.irdl import (
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
    var_result_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    RegionVariable,
    TypeDirective,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import (
    IsolatedFromAbove,
    MemoryReadEffect,
    MemoryWriteEffect,
    NoTerminator,
    RecursiveMemoryEffect,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.dispatch_tree import DISPATCH, PredictedAttr, TreeAttr
from treadle.dialects.effects import Convergent, OrdersMemory
from treadle.dialects.graph.fused import REQUIRED, check_required
from treadle.dialects.hopper.cluster import check_cluster
from treadle.dialects.location import NamesNodes
from treadle.dialects.loop.attributes import COUNT, CountAttr, Space, SpaceAttr, memref_of, type_of
from treadle.dialects.syntax import MEMREF, Body, Clause, IndexRange, Parameters, declare
from treadle.index.expr import Range
from treadle.index.reader import HasIndexRanges

# A counter at which the blocks of a launch arrive: the last one sees what all of them have stored.


@irdl_op_definition
class ArriveOp(IRDLOperation):
    """The block counts itself at a counter; true in all of its threads if it is the last of `blocks` blocks.

    ```mlir
    %last = loop.arrive %counters[%tile] of 4 : memref<16xi32, #loop.space<zeroed>>
    ```
    All threads of a block reach it together, with one counter, and wait for one another. It is a release and an
    acquire: what the blocks that arrived earlier have stored in device memory is visible in the last block after it.
    The last one resets the counter to 0. Blocks do not wait for other blocks, so that they may run in any order.
    Rejected: a counter that is no element of a row of i32 in space `zeroed`; less than one block.
    """

    name = "loop.arrive"
    counters = operand_def(MEMREF)
    index = operand_def(IndexType())
    blocks = prop_def(IntegerAttr.constr(i64))
    result = result_def(i1)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect(), OrdersMemory(), Convergent())
    assembly_format = "$counters `[` $index `]` `of` $blocks attr-dict `:` type($counters)"

    def __init__(self, counters: SSAValue, index: SSAValue, blocks: int):
        super().__init__(operands=[counters, index], properties={"blocks": IntegerAttr(blocks, i64)}, result_types=[i1])

    @property
    def count(self) -> int:
        """Blocks that arrive at the counter."""
        return self.blocks.value.data

    def verify_(self) -> None:
        type = type_of(self.counters)
        if type.get_element_type() != i32 or type.get_num_dims() != 1 or type.memory_space != SpaceAttr(Space.ZEROED):
            raise VerifyException(f"counters in {type}: expected a row of i32 in #loop.space<zeroed>")
        if self.count < 1:
            raise VerifyException(f"the last of {self.count} blocks: expected at least one")


index = IndexType()


def _properties(
    name: str,
    grid: int,
    threads: int,
    comment: str | None,
    min_blocks_per_sm: int | None,
    operations: int | None,
    cluster: int | None = None,
) -> dict[str, Attribute | None]:
    """The properties of both kinds of kernel."""
    return {
        "sym_name": StringAttr(name),
        "grid": IntegerAttr(grid, i64),
        "threads": IntegerAttr(threads, i64),
        "comment": None if comment is None else StringAttr(comment),
        "min_blocks_per_sm": None if min_blocks_per_sm is None else IntegerAttr(min_blocks_per_sm, i64),
        "operations": None if operations is None else CountAttr(operations),
        "cluster": None if cluster is None else IntegerAttr(cluster, i64),
    }


def _id_range(kernel: KernelOp | FuncOp, value: SSAValue) -> Range | None:
    """The bounds of the number of a block or a thread."""
    if value is kernel.block_id:
        return 0, kernel.grid.value.data - 1
    return (0, kernel.threads.value.data - 1) if value is kernel.thread_id else None


@irdl_custom_directive
class Number(CustomDirective):
    """A number of any size."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.value.set(state, CountAttr(parser.parse_integer(allow_negative=False)))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        number = self.value.get(op)
        assert isinstance(number, CountAttr | IntAttr)
        state.print_whitespace(printer)
        printer.print_int(number.data)

    def is_present(self, op: IRDLOperation) -> bool:
        return self.value.is_present(op)


@irdl_custom_directive
class Tensors(CustomDirective):
    """A kernel's tensors, each after the buffer that holds it, which may be flat: `ins(%A = %x : tensor<4xf32> flat)
    outs(%C : tensor<4xf32>)`."""

    inputs: VariadicOperandVariable
    input_types: TypeDirective
    output_types: TypeDirective
    body: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        operands = list[UnresolvedOperand]()

        def parse_tensor(word: str) -> Attribute:
            argument = parser.parse_argument(expect_type=False)
            if word == "ins":
                parser.parse_punctuation("=")
                operands.append(parser.parse_unresolved_operand())
            parser.parse_punctuation(":")
            position = parser.pos
            type = parser.parse_type()
            if not isinstance(type, TensorType):
                parser.raise_error(f"expected a tensor, got {type}", position)
            is_flat = parser.parse_optional_keyword("flat") is not None
            declare(state, self.body, [argument.resolve(_flat(type) if is_flat else memref_of(type))])
            return type

        for word, types in (("ins", self.input_types), ("outs", self.output_types)):
            parser.parse_keyword(word)
            types.set(state, parser.parse_comma_separated_list(parser.Delimiter.PAREN, partial(parse_tensor, word)))
        self.inputs.set(state, operands)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        def print_tensor(buffer: SSAValue, tensor: SSAValue) -> None:
            printer.print_ssa_value(buffer)
            if tensor.owner is not op:
                printer.print_string(" = ")
                printer.print_ssa_value(tensor)
            printer.print_string(" : ")
            printer.print_attribute(tensor.type)
            if buffer.type != memref_of(cast(TensorType, tensor.type)):
                printer.print_string(" flat")

        pairs = list(zip(self.body.get(op).block.args, [*op.operands, *op.results], strict=False))
        for word, tensors in (("ins", pairs[: len(op.operands)]), ("outs", pairs[len(op.operands) :])):
            printer.print_string(f" {word}")
            with printer.in_parens():
                printer.print_list(tensors, lambda pair: print_tensor(*pair))


def _flat(type: TensorType[Attribute] | MemRefType[Attribute]) -> MemRefType[Attribute]:
    """A buffer of one dimension for as many elements."""
    return MemRefType(type.get_element_type(), (prod(type.get_shape()),))


_LAUNCH_AND_BODY = (
    "`grid` `(` custom<IndexRange>(`block_id`, $grid, ref($body)) `)` "
    "`threads` `(` custom<IndexRange>(`thread_id`, $threads, ref($body)) `)` "
    "custom<Clause>(`cluster`, $cluster) custom<Clause>(`min_blocks_per_sm`, $min_blocks_per_sm) "
    "custom<Clause>(`operations`, custom<Number>($operations)) "
    "custom<Clause>(`comment`, $comment) custom<Body>($body) attr-dict"
)


@irdl_op_definition
class KernelOp(IRDLOperation, HasIndexRanges, NamesNodes):
    """A scheduled tensor program that computes one tensor, or several, in one launch.

    ```mlir
    %c = loop.kernel @matmul ins(%A = %x : tensor<128x768xf32>, %B = %w : tensor<768x3072xf32>)
        outs(%C : tensor<128x3072xf32>) grid(%b in 96) threads(%t in 256) {
      ...
    }
    ```
    Outside it takes and gives tensors; inside, its arguments are the buffers that hold them, the number of the block
    and the number of the thread in its block. Blocks are independent and run in any order; every element of each result
    that is required is stored. Several results are `outs(%C : tensor<4xf32>, %D : tensor<4xf16>)`, and `%c, %d = `
    gives them names. An optional `comment` names the operators that it computes; `min_blocks_per_sm 2`, after the
    threads, limits the registers of a thread so that two blocks fit on a multiprocessor; with `cluster 4`, before
    that, each 4 consecutive blocks run at the same time and reach each other's shared memory; `operations 384` says how
    many arithmetic operations the results take by their definition. `requires [#graph.required<d0 < 0>]`, after the
    results, says of each which elements are required; without it, all are. `joins [0, 400]`, after that, says that the
    result is nothing else than the operands, each from that element on. The body captures nothing. A tensor may be
    `flat`:

    ```mlir
    ins(%A = %x : tensor<8x512xf32> flat)
    ```
    then its buffer is `memref<4096xf32>`, and the kernel says itself where in it an element lies.
    Rejected: arguments of other types than the operands', no result, a grid or a number of threads below 1, required
    regions that do not fit the results, clusters that do not divide the grid, operands that are not all of the one
    result that they are joined to.
    """

    name = "loop.kernel"
    inputs = var_operand_def(TensorType)
    sym_name = prop_def(SymbolNameConstraint())
    grid = prop_def(IntegerAttr.constr(i64))
    threads = prop_def(IntegerAttr.constr(i64))
    cluster = opt_prop_def(IntegerAttr.constr(i64))
    min_blocks_per_sm = opt_prop_def(IntegerAttr.constr(i64))
    operations = opt_prop_def(COUNT)
    comment = opt_prop_def(StringAttr)
    required_regions = opt_prop_def(REQUIRED)
    joins = opt_prop_def(DenseArrayBase.constr(i64))
    body = region_def("single_block")
    outputs = var_result_def(TensorType)
    traits = traits_def(NoTerminator(), IsolatedFromAbove())
    custom_directives = (Body, Clause, IndexRange, Number, Tensors)
    assembly_format = (
        "$sym_name custom<Tensors>($inputs, type($inputs), type($outputs), ref($body)) "
        f"custom<Clause>(`requires`, $required_regions) custom<Clause>(`joins`, $joins) {_LAUNCH_AND_BODY}"
    )

    def __init__(
        self,
        name: str,
        inputs: Sequence[SSAValue],
        result_types: Sequence[TensorType],
        grid: int,
        threads: int,
        body: Region,
        comment: str | None = None,
        min_blocks_per_sm: int | None = None,
        operations: int | None = None,
        cluster: int | None = None,
    ):
        properties = _properties(name, grid, threads, comment, min_blocks_per_sm, operations, cluster)
        super().__init__(operands=[inputs], result_types=[result_types], properties=properties, regions=[body])

    @property
    def input_buffers(self) -> Sequence[BlockArgument]:
        return self.body.block.args[: len(self.inputs)]

    @property
    def output_buffers(self) -> Sequence[BlockArgument]:
        return self.body.block.args[len(self.inputs) : -2]

    @property
    def block_id(self) -> BlockArgument:
        return self.body.block.args[-2]

    @property
    def thread_id(self) -> BlockArgument:
        return self.body.block.args[-1]

    def index_range(self, value: SSAValue) -> Range | None:
        return _id_range(self, value)

    def verify_(self) -> None:
        if self.grid.value.data < 1 or self.threads.value.data < 1:
            raise VerifyException(f"@{self.sym_name.data}: grid and threads are at least 1")
        check_cluster(self.cluster, self.grid.value.data)
        if not self.outputs:
            raise VerifyException(f"@{self.sym_name.data}: a kernel gives at least one tensor")
        tensors = [cast(TensorType, t) for t in (*self.inputs.types, *self.outputs.types)]
        expected = [*(memref_of(t) for t in tensors), index, index]
        actual = [arg.type for arg in self.body.block.args]
        accepted = [{type, _flat(type)} if isinstance(type, MemRefType) else {type} for type in expected]
        if len(actual) != len(expected) or not all(map(operator.contains, accepted, actual)):
            raise VerifyException(
                f"@{self.sym_name.data}: the body takes ({', '.join(map(str, actual))}): "
                f"expected ({', '.join(map(str, expected))})"
            )
        if self.required_regions is not None:
            check_required(self.required_regions, [t.get_num_dims() for t in tensors[len(self.inputs) :]])
        if self.joins is not None:
            self._check_joins(tensors)

    @property
    def offsets(self) -> tuple[int, ...] | None:
        """Where the result has the operands, in elements, if it is nothing else; None otherwise."""
        return None if self.joins is None else tuple(int(offset) for offset in self.joins.iter_values())

    def _check_joins(self, tensors: Sequence[TensorType]) -> None:
        sizes, offsets, end = [prod(t.get_shape()) for t in tensors], self.offsets or (), 0
        for offset, size in sorted(zip(offsets, sizes, strict=False)):
            end = end + size if offset == end else -1
        alike = len({t.get_element_type() for t in tensors}) == 1
        if len(offsets) != len(tensors) - 1 or end != sizes[-1] or not alike:
            raise VerifyException(f"@{self.sym_name.data}: joins {list(offsets)}, which do not fill the result")


@irdl_op_definition
class FuncOp(IRDLOperation, HasIndexRanges):
    """A kernel as a function of buffers: what `loop.kernel` becomes in memory planning.

    ```mlir
    loop.func @matmul(%A : memref<98304xf32>, %C : memref<393216xf32>) grid(%b in 96) threads(%t in 256) {
      ...
    }
    ```
    Several launches may share it. The last buffer is written; with `outputs 2`, after the buffers, the last two are.
    With `partial`, after that, it may leave elements of them as they are, which nobody reads to any effect; with
    `updates` it may do so, too, and they are read.
    Buffers in space `device` and `zeroed` are the launch's own. Rejected: a grid or a number of threads below 1,
    arguments other than memrefs, then the numbers of block and thread, a number of outputs that is not between 1 and
    that of the buffers.
    """

    name = "loop.func"
    sym_name = prop_def(SymbolNameConstraint())
    grid = prop_def(IntegerAttr.constr(i64))
    threads = prop_def(IntegerAttr.constr(i64))
    cluster = opt_prop_def(IntegerAttr.constr(i64))
    min_blocks_per_sm = opt_prop_def(IntegerAttr.constr(i64))
    outputs = opt_prop_def(IntegerAttr.constr(i64))
    partial = opt_prop_def(UnitAttr)
    updates = opt_prop_def(UnitAttr)
    operations = opt_prop_def(COUNT)
    comment = opt_prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), IsolatedFromAbove(), SymbolOpInterface())
    custom_directives = (Body, Clause, IndexRange, Number, Parameters)
    assembly_format = (
        "$sym_name custom<Parameters>(`buffers`, ref($body)) custom<Clause>(`outputs`, $outputs) "
        f"(`partial` $partial^)? (`updates` $updates^)? {_LAUNCH_AND_BODY}"
    )

    def __init__(
        self,
        name: str,
        grid: int,
        threads: int,
        body: Region,
        comment: str | None = None,
        min_blocks_per_sm: int | None = None,
        operations: int | None = None,
        outputs: int = 1,
    ):
        properties = _properties(name, grid, threads, comment, min_blocks_per_sm, operations)
        if outputs != 1:
            properties["outputs"] = IntegerAttr(outputs, i64)
        super().__init__(properties=properties, regions=[body])

    @property
    def buffers(self) -> Sequence[BlockArgument]:
        return self.body.block.args[:-2]

    @property
    def num_outputs(self) -> int:
        """How many of the buffers, the last ones, are written."""
        return 1 if self.outputs is None else self.outputs.value.data

    @property
    def block_id(self) -> BlockArgument:
        return self.body.block.args[-2]

    @property
    def thread_id(self) -> BlockArgument:
        return self.body.block.args[-1]

    def index_range(self, value: SSAValue) -> Range | None:
        return _id_range(self, value)

    def verify_(self) -> None:
        if self.grid.value.data < 1 or self.threads.value.data < 1:
            raise VerifyException(f"@{self.sym_name.data}: grid and threads are at least 1")
        check_cluster(self.cluster, self.grid.value.data)
        types = [arg.type for arg in self.body.block.args]
        if types[-2:] != [index, index] or not all(isinstance(t, MemRefType) for t in types[:-2]):
            raise VerifyException(f"@{self.sym_name.data}: arguments are memrefs, then block and thread")
        if self.outputs is not None and not 1 <= self.num_outputs <= len(self.buffers):
            count = len(self.buffers)
            raise VerifyException(f"@{self.sym_name.data}: {self.num_outputs} outputs: expected 1 to {count}")


# `loop.dispatch`: one of several kernels, by the extents of a call.

EXTENT = TensorType(i64, [])
"""The type of an extent."""


@irdl_op_definition
class DispatchOp(IRDLOperation, NamesNodes):
    """Launches one of its kernels, the one whose number the tree gives for the extents.

    ```mlir
    %y = loop.dispatch #schedule.tree<e0 <= 16 ? 0 : 1> (%seq : tensor<i64>) {
      %a = loop.kernel @matmul ... { ... }
      %b = loop.kernel @matmul ... { ... }
    } : tensor<512x768xf32>
    ```
    `e0` is the first of the extents, which are @main's. The region holds one kernel an alternative, in their order, or
    before those are complete the `graph.fused` that becomes it; the results are those of the kernel that runs.
    Rejected: leaves that are not just the numbers of the kernels, an extent that is no `tensor<i64>`, kernels that give
    other types than the results.
    """

    name = "loop.dispatch"
    tree = prop_def(TreeAttr)
    predicted = opt_attr_def(PredictedAttr)
    extents = var_operand_def(TensorType)
    kernels = region_def("single_block")
    outputs = var_result_def(TensorType)
    traits = traits_def(NoTerminator(), RecursiveMemoryEffect())
    custom_directives = (Body,)
    assembly_format = f"{DISPATCH} custom<Body>($kernels) attr-dict-with-keyword `:` type($outputs)"

    def __init__(self, tree: TreeAttr, extents: Sequence[SSAValue], kernels: Region, types: Sequence[Attribute]):
        super().__init__(operands=[extents], properties={"tree": tree}, regions=[kernels], result_types=[types])

    @property
    def alternatives(self) -> Sequence[Operation]:
        return list(self.kernels.block.ops)

    def verify_(self) -> None:
        self.tree.check(len(self.alternatives), len(self.extents))
        if self.predicted is not None:
            self.predicted.check(len(self.alternatives))
        if any(type != EXTENT for type in self.extents.types):
            raise VerifyException(f"extents of types {', '.join(map(str, self.extents.types))}: expected {EXTENT}")
        for kernel in self.alternatives:
            types = [result.type for result in kernel.results]
            if types != list(self.outputs.types):
                raise VerifyException(
                    f"{kernel.name} gives {', '.join(map(str, types)) or 'nothing'}: expected "
                    f"{', '.join(map(str, self.outputs.types))}"
                )
