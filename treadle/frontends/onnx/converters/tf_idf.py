"""TfIdfVectorizer: how often each n-gram of a list is in a row of numbers."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import f32, i64

from treadle.frontends.common.arrays import Array
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(node: Node, g: GraphBuilder) -> Tensor:
    """Each n-gram is compared with every window of a row, of neighbours and with up to `max_skip_count` left out
    between them."""
    x = node.input()
    if x.is_float or not 1 <= x.rank <= 2:
        raise node.error(f"an input {x.type}", "integers [C] or [N, C]")
    rows = g.cast(g.reshape(x, (1, *x.shape) if x.rank == 1 else x.shape), i64)
    grams, skips = _grams(node), node.int("max_skip_count", 0)
    shortest, longest = node.int("min_gram_length", 1), node.int("max_gram_length", 1)
    size = max(index for each in grams.values() for index in each.values()) + 1
    node.reserve((size,), np.dtype(np.float32))
    # One column more than n-grams: zeros, which the others of the result read.
    columns, places = [g.constant(np.zeros((1, 1), np.int64))], np.zeros(size, np.int64)
    found = 1
    for length, pool in grams.items():
        if not pool or not shortest <= length <= longest:
            continue
        columns.append(_counts(g, rows, np.array(list(pool)), 0 if length == 1 else skips))
        places[list(pool.values())] = found + np.arange(len(pool))
        found += len(pool)
    counts = [g.broadcast(column, (rows.shape[0], column.shape[1])) for column in columns]
    result = _weighted(node, g, g.gather(g.concat(counts, 1), g.constant(places), 1), size)
    return g.reshape(result, (size,)) if x.rank == 1 else result


def _grams(node: Node) -> dict[int, dict[tuple[int, ...], int]]:
    """By their length: each n-gram and its position in the result."""
    if node.has("pool_strings"):
        raise node.error("pool_strings is given", "pool_int64s")
    pool, starts, indices = (node.ints(name) or [] for name in ("pool_int64s", "ngram_counts", "ngram_indexes"))
    ends = [*starts[1:], len(pool)]
    grams: dict[int, dict[tuple[int, ...], int]] = {}
    position = 0
    for length, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        grams[length] = {}
        for first in range(max(start, 0), end - length + 1, length):
            at = indices[position] if position < len(indices) else -1
            grams[length][tuple(pool[first : first + length])] = at
            position += 1
    listed = [index for each in grams.values() for index in each.values()]
    if not listed or position != len(indices) or min(listed) < 0 or len(set(listed)) < len(listed):
        message = f"{len(pool)} numbers, ngram_counts {starts}, {len(indices)} ngram_indexes"
        raise node.error(message, "n-grams by their length, each with a place of its own in the result")
    return grams


def _counts(g: GraphBuilder, rows: Tensor, pool: Array, skips: int) -> Tensor:
    """`[N, n-grams]`, how often each is in each row, with up to `skips` numbers between neighbours."""
    count, length = pool.shape
    total = g.constant(np.zeros((1, count), np.int64))
    for step in range(1, skips + 2):
        windows = rows.shape[1] - step * (length - 1)
        if windows < 1:
            break
        same: Tensor | None = None
        for n in range(length):
            entries = g.reshape(g.narrow(rows, 1, n * step, windows), (rows.shape[0], 1, windows))
            equal = g.binary("eq", entries, g.constant(pool[:, n].reshape(1, count, 1)))
            same = equal if same is None else g.binary("and", same, equal)
        assert same is not None
        total = g.add(g.reduce("add", g.cast(same, i64), [2], keep=False), total)
    return total


def _weighted(node: Node, g: GraphBuilder, counts: Tensor, size: int) -> Tensor:
    """The result of counts; weight i is that of the i-th n-gram, wherever it is in the result."""
    mode, weights = node.string("mode", "", ("TF", "IDF", "TFIDF")), node.floats("weights")
    indices = node.ints("ngram_indexes") or []
    if weights is not None and len(weights) != len(indices):
        raise node.error(f"{len(weights)} weights", f"{len(indices)}, one for each n-gram")
    values = g.cast(g.binary("min", counts, 1) if mode == "IDF" else counts, f32)
    if weights is None or mode == "TF":
        return values
    placed = np.zeros(size, np.float32)
    placed[indices] = weights
    return g.mul(values, g.constant(placed))
