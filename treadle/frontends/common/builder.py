"""Writing graph operators while importing, folding what is known at once.

Converters see `Tensor`s: values whose elements are known at compile time (weights, shape arithmetic) or computed by an
operator. An operator of known operands with a small result is evaluated by its definition at once, so that shape
arithmetic leaves no operators in the module.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Generic, TypeVar

import numpy as np
from xdsl.dialects.builtin import LocationAttr, TensorType, UnknownLoc, i64
from xdsl.ir import Attribute, Block, BlockArgument, SSAValue
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import (
    AppendOp,
    BinaryOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    ConstantOp,
    GatherOp,
    MaskOp,
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
from treadle.dialects.graph.constant import constant_attribute
from treadle.dialects.graph.control import ControlOp
from treadle.dialects.graph.definition import Misfit
from treadle.dialects.graph.dtypes import TensorSizes, accumulator, check_rank, element_type, numpy_dtype
from treadle.dialects.graph.evaluate import evaluate
from treadle.dialects.location import constant_location, name_hint
from treadle.frontends.common.extent import (
    MERGED,
    Array,
    Extent,
    Symbol,
    Symbolic,
    bound_of,
    bounds_of,
    expression_of,
    is_symbolic,
    of_expression,
    reshaped,
)
from treadle.frontends.common.masked_operands import masked_operands
from treadle.frontends.common.result_extents import Elements, Extents, elements_of, folded, symbols_in
from treadle.frontends.common.tensor import Tensor, erase_dead, extents_of, known_elements, known_operands
from treadle.index.algebra import depends_on, split_linear
from treadle.index.expr import Expr

# Operators of known operands, evaluated while importing.

_SMALL = 64
"""Elements of an array whose values are remembered: shapes, axes, and what is computed of them for each layer anew."""
_MOST_FOLDED = 4096

_folded: dict[object, Array] = {}


def evaluated(op: Operator, known: Mapping[SSAValue, Array]) -> Array:
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


# Extents that depend on data, as the importer knows them (docs/adr/0047).

T = TypeVar("T")


class FoundExtents(Generic[T]):
    """The scalars of i64 that such extents are in a call, by the symbols' expressions."""

    def __init__(self) -> None:
        self.counts: dict[Expr, T] = {}

    def add(self, count: T, most: int) -> Extent:
        """A new extent, from 0 to `most`."""
        extent = Symbol(f"found{len(self.counts)}", 0, most)
        self.counts[expression_of(extent)] = count
        return extent

    def keep(self, number: int) -> None:
        """Only so many, the first ones."""
        self.counts = dict(list(self.counts.items())[:number])

    def count(self, expression: Expr) -> T | None:
        """The scalar of one of them; None for another extent. Misfit for what is computed from one."""
        found = self.counts.get(expression)
        if found is None and self.occur_in(expression):
            raise Misfit(
                f"an extent {expression}, which is computed from one that depends on data", "that extent itself"
            )
        return found

    def occur_in(self, expression: Expr) -> bool:
        """Whether an expression depends on any of them."""
        own = {symbol.vars()[0] for symbol in self.counts}
        return not own.isdisjoint(expression.vars())


FOLD_LIMIT = 4096
"""An operator of known operands is evaluated while importing if its result has at most this many elements."""

Build = Callable[[Sequence[SSAValue]], Operator]


class GraphBuilder:
    """Writes operators at the end of a block; `location` is that of the node being converted."""

    def __init__(self, block: Block):
        self._block = self._entry = block
        self.location: LocationAttr = UnknownLoc()
        self.extents: dict[Expr, BlockArgument] = {}
        """The block's arguments that hold extents, by their expressions."""
        self.variables: dict[str, Tensor] = {}
        """Scalars of i64 by the names of the symbols that they are the values of."""
        self.found = FoundExtents[Tensor]()
        self.states: set[SSAValue] = set()
        """Arguments to which the program appends what is new, where they lie."""
        self._sizes = TensorSizes()

    @contextmanager
    def writing_to(self, block: Block) -> Generator[None]:
        """What is written meanwhile goes to another block, which may read this one's values; extents stay arguments of
        this one."""
        outer, self._block = self._block, block
        try:
            yield
        finally:
            self._block = outer

    def move(self, block: Block) -> None:
        """Puts the operators of a block behind those written so far."""
        for op in list(block.ops):
            op.detach()
            self._block.add_op(op)

    def control(self, op: ControlOp, shapes: Sequence[Extents]) -> list[Tensor]:
        """Appends a loop or a branch; its results, which have these extents. VerifyException if they are too large."""
        for type in op.outputs.types:
            self._sizes.add(type)
        op.location = self.location
        self._block.add_op(op)
        known = [tuple(shape) if is_symbolic(shape) else None for shape in shapes]
        return [Tensor(r.type, None, r, None, extents) for r, extents in zip(op.outputs, known, strict=True)]

    def append(self, past: Tensor, new: Tensor, begin: Tensor, dim: int) -> Tensor:
        """An argument of `states` whose elements from `begin`, an i64, on are the new ones. If its extent changes from
        call to call, the result has as many more, and the argument gets room for them."""
        argument = past.ssa
        assert argument is not None
        extents = list(past.shape)
        if isinstance(extents[dim], Extent):
            extents[dim] = extents[dim] + new.shape[dim]
            argument = Rewriter.replace_value_with_new_type(argument, TensorType(past.element, bounds_of(extents)))
        count = self.value(self.numbers(new.shape[dim])) if isinstance(new.shape[dim], Extent) else None
        op = AppendOp(argument, self.value(new), self.value(begin), count, dim)
        self._sizes.add(op.type)
        op.location = self.location
        self._block.add_op(op)
        return Tensor(op.type, None, op.result, None, tuple(extents) if is_symbolic(extents) else None)

    def constant(self, array: Array, extents: Sequence[Symbolic] | None = None, laid_out: bool = False) -> Tensor:
        """A tensor of known elements; it is written into the IR only when an operator reads it.

        extents: its shape, where some are symbolic; elements beyond them are ignored
        laid_out: whether elements lie where the largest shape has them, also in a dimension that was merged

        VerifyException for too many dimensions, and for elements that differ along a merged dimension.
        """
        check_rank(array.shape)
        known = None if extents is None or not is_symbolic(extents) else tuple(extents)
        for extent, stride in () if laid_out else zip(known or (), array.strides, strict=False):
            if isinstance(extent, Extent) and extent.factors and stride:
                raise Misfit(f"elements by their positions in the merged dimension {extent}", MERGED)
        return Tensor(TensorType(element_type(array.dtype), array.shape), array, None, self.location, known)

    def numbers(self, elements: Sequence[Symbolic] | Symbolic) -> Tensor:
        """Integers of 64 bits, of which some may be expressions of symbols: a shape, or an extent as a scalar."""
        listed, shape = (elements, (len(elements),)) if isinstance(elements, Sequence) else ([elements], ())
        return self._of_elements(elements_of(listed, shape), TensorType(i64, shape))

    def _of_elements(self, elements: Elements, type: TensorType) -> Tensor:
        if not is_symbolic(symbols_in(elements)):
            return self.constant(elements.astype(numpy_dtype(type.get_element_type())))
        return Tensor(type, None, None, self.location, None, elements)

    def iota(self, extent: Symbolic, step: int = 1, laid_out: bool = False) -> Tensor:
        """The position of each element of a dimension, times a number; those of the largest shape if `laid_out`.

        VerifyException for a merged dimension otherwise.
        """
        return self.constant(np.arange(bound_of(extent), dtype=np.int64) * step, (extent,), laid_out)

    def filled(self, value: object, dtype: np.dtype[np.generic], shape: Sequence[Symbolic]) -> Tensor:
        """A tensor of one number, known and not expanded in memory."""
        return self.constant(np.broadcast_to(np.array(value, dtype), bounds_of(shape)), shape)

    def scalar(self, value: float, like: Tensor) -> Tensor:
        """A tensor of rank 0 of the element type of `like`; VerifyException for a number that is none of its values."""
        if isinstance(value, Extent):
            return self.cast(self.numbers(value), like.element)
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
        if tensor.ssa is None and tensor.elements is not None:
            tensor.ssa = self._computed(tensor).ssa
            assert tensor.ssa is not None
        elif tensor.ssa is None:
            assert tensor.array is not None
            tensor.ssa = self._written(tensor.array, constant_location(tensor.location or self.location))
        return tensor.ssa

    def _computed(self, tensor: Tensor) -> Tensor:
        """Integers that depend on symbols, put together of extents."""
        assert tensor.elements is not None
        if tensor.elements.shape == ():
            return self.cast(self.extent(tensor.elements.item()), tensor.element)
        parts = [
            self.reshape(self.extent(e) if isinstance(e, Extent) else self.constant(np.array(e, np.int64)), (1,))
            for e in symbols_in(tensor.elements)
        ]
        return self.cast(self.reshape(self.concat(parts, 0), tensor.type.get_shape()), tensor.element)

    def extent(self, extent: Extent) -> Tensor:
        """The extent of a call, as a scalar: an argument of the block."""
        if (count := self.found.count(expression := expression_of(extent))) is not None:
            return count
        for name, value in self.variables.items():
            if depends_on(expression, name):
                return self._affine(expression, name, value)
        if expression not in self.extents:
            self.extents[expression] = self._entry.insert_arg(TensorType(i64, []), len(self._entry.args))
            self.extents[expression].name_hint = name_hint(str(expression))
        return Tensor(TensorType(i64, []), None, self.extents[expression])

    def _affine(self, expression: Expr, name: str, value: Tensor) -> Tensor:
        split = split_linear(expression, name)
        if split is None:
            raise Misfit(f"the number {expression}, not affine in that of an iteration", "a multiple of it and a sum")
        factor, rest = (self.numbers(of_expression(each)) for each in split)
        return self.add(self.mul(value, factor), rest)

    def _written(self, array: Array, location: LocationAttr) -> SSAValue:
        repeated = [stride == 0 and extent > 1 for stride, extent in zip(array.strides, array.shape, strict=True)]
        if array.size > FOLD_LIMIT and any(repeated):
            distinct = array[tuple(slice(1) if each else slice(None) for each in repeated)]
            op = BroadcastOp(self._written(distinct, location), array.shape)
            self._sizes.add(op.type)
        else:
            op = ConstantOp(constant_attribute(array), TensorType(element_type(array.dtype), array.shape))
        op.location = location
        self._block.add_op(op)
        return op.result

    def emit(self, build: Build, *operands: Tensor, shape: Sequence[Symbolic] | None = None) -> Tensor:
        """The result of the operator that `build` makes of SSA values; VerifyException if the operands do not fit it,
        or if the result is too large.

        shape: what a reshape, a broadcast or a slice is asked for, where some of it is symbolic
        """
        try:
            return self._emitted(build, operands, shape)
        except VerifyException as error:
            listed = [operand.shape for operand in operands] + ([] if shape is None else [shape])
            if not any(map(is_symbolic, listed)):
                raise
            shown = " and ".join(f"[{', '.join(map(str, extents))}]" for extents in listed)
            accepted = error.accepted if isinstance(error, Misfit) else None
            raise Misfit(f"{error}; of extents {shown}", accepted) from error

    def _emitted(self, build: Build, operands: Sequence[Tensor], shape: Sequence[Symbolic] | None) -> Tensor:
        known = self._fold(build, operands, shape)
        if known is not None and known.numbers is None:
            return known
        op = build([self.value(operand) for operand in operands])
        extents = extents_of(op, operands, shape)
        if extents is not None and (masked := masked_operands(op, *known_operands(operands))):
            given = list(operands)
            for mask in masked:
                given[mask.operand] = self.mask(given[mask.operand], mask.dim, mask.fill)
            op.erase()
            op = build([self.value(operand) for operand in given])
        self._sizes.add(op.type)
        op.location = self.location
        self._block.add_op(op)
        symbolic = extents is not None and is_symbolic(extents)
        return Tensor(op.type, None, op.result, None, extents if symbolic else None, None, known and known.numbers)

    def _fold(self, build: Build, operands: Sequence[Tensor], shape: Sequence[Symbolic] | None) -> Tensor | None:
        arrays = [known_elements(operand) for operand in operands]
        known = [array for array in arrays if array is not None]
        if len(known) < len(operands):
            return None
        scratch = Block(arg_types=[operand.type for operand in operands])
        op = build(scratch.args)
        check_rank(op.shape)
        if prod(op.shape) > FOLD_LIMIT:
            return None
        if any(operand.array is None for operand in operands):
            sizes = [operand.extents for operand in operands] + [shape]
            if any(s is not None and is_symbolic(s) for s in sizes):
                return None
            elements, numbers = folded(op, known)
            if elements is not None:
                return self._of_elements(elements, op.type)
            return None if numbers is None else Tensor(op.type, numbers=numbers)
        extents = extents_of(op, operands, shape)
        if extents is not None and masked_operands(op, *known_operands(operands)):
            return None
        return self.constant(evaluated(op, dict(zip(scratch.args, known, strict=True))), extents, laid_out=True)

    def mask(self, x: Tensor, dim: int, fill: float) -> Tensor:
        """The tensor, with a number beyond the extent of a symbolic dimension."""
        extent = x.shape[dim]
        assert isinstance(extent, Extent)
        if extent.factors:
            split = self.reshape(x, (*x.shape[:dim], *extent.factors, *x.shape[dim + 1 :]))
            for n, factor in enumerate(extent.factors):
                split = self.mask(split, dim + n, fill) if isinstance(factor, Extent) else split
            return self.reshape(split, x.shape)
        return self.emit(lambda v: MaskOp(v[0], v[1], dim, fill), x, self.extent(extent))

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

    def reshape(self, x: Tensor, shape: Sequence[Symbolic]) -> Tensor:
        check_rank(shape)
        if x.shape == tuple(shape):
            return x
        extents = reshaped(x.shape, shape) if is_symbolic((*x.shape, *shape)) else tuple(shape)
        bounds = bounds_of(extents)
        if x.array is not None and prod(bounds) == x.array.size:
            return self.constant(x.array.reshape(bounds), extents, laid_out=True)
        return self.emit(lambda v: ReshapeOp(v[0], bounds), x, shape=extents)

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        return x if list(perm) == list(range(x.rank)) else self.emit(lambda v: TransposeOp(v[0], perm), x)

    def broadcast(self, x: Tensor, shape: Sequence[Symbolic]) -> Tensor:
        if x.shape == tuple(shape):
            return x
        return self.emit(lambda v: BroadcastOp(v[0], bounds_of(shape)), x, shape=shape)

    def slice(self, x: Tensor, starts: Sequence[int], sizes: Sequence[Symbolic], steps: Sequence[int]) -> Tensor:
        if tuple(sizes) == x.shape and all(s == 0 for s in starts) and all(s > 0 for s in steps):
            return x
        return self.emit(lambda v: SliceOp(v[0], starts, bounds_of(sizes), steps), x, shape=sizes)

    def narrow(self, x: Tensor, dim: int, start: int, size: Symbolic) -> Tensor:
        """`size` elements from `start` along one dimension."""
        starts, sizes = [0] * x.rank, list(x.shape)
        starts[dim], sizes[dim] = start, size
        return self.slice(x, starts, sizes, [1] * x.rank)

    def entry(self, x: Tensor, dim: int, position: int) -> Tensor:
        """One entry of a dimension, without it."""
        return self.reshape(self.narrow(x, dim, position, 1), (*x.shape[:dim], *x.shape[dim + 1 :]))

    def reversed(self, x: Tensor, dim: int) -> Tensor:
        """The entries of a dimension from the last one of a call to the first."""
        extent = x.shape[dim]
        if not isinstance(extent, Extent):
            starts, steps = [0] * x.rank, [1] * x.rank
            starts[dim], steps[dim] = extent - 1, -1
            return self.slice(x, starts, x.shape, steps)
        places = self.sub(self.numbers(extent - 1), self.iota(extent))
        return self.gather(x, self.binary("max", places, 0), dim, laid_out=True)

    def concat(self, inputs: Sequence[Tensor], dim: int) -> Tensor:
        return inputs[0] if len(inputs) == 1 else self.emit(lambda v: ConcatOp(v, dim), *inputs)

    def stack(self, inputs: Sequence[Tensor], dim: int) -> Tensor:
        """Tensors of one shape along a new dimension."""
        return self.concat([self.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:])) for x in inputs], dim)

    def pad(self, x: Tensor, pads: Sequence[int], value: float) -> Tensor:
        """So many elements of a value before the first of each dimension, then behind the last of each."""
        return self.emit(lambda v: PadOp("constant", v[0], v[1], pads), x, self.scalar(value, x)) if any(pads) else x

    def gather(self, data: Tensor, indices: Tensor, dim: int, laid_out: bool = False) -> Tensor:
        """Slices of a tensor; indices that are `laid_out` are positions in its largest shape, from the front."""
        extent = data.shape[dim]
        if isinstance(extent, Extent) and not laid_out:
            indices = self._positions(indices, extent)
        return self.emit(lambda v: GatherOp(v[0], v[1], dim), data, indices)

    def _positions(self, indices: Tensor, extent: Extent) -> Tensor:
        """Indices of a symbolic dimension: in a call, negative ones count from its end, and what is outside then is the
        nearest element, as of a static one."""
        if extent.factors:
            raise Misfit(f"indices into the merged dimension {extent}", MERGED)
        if indices.array is None and indices.elements is None:
            count = self.cast(self.extent(extent), indices.element)
            wrapped = self.where(self.binary("lt", indices, 0), self.add(indices, count), indices)
            return self.binary("max", self.binary("min", wrapped, self.sub(count, 1)), 0)
        given = symbols_in(indices.elements) if indices.elements is not None else [int(v) for v in indices.array.flat]  # pyright: ignore
        found = [v + extent if v < 0 else v for v in given]
        if not all(v >= 0 and v < extent for v in found):
            raise Misfit(f"an index beyond the extent {extent} of some call", "indices inside in every call")
        return self._of_elements(elements_of(found, indices.type.get_shape()), indices.type)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return self.emit(lambda v: MatmulOp(v[0], v[1]), a, b)

    def reduce(self, kind: str, x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
        if not dims:
            return x
        count = prod(x.shape[d] for d in dims)
        if kind == "mean" and isinstance(count, Extent):
            wide = self.widened(x)
            total = self.reduce("add", wide, dims, keep)
            return self.cast(self.div(total, self.cast(self.numbers(count), wide.element)), x.element)
        return self.emit(lambda v: ReductionOp(kind, v[0], sorted(dims), keep), x)


__all__ = ["FOLD_LIMIT", "Build", "FoundExtents", "GraphBuilder", "Tensor", "erase_dead", "evaluated"]
