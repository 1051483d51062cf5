"""What reads shape arithmetic, tables at positions and tensors of computed shapes, and operators along an axis whose
extent changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto

from tests.fuzz.draw import Undrawable
from tests.fuzz.recipes.numbers import Numbers

_F32 = np.dtype(np.float32)
_BORDERS = ("edge", "reflect")
Recipe = Callable[[Numbers], None]


def _table(d: Numbers, rows: int, *shape: int) -> str:
    """A constant of so many rows, each of them different."""
    count = max(rows, 1)
    values = d.draw.rng.permutation(count * int(np.prod(shape))).reshape(count, *shape)
    return d.draw.constant(values.astype(_F32) / 4)


def _data(d: Numbers, ranks: Sequence[int] = (1, 2, 3)) -> str:
    """A tensor of floats whose extents may change."""
    found = [
        name for name, array in d.draw.values.items()
        if name not in d.draw.constants and name not in d.exact and array.dtype == _F32 and array.ndim in ranks
    ]  # fmt: skip
    return d.draw.choice(found)


def _position(d: Numbers) -> tuple[str, int]:
    """A number that is none below 0, or is from the end, and the rows that a table has at least, which has it."""
    index = d.any()
    value = d.value(index)
    return index, max(value + 1, -value) + d.draw.between(0, 5)


def _gather(d: Numbers) -> None:
    """A row of a table of positions."""
    index, rows = _position(d)
    index = d.draw.choice((index, d.row(index)))
    d.draw.node("Gather", [_table(d, rows, 3), index], axis=0)


def _gather_elements(d: Numbers) -> None:
    index, rows = _position(d)
    table = _table(d, rows)
    d.draw.node("GatherElements", [table, d.row(index)], axis=0)


def _gather_nd(d: Numbers) -> None:
    index, rows = _position(d)
    width = d.draw.choice((1, 2))
    place = d.rows([index, d.known(0, 1, 2)][:width])
    d.draw.node("GatherND", [_table(d, rows, 3), place])


def _slice(d: Numbers) -> None:
    """Of a table, or of a tensor: from a number on, up to one, or a static number of rows at one."""
    start, kind = d.any(), d.draw.choice(("from", "to", "at"))
    whole = _table(d, abs(d.value(start)) + d.draw.between(2, 8), 2) if d.draw.chance(0.7) else _data(d)
    axis = d.draw.longs([0])
    if kind == "from":
        bounds = [d.row(start), d.draw.longs([2**31 - 1])]
    elif kind == "to":
        bounds = [d.draw.longs([0]), d.row(start)]
    else:
        bounds = [d.row(start), d.row(d.node("Add", [start, d.known(1, 2, 3)]))]
    step = [d.draw.longs([d.draw.choice((1, 2))])] if d.draw.chance(0.2) else []
    d.draw.node("Slice", [whole, *bounds, axis, *step])


def _expand(d: Numbers) -> None:
    row = d.draw.of(_F32, (3,))
    d.draw.node("Expand", [row, d.rows([d.any(), d.known(3)])])


def _constant_of_shape(d: Numbers) -> None:
    d.draw.node("ConstantOfShape", [d.rows([d.any() if d.draw.chance(0.6) else d.known(2), d.any()])])


def _shape_of(d: Numbers) -> None:
    """A tensor of the shape of an input, some extents of which are others."""
    shape = d.node("Shape", [d.draw.choice(d.data)])
    rank = d.draw.array(shape).size
    operator = d.draw.choice(("Add", "Mul", "Sub", "Max", "Min"))
    others = d.draw.longs([d.draw.choice((0, 1, 2)) for _ in range(rank)])
    d.draw.node("ConstantOfShape", [d.node(operator, [shape, others])])


def _tile(d: Numbers) -> None:
    x = d.draw.of(_F32, (2, 3)) if d.draw.chance(0.6) else _data(d, (2,))
    times = [d.any(), d.known(1, 2)]
    d.draw.random.shuffle(times)
    d.draw.node("Tile", [x, d.rows(times)])


def _range(d: Numbers) -> None:
    start, step = d.known(0, 0, 1, -2), d.known(1, 1, 2, 3)
    bounds = [start, d.any()] if d.draw.chance(0.7) else [d.any(), d.any()]
    d.draw.node("Range", [*bounds, step])
    d.draw.node("Cast", [d.draw.nodes[-1].output[0]], to=TensorProto.FLOAT)


def _reshape(d: Numbers) -> None:
    """With -1, or with every extent computed."""
    name = _data(d)
    rank = d.draw.array(name).ndim
    shape = d.node("Shape", [name])
    extents = [d.node("Gather", [shape, d.draw.constant(np.array(n, np.int64))], axis=0) for n in range(rank)]
    kind = d.draw.choice(("merged", "inferred", "one more", "split"))
    if kind == "merged" and rank > 1:
        extents[:2] = [d.node("Mul", extents[:2])]
    elif kind == "inferred":
        extents[d.draw.between(0, len(extents) - 1)] = d.known(-1)
    elif kind == "split":
        factor = d.known(2)
        extents[-1:] = [d.node("Div", [extents[-1], factor]), factor]
    else:
        extents.insert(d.draw.between(0, rank), d.known(1))
    d.draw.node("Reshape", [name, d.rows(extents)])


def _pad(d: Numbers) -> None:
    name = _data(d)
    rank = d.draw.array(name).ndim
    amounts = [d.known(0, 0, 1) for _ in range(2 * rank)]
    amounts[d.draw.between(0, 2 * rank - 1)] = d.any()
    value = [d.draw.of(_F32, ())] if d.draw.chance(0.5) else []
    d.draw.node("Pad", [name, d.rows(amounts), *value], mode=d.draw.choice(("constant", "constant", *_BORDERS)))


def _pad_to(d: Numbers) -> None:
    """To a fixed length, at one of both ends."""
    name = _data(d)
    axis = d.draw.between(0, d.draw.array(name).ndim - 1)
    shape = d.node("Shape", [name])
    extent = d.node("Gather", [shape, d.draw.constant(np.array(axis, np.int64))], axis=0)
    amounts = [d.known(0) for _ in range(2 * d.draw.array(name).ndim)]
    missing = d.node("Sub", [d.known(d.draw.array(name).shape[axis] + d.draw.between(0, 3)), extent])
    amounts[axis + d.draw.choice((0, d.draw.array(name).ndim))] = missing
    d.draw.node("Pad", [name, d.rows(amounts)], mode=d.draw.choice(("constant", "edge")))


def _border(d: Numbers) -> None:
    """Repeated elements around a dimension that may change."""
    name = _data(d)
    pads = [d.draw.between(0, 2) for _ in range(2 * d.draw.array(name).ndim)]
    d.draw.node("Pad", [name, d.draw.longs(pads)], mode=d.draw.choice(_BORDERS))


def _windows(d: Numbers) -> None:
    """Under a window that moves in strides along the last dimension, padded by a rule or rounded up."""
    name = _data(d, (3,))
    size = d.draw.between(1, 3)
    more: dict[str, object] = {"auto_pad": d.draw.choice(("SAME_UPPER", "SAME_LOWER"))}
    if d.draw.chance(0.5):
        more = {"pads": [d.draw.between(0, size - 1) for _ in range(2)], "ceil_mode": d.draw.choice((None, 1))}
    operator = d.draw.choice(("MaxPool", "AveragePool"))
    if operator == "AveragePool":
        more["count_include_pad"] = d.draw.choice((None, 1))
    d.draw.node(operator, [name], kernel_shape=[size], strides=[d.draw.between(1, size)], **more)


def _top(d: Numbers) -> None:
    """The largest, as many as a number, or a few, perhaps along an axis that changes."""
    name = _data(d)
    axis = d.draw.between(-1, d.draw.array(name).ndim - 1)
    count = d.row(d.any()) if d.draw.chance(0.5) else d.draw.longs([d.draw.between(1, 3)])
    largest = d.draw.choice((None, 0))
    d.draw.node_of(2, "TopK", [name, count], axis=axis, largest=largest)


def _trilu(d: Numbers) -> None:
    if d.draw.opset < 14:
        raise Undrawable("Trilu")
    k = [d.any()] if d.draw.chance(0.5) else []
    d.draw.node("Trilu", [_data(d, (2, 3)), *k], upper=d.draw.choice((None, 0)))


def _split(d: Numbers) -> None:
    """Into halves that are computed."""
    if d.draw.opset < 13:
        raise Undrawable("an attribute")
    name = _data(d)
    axis = d.draw.between(0, d.draw.array(name).ndim - 1)
    shape = d.node("Shape", [name])
    whole = d.node("Gather", [shape, d.draw.constant(np.array(axis, np.int64))], axis=0)
    first = d.node("Div", [whole, d.known(2, 3)])
    sizes = d.rows([first, d.node("Sub", [whole, first])])
    d.draw.node_of(2, "Split", [name, sizes], axis=axis)


def _mask(d: Numbers) -> None:
    """What positions say of elements, as in attention."""
    name = _data(d)
    shape = d.node("Shape", [name])
    last = d.node("Gather", [shape, d.draw.constant(np.array(-1, np.int64))], axis=0)
    d.draw.node("Range", [d.known(0), last, d.known(1)])
    positions = d.draw.nodes[-1].output[0]
    d.draw.node(d.draw.choice(("Less", "Greater", "Equal")), [positions, d.any()])
    d.draw.node("Where", [d.draw.nodes[-1].output[0], name, d.draw.of(_F32, ())])


def _scaled(d: Numbers) -> None:
    """By a number, as scores by the root of their extent."""
    factor = d.node("Cast", [d.any()], to=TensorProto.FLOAT)
    d.draw.node(d.draw.choice(("Mul", "Add")), [_data(d), factor])


def _along(operator: str, since: int = 1) -> Recipe:
    """An operator with an attribute `axis`."""

    def recipe(d: Numbers) -> None:
        if d.draw.opset < since:
            raise Undrawable(operator)
        name = _data(d)
        rank = d.draw.array(name).ndim
        more = {"keepdims": d.draw.choice((None, 0))} if operator.startswith("Arg") else {}
        d.draw.node(operator, [name], axis=d.draw.between(-rank, rank - 1), **more)

    return recipe


def _cumulative(d: Numbers) -> None:
    name = _data(d)
    axis = d.draw.constant(np.array(d.draw.between(-1, d.draw.array(name).ndim - 1), np.int64))
    d.draw.node("CumSum", [name, axis], exclusive=d.draw.choice((None, 1)), reverse=d.draw.choice((None, 1)))


def _folded(d: Numbers) -> None:
    name = _data(d)
    operator = d.draw.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"))
    axis, keep = d.draw.between(-1, d.draw.array(name).ndim - 1), d.draw.choice((None, 0))
    if d.draw.opset < (13 if operator == "ReduceSum" else 18):
        d.draw.node(operator, [name], axes=[axis], keepdims=keep)
    else:
        d.draw.node(operator, [name, d.draw.longs([axis])], keepdims=keep)


def _reversed(d: Numbers) -> None:
    name = _data(d)
    axis = d.draw.between(0, d.draw.array(name).ndim - 1)
    d.draw.node("Slice", [name, *(d.draw.longs([v]) for v in (-1, -(2**31), axis, -1))])


def _joined(d: Numbers) -> None:
    """Rows twice; of a vector also a static part in front of one that changes, or behind it."""
    name = _data(d)
    x = d.draw.array(name)
    axis = d.draw.between(0, x.ndim - 1)
    names = [name, name if x.ndim > 1 else d.draw.of(_F32, [2])]
    d.draw.random.shuffle(names)
    d.draw.node("Concat", names, axis=axis)


def _product(d: Numbers) -> None:
    """Of rows by themselves: both extents change."""
    name = _data(d, (2, 3))
    rank = d.draw.array(name).ndim
    d.draw.node("Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2])
    names = [name, d.draw.nodes[-1].output[0]]
    d.draw.random.shuffle(names)
    d.draw.node("MatMul", names)


EXTENTS: Sequence[Recipe] = (
    _gather, _gather_elements, _gather_nd, _slice, _slice, _expand, _expand, _constant_of_shape, _shape_of, _tile,
    _range, _reshape, _reshape, _pad, _pad_to, _top, _trilu, _split, _mask, _scaled,
)  # fmt: skip
"""What reads numbers."""
ALONG: Sequence[Recipe] = (
    _along("Softmax"), _along("LogSoftmax"), _along("Hardmax"), _along("ArgMax"), _along("ArgMin"),
    _along("LpNormalization"), _cumulative, _folded, _folded, _reversed, _joined, _product, _top, _border,
    _windows,
)  # fmt: skip
"""Operators along an axis that may change."""

__all__ = ["ALONG", "EXTENTS"]
