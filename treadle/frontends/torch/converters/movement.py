"""Other shapes and orders of the same elements; the shape of the result is what PyTorch inferred."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from sys import maxsize

import numpy as np
from xdsl.dialects.builtin import TensorType, i1, i64

from treadle.dialects.graph import BinaryOp, ConstantOp
from treadle.dialects.graph.constant import constant_array
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.graph.elementwise import broadcast_shapes
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbolic, bound_of, bounds_of, is_symbolic
from treadle.frontends.common.indexing import counted_from_front, gather_along, inside, scatter_elements, scattered
from treadle.frontends.common.window import concatenated, padded, symbolic_range, taken
from treadle.frontends.torch.call import Call, converts

# Tensors of one value, and sequences of numbers.


def _filled(c: Call, g: GraphBuilder, value: object) -> Tensor:
    if isinstance(value, Extent):
        return g.broadcast(g.cast(g.numbers(value), c.element), c.shape)
    scalar = np.asarray(value).astype(numpy_dtype(c.element))
    return g.constant(np.broadcast_to(scalar, bounds_of(c.shape)), c.shape)


@converts("full.default", "full_like.default")
def full(c: Call, g: GraphBuilder) -> Tensor:
    """One number everywhere; it is not expanded in memory."""
    return _filled(c, g, c.value("fill_value"))


@converts("scalar_tensor.default")
def scalar_tensor(c: Call, g: GraphBuilder) -> Tensor:
    """A number as a tensor."""
    return _filled(c, g, c.value("s"))


@converts("zeros.default", "zeros_like.default", "new_zeros.default")
def zeros(c: Call, g: GraphBuilder) -> Tensor:
    """Zeros."""
    return _filled(c, g, 0)


@converts("ones.default", "ones_like.default", "new_ones.default")
def ones(c: Call, g: GraphBuilder) -> Tensor:
    """Ones."""
    return _filled(c, g, 1)


@converts("empty_like.default", "new_empty.default")
def empty(c: Call, g: GraphBuilder) -> Tensor:
    """Zeros: what is in it is not defined."""
    return _filled(c, g, 0)


@converts("arange.start_step")
def arange(c: Call, g: GraphBuilder) -> Tensor:
    """Numbers at equal distances, of floats in float64."""
    start, step, count = c.value("start"), c.value("step"), c.shape[0]
    steps = np.arange(bound_of(count))
    if is_symbolic((start, step)):
        moved = g.add(g.constant(steps * c.int("step"), (count,)), g.numbers(start))
        return g.cast(moved, c.element)
    return g.constant((start + steps * step).astype(numpy_dtype(c.element)), (count,))


# Elements at indices that are data, and their replacement.


@converts("embedding.default")
def embedding(c: Call, g: GraphBuilder) -> Tensor:
    """Rows of a table."""
    return g.gather(c.tensor("weight"), c.tensor("indices"), 0)


@converts("index_select.default")
def index_select(c: Call, g: GraphBuilder) -> Tensor:
    """Entries of a dimension; a number has a dimension of one entry."""
    x = c.tensor()
    if not x.rank:
        return g.reshape(x, ())
    return g.gather(x, c.tensor("index"), c.dim(c.int("dim"), x.rank))


@converts("gather.default")
def gather(c: Call, g: GraphBuilder) -> Tensor:
    """The index at each position replaces its own coordinate along the dimension."""
    x, index = c.tensor(), c.tensor("index")
    if x.rank == 0:
        return g.reshape(g.gather(g.reshape(x, (1,)), g.reshape(index, (prod(index.shape),)), 0), c.shape)
    return gather_along(c, g, x, index, c.dim(c.int("dim"), x.rank))


@converts("index.Tensor")
def index(c: Call, g: GraphBuilder) -> Tensor:
    """NumPy's indexing by arrays of integers: their dimensions stand where they are side by side, else in front."""
    x = c.tensor()
    dims, indices = _indices(c, x)
    side_by_side = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if side_by_side else 0
    if not side_by_side:
        x = g.transpose(x, [*dims, *(d for d in range(x.rank) if d not in dims)])
    shape = broadcast_shapes([i.shape for i in indices])
    extents = x.shape[first : first + len(dims)]
    linear = _linear(g, indices, extents, clamp=len(dims) > 1)
    merged = g.reshape(x, (*x.shape[:first], prod(extents), *x.shape[first + len(dims) :]))
    return g.gather(merged, g.broadcast(linear, shape), first, laid_out=len(dims) > 1)


def _indices(c: Call, x: Tensor) -> tuple[list[int], list[Tensor]]:
    given = c.value("indices")
    dims = [d for d, each in enumerate(given) if each is not None]
    indices = [given[d] for d in dims]
    if not dims or any(each.element == i1 for each in indices):
        raise c.error("an index of bools, on which the result's shape depends", "indices of integers")
    return dims, indices


def _linear(g: GraphBuilder, indices: list[Tensor], extents: Sequence[Symbolic], *, clamp: bool) -> Tensor:
    """Positions in the merged dimensions of the largest shape."""
    linear: Tensor | None = None
    for each, extent in zip(indices, extents, strict=True):
        wide = g.cast(each, i64)
        place = inside(g, wide, extent) if clamp else wide
        linear = place if linear is None else g.add(g.mul(linear, bound_of(extent)), place)
    assert linear is not None
    return linear


@converts("index_put.default")
def index_put(c: Call, g: GraphBuilder) -> Tensor:
    """Elements at indices replaced, or with `accumulate` added to; a mask of bools takes one value."""
    x, values = c.tensor(), g.cast(c.tensor("values"), c.element)
    given = c.value("indices")
    if len(given) == 1 and given[0] is not None and given[0].element == i1:
        return _masked(c, g, x, given[0], values)
    dims, indices = _indices(c, x)
    order = [*dims, *(d for d in range(x.rank) if d not in dims)]
    side_by_side = dims == list(range(dims[0], dims[0] + len(dims)))
    shape = broadcast_shapes([i.shape for i in indices])
    rest = [x.shape[d] for d in order[len(dims) :]]
    front = dims[0] if side_by_side else 0
    full = (*rest[:front], *shape, *rest[front:])
    values = g.broadcast(values, full)
    n = len(shape)
    values = g.transpose(values, [*range(front, front + n), *range(front), *range(front + n, len(full))])
    extents = [x.shape[d] for d in dims]
    fronted = [counted_from_front(g, g.cast(i, i64), e) for i, e in zip(indices, extents, strict=True)]
    places = g.reshape(g.broadcast(_linear(g, fronted, extents, clamp=False), shape), (1, prod(shape)))
    moved = g.transpose(x, order)
    flat = g.reshape(moved, (1, prod(extents), prod(rest)))
    terms = g.reshape(values, (1, prod(shape), prod(rest)))
    changed = scattered(c, g, flat, places, terms, "add" if c.flag("accumulate") else "none")
    return g.transpose(g.reshape(changed, moved.shape), [order.index(d) for d in range(x.rank)])


@converts("index_copy.default")
def index_copy(c: Call, g: GraphBuilder) -> Tensor:
    """Entries of a dimension replaced. One state gets consecutive ones where it lies, of which the first is data."""
    x, at, source = c.tensor(), c.tensor("index"), g.cast(c.tensor("source"), c.element)
    if not x.rank:
        return g.reshape(source, ())
    dim = c.dim(c.int("dim"), x.rank)
    begin = _begin(g, at) if x.ssa in g.states else None
    if begin is not None:
        return g.append(x, source, begin, dim)
    order = [dim, *(d for d in range(x.rank) if d != dim)]
    rows, terms = g.transpose(x, order), g.transpose(source, order)
    flat, changed = (g.reshape(v, (1, v.shape[0], prod(v.shape[1:]))) for v in (rows, terms))
    places = g.reshape(counted_from_front(g, g.cast(at, i64), x.shape[dim]), (1, prod(at.shape)))
    result = g.reshape(scattered(c, g, flat, places, changed), rows.shape)
    return g.transpose(result, [order.index(d) for d in range(x.rank)])


def _begin(g: GraphBuilder, at: Tensor) -> Tensor | None:
    """The first of positions that are consecutive, a number that is added to 0, 1, ...; None for others."""
    if at.array is not None:
        known = np.asarray(at.array, np.int64)
        first = known[:1].sum()
        return g.numbers(int(first)) if np.array_equal(known, first + np.arange(known.size)) else None
    if at.type.element_count() == 1:
        return g.cast(g.reshape(at, ()), i64)
    op = at.ssa.owner if at.ssa is not None else None
    if not isinstance(op, BinaryOp) or op.kind.data != "add":
        return None
    for number, steps in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        if not isinstance(steps.owner, ConstantOp) or not isinstance(number.type, TensorType):
            continue
        known = constant_array(steps.owner)
        if number.type.element_count() == 1 and np.array_equal(known, np.arange(known.size)):
            return g.cast(g.reshape(Tensor(number.type, None, number), ()), i64)
    return None


def _masked(c: Call, g: GraphBuilder, x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    if prod(values.shape) != 1:
        raise c.error(f"values of shape {values.shape} for a mask", "one value, or indices of integers")
    value = g.reshape(values, ())
    mask = g.reshape(mask, (*mask.shape, *[1] * (x.rank - mask.rank)))
    return g.where(mask, g.add(x, value) if c.flag("accumulate") else value, x)


@converts("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two")
def scatter(c: Call, g: GraphBuilder) -> Tensor:
    """Each element of the source replaces that with its own coordinates, but the index along the dimension."""
    x, at = c.tensor(), c.tensor("index")
    kinds = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}
    wanted = "add" if c.name.startswith("scatter_add") else c.arguments.get("reduce")
    if (wanted is not None and wanted not in kinds) or not c.arguments.get("include_self", True) or x.rank == 0:
        raise c.error(
            f"reduction {wanted} of rank {x.rank}", f"{', '.join(kinds)} with include_self, of rank 1 or more"
        )
    source = c.arguments.get("src")
    updates = source if isinstance(source, Tensor) else g.broadcast(c.operand("value", g, x.element), at.shape)
    updates = g.slice(updates, [0] * at.rank, at.shape, [1] * at.rank)
    dim = c.dim(c.int("dim"), x.rank)
    return scatter_elements(c, g, x, at, updates, dim, "none" if wanted is None else kinds[wanted])


@converts(
    "view.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
)  # fmt: skip
def reshape(c: Call, g: GraphBuilder) -> Tensor:
    """The same elements in row-major order."""
    return g.reshape(c.tensor(), c.shape)


@converts("permute.default")
def permute(c: Call, g: GraphBuilder) -> Tensor:
    """Dimensions in another order."""
    x = c.tensor()
    return g.transpose(x, [c.dim(d, x.rank) for d in c.ints("dims")])


@converts("transpose.int")
def transpose(c: Call, g: GraphBuilder) -> Tensor:
    """Two dimensions exchanged."""
    x = c.tensor()
    if x.rank == 0:
        return x
    a, b = (c.dim(c.int(name), x.rank) for name in ("dim0", "dim1"))
    perm = list(range(x.rank))
    perm[a], perm[b] = b, a
    return g.transpose(x, perm)


@converts("t.default")
def matrix_transpose(c: Call, g: GraphBuilder) -> Tensor:
    """The transpose of a matrix, or a vector itself."""
    x = c.tensor()
    return g.transpose(x, (1, 0)) if x.rank == 2 else x


@converts("expand.default")
def expand(c: Call, g: GraphBuilder) -> Tensor:
    """Extents of 1 repeated."""
    return g.broadcast(c.tensor(), c.shape)


@converts("as_strided.default")
def as_strided(c: Call, g: GraphBuilder) -> Tensor:
    """The elements at some distances in memory, of a tensor that lies there in row-major order."""
    x, known = c.tensor(), c.fake("self")
    c.reserve(c.shape, np.dtype(np.int64))
    offset = known.storage_offset() if c.value("storage_offset") is None else c.int("storage_offset")
    where = np.full(c.shape, offset - known.storage_offset(), np.int64)
    for d, (extent, stride) in enumerate(zip(c.ints("size"), c.ints("stride"), strict=True)):
        where += (np.arange(extent) * stride).reshape(-1, *[1] * (where.ndim - d - 1))
    count = prod(x.shape)
    if not known.is_contiguous() or (where.size and not 0 <= where.min() <= where.max() < count):
        layout = f"shape {list(x.shape)}, strides {list(known.stride())}"
        raise c.error(f"elements by their distances in memory, of a tensor of {layout}", "those of a contiguous tensor")
    if np.array_equal(where.reshape(-1), np.arange(count)):
        return g.reshape(x, c.shape)
    return g.gather(g.reshape(x, (count,)), g.constant(where), 0)


@converts("copy.default")
def copy(c: Call, g: GraphBuilder) -> Tensor:
    """The source in the shape and type of what it is copied to."""
    return g.broadcast(g.cast(c.tensor("src"), c.element), c.shape)


@converts("repeat.default")
def repeat(c: Call, g: GraphBuilder) -> Tensor:
    """A new dimension before each, repeated, and then merged with it."""
    repeats = c.extents("repeats")
    x = c.tensor()
    x = g.reshape(x, (*[1] * (len(repeats) - x.rank), *x.shape))
    split = g.reshape(x, [v for e in x.shape for v in (1, e)])
    spread = g.broadcast(split, [v for r, e in zip(repeats, x.shape, strict=True) for v in (r, e)])
    return g.reshape(spread, c.shape)


@converts("cat.default")
def cat(c: Call, g: GraphBuilder) -> Tensor:
    """Empty operands are omitted."""
    filled = [g.cast(x, c.element) for x in c.tensors("tensors") if 0 not in x.shape]
    if not filled:
        return g.filled(0, numpy_dtype(c.element), c.shape)
    return concatenated(g, filled, c.dim(c.int("dim"), len(c.shape)))


@converts("stack.default")
def stack(c: Call, g: GraphBuilder) -> Tensor:
    """Along a new dimension."""
    return g.stack([g.cast(x, c.element) for x in c.tensors("tensors")], c.dim(c.int("dim"), len(c.shape)))


@converts("split_with_sizes.default")
def split_with_sizes(c: Call, g: GraphBuilder) -> list[Tensor]:
    """Parts of given sizes."""
    return _parts(c, g, c.extents("split_sizes"))


@converts("split.Tensor")
def split(c: Call, g: GraphBuilder) -> list[Tensor]:
    """Parts of one size, of which the last may be smaller."""
    dim = c.dim(c.int("dim"), c.tensor().rank)
    return _parts(c, g, [c.shape_of(n)[dim] for n in range(len(c.node.meta["val"]))])


def _parts(c: Call, g: GraphBuilder, sizes: list[Symbolic]) -> list[Tensor]:
    x = c.tensor()
    dim = c.dim(c.int("dim"), x.rank)
    return [taken(g, x, dim, sum(sizes[:n]), size) for n, size in enumerate(sizes)]


@converts("unbind.int")
def unbind(c: Call, g: GraphBuilder) -> list[Tensor]:
    """The entries of a dimension."""
    x = c.tensor()
    dim = c.dim(c.int("dim"), x.rank)
    return [g.entry(x, dim, n) for n in range(int(x.shape[dim]))]


@converts("slice.Tensor")
def slice_tensor(c: Call, g: GraphBuilder) -> Tensor:
    """Bounds as Python's, which are cut off at the ends."""
    x = c.tensor()
    dim = c.dim(c.int("dim"), x.rank)
    start, end = _slice_bounds(c)
    if is_symbolic((x.shape[dim], start, end)):
        start, _ = symbolic_range(x.shape[dim], start, end, c.int("step"))
        return taken(g, x, dim, start, c.shape[dim], c.int("step"))
    chosen = range(int(x.shape[dim]))[slice(start, end, c.int("step"))]
    starts, sizes, steps = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[dim], sizes[dim] = chosen.start if len(chosen) else 0, len(chosen)
    steps[dim] = chosen.step if len(chosen) > 1 else 1
    return g.slice(x, starts, sizes, steps)


def _slice_bounds(c: Call) -> tuple[Symbolic, Symbolic]:
    """Of a slice in steps from 1 upwards; those that are left out are the ends."""
    start, end = c.optional_extent("start"), c.optional_extent("end")
    return 0 if start is None else start, maxsize if end is None else end


@converts("select.int")
def select(c: Call, g: GraphBuilder) -> Tensor:
    """One entry of a dimension, without it."""
    x = c.tensor()
    dim = c.dim(c.int("dim"), x.rank)
    return g.reshape(taken(g, x, dim, _position(c, x.shape[dim]), 1), (*x.shape[:dim], *x.shape[dim + 1 :]))


def _position(c: Call, extent: Symbolic) -> Symbolic:
    """An index from the front."""
    index = c.extent("index")
    return index + extent if index < 0 else index


@converts("select_scatter.default")
def select_scatter(c: Call, g: GraphBuilder) -> Tensor:
    """One entry of a dimension replaced."""
    x, source = c.tensor(), c.tensor("src")
    dim = c.dim(c.int("dim"), x.rank)
    position = _position(c, x.shape[dim])
    entry = g.cast(g.reshape(source, (*x.shape[:dim], 1, *x.shape[dim + 1 :])), x.element)
    return _replaced(g, x, entry, dim, position, position + 1)


@converts("slice_scatter.default")
def slice_scatter(c: Call, g: GraphBuilder) -> Tensor:
    """A slice replaced; with steps, the elements in between stay."""
    x, source = c.tensor(), g.cast(c.tensor("src"), c.element)
    dim = c.dim(c.int("dim"), x.rank)
    start, end = _slice_bounds(c)
    if is_symbolic((x.shape[dim], start, end)) and c.int("step") == 1:
        start, count = symbolic_range(x.shape[dim], start, end, 1)
        return _replaced(g, x, source, dim, start, start + count)
    extent = int(x.shape[dim])
    chosen = range(extent)[slice(start, end, c.int("step"))]
    if not chosen:
        return x
    if chosen.step == 1:
        return _replaced(g, x, source, dim, chosen.start, chosen.stop)
    places = np.arange(extent)
    inside = np.isin(places, np.array(chosen)).reshape(-1, *[1] * (x.rank - dim - 1))
    nearest = np.clip((places - chosen.start) // chosen.step, 0, len(chosen) - 1)
    return g.where(g.constant(inside), g.gather(source, g.constant(nearest), dim), x)


def _replaced(g: GraphBuilder, x: Tensor, part: Tensor, dim: int, start: Symbolic, stop: Symbolic) -> Tensor:
    extent = x.shape[dim]
    before, after = g.narrow(x, dim, 0, start), taken(g, x, dim, stop, extent - stop)
    return concatenated(g, [p for p in (before, part, after) if p.shape[dim] != 0], dim)


@converts("flip.default")
def flip(c: Call, g: GraphBuilder) -> Tensor:
    """Dimensions backwards."""
    x = c.tensor()
    dims = {c.dim(d, x.rank) for d in c.ints("dims")}
    if 0 in x.shape or not x.rank:
        return x
    if is_symbolic(x.shape):
        for dim in sorted(dims):
            x = g.reversed(x, dim)
        return x
    starts = [e - 1 if d in dims else 0 for d, e in enumerate(x.shape)]
    return g.slice(x, starts, x.shape, [-1 if d in dims else 1 for d in range(x.rank)])


@converts("roll.default")
def roll(c: Call, g: GraphBuilder) -> Tensor:
    """Dimensions shifted, the end to the front; without dimensions, the flattened tensor."""
    x, shifts, dims = c.tensor(), c.ints("shifts"), c.ints("dims")
    if not dims:
        return g.reshape(_rolled(g, g.reshape(x, (prod(x.shape),)), 0, shifts[0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(g, x, c.dim(dim, x.rank), shift)
    return x


def _rolled(g: GraphBuilder, x: Tensor, dim: int, shift: int) -> Tensor:
    extent = int(x.shape[dim])
    if not extent or not shift % extent:
        return x
    first = extent - shift % extent
    return g.concat([g.narrow(x, dim, first, extent - first), g.narrow(x, dim, 0, first)], dim)


@converts("unfold.default")
def unfold(c: Call, g: GraphBuilder) -> Tensor:
    """Windows of a dimension, as a new last one; a number has a dimension of one element."""
    x, size, step = c.tensor(), c.int("size"), c.int("step")
    dim = c.dim(c.int("dimension"), x.rank)
    if not x.rank:
        return g.reshape(x, c.shape) if size else g.constant(np.empty(c.shape, x.dtype))
    starts = np.arange(0, int(x.shape[dim]) - size + 1, step)
    windows = g.gather(x, g.constant(starts[:, None] + np.arange(size)), dim)
    return g.transpose(windows, [d for d in range(windows.rank) if d != dim + 1] + [dim + 1])


@converts("pixel_shuffle.default")
def pixel_shuffle(c: Call, g: GraphBuilder) -> Tensor:
    """Blocks of channels become blocks of pixels."""
    x, r = c.tensor(), c.int("upscale_factor")
    *lead, channels, height, width = x.shape
    n = len(lead)
    blocks = g.reshape(x, (*lead, channels // (r * r), r, r, height, width))
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return g.reshape(g.transpose(blocks, order), c.shape)


@converts("constant_pad_nd.default")
def constant_pad(c: Call, g: GraphBuilder) -> Tensor:
    """Pads of the last dimension first; negative ones cut off."""
    x = c.tensor()
    return padded(g, x, "constant", _pads(c, x.rank, "pad"), c.operand("value", g, x.element))


@converts(
    "reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default", "replication_pad1d.default",
    "replication_pad2d.default", "replication_pad3d.default",
)  # fmt: skip
def edge_pad(c: Call, g: GraphBuilder) -> Tensor:
    """Padding by the elements at the edge, mirrored or repeated."""
    x = c.tensor()
    mode = "reflect" if c.name.startswith("reflection") else "edge"
    return padded(g, x, mode, _pads(c, x.rank, "padding"), g.scalar(0, x))


def _pads(c: Call, rank: int, name: str) -> list[Symbolic]:
    given, pads = c.extents(name), [0] * (2 * rank)
    for n in range(len(given) // 2):
        pads[rank - 1 - n], pads[2 * rank - 1 - n] = given[2 * n], given[2 * n + 1]
    return pads
