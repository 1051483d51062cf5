"""The extents of an operator's result where operands have symbolic ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import IntegerType, TensorType, f32, f64, i1
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import (
    ArgReductionOp,
    AttentionOp,
    BatchNormOp,
    BinaryOp,
    BitcastOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    LayerNormOp,
    MaskOp,
    MatmulOp,
    Operator,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.definition import Misfit, int_list
from treadle.dialects.graph.dtypes import integer_limits, is_float, numpy_dtype
from treadle.dialects.graph.linear import window_extent
from treadle.frontends.common.extent import (
    MERGED,
    Array,
    Extent,
    Symbolic,
    bound_of,
    bounds_of,
    expression_of,
    is_symbolic,
    maximum,
    minimum,
    range_of,
    reshaped,
)
from treadle.frontends.common.samples import Number, Sampled, of_kind, sampled, whole

# The arithmetic of shapes whose extents are symbols: operators of a few integers, element by element.

Elements = NDArray[np.object_]


def _quotient(a: Symbolic, b: Symbolic) -> Symbolic:
    """The quotient towards zero, as ONNX has it of integers; VerifyException where its sign depends on the call."""
    sign_a, sign_b = _sign(a), _sign(b)
    return sign_a * sign_b * ((sign_a * a) // (sign_b * b))


def _sign(number: Symbolic) -> int:
    known = range_of(number)
    if known is None or known[0] < 0 < known[1]:
        raise VerifyException(f"whether {number} is negative depends on the extents of a call")
    return 1 if known[0] >= 0 else -1


def _remainder(a: Symbolic, b: Symbolic) -> Symbolic:
    """What is left of a quotient towards zero."""
    return a - _quotient(a, b) * b


def _equal(a: Symbolic, b: Symbolic) -> bool:
    """VerifyException where it depends on the call, other than `==`, which is then False."""
    if not isinstance(a, Extent) and not isinstance(b, Extent):
        return a == b
    return expression_of(a) == expression_of(b) or not (a < b or a > b)


_BINARY: dict[str, Callable[[Symbolic, Symbolic], Symbolic]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "mod": _remainder,
    "max": maximum,
    "min": minimum,
    "eq": _equal,
    "ne": lambda a, b: not _equal(a, b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def folded(op: Operator, operands: Sequence[Array]) -> tuple[Elements | None, Elements | None]:
    """What is known of the elements of an operator's result, of what is known of its operands': integers, extents and
    constants; or else floats that change from call to call, which have to be computed in each, too."""
    if not any(array.dtype == object and _is_sampled(cast("Elements", array)) for array in operands):
        elements = _exact_elements(op, operands)
        if elements is not None:
            return elements, None
    numbers = _folded_numbers(op, operands)
    if numbers is None or not _is_sampled(numbers):
        return numbers, None
    if is_float(op.type.get_element_type()):
        return None, numbers
    return _whole_elements(numbers, op), None


def _exact_elements(op: Operator, operands: Sequence[Array]) -> Elements | None:
    """The elements of an operator's result, of operands of integers and extents; None where it is none of those that
    shapes are computed with, where a comparison depends on the call, and where some call's integers may not fit the
    type, so that they wrap: then it has to be computed in each call.
    """
    try:
        folded = _folded_elements(op, operands)
    except VerifyException:
        return None
    return folded if folded is not None and _fit(folded, op) else None


def _fit(elements: Elements, op: Operator) -> bool:
    """Whether the type of an operator's result, if that is integers, has these elements in each call."""
    type = op.type.get_element_type()
    if not isinstance(type, IntegerType) or type.width.data == 1:
        return True
    lowest, highest = integer_limits(type)
    ranges = [range_of(value) for value in symbols_in(elements)]
    return all(known is not None and lowest <= known[0] and known[1] <= highest for known in ranges)


def _folded_numbers(op: Operator, operands: Sequence[Array]) -> Elements | None:
    """The elements of an operator's result as numbers that are known for every value of the symbols, of operands of
    such, of integers and of extents; None for an operator that shapes are not computed with."""
    try:
        return _computed_numbers(op, [_numbers(array) for array in operands])
    except VerifyException:
        return None


def _whole_elements(numbers: Elements, op: Operator) -> Elements | None:
    """Numbers that an operator casts to integers, as integers and extents; None where they are no expressions."""
    found = [whole(number) for number in numbers.flat]
    if any(number is None for number in found):
        return None
    elements = elements_of((number for number in found if number is not None), numbers.shape)
    return elements if _fit(elements, op) else None


def _is_sampled(numbers: Elements) -> bool:
    """Whether any number changes from call to call."""
    return any(isinstance(number, Sampled) for number in cast("Iterable[object]", numbers.flat))


def _is_integer(number: object) -> bool:
    return not isinstance(number, Sampled | np.floating)


def _numbers(array: Array) -> Elements:
    """Elements as objects; floats stay of their type."""
    if array.dtype == object:
        return cast("Elements", array)
    result = np.empty(array.shape, object)
    for n, value in enumerate(array.reshape(-1)):
        result.reshape(-1)[n] = value
    return result


def _computed_numbers(op: Operator, given: Sequence[Elements]) -> Elements | None:
    type = op.type.get_element_type()
    if (moved := _moved(op, given)) is not None:
        return moved
    if isinstance(op, CastOp) and type != i1:
        return _each_number(lambda numbers: _cast(numbers[0], type), given)
    if isinstance(op, UnaryOp | BinaryOp) and type in (f32, f64):
        return _each_number(lambda numbers: of_kind(op.kind.data, numbers), given)
    if isinstance(op, BinaryOp) and type == i1 and not any(map(_is_integer, (n for each in given for n in each.flat))):
        compared = _each_number(lambda numbers: of_kind(op.kind.data, numbers), given)
        return None if compared is None or _is_sampled(compared) else compared
    return None


def _cast(number: Any, type: Attribute) -> Number | None:
    """A number in a type of floats; for one of integers it stays as it is, to be cut off."""
    if not is_float(type):
        return None if isinstance(number, Extent | int | np.integer | np.bool_) else number
    if type not in (f32, f64):
        return None
    dtype = numpy_dtype(type)
    if isinstance(number, Sampled):
        return Sampled(number.variables, number.values.astype(dtype))
    return number.astype(dtype) if isinstance(number, np.generic) else sampled(number, dtype)


def _each_number(rule: Callable[[Sequence[Any]], Number | None], given: Sequence[Elements]) -> Elements | None:
    spread = np.broadcast_arrays(*given)
    result = np.empty(spread[0].shape, object)
    for position in np.ndindex(result.shape):
        number = rule([each[position] for each in spread])
        if number is None:
            return None
        result[position] = number
    return result


def _moved(op: Operator, given: Sequence[Elements]) -> Elements | None:
    """The elements of an operator that moves them; None for others, and for one that moves them otherwise in each
    call."""
    if isinstance(op, ReshapeOp):
        return given[0].reshape(op.shape)
    if isinstance(op, TransposeOp):
        return given[0].transpose(int_list(op.properties, "perm"))
    if isinstance(op, BroadcastOp):
        return np.broadcast_to(given[0], op.shape)
    if isinstance(op, ConcatOp):
        return np.concatenate(given, axis=op.dim.value.data)
    if isinstance(op, GatherOp):
        if is_symbolic(symbols_in(given[1])):
            return None
        return np.asarray(np.take(given[0], given[1].astype(np.int64), axis=op.dim.value.data), object)
    return _sliced(op, given[0]) if isinstance(op, SliceOp) else None


def _folded_elements(op: Operator, operands: Sequence[Array]) -> Elements | None:
    given = [np.asarray(array, object) for array in operands]
    if (moved := _moved(op, given)) is not None:
        return moved
    if isinstance(op, CastOp):
        to = op.type.get_element_type()
        return given[0] if isinstance(to, IntegerType) and to.width.data >= 32 else None
    if isinstance(op, WhereOp):
        return np.where(operands[0].astype(bool), given[1], given[2]) if operands[0].dtype == bool else None
    if isinstance(op, BinaryOp) and op.kind.data in _BINARY:
        return _each(_BINARY[op.kind.data], *given)
    if isinstance(op, ReductionOp) and op.kind.data in ("add", "mul"):
        return _folded_reduction(op, given[0])
    return None


def elements_of(values: Iterable[Symbolic], shape: Sequence[int]) -> Elements:
    """Integers and extents as an array of a shape, in row-major order."""
    result = np.empty(prod(shape), object)
    for n, value in enumerate(values):
        result[n] = value
    return result.reshape(tuple(shape))


def symbols_in(elements: Elements) -> list[Symbolic]:
    """The integers and extents of an array, in row-major order."""
    return list(cast("Iterable[Symbolic]", elements.flat))


def _each(rule: Callable[[Symbolic, Symbolic], Symbolic], a: Elements, b: Elements) -> Elements:
    pairs = np.broadcast(a, b)
    return elements_of([rule(x, y) for x, y in pairs], pairs.shape)


def _sliced(op: SliceOp, x: Elements) -> Elements:
    starts, steps = int_list(op.properties, "starts"), int_list(op.properties, "steps")
    chosen = [start + step * np.arange(size) for start, step, size in zip(starts, steps, op.shape, strict=True)]
    return x[np.ix_(*chosen)]


def _folded_reduction(op: ReductionOp, x: Elements) -> Elements:
    dims = int_list(op.properties, "dims")
    kept = [d for d in range(x.ndim) if d not in dims]
    rows = x.transpose([*kept, *dims]).reshape(*(x.shape[d] for d in kept), -1)
    return elements_of(
        [(sum if op.kind.data == "add" else prod)(row) for row in rows.reshape(-1, rows.shape[-1])], op.shape
    )


Extents = tuple[Symbolic, ...]
Rule = Callable[..., Extents]
_RULES: dict[type[Operator], Rule] = {}
_STATIC = "static extents there"
_EQUAL = "extents that are equal in every call, or 1"
_INSIDE = "slices that lie inside in every call of the range"


def result_extents(op: Operator, operands: Sequence[Extents], shape: Sequence[Symbolic] | None) -> Extents:
    """The extents of the result of an operator on the largest shapes.

    operands: those of its operands, of which some are symbolic
    shape:    those that a reshape, a broadcast, a slice or a resize was asked for; None: as its properties say

    Misfit where they are not a function of the symbols that holds for every call, or where the operator does
    not take symbolic extents.
    """
    rule = _RULES.get(type(op))
    if rule is None:
        raise Misfit(f"{op.name} takes no symbolic extents, only static ones", _STATIC)
    found = tuple(rule(op, operands, op.shape if shape is None else shape))
    if bounds_of(found) != tuple(op.shape):
        raise Misfit(f"{op.name} of extents {found} is not of shape {op.shape} where they are largest", _STATIC)
    return found


def _rule(*kinds: type[Operator]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def _check_whole(extents: Extents, dims: Iterable[int], what: str) -> None:
    """Misfit for a dimension that was merged from symbolic ones: its positions are those of the largest
    shape."""
    for d in dims:
        extent = extents[d]
        if isinstance(extent, Extent) and extent.factors:
            raise Misfit(f"{what} the merged dimension {extent}", MERGED)


def symbolic_dims(extents: Extents, dims: Sequence[int]) -> list[int]:
    """Those of some dimensions whose extents are symbolic."""
    return [d for d in dims if isinstance(extents[d], Extent)]


def _is_same(a: Symbolic, b: Symbolic) -> bool:
    """Whether two dimensions have the same extent in every call, and the same positions."""
    if isinstance(a, Extent) and isinstance(b, Extent):
        return a == b and a.parts == b.parts and bounds_of(a.parts) == bounds_of(b.parts)
    return a == b


def _agreed(extents: Sequence[Symbolic]) -> Symbolic:
    """The extent that dimensions broadcast to: all are the same, or 1."""
    result: Symbolic = 1
    for extent in extents:
        if _is_same(result, extent) or (not isinstance(extent, Extent) and extent == 1):
            continue
        if isinstance(result, Extent) or result != 1:
            raise Misfit(f"extents {result} and {extent} do not broadcast in every call", _EQUAL)
        result = extent
    return result


@_rule(UnaryOp, CastOp, BatchNormOp, LayerNormOp, SoftmaxOp, MaskOp)
def _of_first(op: Operator, operands: Sequence[Extents], shape: Extents) -> Extents:
    del shape
    if isinstance(op, BatchNormOp) and symbolic_dims(operands[0], [1]):
        raise Misfit(f"{op.name} normalises static channels only", "static channels")
    if isinstance(op, LayerNormOp) and symbolic_dims(operands[0], range(op.dim.value.data, len(operands[0]))):
        raise Misfit(f"{op.name} normalises static extents only", _STATIC)
    if any(is_symbolic(extents) for extents in operands[1:]):
        raise Misfit(f"the parameters of {op.name} have static extents only", _STATIC)
    return operands[0]


@_rule(BitcastOp)
def _of_bits(op: BitcastOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    if len(op.shape) != len(operands[0]) or isinstance(operands[0][-1], Extent):
        raise Misfit(f"{op.name} of symbolic extents keeps its dimensions", "a type of as many bits, or static extents")
    return (*operands[0][:-1], *shape[len(operands[0]) - 1 :])


@_rule(BinaryOp, WhereOp)
def _broadcast(op: Operator, operands: Sequence[Extents], shape: Extents) -> Extents:
    rank = len(shape)
    aligned = [(1,) * (rank - len(extents)) + tuple(extents) for extents in operands]
    return tuple(_agreed([extents[d] for extents in aligned]) for d in range(rank))


@_rule(BroadcastOp)
def _spread(op: BroadcastOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    _spread_to(operands[0], shape)
    return tuple(shape)


def _spread_to(source: Extents, shape: Extents) -> None:
    """Misfit for extents that do not broadcast to a shape in every call."""
    for s, t in zip((1,) * (len(shape) - len(source)) + tuple(source), shape, strict=True):
        if not _is_same(s, t) and (isinstance(s, Extent) or s != 1):
            raise Misfit(f"extent {s} does not broadcast to {t} in every call", _EQUAL)


@_rule(ReshapeOp)
def _reshape(op: ReshapeOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    return reshaped(operands[0], shape)


@_rule(TransposeOp)
def _transpose(op: TransposeOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    return tuple(operands[0][d] for d in int_list(op.properties, "perm"))


@_rule(SliceOp)
def _slice(op: SliceOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    starts, steps = int_list(op.properties, "starts"), int_list(op.properties, "steps")
    result: list[Symbolic] = []
    for extent, size, start, step in zip(operands[0], shape, starts, steps, strict=True):
        if not isinstance(extent, Extent):
            result.append(size)
            continue
        if extent.factors and not _is_same(extent, size):
            raise Misfit(f"a slice of the merged dimension {extent}", MERGED)
        if step < 1 or (isinstance(size, Extent) and step > 1):
            raise Misfit(f"a slice of {extent} in steps of {step}: symbolic extents take steps of 1", "steps of 1")
        # Both raise where it depends on the call.
        if not isinstance(size, Extent) and size > 0 and start + (size - 1) * step >= extent.lowest:
            raise Misfit(f"a slice of {size} elements from {start}, where the extent is {extent}", _INSIDE)
        if isinstance(size, Extent) and not size + start <= extent:
            raise Misfit(f"a slice of {size} elements from {start}, where the extent is {extent}", _INSIDE)
        result.append(size)
    return tuple(result)


@_rule(ConcatOp)
def _concat(op: ConcatOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    dim = op.dim.value.data
    if is_symbolic([extents[dim] for extents in operands[:-1]]):
        raise Misfit(f"an operand of a concat along dimension {dim} is symbolic there", "symbolic only the last one")
    if len(operands) > 1:
        _check_whole(operands[-1], [dim], "a concat along")
    joined = sum(extents[dim] for extents in operands)
    return tuple(joined if d == dim else _agreed([e[d] for e in operands]) for d in range(len(shape)))


@_rule(PadOp)
def _pad(op: PadOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    pads, rank = int_list(op.properties, "pads"), len(shape)
    for d in symbolic_dims(operands[0], range(rank)):
        if pads[d + rank] and op.mode.data != "constant":
            raise Misfit(f"padding of mode {op.mode.data} behind a symbolic extent", "mode constant")
        # Raises as well where it depends on the call.
        if op.mode.data == "reflect" and pads[d] and not operands[0][d] > pads[d]:
            raise Misfit(f"a reflection of {pads[d]} in {operands[0][d]} elements", "fewer than there are")
        if (pads[d] or pads[d + rank]) and operands[0][d].factors:  # pyright: ignore[reportAttributeAccessIssue]
            raise Misfit(f"padding of the merged dimension {operands[0][d]}", MERGED)
    return tuple(e + pads[d] + pads[d + rank] for d, e in enumerate(operands[0]))


@_rule(GatherOp)
def _gather(op: GatherOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    dim = op.dim.value.data
    return (*operands[0][:dim], *operands[1], *operands[0][dim + 1 :])


@_rule(MatmulOp)
def _matmul(op: MatmulOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    a, b = operands
    if not _is_same(a[-1], b[-2]):
        raise Misfit(f"a product over {a[-1]} and {b[-2]}, which are not equal in every call", _EQUAL)
    batch = _broadcast(op, [a[:-2], b[:-2]], shape[:-2])
    return (*batch, a[-2], b[-1])


@_rule(AttentionOp)
def _attention(op: AttentionOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    """Keys end at the `length` where their extent is symbolic."""
    q, k, v = operands[:3]
    rows, keys = q[-2], k[-2]
    _check_whole(k, [len(k) - 2], "attention to keys of")
    if not _is_same(keys, v[-2]) or not all(map(_is_same, (*q[:-3], q[-1], *k[:-2]), (*k[:-3], k[-1], *v[:-2]))):
        raise Misfit(f"attention of {q} to {k} and {v}, which do not fit in every call", _EQUAL)
    if (isinstance(keys, Extent) and op.length is None) or is_symbolic((*q[-3:-2], *k[-3:-2], q[-1], v[-1])):
        raise Misfit("attention of symbolic heads, or to symbolic keys without a length", "keys with a length")
    if op.causal.value.data and op.offset is None and not _is_same(rows, keys):
        raise Misfit(f"causal attention of {rows} rows to {keys} keys", "as many rows as keys, or an offset")
    if op.mask is not None:
        _spread_to(operands[3], (*q[:-1], keys))
    return (*q[:-1], v[-1])


@_rule(ReductionOp)
def _reduction(op: ReductionOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    dims = int_list(op.properties, "dims")
    if op.kind.data == "mean" and symbolic_dims(operands[0], dims):
        raise Misfit("a mean over a symbolic extent", "a sum and a quotient")
    return _folded(operands[0], dims, bool(op.keep.value.data))


@_rule(ArgReductionOp)
def _arg_reduction(op: ArgReductionOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    dim = op.dim.value.data
    _check_whole(operands[0], [dim], "a position in")
    if op.last.value.data and symbolic_dims(operands[0], [dim]):
        raise Misfit("the last of equal elements along a symbolic extent", "the first one, or a static extent")
    return _folded(operands[0], [dim], bool(op.keep.value.data))


def _folded(extents: Extents, dims: Sequence[int], keep: bool) -> Extents:
    if keep:
        return tuple(1 if d in dims else e for d, e in enumerate(extents))
    return tuple(e for d, e in enumerate(extents) if d not in dims)


@_rule(ConvOp, PoolOp)
def _window(op: ConvOp | PoolOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    strides, pads, dilations = (int_list(op.properties, n) for n in ("strides", "pads", "dilations"))
    kernel, x, rank = kernel_extents(op), operands[0], len(shape) - 2
    if any(is_symbolic(extents) for extents in operands[1:]) or symbolic_dims(x, [1]):
        raise Misfit(f"{op.name} takes static weights and channels", _STATIC)
    _check_whole(x, range(2, len(x)), f"{op.name} along")
    is_pool = isinstance(op, PoolOp)
    if is_pool and symbolic_dims(x, range(2, len(x))):
        counts = op.kind.data == "avg" and not op.count_pad.value.data and any(pads)
        if op.ceil.value.data or counts:
            raise Misfit("a pool over symbolic extents with ceil, or an average that leaves padding out", "neither")
    spatial: list[Symbolic] = []
    for n in range(rank):
        extent, reach = x[n + 2], dilations[n] * (kernel[n] - 1) + 1
        if not isinstance(extent, Extent):
            spatial.append(shape[n + 2])
            continue
        if extent.lowest + pads[n] + pads[n + rank] < reach:
            padded = f"{extent.lowest} elements with padding of {pads[n]} and {pads[n + rank]}"
            accepted = f"a range of extents from {reach - pads[n] - pads[n + rank]} on"
            raise Misfit(f"a window of {reach} elements on {padded}, the fewest of {extent}", accepted)
        spatial.append(window_extent(extent, kernel[n], strides[n], pads[n], pads[n + rank], dilations[n]))
    return (x[0], shape[1], *spatial)


@_rule(ConvTransposeOp)
def _transposed_window(op: ConvTransposeOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    strides, pads, dilations = (int_list(op.properties, n) for n in ("strides", "pads", "dilations"))
    extra, kernel = int_list(op.properties, "output_padding"), kernel_extents(op)
    x, rank = operands[0], len(shape) - 2
    if is_symbolic(operands[1]) or symbolic_dims(x, [1]):
        raise Misfit(f"{op.name} takes static weights and channels", _STATIC)
    _check_whole(x, range(2, len(x)), f"{op.name} along")
    spatial = [
        (x[n + 2] - 1) * strides[n] + dilations[n] * (kernel[n] - 1) + 1 - pads[n] - pads[n + rank] + extra[n]
        if isinstance(x[n + 2], Extent)
        else shape[n + 2]
        for n in range(rank)
    ]
    return (x[0], shape[1], *spatial)


@_rule(ResizeOp)
def _resize(op: ResizeOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    result: list[Symbolic] = []
    for extent, size, bound in zip(operands[0], shape, op.shape, strict=True):
        if not isinstance(extent, Extent):
            if isinstance(size, Extent):
                raise Misfit(f"extent {extent} is resized to {size}, which is no whole multiple", "a whole multiple")
            result.append(size)
            continue
        _check_whole((extent,), [0], f"{op.name} along")
        # Element i of the result is element i // scale of the source only for a whole scale.
        factor, rest = divmod(bound, bound_of(extent))
        if rest or size != extent * factor:
            raise Misfit(f"extent {extent} is resized to {size}, which is no whole multiple", "a whole multiple")
        result.append(size)
    return tuple(result)


def kernel_extents(op: ConvOp | PoolOp | ConvTransposeOp) -> Sequence[int]:
    """The extents of a window."""
    if isinstance(op, PoolOp):
        return int_list(op.properties, "kernel")
    assert isinstance(op.w.type, TensorType)
    return op.w.type.get_shape()[2:]
