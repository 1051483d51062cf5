"""Elements at indices that are data: gathered, ranked, summed so far, chosen, scattered."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import numpy as np
from xdsl.dialects.builtin import i1, i32, i64
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.definition import Misfit
from treadle.dialects.graph.dtypes import integer_limits
from treadle.dialects.scalar import is_unsigned
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import MERGED, Extent, Symbolic, bound_of, bounds_of, is_symbolic
from treadle.frontends.common.tensor import Reserves

# Elements by their rank.


def ordered(node: Reserves, g: GraphBuilder, x: Tensor, axis: int, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The first elements along an axis, in order, and their positions; of equal ones the first.

    An element's rank is the number of those before it, which takes `n^2` comparisons; NaN comes before all numbers.
    """
    perm = [*(d for d in range(x.rank) if d != axis), axis]
    back = [perm.index(d) for d in range(x.rank)]
    rows = g.transpose(x, perm)
    positions = _first_positions(g, rows, count, largest)
    values = gather_along(node, g, rows, positions, rows.rank - 1, laid_out=True)
    return g.transpose(values, back), g.transpose(positions, back)


def _first_positions(g: GraphBuilder, rows: Tensor, count: int, largest: bool) -> Tensor:
    """Of the first elements of each row, in order."""
    *lead, extent = rows.shape
    mine, other = g.reshape(rows, (*lead, extent, 1)), g.reshape(rows, (*lead, 1, extent))
    places = np.arange(bound_of(extent))
    earlier = g.constant(places < places[:, None], (extent, extent))
    precedes = g.binary("gt" if largest else "lt", other, mine)
    same = g.binary("eq", other, mine)
    if rows.is_float:
        nan, other_nan = g.unary("isnan", mine), g.unary("isnan", other)
        precedes = g.binary("or", precedes, g.binary("and", other_nan, g.unary("not", nan)))
        same = g.binary("or", same, g.binary("and", other_nan, nan))
    before = g.binary("or", precedes, g.binary("and", same, earlier))
    rank = g.reduce("add", g.cast(before, i64), [len(lead) + 1], keep=False)
    chosen = g.binary("eq", g.reshape(rank, (*lead, 1, extent)), g.constant(np.arange(count)[:, None]))
    here = g.where(chosen, g.iota(extent), g.constant(np.array(0)))
    return g.reduce("add", here, [len(lead) + 1], keep=False)


# Sums and products of all elements so far.


def cumulative(
    g: GraphBuilder, x: Tensor, axis: int, kind: str, *, reverse: bool = False, exclusive: bool = False
) -> Tensor:
    """Sums (`add`) or products (`mul`) along an axis, in `log2 n` steps, each of which doubles how many elements a
    result covers: each element is combined with that as many places before it. Source: Hillis and Steele, "Data
    parallel algorithms", CACM 29(12), 1986."""
    neutral = {"add": 0, "mul": 1}[kind]
    y = g.widened(x)
    if exclusive:
        y = _shifted(g, y, axis, 1, reverse, neutral)
    reach = 1
    while reach < bound_of(x.shape[axis]):
        y = g.binary(kind, y, _shifted(g, y, axis, reach, reverse, neutral))
        reach *= 2
    return g.cast(y, x.element)


def _shifted(g: GraphBuilder, x: Tensor, axis: int, places: int, back: bool, fill: float) -> Tensor:
    """The element so many places before, or with `back` after, each."""
    pads = [0] * (2 * x.rank)
    pads[axis + x.rank if back else axis] = places
    return g.narrow(g.pad(x, pads, fill), axis, places if back else 0, x.shape[axis])


# Positions of the elements that data chooses, and a number that says how many there are.


def found_positions(g: GraphBuilder, chosen: Tensor) -> tuple[Tensor, Extent]:
    """The positions of the true elements of a vector of bools, in order, and their number; those beyond it are some
    position of the vector.

    The j-th is the first at which the number of true ones so far exceeds j, which bisection finds.
    """
    (count,) = chosen.shape
    so_far = cumulative(g, g.cast(chosen, i64), 0, "add")
    number = g.constant(np.arange(count))
    position = g.constant(np.zeros(count, np.int64))
    step = 1 << max(bound_of(count) - 1, 1).bit_length()
    while step:
        probe = g.add(position, step)
        below = g.gather(so_far, g.binary("min", g.sub(probe, 1), count - 1), 0)
        lower = g.binary("and", g.binary("le", probe, count), g.binary("le", below, number))
        position = g.where(lower, probe, position)
        step >>= 1
    extent = g.found.add(g.entry(so_far, 0, count - 1), count)
    return g.binary("min", position, count - 1), extent


def coordinates(g: GraphBuilder, position: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    """What positions in a flat tensor are along each of its dimensions."""
    found: list[Tensor] = []
    for d, extent in enumerate(shape):
        stride = prod(shape[d + 1 :])
        along = g.div(position, stride) if stride > 1 else position
        found.append(g.binary("mod", along, extent) if d else along)
    return found


def cut(g: GraphBuilder, x: Tensor, extents: Sequence[Symbolic]) -> Tensor:
    """The part of a tensor within extents, which its own are the largest of."""
    return Tensor(x.type, None, g.value(x), None, tuple(extents))


# Scattering, from the side of the result: each element asks which updates name it.
#
# That takes a comparison for each pair of an element along the scattered dimension and an update; positions that are
# known are sorted out while importing.


def scattered(
    node: Reserves, g: GraphBuilder, data: Tensor, positions: Tensor, updates: Tensor, reduction: str = "none"
) -> Tensor:
    """`data[b, positions[b, m], s]` replaced by, or combined with, `updates[b, m, s]`.

    Of several updates of one element the last one counts. Positions outside of the data change nothing.
    """
    batch, extent, width = data.shape
    count = positions.shape[1]
    if count == 0 or prod(data.shape) == 0:
        return data
    if reduction != "none":
        return _combined(g, data, positions, updates, reduction)
    last = _last_updates(node, g, positions, extent)
    start = g.reshape(g.iota(batch, bound_of(count), laid_out=True), (batch, 1))
    chosen = g.add(g.binary("max", last, 0), start)
    rows = g.gather(g.reshape(updates, (batch * count, width)), chosen, 0, laid_out=True)
    return g.where(g.reshape(g.binary("ge", last, 0), (batch, extent, 1)), rows, data)


def _last_updates(node: Reserves, g: GraphBuilder, positions: Tensor, extent: int) -> Tensor:
    """`[batch, extent]`: the number of the last update of each element, -1 for one without."""
    batch, count = positions.shape
    if positions.array is None or is_symbolic((batch, extent, count)):
        match = _matches(g, positions, extent)
        last = g.reduce("max", g.where(match, g.iota(count), g.constant(np.array(-1))), [2], keep=False)
        return g.binary("max", last, -1) if is_symbolic((count,)) else last
    node.reserve((batch, extent), np.dtype(np.int64))
    last = np.full((batch, extent), -1)
    for row, places in zip(last, positions.array, strict=True):
        for number, place in enumerate(places.tolist()):
            if 0 <= place < extent:
                row[place] = number
    return g.constant(last)


def _matches(g: GraphBuilder, positions: Tensor, extent: int) -> Tensor:
    """`[batch, extent, updates]`: whether the update is one of the element."""
    batch, count = positions.shape
    return g.binary("eq", g.reshape(positions, (batch, 1, count)), g.reshape(g.iota(extent), (extent, 1)))


def _combined(g: GraphBuilder, data: Tensor, positions: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if data.element == i1:  # a sum is an or, a product an and
        of_numbers = {"add": "max", "mul": "min"}.get(reduction, reduction)
        return g.cast(_combined(g, g.cast(data, i32), positions, g.cast(updates, i32), of_numbers), i1)
    batch, extent, _ = data.shape
    count, width = updates.shape[1:]
    wide, terms = g.widened(data), g.reshape(g.widened(updates), (batch, 1, count, width))
    lowest, highest = (-inf, inf) if data.is_float else integer_limits(data.element)
    neutral = {"add": 0, "mul": 1, "max": lowest, "min": highest}[reduction]
    match = g.reshape(_matches(g, positions, extent), (batch, extent, count, 1))
    total = g.reduce(reduction, g.where(match, terms, g.scalar(neutral, wide)), [2], keep=False)
    return g.cast(g.binary(reduction, wide, total), data.element)


def scatter_elements(
    node: Reserves, g: GraphBuilder, data: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str
) -> Tensor:
    """Each update replaces, or is combined with, the element with its own coordinates, but the index along the axis."""
    perm = [*(d for d in range(data.rank) if d != axis), axis]
    positions = counted_from_front(g, g.cast(indices, i64), data.shape[axis])
    positions, rows = (g.transpose(v, perm) for v in (positions, updates))
    lead, whole = rows.shape[:-1], g.transpose(data, perm)
    part = g.slice(whole, [0] * data.rank, [*lead, whole.shape[-1]], [1] * data.rank)
    values, places, terms = (g.reshape(v, (prod(lead), v.shape[-1])) for v in (part, positions, rows))
    cells, moved = g.reshape(values, (*values.shape, 1)), g.reshape(terms, (*terms.shape, 1))
    changed = g.reshape(scattered(node, g, cells, places, moved, reduction), part.shape)
    return g.transpose(_put_back(node, g, whole, changed), [perm.index(d) for d in range(data.rank)])


def _put_back(node: Reserves, g: GraphBuilder, whole: Tensor, part: Tensor) -> Tensor:
    """A tensor with its first elements along each dimension replaced."""
    if part.shape == whole.shape:
        return part
    node.reserve(whole.shape, np.dtype(np.bool_))
    inside = np.zeros(whole.shape, np.bool_)
    inside[tuple(slice(e) for e in part.shape)] = True
    pads = [0] * whole.rank + [e - p for e, p in zip(whole.shape, part.shape, strict=True)]
    return g.where(g.constant(inside), g.pad(part, pads, 0), whole)


# Elements at indices that are data.


def gather_along(
    node: Reserves, g: GraphBuilder, data: Tensor, indices: Tensor, axis: int, laid_out: bool = False
) -> Tensor:
    """`data[..., indices[i, ..., k], ...]`: the index at each position replaces its own coordinate along the axis.

    laid_out: indices are positions in the data's largest shape, from the front
    """
    indices = wide_enough(g, indices, data)
    strides = [prod(bounds_of(data.shape[d + 1 :])) for d in range(data.rank)]
    shape = bounds_of(indices.shape)
    node.reserve(indices.shape, np.dtype(np.int64))
    base = np.zeros(shape, np.int64)
    for d in set(range(data.rank)) - {axis}:
        steps = np.arange(shape[d]) * strides[d]
        base += steps.reshape([-1 if n == d else 1 for n in range(data.rank)])
    along = g.mul(inside(g, indices, data.shape[axis], laid_out), strides[axis])
    linear = g.add(along, g.constant(base.astype(indices.dtype), indices.shape, laid_out=True))
    return g.gather(g.reshape(data, (prod(data.shape),)), linear, 0, laid_out=True)


def counted_from_front(g: GraphBuilder, indices: Tensor, extent: int) -> Tensor:
    """Indices of which negative ones count from the end."""
    if is_unsigned(indices.element):
        return indices
    return g.where(g.binary("lt", indices, 0), g.add(indices, extent), indices)


def inside(g: GraphBuilder, indices: Tensor, extent: int, laid_out: bool = False) -> Tensor:
    """Indices of one dimension as `graph.gather` takes them: negative ones from the end, clamped to the nearest;
    VerifyException for a merged dimension, where positions of the largest shape are none of a call, unless they are
    `laid_out`."""
    if isinstance(extent, Extent) and extent.factors and not laid_out:
        raise Misfit(f"indices into the merged dimension {extent}", MERGED)
    if isinstance(extent, Extent) and _is_inside(indices, extent):
        return indices
    return g.binary("max", g.binary("min", counted_from_front(g, indices, extent), extent - 1), 0)


def _is_inside(indices: Tensor, extent: Extent) -> bool:
    """Whether known indices lie inside a symbolic extent in every call: below its smallest, or not beyond their own
    position along a dimension of that extent."""
    array = indices.array
    if array is None or np.less(array, 0).any():
        return False
    if array.size == 0 or array.max() < extent.lowest:
        return True
    positions = np.indices(array.shape, sparse=True)
    pairs = zip(indices.shape, positions, strict=True)
    return any(isinstance(e, Extent) and e == extent and bool((array <= p).all()) for e, p in pairs)


def largest_index(indices: Tensor) -> int:
    """The largest index that the type of indices can represent; VerifyException for what are no integers."""
    if indices.dtype.kind not in "iu":
        raise VerifyException(f"indices of {indices.element}: expected integers")
    return integer_limits(indices.element)[1]


def wide_enough(g: GraphBuilder, indices: Tensor, data: Tensor) -> Tensor:
    """Indices in a type that can represent every linear position in the data."""
    return indices if prod(bounds_of(data.shape)) <= largest_index(indices) else g.cast(indices, i64)
