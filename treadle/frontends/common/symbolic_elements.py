"""The arithmetic of shapes whose extents are symbols: operators of a few integers, element by element."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import IntegerType, f32, f64, i1
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import (
    BinaryOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    GatherOp,
    Operator,
    ReductionOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import integer_limits, is_float, numpy_dtype
from treadle.frontends.common.arrays import Array
from treadle.frontends.common.extent import (
    Extent,
    Symbolic,
    expression_of,
    is_symbolic,
    maximum,
    minimum,
    range_of,
)
from treadle.frontends.common.samples import Number, Sampled, of_kind, sampled, whole

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
        return _folded(op, given[0])
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


def _folded(op: ReductionOp, x: Elements) -> Elements:
    dims = int_list(op.properties, "dims")
    kept = [d for d in range(x.ndim) if d not in dims]
    rows = x.transpose([*kept, *dims]).reshape(*(x.shape[d] for d in kept), -1)
    return elements_of(
        [(sum if op.kind.data == "add" else prod)(row) for row in rows.reshape(-1, rows.shape[-1])], op.shape
    )


__all__ = ["Elements", "elements_of", "folded", "symbols_in"]
