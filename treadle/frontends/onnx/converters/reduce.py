"""Reductions over axes that an attribute, or since opset 13 (ReduceSum) and 18 an input, names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from xdsl.dialects.builtin import f64, i1

from treadle.dialects.graph import ArgReductionOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

Fold = Callable[[GraphBuilder, Tensor, Sequence[int], bool], Tensor]


def _plain(kind: str) -> Fold:
    return lambda g, x, dims, keep: g.reduce(kind, x, dims, keep)


def _extremum(kind: str, of_bools: str) -> Fold:
    return lambda g, x, dims, keep: g.reduce(of_bools if x.element == i1 else kind, x, dims, keep)


def _l1(g: GraphBuilder, x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    return g.reduce("add", g.unary("abs", x), dims, keep)


def _sum_square(g: GraphBuilder, x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    wide = g.widened(x)
    return g.cast(g.reduce("add", g.mul(wide, wide), dims, keep), x.element)


def _in_floats(fold: Fold) -> Fold:
    """A reduction that includes a function of floats: for integers it is computed in float64, and truncated."""

    def wide(g: GraphBuilder, x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
        return g.cast(fold(g, g.widened(x) if x.is_float else g.cast(x, f64), dims, keep), x.element)

    return wide


def _l2(g: GraphBuilder, x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    return g.unary("sqrt", _sum_square(g, x, dims, keep))


def _log_sum(g: GraphBuilder, x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    return g.unary("log", g.reduce("add", x, dims, keep))


def _log_sum_exp(g: GraphBuilder, x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    """The largest element is subtracted first, so that no exponential overflows; not if it is infinite, as `inf - inf`
    is NaN."""
    if any(x.shape[d] == 0 for d in dims):
        return _log_sum(g, g.unary("exp", x), dims, keep)
    largest = g.reduce("max", x, dims, True)
    finite = g.binary("lt", g.unary("abs", largest), inf)
    shift = g.where(finite, largest, g.scalar(0, x))
    total = _log_sum(g, g.unary("exp", g.sub(x, shift)), dims, keep)
    return g.add(total, g.reshape(shift, total.shape))


_FOLDS: dict[str, Fold] = {
    "ReduceSum": _plain("add"),
    "ReduceMean": _plain("mean"),
    "ReduceProd": _plain("mul"),
    "ReduceMax": _extremum("max", "or"),
    "ReduceMin": _extremum("min", "and"),
    "ReduceL1": _l1,
    "ReduceL2": _in_floats(_l2),
    "ReduceSumSquare": _sum_square,
    "ReduceLogSum": _in_floats(_log_sum),
    "ReduceLogSumExp": _in_floats(_log_sum_exp),
}

_LATER = tuple(name for name in _FOLDS if name != "ReduceSum")


@converts(*_FOLDS)
def reduce_by_attribute(node: Node, g: GraphBuilder) -> Tensor:
    """No axes are all axes."""
    x = node.input()
    axes = node.ints("axes")
    dims = list(range(x.rank)) if axes is None else node.axes(axes, x.rank)
    return _FOLDS[node.op_type](g, x, dims, node.flag("keepdims", True))


@converts("ReduceSum", since=13)
@converts(*_LATER, since=18)
def reduce_by_input(node: Node, g: GraphBuilder) -> Tensor:
    """No axes are all axes, or with `noop_with_empty_axes` none."""
    x = node.input()
    axes = node.known_ints(1, "axes") if node.optional(1) is not None else []
    noop = node.flag("noop_with_empty_axes")
    dims = node.axes(axes, x.rank) if axes or noop else list(range(x.rank))
    return _FOLDS[node.op_type](g, x, dims, node.flag("keepdims", True))


@converts("ArgMax", "ArgMin")
def arg_reduce(node: Node, g: GraphBuilder) -> Tensor:
    """The first position along an axis, or with `select_last_index` the last."""
    x = node.input()
    kind, dim = node.op_type[3:].lower(), node.axis(node.int("axis", 0), x.rank)
    keep, last = node.flag("keepdims", True), node.flag("select_last_index")
    return g.emit(lambda v: ArgReductionOp(kind, v[0], dim, keep, last), x)
