"""Writing the body of a kernel: loops, task loops, buffers, loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, TensorType, UnitAttr, VectorType, i64
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.dialects.graph.definition import DefinitionBuilder, Scalar
from treadle.dialects.loop import (
    AllocOp,
    BarrierOp,
    CommitOp,
    CopyOp,
    KernelOp,
    LoadOp,
    Space,
    StoreOp,
    Swizzle,
    WaitOp,
    buffer_type,
    memref_of,
    zeros,
)
from treadle.dialects.loop import YieldOp as CopyYieldOp
from treadle.dialects.task import ForOp, Mapping, YieldOp

index = IndexType()
Index = SSAValue | int


class KernelBuilder(DefinitionBuilder):
    """Writes a kernel's body: scalar expressions of `DefinitionBuilder`, loops and memory.

    inputs, output: the buffers that hold the operands and the result
    block, thread: their numbers
    """

    def __init__(self, inputs: Sequence[TensorType], output: TensorType):
        types = [*map(memref_of, inputs), memref_of(output), index, index]
        self.body = Block(arg_types=types)
        super().__init__(self.body)
        *self.inputs, self.output, self.block, self.thread = self.body.args
        self.block.name_hint, self.thread.name_hint = "block", "thread"
        self._name_buffers()

    def _name_buffers(self) -> None:
        names = ("A", "B") if len(self.inputs) == 2 else tuple(f"X{n}" for n in range(len(self.inputs)))
        for buffer, name in zip(self.inputs, names, strict=True):
            buffer.name_hint = name
        self.output.name_hint = "C"

    def kernel(
        self,
        name: str,
        operands: Sequence[SSAValue],
        result: TensorType,
        grid: int,
        threads: int,
        comment: str,
        resident: int | None = None,
    ) -> KernelOp:
        """The finished kernel."""
        return KernelOp(name, operands, [result], grid, threads, Region(self.body), comment, resident)

    def value(self, i: Index) -> SSAValue:
        return self.constant(i) if isinstance(i, int) else i

    @contextmanager
    def _inside(self, block: Block) -> Generator[None]:
        outer = self._builder.insertion_point
        self._builder.insertion_point = InsertPoint.at_end(block)
        yield
        self._builder.insertion_point = outer

    @contextmanager
    def loop(
        self,
        name: str,
        end: Index,
        *,
        begin: Index = 0,
        step: int = 1,
        unroll: bool = False,
        vector: bool = False,
        at_once: int | None = None,
    ) -> Generator[BlockArgument]:
        """`for name in range(begin, end, step)`; `at_once` iterations are unrolled, and no more, if it is given."""
        block = Block(arg_types=[index])
        block.args[0].name_hint = name
        op = scf.ForOp(self.value(begin), self.value(end), self.value(step), [], Region(block))
        for flag, wanted in (("loop.unroll", unroll), ("loop.vector", vector)):
            if wanted:
                op.attributes[flag] = UnitAttr()
        if at_once is not None:
            op.attributes["loop.unroll"] = IntegerAttr(at_once, i64)
        self._builder.insert(op)
        with self._inside(block):
            yield block.args[0]
        block.add_op(scf.YieldOp())

    def fold(self, name: str, extent: int, initial: Scalar, body: Callable[[SSAValue, SSAValue], Scalar]) -> Scalar:
        """A loop that carries a value: `body(index, carried)` gives the next."""
        block = Block(arg_types=[index, initial.type])
        block.args[0].name_hint, block.args[1].name_hint = name, "acc"
        op = scf.ForOp(self.value(0), self.value(extent), self.value(1), [initial], Region(block))
        self._builder.insert(op)
        with self._inside(block):
            result = body(block.args[0], block.args[1])
        block.add_op(scf.YieldOp(result))
        op.results[0].name_hint = "acc"
        return op.results[0]

    @contextmanager
    def when(self, condition: SSAValue | None) -> Generator[None]:
        """`if condition`; nothing around the body without one."""
        if condition is None:
            yield
            return
        block = Block()
        self._builder.insert(scf.IfOp(condition, [], Region(block)))
        with self._inside(block):
            yield
        block.add_op(scf.YieldOp())

    @contextmanager
    def tasks(
        self,
        names: Sequence[str],
        mapping: Mapping,
        worker: SSAValue | None = None,
        *,
        unroll: bool = False,
        vector: bool = False,
    ) -> Generator[Sequence[BlockArgument]]:
        """`for names in mapping(worker)`."""
        op = ForOp(mapping, worker, unroll=unroll)
        if vector:
            op.attributes["loop.vector"] = UnitAttr()
        for arg, name in zip(op.body.block.args, names, strict=True):
            arg.name_hint = name
        self._builder.insert(op)
        with self._inside(op.body.block):
            yield op.body.block.args
        op.body.block.add_op(YieldOp())

    def alloc(
        self,
        name: str,
        shape: Sequence[int],
        element: Attribute,
        space: Space = Space.REGISTER,
        swizzle: Swizzle | None = None,
    ) -> SSAValue:
        op = AllocOp(buffer_type(tuple(shape), element, space, swizzle))
        op.buffer.name_hint = name
        return self.insert(op)

    def load(
        self,
        buffer: SSAValue,
        indices: Sequence[Index],
        where: SSAValue | None = None,
        otherwise: SSAValue | None = None,
    ) -> Scalar:
        return self.insert(LoadOp(buffer, [self.value(i) for i in indices], where, otherwise))

    def store(self, value: Scalar, buffer: SSAValue, indices: Sequence[Index], where: SSAValue | None = None) -> None:
        self._builder.insert(StoreOp(value, buffer, [self.value(i) for i in indices], where))

    def copy(
        self, buffer: SSAValue, indices: Sequence[Index], extent: int, value: Callable[[SSAValue], Scalar]
    ) -> None:
        """An asynchronous copy of `extent` elements; `value` gives that of element e."""
        op = CopyOp(buffer, [self.value(i) for i in indices], extent, is_async=True)
        op.element.name_hint = "e"
        self._builder.insert(op)
        with self._inside(op.body.block):
            result = value(op.element)
        op.body.block.add_op(CopyYieldOp(result))

    def commit(self) -> None:
        """Ends a group of copies."""
        self._builder.insert(CommitOp())

    def wait(self, pending: int) -> None:
        """Waits for all but the newest groups of copies."""
        self._builder.insert(WaitOp(pending))

    def barrier(self) -> None:
        self._builder.insert(BarrierOp())

    def zeros(self, type: VectorType) -> SSAValue:
        """A vector of zeros."""
        return self.insert(arith.ConstantOp(zeros(type)))

    def least(self, a: Index, b: Index) -> SSAValue:
        return self.insert(arith.MinSIOp(self.value(a), self.value(b)))
