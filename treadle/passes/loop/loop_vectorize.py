"""loop-vectorize: loops that templates mark become vector operations."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import memref, scf, vector
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp, VectorType
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop import AllocOp, FuncOp, KernelOp
from treadle.index.algebra import alignment
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import floordiv
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import kernels_of
from treadle.passes.loop.vector_body import vectorize_loop
from treadle.passes.loop.vector_forms import Unsupported, compute_wide
from treadle.target import Target

# Register buffers that are accessed by whole vectors only become buffers of vectors.

index = IndexType()


def hold_vectors(kernel: KernelOp | FuncOp, lanes: int) -> None:
    """Turns `memref<8x32xf32, register>` into `memref<8x2xvector<16xf32>, register>` where every access allows it."""
    reader = IndexReader()
    for op in [op for op in kernel.body.walk() if isinstance(op, AllocOp)]:
        if _only_whole_vectors(op, lanes, reader):
            _retype(op, lanes, reader)


def _only_whole_vectors(alloc: AllocOp, lanes: int, reader: IndexReader) -> bool:
    type = alloc.buffer.type
    assert isinstance(type, MemRefType)
    shape = type.get_shape()
    if not shape or shape[-1] % lanes:
        return False
    for use in alloc.buffer.uses:
        op = use.operation
        if not isinstance(op, vector.LoadOp | vector.StoreOp):
            return False
        value = op.result if isinstance(op, vector.LoadOp) else op.vector
        if value.type != VectorType(type.get_element_type(), [lanes]):
            return False
        position = reader.read(op.indices[-1])
        if position.as_int() != 0 and alignment(position) % lanes:
            return False
    return True


def _retype(alloc: AllocOp, lanes: int, reader: IndexReader) -> None:
    old = alloc.buffer.type
    assert isinstance(old, MemRefType)
    *outer, last = old.get_shape()
    element = VectorType(old.get_element_type(), [lanes])
    new = AllocOp(MemRefType(element, [*outer, last // lanes], memory_space=old.memory_space))
    new.location = alloc.location
    new.buffer.name_hint = alloc.buffer.name_hint
    Rewriter.insert_op(new, InsertPoint.before(alloc))
    for use in list(alloc.buffer.uses):
        op = use.operation
        assert isinstance(op, vector.LoadOp | vector.StoreOp)
        emitter = IndexEmitter(InsertPoint.before(op))
        indices: list[SSAValue] = [
            *op.indices[:-1],
            emitter.emit(floordiv(reader.read(op.indices[-1]), lanes)),
        ]
        access: Operation
        if isinstance(op, vector.LoadOp):
            access = memref.LoadOp.get(new.buffer, indices)
            access.results[0].name_hint = op.results[0].name_hint
        else:
            access = memref.StoreOp.get(op.vector, new.buffer, indices)
        access.location = op.location
        access.attributes |= op.attributes
        Rewriter.replace_op(op, access)
    Rewriter.erase_op(alloc)


@dataclass(frozen=True)
class LoopVectorizePass(ModulePass):
    """Runs as many consecutive iterations of each loop marked `loop.vector` at once as a vector of `target` has lanes.

    ```mlir
    scf.for %i = %c0 to %c64 step %c1 {
      %x = loop.load %X[%i] : memref<64xf32>
      %y = math.exp %x : f32
      loop.store %y, %Y[%i] : memref<64xf32>
    } {loop.vector}
    ```
    becomes
    ```mlir
    scf.for %j = %c0 to %c4 step %c1 {
      %i = arith.muli %j, %c16 : index
      %x = vector.load %X[%i] : memref<64xf32>, vector<16xf32>
      %y = math.exp %x : vector<16xf32>
      vector.store %y, %Y[%i] : memref<64xf32>, vector<16xf32>
    }
    ```
    The mark asserts that the iterations are independent: none reads an element that another one writes, and no two
    write the same element; register buffers are no exception. The pass does not check it.

    Whether a load is a vector, a broadcast or strided follows from its index; predicates and a trip count that is no
    multiple of the lanes become lane masks. A load whose predicate is the same in all lanes becomes a branch: masked
    loads of no lane are slow where their address is no memory. A register buffer that is only touched by whole vectors
    becomes a buffer of vectors. f16 and bf16 are types of memory: vectors of consecutive elements, or some lanes of
    them, are loaded and stored, and widened and narrowed by `arith.extf` and `arith.truncf`, between which f32
    computes. So are bytes and i32, of which `loop.lane_convert` makes one another and f32; but of i32 all lanes. What
    is not f32 and stored under a predicate that all lanes share, is stored in a branch. A loop that cannot be
    vectorised (an index that is not affine, masked i32, strided elements that are not f32, other element types) is left
    as it is, for the C compiler.
    """

    name = "loop-vectorize"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        lanes = Target.parse(self.target).lanes
        for kernel in kernels_of(op):
            marked = [o for o in kernel.body.walk() if isinstance(o, scf.ForOp) and "loop.vector" in o.attributes]
            gone: set[Operation] = set()
            for loop in marked:
                if loop in gone:
                    continue
                compute_wide(loop.body.block)
                inside = set(loop.walk())
                try:
                    vectorize_loop(loop, lanes)
                except Unsupported:
                    continue
                gone |= inside
            hold_vectors(kernel, lanes)
