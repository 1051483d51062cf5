"""Reductions, sums so far, and elements by their rank."""

from __future__ import annotations

from math import inf

import numpy as np
from xdsl.dialects.builtin import i1

from treadle.dialects.graph import ArgReductionOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.cumulative import cumulative
from treadle.frontends.common.order import ordered
from treadle.frontends.torch.call import Call
from treadle.frontends.torch.converters.elementwise import truth
from treadle.frontends.torch.registry import converts

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
    count = int(np.prod([int(x.shape[d]) for d in dims]))
    centred = g.sub(wide, g.reduce("mean", wide, dims, keep=True))
    total = g.reduce("add", g.mul(centred, centred), dims, _keeps(c))
    y = g.div(total, max(count - (1 if correction is None else correction), 0))
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
        flat = g.reshape(x, (int(np.prod(x.shape, dtype=np.int64)),))
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
