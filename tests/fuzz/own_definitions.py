"""Operators that are defined here: where `docs/numerics.md` fixes what ONNX leaves free, or its evaluator errs.

A definition takes the opset, the attributes (with their defaults by ONNX's schema), the operands and the rounding of
the evaluation, which goes around each step of an operator that has several. It works in the operands' own types, and
in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tests.fuzz.sums import Terms

Array = NDArray[Any]
Attributes = Mapping[str, Any]


class Round:
    """The rounding of an evaluation. This one, of the exact evaluation, leaves numbers as they are."""

    native = False
    """Whether the evaluation is in the declared types."""

    def __call__(self, x: Any) -> Any:
        return x

    def at_least(self, dtype: Any) -> Round:
        """The rounding of steps that are carried in a type that is no narrower than this one."""
        return self

    def total(self, total: Any, terms: Callable[[], Terms], divisor: float = 1) -> Any:
        """A sum of terms, divided: partial sums may be infinite, their roundings are independent and add up as squares,
        and a product that is too small for the type is a zero, or not rounded at all."""
        return self(total)

    def zero(self, zero: Any) -> Any:
        """A zero whose sign is free."""
        return zero

    def product(self, product: Any, largest: Any, least: Any) -> Any:
        """A product; `largest` and `least` are the bounds of its partial products' magnitudes, those of 0 left away."""
        return self(product)

    def term(self, a: Any, b: Any) -> Any:
        """The product of two numbers to which one is added: a fused multiply-add does not round it, so that it need be
        neither infinite nor 0."""
        return self(a * b)

    def pair(self, a: Any, b: Any) -> Any:
        """The sum of two numbers to which one is added: that of equal ones is a product."""
        return self(a + b)


Own = Callable[[int, Attributes, "list[Any]", Round], "Sequence[Any]"]


EXACTLY = Round()


def _divide(_: int, __: Attributes, x: list[Array], r: Round) -> list[Array]:
    """Division of integers truncates; by 0 it gives 0."""
    a, b = x
    if a.dtype.kind == "f":
        return [np.asarray(a / b)]
    a, b = np.broadcast_arrays(a, b)
    safe = np.where(b == 0, np.ones((), b.dtype), b)
    return [np.where(b == 0, 0, (a - np.fmod(a, safe)) // safe).astype(a.dtype)]


def _modulo(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    a, b = x
    function = np.fmod if attributes["fmod"] else np.mod
    if a.dtype.kind == "f":
        return [np.asarray(function(a, b))]
    a, b = np.broadcast_arrays(a, b)
    return [np.where(b == 0, 0, function(a, np.where(b == 0, np.ones((), b.dtype), b))).astype(a.dtype)]


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Floats become the nearest integer that there is, NaN 0; NaN is true."""
    if array.dtype.kind != "f" or dtype.kind not in "iu":
        return array.astype(dtype)
    ends = np.iinfo(dtype)
    low, beyond = float(ends.min), 2.0 * (int(ends.max) // 2 + 1)
    wide = array.astype(np.float64)
    whole = np.where((wide >= low) & (wide < beyond), wide, 0).astype(dtype)
    return np.where(wide >= beyond, dtype.type(ends.max), np.where(wide < low, dtype.type(ends.min), whole))


def _cast_node(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    return [cast(x[0], np.dtype(helper.tensor_dtype_to_np_dtype(attributes["to"])))]


def _concat(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    """Operands without elements along the axis are left out, whatever their other extents, as ONNX Runtime does it."""
    axis = int(attributes["axis"])
    return [np.concatenate([each for each in x if each.shape[axis]] or x[:1], axis)]


def _clamped(index: Array, extent: int) -> Array:
    """Negative indices count from the end, and what is outside then is the nearest."""
    wide = index.astype(object)
    wide = np.where(index < 0, wide + extent, wide)
    return np.minimum(np.maximum(wide, 0), extent - 1).astype(np.int64)


def _gather(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    data, index = x
    axis = int(attributes["axis"])
    return [np.take(data, _clamped(index, data.shape[axis]), axis)]


def _gather_elements(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    data, index = x
    axis = int(attributes["axis"]) % data.ndim
    places = list(np.indices(index.shape))
    chosen = _clamped(index, data.shape[axis])
    return [np.asarray(data[(*places[:axis], chosen, *places[axis + 1 :])])]


def _chain(function: Callable[..., Any]) -> Own:
    def own(_: int, __: Attributes, x: list[Array], r: Round) -> list[Array]:
        result = x[0]
        for other in x[1:]:
            result = r(function(result, other))
        return [np.asarray(result)]

    return own


def _sum(_: int, __: Attributes, x: list[Array], r: Round) -> list[Array]:
    """From the first operand to the last."""
    result = x[0]
    for n, other in enumerate(x[1:], 2):
        result = r.pair(result, other) if n == 2 and len(x) > 2 else r(result + other)
    return [np.asarray(result)]


def _clip(opset: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    """The minimum of the maximum: bounds that cross give the upper one."""
    low = attributes.get("min") if opset < 11 else x[1] if len(x) > 1 else None
    high = attributes.get("max") if opset < 11 else x[2] if len(x) > 2 else None
    result = x[0]
    result = result if low is None else np.maximum(result, np.asarray(low, result.dtype))
    return [np.asarray(result if high is None else np.minimum(result, np.asarray(high, result.dtype)))]


def _power(_: int, __: Attributes, x: list[Array], r: Round) -> list[Array]:
    """Integers go through float64."""
    base, exponent = x
    if base.dtype.kind == "f":
        return [np.power(base, exponent.astype(base.dtype))]
    return [cast(np.power(base.astype(np.float64), exponent.astype(np.float64)), base.dtype)]


def _erf(x: Array) -> Array:
    return np.array([erf(v) for v in x.reshape(-1).tolist()], np.float64).reshape(x.shape).astype(x.dtype)


def _number(attributes: Attributes, name: str, x: Array) -> Any:
    return x.dtype.type(attributes[name])


def _exp_minus_one(x: Array, r: Round) -> Array:
    return r(r(np.exp(x)) - x.dtype.type(1))


def _elu(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    return [np.where(x[0] < 0, r(_number(attributes, "alpha", x[0]) * _exp_minus_one(x[0], r)), x[0])]


def _celu(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    alpha = _number(attributes, "alpha", x[0])
    return [np.where(x[0] < 0, r(alpha * _exp_minus_one(r(x[0] / alpha), r)), x[0])]


def _selu(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    alpha, gamma = (_number(attributes, name, x[0]) for name in ("alpha", "gamma"))
    return [r(gamma * np.where(x[0] > 0, x[0], r(alpha * _exp_minus_one(x[0], r))))]


def _softplus(x: Array, r: Round) -> Array:
    return r(np.maximum(x, x.dtype.type(0)) + r(np.log(r(r(np.exp(-np.abs(x))) + x.dtype.type(1)))))


def _mish(_: int, __: Attributes, x: list[Array], r: Round) -> list[Array]:
    return [r(x[0] * r(np.tanh(_softplus(x[0], r))))]


def _shrink(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    """Integers beside a fraction are rounded towards zero."""
    bias, limit = attributes["bias"], attributes["lambd"]
    v = x[0].astype(object) if x[0].dtype.kind in "iu" and float(bias).is_integer() else x[0]
    bias = int(bias) if v.dtype.kind == "O" else bias if v.dtype.kind in "iu" else v.dtype.type(bias)
    low, high = (np.asarray(np.asarray(e, np.bool_)) for e in (x[0] < -limit, x[0] > limit))
    wide = np.where(low, r(v + bias), np.where(high, r(v - bias), 0 * v if v.dtype.kind != "f" else v.dtype.type(0)))
    if v.dtype.kind != "O":
        return [wide if v.dtype.kind == "f" else cast(wide, x[0].dtype)]
    lowest, count = int(np.iinfo(x[0].dtype).min), 2 ** (8 * x[0].dtype.itemsize)
    return [np.asarray((wide - lowest) % count + lowest).astype(x[0].dtype)]


def _hard_swish(_: int, __: Attributes, x: list[Array], r: Round) -> list[Array]:
    t = x[0].dtype.type
    return [r(x[0] * np.minimum(np.maximum(r(r.term(x[0], t(1 / 6)) + t(0.5)), t(0)), t(1)))]


def _gelu(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    v, t = x[0], x[0].dtype.type
    if attributes["approximate"] == b"tanh":
        inner = r(t(np.sqrt(2 / np.pi)) * r(v + r.term(t(0.044715), r(r(v * v) * v))))
        return [r(r(t(0.5) * v) * r(t(1) + r(np.tanh(inner))))]
    return [r(r(t(0.5) * v) * r(t(1) + r(_erf(r(v * t(np.sqrt(0.5)))))))]


def _sigmoid(x: Array, r: Round) -> Array:
    """In float32 where the type is narrower; even there the power may be beyond the type."""
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    inner, one = r.at_least(np.float32), wide.dtype.type(1)
    return (one / inner(one + inner(np.exp(-wide)))).astype(x.dtype)


def _swish(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    return [r(x[0] * r(_sigmoid(r(_number(attributes, "alpha", x[0]) * x[0]), r)))]


def _gather_nd(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    data, index = x
    batch, width = int(attributes.get("batch_dims", 0)), index.shape[-1]
    lead = list(np.indices(index.shape[:-1], sparse=True))[:batch]
    chosen = [_clamped(index[..., n], data.shape[batch + n]) for n in range(width)]
    return [np.asarray(data[(*lead, *chosen)])]


def _one_hot(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    index, depth, (off, on) = x
    extent = int(depth.reshape(()))
    axis = int(attributes["axis"]) % (index.ndim + 1)
    places = np.arange(extent).reshape(-1, *[1] * (index.ndim - axis))
    chosen = np.expand_dims(np.where(index < 0, index + extent, index), axis)
    return [np.where(places == chosen, on, off)]


OWN_SCALARS: Mapping[str, Own] = {
    "Div": _divide,
    "Mod": _modulo,
    "Cast": _cast_node,
    "CastLike": lambda _, __, x, r: [cast(x[0], x[1].dtype)],
    "Concat": _concat,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Max": _chain(np.maximum),
    "Min": _chain(np.minimum),
    "Sum": _sum,
    "Mean": lambda o, a, x, r: [r(_sum(o, a, x, r)[0] / x[0].dtype.type(len(x)))],
    "Clip": _clip,
    "Pow": _power,
    "Relu": lambda _, __, x, r: [np.maximum(x[0], np.zeros((), x[0].dtype))],
    "Sign": lambda _, __, x, r: [np.sign(x[0])],
    "Identity": lambda _, __, x, r: [x[0]],
    "Erf": lambda _, __, x, r: [_erf(x[0])],
    # ONNX's evaluator multiplies 0 as well, whose sign a negative slope turns.
    "LeakyRelu": lambda _, a, x, r: [np.where(x[0] < 0, x[0] * np.asarray(a["alpha"], x[0].dtype), x[0])],
    "PRelu": lambda _, __, x, r: [np.where(x[0] < 0, x[0] * x[1], x[0])],
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "OneHot": _one_hot,
    "Sigmoid": lambda _, __, x, r: [_sigmoid(x[0], r)],
    "Swish": _swish,
    "Softplus": lambda _, __, x, r: [_softplus(x[0], r)],
    "Mish": _mish,
    "Gelu": _gelu,
    "HardSwish": _hard_swish,
    "Shrink": _shrink,
}

__all__ = ["EXACTLY", "OWN_SCALARS", "Array", "Attributes", "Own", "Round", "cast"]
