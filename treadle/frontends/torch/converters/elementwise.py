"""Arithmetic, comparison, logic and casts: operands are converted to one type first, as PyTorch promotes them."""

from __future__ import annotations

from math import inf, log, prod

import numpy as np
from xdsl.dialects.builtin import f64, i1, i32
from xdsl.ir import Attribute

from treadle.dialects.graph import ArgReductionOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import floored_remainder
from treadle.frontends.common.extent import maximum
from treadle.frontends.common.indexing import cumulative, ordered
from treadle.frontends.torch.call import Call, Converter, converts

# Reductions, sums so far, and elements by their rank.

_KINDS = {
    "sum": "add", "mean": "mean", "prod": "mul", "amax": "max", "amin": "min", "max": "max", "min": "min", "any": "or",
    "all": "and",
}  # fmt: skip


@converts(
    "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "prod.default", "prod.dim_int", "amax.default",
    "amin.default", "max.default", "min.default", "any.default", "any.dim", "any.dims", "all.default", "all.dim",
    "all.dims",
)  # fmt: skip
def reduce(c: Call, g: GraphBuilder) -> Tensor:
    """No dimensions are all."""
    name = c.name.partition(".")[0]
    x, kind = c.tensor(), _KINDS[name]
    dims = c.dims("dim", x.rank) if "dim" in c.arguments else list(range(x.rank))
    if kind in ("or", "and"):
        return g.cast(g.reduce(kind, truth(g, x), dims, _keeps(c)), c.element)
    if c.element == i1:
        return g.reduce({"max": "or", "min": "and"}[kind], x, dims, _keeps(c))
    return g.reduce(kind, g.cast(x, c.element), dims, _keeps(c))


def _keeps(c: Call) -> bool:
    return bool(c.arguments.get("keepdim", False))


@converts("var.correction", "std.correction")
def variance(c: Call, g: GraphBuilder) -> Tensor:
    """The mean square of distances from the mean, of a sum divided by `n - correction`, at least by 0."""
    x = c.tensor()
    dims, correction = c.dims("dim", x.rank), c.value("correction")
    wide = g.widened(x)
    count = prod(x.shape[d] for d in dims)
    centred = g.sub(wide, g.reduce("mean", wide, dims, keep=True))
    total = g.reduce("add", g.mul(centred, centred), dims, _keeps(c))
    y = g.div(total, maximum(count - (1 if correction is None else correction), 0))
    return g.cast(g.unary("sqrt", y) if c.name.startswith("std") else y, x.element)


@converts("linalg_vector_norm.default")
def vector_norm(c: Call, g: GraphBuilder) -> Tensor:
    """The sum of magnitudes, the root of the sum of squares, or the extremum of magnitudes."""
    x, order = c.tensor(), c.value("ord")
    dims, keep = c.dims("dim", x.rank), _keeps(c)
    if order not in (1, 2, inf, -inf):
        raise c.error(f"ord is {order}", "1, 2, inf or -inf")
    wide = g.widened(x)
    if order == 2:
        return g.cast(g.unary("sqrt", g.reduce("add", g.mul(wide, wide), dims, keep)), c.element)
    kind = "add" if order == 1 else "max" if order == inf else "min"
    return g.cast(g.reduce(kind, g.unary("abs", wide), dims, keep), c.element)


@converts("argmax.default", "argmin.default")
def arg_reduce(c: Call, g: GraphBuilder) -> Tensor:
    """The first position along a dimension, or in the flattened tensor."""
    x, dim = c.tensor(), c.value("dim")
    kind = c.name[3:6]
    if dim is None or x.rank == 0:
        flat = g.reshape(x, (prod(x.shape),))
        return g.reshape(g.emit(lambda v: ArgReductionOp(kind, v[0], 0, False, False), flat), c.shape)
    along, keep = c.dim(dim, x.rank), c.flag("keepdim")
    return g.emit(lambda v: ArgReductionOp(kind, v[0], along, keep, False), x)


@converts("max.dim", "min.dim")
def extremum(c: Call, g: GraphBuilder) -> list[Tensor]:
    """The extremum along a dimension, and its first position."""
    x, kind, keep = c.tensor(), c.name[:3], c.flag("keepdim")
    if x.rank == 0:
        return [x, g.constant(np.array(0))]
    dim = c.dim(c.int("dim"), x.rank)
    values = g.reduce({"max": "or", "min": "and"}[kind] if x.element == i1 else kind, x, [dim], keep)
    return [values, g.emit(lambda v: ArgReductionOp(kind, v[0], dim, keep, False), x)]


@converts("cumsum.default", "cumprod.default")
def cumulate(c: Call, g: GraphBuilder) -> Tensor:
    """Sums or products of all elements so far."""
    x = g.cast(c.tensor(), c.element)
    if x.rank == 0:
        return x
    return cumulative(g, x, c.dim(c.int("dim"), x.rank), "add" if c.name.startswith("cumsum") else "mul")


@converts("topk.default")
def top_k(c: Call, g: GraphBuilder) -> list[Tensor]:
    """The first elements along a dimension in order, also without `sorted`, and their positions."""
    return _ordered(c, g, c.int("k"), c.flag("largest"))


@converts("sort.default", "sort.stable")
def sort(c: Call, g: GraphBuilder) -> list[Tensor]:
    """All elements along a dimension in order, and their positions; equal ones keep theirs."""
    x = c.tensor()
    extent = int(x.shape[c.dim(c.int("dim"), x.rank)]) if x.rank else 1
    return _ordered(c, g, extent, c.flag("descending"))


def _ordered(c: Call, g: GraphBuilder, count: int, largest: bool) -> list[Tensor]:
    x = c.tensor()
    if x.rank == 0 or x.element == i1:
        raise c.error(f"elements of {x.type} in order", "numbers of rank 1 and more")
    return list(ordered(c, g, x, c.dim(c.int("dim"), x.rank), count, largest))


_OF_FLOATS = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log", "reciprocal", "rsqrt",
    "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
"""Unary operators of this name in both, whose results are floats also of integers."""


def _of_floats(kind: str) -> Converter:
    return lambda c, g: g.unary(kind, g.cast(c.tensor(), c.element))


def _register_unary() -> None:
    for kind in _OF_FLOATS:
        converts(f"{kind}.default")(_of_floats(kind))
    for kind in ("abs", "ceil", "floor", "neg", "relu", "round", "sign"):
        converts(f"{kind}.default")(_of_numbers(kind))


def _of_numbers(kind: str) -> Converter:
    def convert(c: Call, g: GraphBuilder) -> Tensor:
        x = c.tensor()
        return x if not x.is_float and kind in ("ceil", "floor", "round") else g.unary(kind, x)

    return convert


_register_unary()


@converts("trunc.default")
def trunc(c: Call, g: GraphBuilder) -> Tensor:
    """Rounded towards zero."""
    return _truncated(g, c.tensor())


def _truncated(g: GraphBuilder, x: Tensor) -> Tensor:
    if not x.is_float:
        return x
    return g.where(g.binary("lt", x, 0), g.unary("ceil", x), g.unary("floor", x))


@converts("log2.default", "log10.default", "log1p.default", "expm1.default", "exp2.default")
def exponential(c: Call, g: GraphBuilder) -> Tensor:
    """By way of `log` and `exp` in float64, whose digits make up for the differences, and rounded once."""
    x, name = g.cast(c.tensor(), f64), c.name.removesuffix(".default")
    if name in ("log2", "log10"):
        y = g.mul(g.unary("log", x), 1 / log(2 if name == "log2" else 10))
    elif name == "exp2":
        y = g.unary("exp", g.mul(x, log(2)))
    elif name == "log1p":
        y = _log1p(g, x)
    else:
        y = _expm1(g, x)
    return g.cast(y, c.element)


def _log1p(g: GraphBuilder, x: Tensor) -> Tensor:
    """`log(u) * x / (u - 1)` of `u = 1 + x`. Source: Goldberg, "What every computer scientist should know about
    floating-point arithmetic", theorem 4."""
    u = g.add(x, 1)
    corrected = g.div(g.mul(g.unary("log", u), x), g.sub(u, 1))
    large = g.binary("gt", g.unary("abs", x), 1)
    return g.where(g.binary("eq", u, 1), x, g.where(large, g.unary("log", u), corrected))


def _expm1(g: GraphBuilder, x: Tensor) -> Tensor:
    """`tanh(x / 2) * (exp(x) + 1)`, which cancels nothing; of large numbers `exp(x) - 1`."""
    e = g.unary("exp", x)
    small = g.mul(g.unary("tanh", g.mul(x, 0.5)), g.add(e, 1))
    return g.where(g.binary("lt", g.unary("abs", x), 1), small, g.sub(e, 1))


def _operands(c: Call, g: GraphBuilder, element: Attribute, second: str = "other") -> tuple[Tensor, Tensor]:
    return c.operand("self", g, element), c.operand(second, g, element)


def _scaled(c: Call, g: GraphBuilder, x: Tensor) -> Tensor:
    alpha = c.arguments.get("alpha", 1)
    return x if alpha == 1 else g.mul(x, alpha)


@converts("add.Tensor", "add.Scalar")
def add(c: Call, g: GraphBuilder) -> Tensor:
    """`self + alpha * other`; of bools, whether one is true."""
    a, b = _operands(c, g, c.element)
    return g.binary("or", a, b) if c.element == i1 else g.add(a, _scaled(c, g, b))


@converts("sub.Tensor", "sub.Scalar")
def sub(c: Call, g: GraphBuilder) -> Tensor:
    """`self - alpha * other`."""
    a, b = _operands(c, g, c.element)
    return g.sub(a, _scaled(c, g, b))


@converts("rsub.Scalar", "rsub.Tensor")
def rsub(c: Call, g: GraphBuilder) -> Tensor:
    """`other - alpha * self`."""
    a, b = _operands(c, g, c.element)
    return g.sub(b, _scaled(c, g, a))


@converts("mul.Tensor", "mul.Scalar")
def mul(c: Call, g: GraphBuilder) -> Tensor:
    """The product; of bools, whether both are true."""
    a, b = _operands(c, g, c.element)
    return g.binary("and", a, b) if c.element == i1 else g.mul(a, b)


@converts("div.Tensor", "div.Scalar")
def div(c: Call, g: GraphBuilder) -> Tensor:
    """The quotient, a float also of integers."""
    return g.div(*_operands(c, g, c.element))


@converts("div.Tensor_mode", "div.Scalar_mode")
def div_rounded(c: Call, g: GraphBuilder) -> Tensor:
    """The quotient rounded down or towards zero."""
    mode = c.value("rounding_mode")
    a, b = _operands(c, g, c.element)
    if mode is None:
        return g.div(a, b)
    if mode == "trunc":
        return _truncated(g, g.div(a, b))
    return _floored(g, a, b)


@converts("floor_divide.default")
def floor_divide(c: Call, g: GraphBuilder) -> Tensor:
    """The quotient rounded down."""
    return _floored(g, *_operands(c, g, c.element))


def _floored(g: GraphBuilder, a: Tensor, b: Tensor) -> Tensor:
    """The quotient rounded down, of the division without the remainder, whose rounding could reach the next number."""
    return g.unary("floor", g.div(a, b)) if a.is_float else g.div(g.sub(a, floored_remainder(g, a, b)), b)


@converts("remainder.Tensor", "remainder.Scalar")
def remainder(c: Call, g: GraphBuilder) -> Tensor:
    """The sign is the divisor's."""
    return floored_remainder(g, *_operands(c, g, c.element))


@converts("fmod.Tensor", "fmod.Scalar")
def fmod(c: Call, g: GraphBuilder) -> Tensor:
    """The sign is the dividend's."""
    return g.binary("mod", *_operands(c, g, c.element))


@converts("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(c: Call, g: GraphBuilder) -> Tensor:
    """A square is a product; integers go through float64, exact below 2^53."""
    exponent = c.value("exponent")
    if exponent in (1, 2) and not isinstance(exponent, Tensor):
        x = g.cast(c.tensor(), c.element)
        return g.mul(x, x) if exponent == 2 else x
    if exponent in (0.5, -0.5) and not isinstance(exponent, Tensor):
        return g.unary("sqrt" if exponent > 0 else "rsqrt", g.cast(c.tensor(), c.element))
    a, b = _operands(c, g, c.element, "exponent")
    return g.binary("pow", a, b) if a.is_float else g.cast(g.binary("pow", g.cast(a, f64), g.cast(b, f64)), a.element)


def _binary(kind: str) -> Converter:
    return lambda c, g: g.binary(kind, *_operands(c, g, c.promoted("self", "other")))


def _compared(kind: str) -> Converter:
    """Bools are ordered as integers are."""

    def convert(c: Call, g: GraphBuilder) -> Tensor:
        common = c.promoted("self", "other")
        a, b = _operands(c, g, common)
        if common == i1 and kind not in ("eq", "ne"):
            a, b = g.cast(a, i32), g.cast(b, i32)
        return g.binary(kind, a, b)

    return convert


def _logical(kind: str) -> Converter:
    return lambda c, g: g.binary(kind, *(truth(g, c.tensor(name)) for name in ("self", "other")))


def truth(g: GraphBuilder, x: Tensor) -> Tensor:
    """Whether elements are other than 0."""
    return x if x.element == i1 else g.binary("ne", x, 0)


def _register_binary() -> None:
    for kind in ("eq", "ne", "lt", "le", "gt", "ge"):
        converts(f"{kind}.Tensor", f"{kind}.Scalar")(_compared(kind))
    for name, kind in {"maximum.default": "max", "minimum.default": "min"}.items():
        converts(name)(_binary(kind))
    for kind in ("and", "or", "xor"):
        converts(f"logical_{kind}.default")(_logical(kind))
        converts(f"bitwise_{kind}.Tensor", f"bitwise_{kind}.Scalar")(_binary(kind))


_register_binary()


@converts("logical_not.default")
def logical_not(c: Call, g: GraphBuilder) -> Tensor:
    """Whether elements are 0."""
    return g.unary("not", truth(g, c.tensor()))


@converts("bitwise_not.default")
def bitwise_not(c: Call, g: GraphBuilder) -> Tensor:
    """Every bit flipped."""
    x = c.tensor()
    return g.unary("not", x) if x.element == i1 else g.binary("xor", x, g.constant(np.invert(np.zeros((), x.dtype))))


@converts("isnan.default", "isinf.default")
def is_special(c: Call, g: GraphBuilder) -> Tensor:
    """False of integers."""
    x = c.tensor()
    if not x.is_float:
        return g.filled(False, np.dtype(np.bool_), c.shape)
    return g.unary(c.name.removesuffix(".default"), x)


@converts("where.self")
def where(c: Call, g: GraphBuilder) -> Tensor:
    """`condition ? self : other`."""
    return g.where(truth(g, c.tensor("condition")), *_operands(c, g, c.element))


@converts("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(c: Call, g: GraphBuilder) -> Tensor:
    """A number where the mask is true."""
    x = c.tensor()
    return g.where(c.tensor("mask"), c.operand("value", g, x.element), x)


@converts("clamp.default", "clamp.Tensor")
def clamp(c: Call, g: GraphBuilder) -> Tensor:
    """`min(max(x, min), max)`, without a missing bound."""
    x = g.cast(c.tensor(), c.element)
    for name, kind in (("min", "max"), ("max", "min")):
        if c.value(name) is not None:
            x = g.binary(kind, x, c.operand(name, g, x.element))
    return x


@converts("hardtanh.default")
def hardtanh(c: Call, g: GraphBuilder) -> Tensor:
    """Between two numbers."""
    x = c.tensor()
    lowest, highest = (c.operand(f"{end}_val", g, x.element) for end in ("min", "max"))
    return g.binary("min", g.binary("max", x, lowest), highest)


@converts("leaky_relu.default")
def leaky_relu(c: Call, g: GraphBuilder) -> Tensor:
    """`x < 0 ? slope * x : x`."""
    x = c.tensor()
    return g.where(g.binary("lt", x, 0), g.mul(x, c.value("negative_slope")), x)


@converts("elu.default")
def elu(c: Call, g: GraphBuilder) -> Tensor:
    """`x > 0 ? scale * x : scale * alpha * (exp(input_scale * x) - 1)`."""
    x, alpha, scale = c.tensor(), c.value("alpha"), c.value("scale")
    negative = g.mul(g.sub(g.unary("exp", g.mul(x, c.value("input_scale"))), 1), alpha * scale)
    return g.where(g.binary("gt", x, 0), x if scale == 1 else g.mul(x, scale), negative)


@converts("gelu.default")
def gelu(c: Call, g: GraphBuilder) -> Tensor:
    """Exact, or with its tanh approximation."""
    return g.unary("gelu_tanh" if c.value("approximate") == "tanh" else "gelu", c.tensor())


def _same(c: Call, g: GraphBuilder) -> Tensor:
    return g.cast(c.tensor(), c.element)


for _name in ("_to_copy.default", "alias.default", "clone.default", "detach.default"):
    converts(_name)(_same)
