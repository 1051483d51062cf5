"""Element-by-element operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.draw import Draw, Recipe, Recipes, Undrawable
from tests.fuzz.values import DTYPES

_PLAIN = [
    "Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "IsNaN", "Log", "Neg", "Not", "Reciprocal", "Relu", "Round",
    "Sigmoid", "Sign", "Sin", "Sqrt", "Tan", "Tanh", "BitwiseNot", "Identity", "HardSwish", "Softplus",
    "Softsign", "Mish", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh",
]  # fmt: skip
_FACTORS = (0.01, 0.5, 1.0, 1.5, 2.0, -0.5)
_PARAMETERS = {
    "HardSigmoid": ("alpha", "beta"), "LeakyRelu": ("alpha",), "ThresholdedRelu": ("alpha",), "Elu": ("alpha",),
    "Celu": ("alpha",), "Selu": ("alpha", "gamma"), "Swish": ("alpha",), "Shrink": ("bias", "lambd"),
}  # fmt: skip
_BINARY = [
    "Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual",
    "BitwiseAnd", "BitwiseOr", "BitwiseXor",
]  # fmt: skip
_VARIADIC = ["Sum", "Max", "Min", "Mean"]


def _unary(operator: str, attributes: Callable[[Draw], dict[str, Any]] = lambda _: {}) -> Recipe:
    return lambda d: d.node(operator, [d.tensor(d.types(operator))], **attributes(d))


def _with_factors(*names: str) -> Callable[[Draw], dict[str, Any]]:
    return lambda d: {name: d.choice(_FACTORS) for name in names if d.chance(0.7)}


def _operands(d: Draw, operator: str, count: int) -> list[str]:
    first = d.tensor(d.types(operator))
    x = d.array(first)
    names = [first, *(d.of(x.dtype, d.partner(x.shape)) for _ in range(count - 1))]
    d.random.shuffle(names)
    return names


def _binary(operator: str) -> Recipe:
    return lambda d: d.node(operator, _operands(d, operator, 2))


def _variadic(operator: str) -> Recipe:
    return lambda d: d.node(operator, _operands(d, operator, d.between(1, 4)))


def _modulo(d: Draw) -> None:
    names = _operands(d, "Mod", 2)
    is_float = d.array(names[0]).dtype.kind == "f"
    d.node("Mod", names, fmod=1 if (is_float and d.opset < 28) or d.chance(0.5) else 0)


def _power(d: Draw) -> None:
    base = d.tensor(d.types("Pow"))
    x = d.array(base)
    if x.dtype.kind == "f":
        d.node("Pow", [base, d.of(d.choice([x.dtype, d.choice(d.types("Pow", 1))]), d.partner(x.shape))])
        return
    exponent = d.constant(d.rng.integers(0, 4, d.partner(x.shape)).astype(x.dtype))
    d.node("Pow", [base, exponent])


def _p_relu(d: Draw) -> None:
    name = d.tensor(d.types("PRelu"))
    x = d.array(name)
    d.node("PRelu", [name, d.of(x.dtype, d.partner(x.shape))])


def _where(d: Draw) -> None:
    a, b = _operands_of(d, d.types("Where", 1))
    shape = np.broadcast_shapes(d.array(a).shape, d.array(b).shape)
    d.node("Where", [d.of(np.dtype(np.bool_), d.partner(shape)), a, b])


def _operands_of(d: Draw, types: tuple[np.dtype[Any], ...]) -> tuple[str, str]:
    first = d.tensor(types)
    x = d.array(first)
    names = [first, d.of(x.dtype, d.partner(x.shape))]
    d.random.shuffle(names)
    return names[0], names[1]


def _clip(d: Draw) -> None:
    name = d.tensor(d.types("Clip"))
    dtype = d.array(name).dtype
    if d.opset < 11:
        d.node("Clip", [name], **{bound: d.choice((-2.0, 0.0, 1.5)) for bound in ("min", "max") if d.chance(0.7)})
        return
    bounds = [d.of(dtype, ()) if d.chance(0.7) else "" for _ in range(2)]
    d.node("Clip", [name, *bounds])


def _cast(d: Draw) -> None:
    to = d.choice(DTYPES)
    d.node("Cast", [d.tensor(d.types("Cast"))], to=helper.np_dtype_to_tensor_dtype(to))


def _cast_like(d: Draw) -> None:
    d.node("CastLike", [d.tensor(d.types("CastLike")), d.new(d.choice(DTYPES), ())])


def _is_inf(d: Draw) -> dict[str, Any]:
    return {name: d.between(0, 1) for name in ("detect_negative", "detect_positive") if d.chance(0.5)}


def _dropout(d: Draw) -> None:
    if d.opset < 12:
        raise Undrawable("a ratio as an attribute")
    d.node_of(d.between(1, 2), "Dropout", [d.tensor(d.types("Dropout"))])


ELEMENTWISE: Recipes = {
    **{operator: _unary(operator) for operator in _PLAIN},
    **{operator: _unary(operator, _with_factors(*names)) for operator, names in _PARAMETERS.items()},
    **{operator: _binary(operator) for operator in _BINARY},
    **{operator: _variadic(operator) for operator in _VARIADIC},
    "Gelu": _unary("Gelu", lambda d: {"approximate": d.choice(("none", "tanh"))}),
    "IsInf": _unary("IsInf", _is_inf),
    "Dropout": _dropout,
    "Mod": _modulo,
    "Pow": _power,
    "PRelu": _p_relu,
    "Where": _where,
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": _cast_like,
}

__all__ = ["ELEMENTWISE"]
