"""tile-lower: tiles become the loops, loads and products of fragments that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.reduction import identity
from treadle.dialects.location import location_of
from treadle.dialects.loop import FuncOp, KernelOp, type_of
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.task import repeat
from treadle.dialects.tile import (
    CopyOp,
    FragmentOp,
    GemmOp,
    MapOp,
    OperandOp,
    PipelinedOp,
    ReduceOp,
    RoundOp,
    StoreOp,
    YieldOp,
    extents_of,
)
from treadle.errors import TreadleError
from treadle.passes.loop.kernels import kernels_of
from treadle.schedules.kernel_builder import Index, KernelBuilder
from treadle.schedules.pipelines import pipelined
from treadle.schedules.tiles import (
    HALVES,
    PRODUCT_M,
    Fragment,
    Operand,
    Region,
    SharedTile,
    TileBuilder,
    TileLayout,
    lane_row,
)

_TILES = (FragmentOp, CopyOp, OperandOp, RoundOp, GemmOp, MapOp, ReduceOp, StoreOp)


@dataclass(frozen=True)
class TileLowerPass(ModulePass):
    """Writes what the operations of the tile dialect are made of, by the functions that templates are written with.

    ```mlir
    %c = tile.fragment at [%row, %column] : !tile.fragment<32x32xf32>
    ```
    becomes
    ```mlir
    %c = loop.alloc : memref<2x2x2xvector<2x2xf32>, #loop.space<register>>
    task.for (%r, %p, %q) in #task.map<repeat(2, 2, 2)> unroll {
      %0 = arith.constant dense<0.000000e+00> : vector<2x2xf32>
      loop.store %0, %c[%r, %p, %q] : memref<2x2x2xvector<2x2xf32>, #loop.space<register>>
    }
    ```
    `tile.pipelined` becomes a loop, and one before it for the copies of its first steps. Rejected: tiles outside of a
    kernel, and in one whose threads are no whole warps.
    """

    name = "tile-lower"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            if any(isinstance(inner, (*_TILES, PipelinedOp)) for inner in kernel.walk()):
                _Lowering(kernel).run()
        left = next((inner for inner in op.walk() if isinstance(inner, (*_TILES, PipelinedOp))), None)
        if left is not None:
            raise TreadleError(f"'{left.name}' outside of a kernel", location_of(left) or "tile-lower", "loop.kernel")


class _Builder(KernelBuilder):
    """Writes in front of operations of a kernel that there is."""

    def __init__(self, kernel: KernelOp | FuncOp):
        self.body = kernel.body.block
        self._builder = Builder(InsertPoint.at_start(self.body))
        self.block, self.thread = Index(kernel.block_id, self), Index(kernel.thread_id, self)

    def in_front_of(self, op: Operation) -> None:
        """Where the next operations go."""
        self._builder.insertion_point = InsertPoint.before(op)

    def copied(self, block: Block, arguments: tuple[Index, ...]) -> None:
        """The operations of a block, given its arguments."""
        values: dict[SSAValue, SSAValue] = {arg: i.value for arg, i in zip(block.args, arguments, strict=True)}
        for op in block.ops:
            self._builder.insert(op.clone(values))


class _Lowering:
    """Lowers the tiles of one kernel."""

    def __init__(self, kernel: KernelOp | FuncOp):
        threads = kernel.threads.value.data
        if threads % WARP:
            where = f"{kernel.name} @{kernel.sym_name.data}"
            raise TreadleError(f"tiles in a kernel of {threads} threads", where, f"a multiple of {WARP}")
        self.kernel, self.b = kernel, _Builder(kernel)
        self.t = TileBuilder(self.b, threads)
        self.fragments: dict[SSAValue, Fragment | _Rows] = {}
        self.operands: dict[SSAValue, Operand] = {}

    def run(self) -> None:
        """Pipelines first, since their copies are written twice."""
        while (loop := next((op for op in self.kernel.walk() if isinstance(op, PipelinedOp)), None)) is not None:
            self._pipeline(loop)
        tiles = [op for op in self.kernel.walk() if isinstance(op, _TILES)]
        for op in tiles:
            self.b.in_front_of(op)
            self._lower(op)
        for op in reversed(tiles):
            Rewriter.erase_op(op)

    def _pipeline(self, op: PipelinedOp) -> None:
        b = self.b
        b.in_front_of(op)
        pipelined(
            b,
            "step",
            Index(op.steps, b),
            op.stages.value.data,
            lambda step, stage: b.copied(op.start.block, (step, stage)),
            lambda step, stage: b.copied(op.body.block, (step, stage)),
        )
        Rewriter.erase_op(op)

    def _lower(self, op: Operation) -> None:
        match op:
            case FragmentOp():
                self.fragments[op.fragment] = self._fragment(op)
            case CopyOp():
                region = self._region(op.source, op.source_indices)
                tile = self._shared(op.tile, op.indices, _layout(op.tile, op.indices))
                self.t.copy(region if op.transpose is None else region.transposed, tile)
            case OperandOp():
                rows, _ = op.operand.type.shape
                tile = self._shared(op.tile, op.indices, _layout(op.tile, op.indices))
                self.operands[op.operand] = self.t.operand("operand", tile, rows, Index(op.row, self.b))
            case RoundOp():
                fragment, element = self._of(op.fragment), op.operand.type.element
                self.operands[op.operand] = self.t.as_operand(fragment.load, fragment, element)
            case GemmOp():
                self._gemm(op)
            case MapOp():
                self._map(op)
            case ReduceOp():
                self._reduce(op)
            case StoreOp():
                self.t.store(self._of(op.fragment), self._region(op.target, op.indices))
            case _:
                raise AssertionError(op.name)

    def _fragment(self, op: FragmentOp) -> Fragment | _Rows:
        first, (rows, columns) = (Index(op.first[0], self.b), Index(op.first[1], self.b)), op.fragment.type.shape
        name, element = op.fragment.name_hint or "fragment", op.fragment.type.element
        if columns > 1:
            return self.t.fragment(name, element, (rows, columns), first)
        b, shape = self.b, [rows // PRODUCT_M, HALVES]
        registers = b.alloc(name, shape, element)
        with b.tasks(["r", "h"], repeat(*shape), unroll=True) as row:
            b.store(b.constant(0, element), registers, row)
        return _Rows(b, registers, shape, first[0])

    def _gemm(self, op: GemmOp) -> None:
        right = self._shared(op.b, op.b_indices, _layout(op.b, op.b_indices, along_k=op.transpose_b is not None))
        if op.a in self.operands:
            left: SharedTile | Operand = self.operands[op.a]
        else:
            left = self._shared(op.a, op.a_indices, _layout(op.a, op.a_indices, along_k=op.transpose_a is None))
        self.t.gemm(left, right, self._of(op.c))

    def _map(self, op: MapOp) -> None:
        b, target = self.b, self.fragments[op.target]
        sources = [self.fragments[source] for source in op.sources]
        end = op.body.block.last_op
        assert isinstance(end, YieldOp), "verified"

        def yielded(*arguments: SSAValue) -> Scalar:
            values: dict[SSAValue, SSAValue] = dict(zip(op.body.block.args, arguments, strict=True))
            for inner in op.body.block.ops:
                if inner is not end:
                    b.insert(inner.clone(values))
            return values.get(end.arguments[0], end.arguments[0])

        if isinstance(target, _Rows):
            with b.tasks(["r", "h"], repeat(*target.shape), unroll=True) as (r, h):
                row = lane_row(self.t.lane, target.first, r, h)
                of_row = [source.of_row(r, h) for source in sources if isinstance(source, _Rows)]
                b.store(yielded(*of_row, row.value, b.constant(0)), target.registers, [r, h])
            return

        def value(r: Index, p: Index, q: Index, h: Index, c: Index) -> Scalar:
            elements = [s.of_row(r, h) if isinstance(s, _Rows) else s.load(r, p, q, h, c) for s in sources]
            return yielded(*elements, target.row(r, h).value, (target.first[1] + target.column(p, q, c)).value)

        target.set(value)

    def _reduce(self, op: ReduceOp) -> None:
        b, source, target = self.b, self._of(op.source), self.fragments[op.target]
        assert isinstance(target, _Rows), "verified"
        element = source.type.element_type
        nothing = b.constant(identity(op.kind.data, element), element)
        with b.tasks(["r", "h"], repeat(*target.shape), unroll=True) as row:
            b.store(self.t.fold_row(op.kind.data, source.load, source, row, nothing), target.registers, row)

    def _of(self, value: SSAValue) -> Fragment:
        found = self.fragments[value]
        assert isinstance(found, Fragment), "verified"
        return found

    def _shared(self, buffer: SSAValue, indices: Sequence[SSAValue], layout: TileLayout) -> SharedTile:
        return SharedTile(buffer, layout, tuple(Index(i, self.b) for i in indices))

    def _region(self, buffer: SSAValue, indices: Sequence[SSAValue]) -> Region:
        """Checks of the ends that ranges decide are dropped by `loop-simplify-index`."""
        *outer, row, column = (Index(i, self.b) for i in indices)
        *_, rows, columns = type_of(buffer).get_shape()
        return Region(self.b, buffer, outer, (row, column), (rows, columns))


@dataclass(frozen=True)
class _Rows:
    """A number for each row of a lane, in `[rows / 16, 2]` registers."""

    b: KernelBuilder
    registers: SSAValue
    shape: list[int]
    first: Index

    def of_row(self, r: Index, h: Index) -> Scalar:
        """The number of a row."""
        return self.b.load(self.registers, [r, h])


def _layout(buffer: SSAValue, indices: Sequence[SSAValue], *, along_k: bool = True) -> TileLayout:
    return TileLayout(*extents_of(buffer, indices), byte_width(type_of(buffer).get_element_type()), along_k)
