"""Choosing elements: Slice, Split, Concat, Gather and its relatives, Trilu, OneHot."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import i1, i64

from treadle.frontends.common import indexing as common
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, bound_of, bounds_of, is_symbolic
from treadle.frontends.common.indexing import (
    counted_from_front,
    cumulative,
    cut,
    gather_along,
    inside,
    largest_index,
    ordered,
    wide_enough,
)
from treadle.frontends.common.tensor import known_elements
from treadle.frontends.common.window import concatenated, symbolic_range, taken
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

# CumSum and CumProd.


@converts("CumSum", since=11)
def cumulative_sum(node: Node, g: GraphBuilder) -> Tensor:
    """Sums of all elements so far."""
    return _cumulative(node, g, "add")


@converts("CumProd", since=26)
def cumulative_product(node: Node, g: GraphBuilder) -> Tensor:
    """Products of all elements so far."""
    return _cumulative(node, g, "mul")


def _cumulative(node: Node, g: GraphBuilder, kind: str) -> Tensor:
    x = node.input()
    axis = node.axis(node.known_int(1, "the axis"), x.rank)
    return cumulative(g, x, axis, kind, reverse=node.flag("reverse"), exclusive=node.flag("exclusive"))


# TopK: elements by their rank.


@converts("TopK", since=10)
def top_k(node: Node, g: GraphBuilder) -> list[Tensor]:
    """The k first elements along an axis and their positions, in order also without `sorted`."""
    node.ignore("sorted")
    x, largest = node.input(0), node.flag("largest", True)
    count = node.known_int(1, "k")
    axis = node.axis(node.int("axis", -1), x.rank)
    extent = x.shape[axis]
    if not 0 <= count <= extent:
        raise node.error(f"k is {count}", f"0 to {extent}")
    if x.element == i1:
        raise node.error("an input of bools", "numbers")
    return list(ordered(node, g, x, axis, count, largest))


# Scatter operators, from the side of the result: each element asks which updates name it.
#
# That takes a comparison for each pair of an element along the scattered dimension and an update; positions that are
# known are sorted out while importing.

REDUCTIONS = ("none", "add", "mul", "max", "min")


def _reduction(node: Node, data: Tensor) -> str:
    reduction = node.string("reduction", "none", REDUCTIONS)
    if reduction != "none" and data.element == i1:
        raise node.error(f"reduction {reduction} of bools", "none, or numbers")
    return reduction


@converts("Scatter", since=9)
@converts("ScatterElements", since=11)
def scatter_elements(node: Node, g: GraphBuilder) -> Tensor:
    """Each update replaces the element with its own coordinates, but the index along the axis."""
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    axis = node.axis(node.int("axis", 0), data.rank)
    fits = indices.rank == data.rank and all(
        i <= e for d, (i, e) in enumerate(zip(indices.shape, data.shape, strict=True)) if d != axis
    )
    if not fits or updates.shape != indices.shape:
        shapes = f"indices of shape {indices.shape} and updates of shape {updates.shape} into data of {data.shape}"
        raise node.error(shapes, "indices and updates of one shape, no larger than the data's but along the axis")
    return common.scatter_elements(node, g, data, indices, updates, axis, _reduction(node, data))


@converts("ScatterND", since=11)
def scatter_nd(node: Node, g: GraphBuilder) -> Tensor:
    """Each update replaces the slice at a tuple of indices of the leading dimensions."""
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    width = indices.shape[-1] if indices.rank else 0
    expected = (*indices.shape[:-1], *data.shape[width:])
    if not 1 <= width <= data.rank or updates.shape != expected:
        shapes = f"indices of shape {indices.shape} and updates of shape {updates.shape} into data of {data.shape}"
        raise node.error(shapes, f"tuples no longer than the data's rank, and updates of shape {expected}")
    lead, count = data.shape[:width], prod(indices.shape[:-1])
    wide = g.cast(indices, i64)
    linear: Tensor | None = None
    inside: Tensor | None = None
    for n, extent in enumerate(lead):
        index = g.reshape(g.narrow(wide, wide.rank - 1, n, 1), (1, count))
        index = counted_from_front(g, index, extent)
        fits = g.binary("and", g.binary("ge", index, 0), g.binary("lt", index, extent))
        inside = fits if inside is None else g.binary("and", inside, fits)
        linear = index if linear is None else g.add(g.mul(linear, extent), index)
    assert linear is not None and inside is not None
    positions = g.where(inside, linear, g.constant(np.array(-1)))
    rest = prod(data.shape[width:])
    flat, terms = g.reshape(data, (1, prod(lead), rest)), g.reshape(updates, (1, count, rest))
    return g.reshape(common.scattered(node, g, flat, positions, terms, _reduction(node, data)), data.shape)


@converts("TensorScatter", since=24)
def tensor_scatter(node: Node, g: GraphBuilder) -> Tensor:
    """A cache `[batch, ..., L, ...]` with consecutive slices replaced, in each entry of the batch from an index on. A
    state of one entry gets them where it lies."""
    cache, update = node.input(0), node.input(1)
    axis = node.axis(node.int("axis", -2), cache.rank)
    extent, count, batch = cache.shape[axis], update.shape[axis] if update.rank == cache.rank else 0, cache.shape[0]
    circular = node.string("mode", "linear", ("linear", "circular")) == "circular"
    expected = (*cache.shape[:axis], count, *cache.shape[axis + 1 :])
    if axis == 0 or not 0 < count <= extent or update.shape != expected:
        shapes = f"an update of shape {update.shape} along axis {axis} of {cache.shape}"
        raise node.error(shapes, "another axis than the batch, and no more slices than the cache has")
    starts = node.optional(2) or g.filled(0, np.dtype(np.int64), (batch,))
    in_place = cache.ssa in g.states and not isinstance(extent, Extent)  # one that changes would grow
    if batch == 1 and in_place and (count == 1 or not circular):
        first = g.cast(g.reshape(starts, ()), i64)
        return g.append(cache, update, g.binary("mod", first, extent) if circular else first, axis)
    positions = g.add(g.reshape(g.cast(starts, i64), (batch, 1)), g.iota(count))
    if circular:
        positions = g.binary("mod", positions, extent)
    perm = [0, axis, *(d for d in range(1, cache.rank) if d != axis)]
    rows, terms = (_rows(g, v, perm) for v in (cache, update))
    changed = common.scattered(node, g, rows, positions, terms)
    moved = g.reshape(changed, [cache.shape[d] for d in perm])
    return g.transpose(moved, [perm.index(d) for d in range(cache.rank)])


def _rows(g: GraphBuilder, x: Tensor, perm: Sequence[int]) -> Tensor:
    batch, count, *rest = (x.shape[d] for d in perm)
    return g.reshape(g.transpose(x, perm), (batch, count, prod(rest)))


@converts("MaxUnpool", since=9)
def max_unpool(node: Node, g: GraphBuilder) -> Tensor:
    """Each element at the position in the result, counted through all of its dimensions, that an index gives it."""
    x, indices, kernel = node.input(0), node.input(1), node.ints("kernel_shape")
    rank = x.rank - 2
    if rank < 1 or kernel is None or len(kernel) != rank or indices.shape != x.shape:
        message = f"a window {kernel} over an input of shape {x.shape}, indices of {indices.shape}"
        raise node.error(message, "an extent for each spatial dimension, and an index for each element")
    strides, pads = node.ints_of_length("strides", rank, 1), node.ints_of_length("pads", 2 * rank, 0)
    extents = [
        (e - 1) * strides[d] + kernel[d] - pads[d] - pads[d + rank] for d, e in enumerate(x.shape[2:])
    ]  # fmt: skip
    given = node.known_ints(2, "the result's shape") if node.optional(2) is not None else [*x.shape[:2], *extents]
    if len(given) != x.rank or given[:2] != list(x.shape[:2]) or min(given) < 1:
        raise node.error(f"a result of shape {given}", f"{list(x.shape[:2])} and {rank} extents")
    planes, size = prod(given[:2]), prod(given[2:])
    # ONNX counts in the result without `output_shape`, which embeds it.
    flat = _embedded(node, g, g.reshape(g.cast(indices, i64), (planes, prod(x.shape[2:]))), extents, given[2:])
    zeros = g.broadcast(g.scalar(0, x), (planes, size, 1))
    values = g.reshape(x, (planes, prod(x.shape[2:]), 1))
    return g.reshape(common.scattered(node, g, zeros, flat, values), given)


def _embedded(node: Node, g: GraphBuilder, indices: Tensor, extents: Sequence[int], target: Sequence[int]) -> Tensor:
    """Positions in the whole result of `extents` as positions in a plane of `target`."""
    planes = indices.shape[0]
    index = g.sub(indices, g.reshape(g.iota(planes, prod(extents)), (planes, 1)))
    if list(extents) == list(target):
        return index
    result: Tensor | None = None
    for d, wanted in enumerate(target):
        coordinate = g.binary("mod", g.div(index, prod(extents[d + 1 :])), extents[d])
        result = coordinate if result is None else g.add(g.mul(result, wanted), coordinate)
    if result is None or any(t < e for t, e in zip(target, extents, strict=True)):
        raise node.error(f"a result of {list(target)} for {list(extents)}", "no smaller extents")
    return result


@converts("Concat", since=4)
def concat(node: Node, g: GraphBuilder) -> Tensor:
    """Empty operands are omitted."""
    inputs = node.all_inputs()
    axis = node.axis(node.int("axis", 0), inputs[0].rank)
    filled = [x for x in inputs if x.rank <= axis or x.shape[axis] != 0]
    return concatenated(g, filled or inputs[:1], axis)


@converts("Slice")
def slice_attributes(node: Node, g: GraphBuilder) -> Tensor:
    """Bounds as attributes, without steps."""
    starts, ends = node.ints("starts") or [], node.ints("ends") or []
    return _sliced(node, g, starts, ends, node.ints("axes"), None)


@converts("Slice", since=10)
def slice_inputs(node: Node, g: GraphBuilder) -> Tensor:
    """Bounds, axes and steps as inputs; data may decide the end along one axis, outside of loops and branches."""
    starts, end = node.known_ints(1, "starts"), node.input(2)
    axes = node.known_ints(3, "axes") if node.optional(3) is not None else None
    steps = node.known_ints(4, "steps") if node.optional(4) is not None else None
    is_one = len(starts) == 1 == end.type.element_count() and steps in (None, [1])
    if known_elements(end) is None and is_one and not node.inside:
        (axis,) = node.axes(axes or [0], node.input().rank)
        if not is_symbolic((node.input().shape[axis], *starts)):
            return _up_to(g, node.input(), axis, starts[0], end)
    return _sliced(node, g, starts, node.known_ints(2, "ends"), axes, steps)


def _up_to(g: GraphBuilder, x: Tensor, axis: int, start: int, end: Tensor) -> Tensor:
    """From a position of a dimension up to an end that data decide."""
    extent = x.shape[axis]
    start = slice_range(extent, start, extent, 1).start
    if start == extent:
        return g.narrow(x, axis, start, 0)
    end = counted_from_front(g, g.cast(g.reshape(end, ()), i64), extent)
    behind = g.binary("min", g.binary("max", end, start), extent)
    found = g.found.add(g.sub(behind, start), extent - start)
    return cut(g, g.narrow(x, axis, start, extent - start), (*x.shape[:axis], found, *x.shape[axis + 1 :]))


def _sliced(
    node: Node,
    g: GraphBuilder,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Tensor:
    x = node.input()
    axes = node.axes(list(range(len(starts))) if axes is None else axes, x.rank)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        lengths = (len(starts), len(ends), len(axes), len(steps))
        raise node.error(f"{lengths} entries in starts, ends, axes, steps", "as many in each")
    if 0 in steps:
        raise node.error("a step is 0", "another step")
    chosen_starts, sizes, chosen_steps = [0] * x.rank, list(x.shape), [1] * x.rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if is_symbolic((x.shape[axis], start, end)):
            start, sizes[axis] = symbolic_range(x.shape[axis], start, end, step)
            x = taken(g, x, axis, start, sizes[axis], step)
            continue
        chosen = slice_range(x.shape[axis], start, end, step)
        chosen_starts[axis] = chosen.start if len(chosen) else 0
        # The step of at most one element may be larger than any index.
        sizes[axis], chosen_steps[axis] = len(chosen), step if len(chosen) > 1 else 1
    return g.slice(x, chosen_starts, sizes, chosen_steps)


def slice_range(extent: int, start: int, end: int, step: int) -> range:
    """The indices that ONNX's Slice selects from a dimension; bounds count from the end if they are negative.

    Unlike Python's slice, a start before the front, walking backwards, is the first element (`range(0, -1, -1)`).
    """
    start, end = (bound + extent if bound < 0 else bound for bound in (start, end))
    if step < 0:
        return range(min(max(start, 0), extent - 1), min(max(end, -1), extent - 1), step)
    return range(min(max(start, 0), extent), min(max(end, 0), extent), step)


@converts("Split", since=2)
def split_attribute(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Sizes as an attribute; without it, equal parts."""
    return _split(node, g, node.ints("split"), equal=True)


@converts("Split", since=13)
def split_input(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Sizes as an input; without it, equal parts, since opset 18 with a smaller last one."""
    count = len(node.proto.output)
    if node.int("num_outputs", count) != count:
        raise node.error(f"num_outputs is {node.int('num_outputs', count)}, but there are {count}", str(count))
    sizes = node.known_ints(1, "split") if node.optional(1) is not None else None
    return _split(node, g, sizes, equal=node.opset < 18)


def _split(node: Node, g: GraphBuilder, sizes: list[int] | None, equal: bool) -> list[Tensor]:
    x, count = node.input(), len(node.proto.output)
    axis = node.axis(node.int("axis", 0), x.rank)
    extent = x.shape[axis]
    if sizes is None:
        part = -(-extent // count)
        if equal and extent % count:
            raise node.error(f"{extent} elements in {count} equal parts", "sizes, or a multiple")
        sizes = [max(min(part, extent - n * part), 0) for n in range(count)]
    if len(sizes) != count or sum(sizes) != extent or any(s < 0 for s in sizes):
        raise node.error(f"sizes {sizes} of {extent} elements in {count} outputs", "sizes that sum to the extent")
    return [taken(g, x, axis, sum(sizes[:n]), size) for n, size in enumerate(sizes)]


@converts("Gather")
def gather(node: Node, g: GraphBuilder) -> Tensor:
    """Slices chosen by indices along one axis."""
    data = node.input(0)
    return g.gather(data, node.input(1), node.axis(node.int("axis", 0), data.rank))


@converts("GatherElements", since=11)
def gather_elements(node: Node, g: GraphBuilder) -> Tensor:
    """One element for each index: a gather from the flattened data at linear positions."""
    data, indices = node.input(0), node.input(1)
    axis = node.axis(node.int("axis", 0), data.rank)
    if indices.rank != data.rank:
        raise node.error(f"indices of rank {indices.rank} into data of rank {data.rank}", "equal ranks")
    # Raises as well where it depends on the call.
    if not all(i <= e for d, (i, e) in enumerate(zip(indices.shape, data.shape, strict=True)) if d != axis):
        shapes = f"indices of shape {indices.shape} into data of shape {data.shape}"
        raise node.error(shapes, f"indices within the data in all dimensions but {axis}")
    return gather_along(node, g, data, indices, axis)


@converts("GatherND", since=11)
def gather_nd(node: Node, g: GraphBuilder) -> Tensor:
    """Slices chosen by tuples of indices: a gather along the merged leading dimensions."""
    data, indices, batch = node.input(0), node.input(1), node.int("batch_dims", 0)
    width = indices.shape[-1] if indices.rank else 0
    if not 0 <= batch < min(data.rank, indices.rank) or not 1 <= width <= data.rank - batch:
        shapes = f"batch_dims {batch}, indices of shape {indices.shape} into data of shape {data.shape}"
        raise node.error(shapes, "tuples no longer than the data's rank, after the batch dimensions")
    indices = wide_enough(g, indices, data)
    lead = data.shape[batch : batch + width]
    count = prod(data.shape[:batch])
    linear: Tensor | None = None
    for n, extent in enumerate(lead):
        index = g.narrow(indices, indices.rank - 1, n, 1)
        index = inside(g, g.reshape(index, indices.shape[:-1]), extent)
        linear = index if linear is None else g.add(g.mul(linear, bound_of(extent)), index)
    assert linear is not None
    if batch:
        node.reserve((count,), np.dtype(np.int64))
        shape = data.shape[:batch] + (1,) * (linear.rank - batch)
        offsets = (np.arange(bound_of(count)) * prod(bounds_of(lead))).reshape(bounds_of(shape))
        linear = g.add(linear, g.constant(offsets.astype(indices.dtype), shape, laid_out=True))
    rows = g.reshape(data, (prod(data.shape[: batch + width]), *data.shape[batch + width :]))
    return g.gather(rows, linear, 0, laid_out=True)


@converts("ReverseSequence", since=10)
def reverse_sequence(node: Node, g: GraphBuilder) -> Tensor:
    """The first elements along the time axis of each entry of the batch in reverse order, the rest as they are."""
    x, lengths = node.input(0), g.cast(node.input(1), i64)
    batch, time = (node.axis(node.int(f"{w}_axis", d), x.rank) for w, d in (("batch", 1), ("time", 0)))
    if {batch, time} != {0, 1} or lengths.shape != (x.shape[batch],):
        axes = f"batch_axis {batch}, time_axis {time}, lengths of shape {lengths.shape}"
        raise node.error(axes, "the axes 0 and 1, and a length for each entry of the batch")
    steps = g.reshape(g.iota(x.shape[time]), [x.shape[d] if d == time else 1 for d in (0, 1)])
    lengths = g.reshape(lengths, [x.shape[d] if d == batch else 1 for d in (0, 1)])
    reverse = g.sub(g.sub(lengths, 1), steps)
    source = g.where(g.binary("lt", steps, lengths), reverse, steps)
    spread = g.broadcast(g.reshape(source, (*source.shape, *[1] * (x.rank - 2))), x.shape)
    return gather_along(node, g, x, spread, time, laid_out=True)


@converts("Trilu", since=14)
def trilu(node: Node, g: GraphBuilder) -> Tensor:
    """The triangle above or below a diagonal that is known, zero elsewhere."""
    x = node.input()
    k = node.known_int(1, "k") if node.optional(1) is not None else 0
    if x.rank < 2:
        raise node.error(f"an input of rank {x.rank}", "rank 2 and more")
    node.reserve(x.shape[-2:], np.dtype(np.bool_))
    most = bounds_of(x.shape[-2:])
    rows, columns = np.arange(most[0])[:, None], np.arange(most[1])
    k = min(max(k, -most[0]), most[1])
    mask = columns >= rows + k if node.flag("upper", True) else columns <= rows + k
    return g.where(g.constant(mask, x.shape[-2:]), x, g.scalar(0, x))


@converts("OneHot", since=9)
def one_hot(node: Node, g: GraphBuilder) -> Tensor:
    """`values[1]` where the position along the new axis equals the index, else `values[0]`."""
    indices, values = node.input(0), node.input(2)
    depth = node.known_int(1, "depth")
    if values.shape != (2,):
        raise node.error(f"values of shape {values.shape}", "two values: off and on")
    axis = node.axis(node.int("axis", -1), indices.rank + 1)
    node.reserve((depth,), np.dtype(np.int64))
    if not indices.is_float and depth > largest_index(indices):
        indices = g.cast(indices, i64)
    chosen = counted_from_front(g, indices, depth)
    chosen = g.reshape(chosen, (*indices.shape[:axis], 1, *indices.shape[axis:]))
    positions = np.arange(depth).astype(indices.dtype).reshape([depth] + [1] * (indices.rank - axis))
    off, on = (g.reshape(g.narrow(values, 0, n, 1), ()) for n in (0, 1))
    return g.where(g.binary("eq", chosen, g.constant(positions)), on, off)
