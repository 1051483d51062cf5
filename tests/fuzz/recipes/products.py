"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.fuzz.draw import Draw, Recipes
from tests.fuzz.recipes.windows import borders

_SIDES = (1, 2, 3, 5, 7, 8, 13, 17, 33)
_FACTORS = (None, 0.5, 1.0, 2.0, -1.5)


def side(d: Draw) -> int:
    """The extent of a product's operand that the other one does not say."""
    return d.choice(_SIDES)


def _matmul(d: Draw) -> None:
    first = d.tensor(d.types("MatMul"), ranks=(1, 2, 2, 3, 4))
    x = d.array(first)
    if x.ndim == 1:
        other = (x.shape[0],) if d.chance(0.3) else (*d.shape((0, 1)), x.shape[0], d.choice(_SIDES))
        d.node("MatMul", [first, d.of(x.dtype, other)])
        return
    if d.chance(0.15):
        d.node("MatMul", [first, d.of(x.dtype, (x.shape[-1],))])
        return
    batch = d.partner(x.shape[:-2])
    if d.chance(0.3):
        d.node("MatMul", [d.of(x.dtype, (*batch, d.choice(_SIDES), x.shape[-2])), first])
        return
    d.node("MatMul", [first, d.of(x.dtype, (*batch, x.shape[-1], d.choice(_SIDES)))])


def _gemm(d: Draw) -> None:
    first = d.tensor(d.types("Gemm"), ranks=(2,))
    x = d.array(first)
    across, other = d.between(0, 1), d.between(0, 1)
    terms, rows = (x.shape[0], x.shape[1]) if across else (x.shape[1], x.shape[0])
    columns = d.choice(_SIDES)
    second = d.of(x.dtype, (columns, terms) if other else (terms, columns))
    bias = [d.of(x.dtype, d.partner((rows, columns)))] if d.chance(0.6) else []
    scales = dict(zip(("alpha", "beta"), (d.choice(_FACTORS), d.choice(_FACTORS)), strict=True))
    if x.dtype.kind != "f":
        scales = {}
    d.node("Gemm", [first, second, *bias], transA=across, transB=other, **scales)


def _image(d: Draw, operator: str) -> str:
    return d.tensor(d.types(operator), ranks=(3, 4, 4, 5), least=1)


def _groups(d: Draw, channels: int) -> int:
    return d.choice([1, 1, *[g for g in range(2, channels + 1) if channels % g == 0]])


def _conv(d: Draw) -> None:
    name = _image(d, "Conv")
    x = d.array(name)
    weights = d.of(x.dtype, filters(d, x.shape))
    shape = d.array(weights).shape
    bias = [d.of(x.dtype, shape[:1])] if d.chance(0.5) else []
    d.node("Conv", [name, weights, *bias], **positions(d, x.shape, shape))


def filters(d: Draw, image: Sequence[int]) -> tuple[int, ...]:
    """The shape of the weights that an image is convolved with."""
    groups = _groups(d, image[1])
    kernel = [d.between(1, min(3, e)) for e in image[2:]]
    return (groups * d.choice((1, 1, 2, 3, 5)), image[1] // groups, *kernel)


def positions(d: Draw, image: Sequence[int], weights: Sequence[int]) -> dict[str, Any]:
    """The attributes of a convolution of an image with weights."""
    spatial, kernel = image[2:], weights[2:]
    pads = [d.between(0, 2) if d.chance(0.5) else 0 for _ in range(2 * len(spatial))]
    strides = [d.between(1, 3) if d.chance(0.4) else 1 for _ in spatial]
    dilations = [d.between(1, 2) if d.chance(0.2) and e > 2 * k else 1 for k, e in zip(kernel, spatial, strict=True)]
    groups = image[1] // weights[1]
    return {"group": groups, "strides": strides, "dilations": dilations, **borders(d, pads)}


def _conv_transpose(d: Draw) -> None:
    name = _image(d, "ConvTranspose")
    x = d.array(name)
    spatial = x.shape[2:]
    groups = _groups(d, x.shape[1])
    kernel = [d.between(1, 3) for _ in spatial]
    outputs = d.choice((1, 2, 3))
    weights = d.of(x.dtype, (x.shape[1], outputs, *kernel))
    bias = [d.of(x.dtype, (outputs * groups,))] if d.chance(0.5) else []
    strides = [d.between(1, 3) if d.chance(0.4) else 1 for _ in spatial]
    pads = [d.between(0, 1) if k == 3 and d.chance(0.3) else 0 for _ in range(2) for k in kernel]
    d.node("ConvTranspose", [name, weights, *bias], group=groups, pads=pads, strides=strides)


PRODUCTS: Recipes = {"MatMul": _matmul, "Gemm": _gemm, "Conv": _conv, "ConvTranspose": _conv_transpose}

__all__ = ["PRODUCTS", "filters", "positions", "side"]
