"""Tensors that are known at compile time: constants and the arithmetic of shapes."""

from __future__ import annotations

from math import ceil, floor, isfinite, prod

import numpy as np

from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, bound_of, bounds_of
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts
from treadle.frontends.onnx.tensor_data import dtype_of


@converts("Constant")
def constant(node: Node, g: GraphBuilder) -> Tensor:
    """The value stands in one of several attributes."""
    tensor = node.tensor("value")
    if tensor is not None:
        return g.constant(tensor)
    if node.has("value_float"):
        return g.constant(np.array(node.float("value_float", 0.0), np.float32))
    if node.has("value_int"):
        return g.constant(np.array(node.int("value_int", 0), np.int64))
    floats, ints = node.floats("value_floats"), node.ints("value_ints")
    if floats is not None:
        return g.constant(np.array(floats, np.float32))
    if ints is not None:
        return g.constant(np.array(ints, np.int64))
    raise node.error("the constant has no supported value", "value, value_float, value_floats, value_int, value_ints")


@converts("ConstantOfShape", since=9)
def constant_of_shape(node: Node, g: GraphBuilder) -> Tensor:
    """One value everywhere; it is not expanded in memory before the constant is stored."""
    shape = tuple(node.known_ints(0, "the shape"))
    value = node.tensor("value")
    value = np.zeros(1, np.float32) if value is None else value
    if value.size != 1:
        raise node.error(f"attribute 'value' has {value.size} elements", "one element")
    node.reserve(shape, value.dtype)
    return g.constant(np.broadcast_to(value.reshape(()), bounds_of(shape)), shape)


@converts("Shape")
def shape_of(node: Node, g: GraphBuilder) -> Tensor:
    """The operand's extents from `start` to `end`."""
    rank = node.input().rank
    start, end = node.int("start", 0), node.int("end", rank)
    first, last = (min(max(v + rank if v < 0 else v, 0), rank) for v in (start, end))
    return g.numbers(node.input().shape[first:last])


@converts("Size")
def size_of(node: Node, g: GraphBuilder) -> Tensor:
    """The operand's number of elements."""
    return g.numbers(prod(node.input().shape))


@converts("Range", since=11)
def range_of(node: Node, g: GraphBuilder) -> Tensor:
    """`start + n * delta` below `limit`."""
    start, limit, delta = (node.known_scalar(n, w) for n, w in enumerate(("start", "limit", "delta")))
    if isinstance(delta, Extent):
        raise node.error(f"a range from {start} in steps of {delta}", "a delta that is a number")
    if isinstance(start, Extent):
        steps = _values(node, g, 0, _whole(node, limit) - start, delta)
        return g.add(steps, g.reshape(node.input(0), ()))
    return _values(node, g, start, limit, delta)


def _values(node: Node, g: GraphBuilder, start: float, limit: float, delta: float) -> Tensor:
    dtype = node.input(0).dtype
    count = _range_length(node, start, limit, delta)
    node.reserve((count,), dtype)
    with np.errstate(all="ignore"):
        # Integers may wrap in between; the result is exact.
        steps = np.arange(bound_of(count), dtype=dtype if dtype.kind == "f" else np.int64)
        values = np.asarray(np.asarray(delta, steps.dtype) * steps + np.asarray(start, steps.dtype))
        return g.constant(values.astype(dtype), (count,))


def _range_length(node: Node, start: float, limit: float, delta: float) -> int:
    if isinstance(limit, Extent):
        start, delta = _whole(node, start), _whole(node, delta)
    if isinstance(start, int) and isinstance(limit, int | Extent) and isinstance(delta, int) and delta:
        return max(-((start - limit) // delta), 0)
    if not all(map(isfinite, (start, limit, delta))) or delta == 0:
        raise node.error(f"start {start}, limit {limit}, delta {delta}", "finite numbers, a delta other than 0")
    quotient = (limit - start) / delta
    if not isfinite(quotient):
        raise node.error(f"start {start}, limit {limit}, delta {delta}", "fewer steps")
    return max(ceil(quotient), 0)


def _whole(node: Node, number: float) -> int:
    """An integer, where a range has as many steps as a call says."""
    if not isinstance(number, Extent) and number != floor(number):
        raise node.error(f"a range of {number} and of extents", "whole numbers")
    return number if isinstance(number, Extent) else int(number)


@converts("EyeLike", since=9)
def eye_like(node: Node, g: GraphBuilder) -> Tensor:
    """Ones on a diagonal."""
    x = node.input()
    if x.rank != 2:
        raise node.error(f"an input of rank {x.rank}", "rank 2")
    dtype = dtype_of(node.int("dtype", 0), node.where) if node.has("dtype") else numpy_dtype(x.element)
    rows, columns = x.shape
    node.reserve((rows, columns), dtype)
    most = bounds_of(x.shape)
    return g.constant(np.eye(most[0], most[1], node.int("k", 0), dtype=dtype), x.shape)
