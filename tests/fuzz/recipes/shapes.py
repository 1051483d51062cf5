"""Other shapes of the same elements, padding, and tensors that are known while compiling."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import helper, numpy_helper

from tests.fuzz.draw import Draw, Recipes, Undrawable
from tests.fuzz.values import DTYPES, draw_array

_ALL = (0, 1, 2, 3, 4, 5)
_SOME = (1, 2, 3, 4, 5)
_AXES_AS_INPUT = 13


def _factors(d: Draw, count: int) -> list[int]:
    """Extents whose product is `count`."""
    shape: list[int] = []
    rest = count
    while rest > 1:
        factor = d.choice([f for f in range(2, rest + 1) if rest % f == 0])
        shape.append(factor)
        rest //= factor
    for _ in range(d.between(0, 2)):
        shape.insert(d.between(0, len(shape)), 1)
    return [*shape[:4], prod(shape[4:])] if len(shape) > 5 else shape


def _reshape(d: Draw) -> None:
    name = d.tensor(d.types("Reshape"), _ALL)
    x = d.array(name)
    if x.size == 0:
        wanted = [x.shape[n] if e else 0 for n, e in enumerate(x.shape)]
    else:
        wanted = _factors(d, x.size)
        if wanted and d.chance(0.4):
            wanted[d.random.randrange(len(wanted))] = -1
    d.node("Reshape", [name, d.longs(wanted)])


def _flatten(d: Draw) -> None:
    name = d.tensor(d.types("Flatten"), _SOME)
    rank = d.array(name).ndim
    d.node("Flatten", [name], axis=d.between(-rank if d.opset >= 11 else 0, rank))


def _squeeze(d: Draw) -> None:
    name = d.tensor(d.types("Squeeze"), _SOME, lambda shape: 1 in shape)
    ones = [axis for axis, e in enumerate(d.array(name).shape) if e == 1]
    axes = d.random.sample(ones, d.between(1, len(ones))) if d.chance(0.7) else None
    if d.opset < _AXES_AS_INPUT:
        d.node("Squeeze", [name], axes=axes)
        return
    d.node("Squeeze", [name, *([] if axes is None else [d.longs(axes)])])


def _unsqueeze(d: Draw) -> None:
    name = d.tensor(d.types("Unsqueeze"), (0, 1, 2, 3))
    rank = d.array(name).ndim + 2
    axes = sorted(d.random.sample(range(rank), 2))
    if d.opset < _AXES_AS_INPUT:
        d.node("Unsqueeze", [name], axes=axes)
        return
    d.node("Unsqueeze", [name, d.longs(axes)])


def _transpose(d: Draw) -> None:
    name = d.tensor(d.types("Transpose"), _ALL)
    perm = list(range(d.array(name).ndim))
    d.random.shuffle(perm)
    d.node("Transpose", [name], perm=perm if perm and d.chance(0.8) else None)


def _expand(d: Draw) -> None:
    name = d.tensor(d.types("Expand"), (0, 1, 2, 3))
    shape = [d.choice((1, 2, 3, 5)) if e == 1 else d.choice((1, e)) for e in d.array(name).shape]
    d.node("Expand", [name, d.longs([*d.shape((0, 1), 1), *shape])])


def _tile(d: Draw) -> None:
    name = d.tensor(d.types("Tile"), _SOME)
    d.node("Tile", [name, d.longs([d.choice((0, 1, 1, 1, 2, 2, 3)) for _ in d.array(name).shape])])


def _pad(d: Draw) -> None:
    name = d.tensor(d.types("Pad"), (1, 2, 3, 4))
    x = d.array(name)
    mode = d.choice(("constant", "constant", "reflect", "edge"))
    if mode != "constant" and 0 in x.shape:
        raise Undrawable("nothing to repeat")
    most = [min(e - 1, 3) if mode == "reflect" else 3 for e in x.shape]
    pads = [d.between(0, m) if d.chance(0.6) else 0 for _ in range(2) for m in most]
    if mode == "constant" and d.opset >= 11 and d.chance(0.2) and min(x.shape) > 1:
        pads[d.random.randrange(len(pads))] = -1
    if d.opset < 11:
        d.node("Pad", [name], mode=mode, pads=pads)
        return
    value = [d.of(x.dtype, ())] if mode == "constant" and d.chance(0.6) else []
    d.node("Pad", [name, d.longs(pads), *value], mode=mode)


def _constant(d: Draw) -> None:
    array = draw_array(d.rng, d.choice(DTYPES), d.shape((0, 1, 2)), "steps")
    d.node("Constant", [], value=numpy_helper.from_array(array))


def _constant_of_shape(d: Draw) -> None:
    array = draw_array(d.rng, d.choice(DTYPES), (1,), "steps")
    d.node("ConstantOfShape", [d.longs(d.shape((1, 2, 3)))], value=numpy_helper.from_array(array))


def _shape(d: Draw) -> None:
    name = d.tensor(d.types("Shape"))
    bounds = {"start": d.choice((None, 0, 1, -1)), "end": d.choice((None, 1, -1))} if d.opset >= 15 else {}
    d.node("Shape", [name], **bounds)


def _size(d: Draw) -> None:
    d.node("Size", [d.tensor(d.types("Size"))])


def _range(d: Draw) -> None:
    dtype = d.choice(d.types("Range"))
    start, delta = d.between(-5, 5), d.choice((1, 2, 3, -1, -2))
    limit = start + delta * d.between(0, 20)
    d.node("Range", [d.constant(np.array(v, dtype)) for v in (start, limit, delta)])


def _eye_like(d: Draw) -> None:
    name = d.tensor(d.types("EyeLike"), (2,))
    dtype = d.choice((None, *(helper.np_dtype_to_tensor_dtype(t) for t in DTYPES)))
    d.node("EyeLike", [name], k=d.choice((None, 1, -2)), dtype=dtype)


SHAPES: Recipes = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Size": _size,
    "Range": _range,
    "EyeLike": _eye_like,
}

__all__ = ["SHAPES"]
