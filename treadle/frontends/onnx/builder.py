"""Writing graph operators while importing, folding what is known at once.

Converters see `Tensor`s: values whose elements are known at compile time (weights, shape arithmetic) or computed by an
operator. An operator of known operands with a small result is evaluated by its definition at once, so that shape
arithmetic leaves no operators in the module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import LocationAttr, TensorType, UnknownLoc
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import (
    BinaryOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    ConstantOp,
    GatherOp,
    MatmulOp,
    Operator,
    PadOp,
    ReductionOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.dtypes import accumulator, element_type, is_float, numpy_dtype
from treadle.dialects.graph.evaluate import evaluate
from treadle.dialects.graph.limits import TensorSizes, check_rank
from treadle.dialects.graph.store import constant_attribute
from treadle.dialects.model_nodes import constant_location
from treadle.frontends.onnx.tensor_data import Array

FOLD_LIMIT = 4096
"""An operator of known operands is evaluated while importing if its result has at most this many elements."""
_SMALL = 64
"""Elements of an array whose values are remembered: shapes, axes, and what is computed of them for each layer anew."""
_MOST_FOLDED = 4096


@dataclass(eq=False)
class Tensor:
    """A tensor of the model: known elements, an operator's result, or both once a known one was written."""

    type: TensorType
    array: Array | None = None
    ssa: SSAValue | None = None
    location: LocationAttr | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.get_shape()

    @property
    def rank(self) -> int:
        return self.type.get_num_dims()

    @property
    def element(self) -> Attribute:
        return self.type.get_element_type()

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return numpy_dtype(self.element)

    @property
    def is_float(self) -> bool:
        return is_float(self.element)


Build = Callable[[Sequence[SSAValue]], Operator]


class GraphBuilder:
    """Writes operators at the end of a block; `location` is that of the node being converted."""

    def __init__(self, block: Block):
        self._block = block
        self.location: LocationAttr = UnknownLoc()
        self._sizes = TensorSizes()

    def constant(self, array: Array) -> Tensor:
        """A tensor of known elements; it is written into the IR only when an operator reads it.

        VerifyException for too many dimensions.
        """
        check_rank(array.shape)
        return Tensor(TensorType(element_type(array.dtype), array.shape), array, None, self.location)

    def scalar(self, value: float, like: Tensor) -> Tensor:
        """A tensor of rank 0 of the element type of `like`; VerifyException for a number that is none of its values."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                array = np.array(value, like.dtype)
        except (ValueError, OverflowError) as error:
            raise VerifyException(f"{value} is no value of {like.element}") from error
        if not like.is_float and array.item() != value:
            raise VerifyException(f"{value} is no value of {like.element}")
        return self.constant(array)

    def value(self, tensor: Tensor) -> SSAValue:
        """The tensor as an SSA value; a known one becomes a `graph.constant` at its first use.

        A large one that repeats elements becomes a `graph.broadcast` of them: it need not fit in memory.
        """
        if tensor.ssa is None:
            assert tensor.array is not None
            tensor.ssa = self._written(tensor.array, constant_location(tensor.location or self.location))
        return tensor.ssa

    def _written(self, array: Array, location: LocationAttr) -> SSAValue:
        if array.size > FOLD_LIMIT and 0 in array.strides:
            distinct = array[tuple(slice(1) if stride == 0 else slice(None) for stride in array.strides)]
            op = BroadcastOp(self._written(distinct, location), array.shape)
            self._sizes.add(op.type)
        else:
            op = ConstantOp(constant_attribute(array), TensorType(element_type(array.dtype), array.shape))
        op.location = location
        self._block.add_op(op)
        return op.result

    def emit(self, build: Build, *operands: Tensor) -> Tensor:
        """The result of the operator that `build` makes of SSA values; VerifyException if the operands do not fit it,
        or if the result is too large."""
        folded = self._fold(build, operands)
        if folded is not None:
            return folded
        op = build([self.value(operand) for operand in operands])
        self._sizes.add(op.type)
        op.location = self.location
        self._block.add_op(op)
        return Tensor(op.type, None, op.result)

    def _fold(self, build: Build, operands: Sequence[Tensor]) -> Tensor | None:
        arrays = [operand.array for operand in operands if operand.array is not None]
        if len(arrays) < len(operands):
            return None
        scratch = Block(arg_types=[operand.type for operand in operands])
        op = build(scratch.args)
        check_rank(op.shape)
        if prod(op.shape) > FOLD_LIMIT:
            return None
        return self.constant(_evaluated(op, dict(zip(scratch.args, arrays, strict=True))))

    def unary(self, kind: str, x: Tensor) -> Tensor:
        return self.emit(lambda v: UnaryOp(kind, v[0]), x)

    def binary(self, kind: str, a: Tensor, b: Tensor | float) -> Tensor:
        """`a kind b`; a number stands for a scalar of the element type of `a`."""
        other = b if isinstance(b, Tensor) else self.scalar(b, a)
        return self.emit(lambda v: BinaryOp(kind, v[0], v[1]), a, other)

    def add(self, a: Tensor, b: Tensor | float) -> Tensor:
        return self.binary("add", a, b)

    def sub(self, a: Tensor, b: Tensor | float) -> Tensor:
        return self.binary("sub", a, b)

    def mul(self, a: Tensor, b: Tensor | float) -> Tensor:
        return self.binary("mul", a, b)

    def div(self, a: Tensor, b: Tensor | float) -> Tensor:
        return self.binary("div", a, b)

    def where(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return self.emit(lambda v: WhereOp(v[0], v[1], v[2]), condition, a, b)

    def cast(self, x: Tensor, to: Attribute) -> Tensor:
        return x if x.element == to else self.emit(lambda v: CastOp(v[0], to), x)

    def widened(self, x: Tensor) -> Tensor:
        """The tensor in the type in which sums of it are computed, for operators of several steps."""
        return self.cast(x, accumulator(x.element))

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        check_rank(shape)
        if x.shape == tuple(shape):
            return x
        if x.array is not None and prod(shape) == prod(x.shape):
            return self.constant(x.array.reshape(tuple(shape)))
        return self.emit(lambda v: ReshapeOp(v[0], shape), x)

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        return x if list(perm) == list(range(x.rank)) else self.emit(lambda v: TransposeOp(v[0], perm), x)

    def broadcast(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x if x.shape == tuple(shape) else self.emit(lambda v: BroadcastOp(v[0], shape), x)

    def slice(self, x: Tensor, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Tensor:
        if tuple(sizes) == x.shape and all(s == 0 for s in starts) and all(s > 0 for s in steps):
            return x
        return self.emit(lambda v: SliceOp(v[0], starts, sizes, steps), x)

    def narrow(self, x: Tensor, dim: int, start: int, size: int) -> Tensor:
        """`size` elements from `start` along one dimension."""
        starts, sizes = [0] * x.rank, list(x.shape)
        starts[dim], sizes[dim] = start, size
        return self.slice(x, starts, sizes, [1] * x.rank)

    def entry(self, x: Tensor, dim: int, position: int) -> Tensor:
        """One entry of a dimension, without it."""
        return self.reshape(self.narrow(x, dim, position, 1), (*x.shape[:dim], *x.shape[dim + 1 :]))

    def concat(self, inputs: Sequence[Tensor], dim: int) -> Tensor:
        return inputs[0] if len(inputs) == 1 else self.emit(lambda v: ConcatOp(v, dim), *inputs)

    def stack(self, inputs: Sequence[Tensor], dim: int) -> Tensor:
        """Tensors of one shape along a new dimension."""
        return self.concat([self.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:])) for x in inputs], dim)

    def pad(self, x: Tensor, pads: Sequence[int], value: float) -> Tensor:
        """So many elements of a value before the first of each dimension, then behind the last of each."""
        return self.emit(lambda v: PadOp("constant", v[0], v[1], pads), x, self.scalar(value, x)) if any(pads) else x

    def gather(self, data: Tensor, indices: Tensor, dim: int) -> Tensor:
        return self.emit(lambda v: GatherOp(v[0], v[1], dim), data, indices)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return self.emit(lambda v: MatmulOp(v[0], v[1]), a, b)

    def reduce(self, kind: str, x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
        return x if not dims else self.emit(lambda v: ReductionOp(kind, v[0], sorted(dims), keep), x)


_folded: dict[object, Array] = {}


def _evaluated(op: Operator, known: Mapping[SSAValue, Array]) -> Array:
    """What an operator gives; of small arrays only the first time, since a definition takes longer than its values."""
    if prod(op.shape) > _SMALL or any(array.size > _SMALL for array in known.values()):
        return np.asarray(evaluate(op, known))
    values = tuple((operand.type, known[operand].tobytes()) for operand in op.operands)
    key = (op.name, op.result.type, frozenset(op.properties.items()), frozenset(op.attributes.items()), values)
    found = _folded.get(key)
    if found is None:
        found = np.array(evaluate(op, known))
        found.flags.writeable = False
        if len(_folded) >= _MOST_FOLDED:
            _folded.clear()  # other threads hold what they took out
        _folded[key] = found
    return found


__all__ = ["FOLD_LIMIT", "Build", "GraphBuilder", "Tensor"]
