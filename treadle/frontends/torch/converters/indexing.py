"""Elements at indices that are data, and their replacement."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import i1, i64

from treadle.dialects.graph.elementwise import broadcast_shapes
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.indexing import counted_from_front, gather_along, inside
from treadle.frontends.common.scatter import scatter_elements, scattered
from treadle.frontends.torch.call import Call
from treadle.frontends.torch.registry import converts


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
    extents = [int(x.shape[first + n]) for n in range(len(dims))]
    linear = _linear(g, indices, extents, clamp=len(dims) > 1)
    merged = g.reshape(x, (*x.shape[:first], prod(extents), *x.shape[first + len(dims) :]))
    return g.gather(merged, g.broadcast(linear, shape), first)


def _indices(c: Call, x: Tensor) -> tuple[list[int], list[Tensor]]:
    given = c.value("indices")
    dims = [d for d, each in enumerate(given) if each is not None]
    indices = [given[d] for d in dims]
    if not dims or any(each.element == i1 for each in indices):
        raise c.error("an index of bools, on which the result's shape depends", "indices of integers")
    return dims, indices


def _linear(g: GraphBuilder, indices: list[Tensor], extents: list[int], *, clamp: bool) -> Tensor:
    """Positions in the merged dimensions."""
    linear: Tensor | None = None
    for each, extent in zip(indices, extents, strict=True):
        wide = g.cast(each, i64)
        place = inside(g, wide, extent) if clamp else wide
        linear = place if linear is None else g.add(g.mul(linear, extent), place)
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
    rest = [int(x.shape[d]) for d in order[len(dims) :]]
    front = dims[0] if side_by_side else 0
    full = (*rest[:front], *shape, *rest[front:])
    values = g.broadcast(values, full)
    n = len(shape)
    values = g.transpose(values, [*range(front, front + n), *range(front), *range(front + n, len(full))])
    extents = [int(x.shape[d]) for d in dims]
    fronted = [counted_from_front(g, g.cast(i, i64), e) for i, e in zip(indices, extents, strict=True)]
    places = g.reshape(g.broadcast(_linear(g, fronted, extents, clamp=False), shape), (1, prod(shape)))
    moved = g.transpose(x, order)
    flat = g.reshape(moved, (1, prod(extents), prod(rest)))
    terms = g.reshape(values, (1, prod(shape), prod(rest)))
    changed = scattered(c, g, flat, places, terms, "add" if c.flag("accumulate") else "none")
    return g.transpose(g.reshape(changed, moved.shape), [order.index(d) for d in range(x.rank)])


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
