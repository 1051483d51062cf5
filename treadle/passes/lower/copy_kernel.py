"""Kernels that copy a tensor, for returned values that are not the result of a kernel of their own."""

from __future__ import annotations

from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph.control import ControlOp
from treadle.dialects.loop import DispatchOp, KernelOp, LoadOp, StoreOp, memref_of
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, floordiv, mod, var

ELEMENTS_PER_BLOCK = 4096
"""Elements that one block copies: enough for a thread of the pool, few enough to distribute a large copy."""

index = IndexType()


def copy_returned_values(end: ReturnOp, threads: int) -> None:
    """Makes each returned value the result of a kernel of its own, by copying those that are not.

    A kernel's result, or a loop's or a branch's, may be returned once as it is. Arguments, constants, and
    what was returned before are copied.
    """
    returned: set[SSAValue] = set()
    for n, value in enumerate(list(end.operands)):
        if value not in returned and isinstance(value.owner, KernelOp | DispatchOp | ControlOp):
            returned.add(value)
            continue
        copy = copy_kernel(value, f"copy_{n}", threads)
        Rewriter.insert_op(copy, InsertPoint.before(end))
        end.operands[n] = copy.results[0]


def copy_kernel(value: SSAValue, name: str, threads: int) -> KernelOp:
    """A kernel whose result is a copy of the static tensor `value`.

    A block copies ELEMENTS_PER_BLOCK consecutive elements; consecutive threads copy consecutive ones.
    """
    type = value.type
    assert isinstance(type, TensorType)
    buffer = memref_of(type)
    count = prod(type.get_shape())
    threads = max(1, min(threads, count))
    grid = max(1, -(-count // ELEMENTS_PER_BLOCK))
    body = Block(arg_types=[buffer, buffer, index, index])
    for arg, hint in zip(body.args, ("x", "y", "b", "t"), strict=True):
        arg.name_hint = hint
    _emit_copy(body, type, count, grid, threads)
    kernel = KernelOp(name, [value], [type], grid, threads, Region(body), comment="copies a tensor")
    kernel.results[0].name_hint = value.name_hint
    return kernel


def _emit_copy(body: Block, type: TensorType[Attribute], count: int, grid: int, threads: int) -> None:
    emitter = IndexEmitter(InsertPoint.at_end(body))
    first = _numbered(body.args[2], grid) * ELEMENTS_PER_BLOCK
    lower = emitter.emit(first + _numbered(body.args[3], threads))
    step = emitter.emit(threads)
    upper = emitter.emit(first + ELEMENTS_PER_BLOCK if grid > 1 else count)
    if grid > 1 and count % ELEMENTS_PER_BLOCK:
        upper = _minimum(body, upper, emitter.emit(count))
    inside = Block(arg_types=[index])
    inside.args[0].name_hint = "e"
    loop = scf.ForOp(lower, upper, step, [], inside)
    body.add_op(loop)
    element = var(inside.args[0], 0, max(count, 1) - 1)
    inner = IndexEmitter(InsertPoint.before(loop)).inside(InsertPoint.at_end(inside))
    position = [inner.emit(i) for i in _delinearized(element, type.get_shape())]
    load = LoadOp(body.args[0], position)
    load.result.name_hint = "v"
    inside.add_ops([load, StoreOp(load.result, body.args[1], position), scf.YieldOp()])


def _numbered(arg: SSAValue, extent: int) -> Expr:
    return const(0) if extent == 1 else var(arg, 0, extent - 1)


def _delinearized(element: Expr, shape: tuple[int, ...]) -> list[Expr]:
    """The index of the `element`-th element of a row-major tensor; of an empty one, any index."""
    shape = tuple(max(extent, 1) for extent in shape)
    strides = [prod(shape[n + 1 :]) for n in range(len(shape))]
    return [mod(floordiv(element, stride), extent) for stride, extent in zip(strides, shape, strict=True)]


def _minimum(body: Block, a: SSAValue, b: SSAValue) -> SSAValue:
    less = arith.CmpiOp(a, b, "slt")
    smaller = arith.SelectOp(less.result, a, b)
    body.add_ops([less, smaller])
    return smaller.result


__all__ = ["ELEMENTS_PER_BLOCK", "copy_kernel", "copy_returned_values"]
