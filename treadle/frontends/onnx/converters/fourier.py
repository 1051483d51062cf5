"""DFT and STFT as products with the matrix of the transform, which takes `n^2` steps for a transform of length n; the
weights of mel filters.
"""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto
from xdsl.dialects.builtin import f32, i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Array, bound_of
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.tensor_data import dtype_of

# TfIdfVectorizer: how often each n-gram of a list is in a row of numbers.


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


@converts("DFT", since=17)
def dft_attribute(node: Node, g: GraphBuilder) -> Tensor:
    """The axis as an attribute."""
    return _dft(node, g, node.int("axis", 1))


@converts("DFT", since=20)
def dft_input(node: Node, g: GraphBuilder) -> Tensor:
    """The axis as an input."""
    return _dft(node, g, -2 if node.optional(2) is None else node.known_int(2, "the axis"))


def _dft(node: Node, g: GraphBuilder, axis: int) -> Tensor:
    x = node.input()
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise node.error(f"an input of shape {x.shape}", "real numbers [..., 1] or complex ones [..., 2]")
    axis = node.axis(axis, x.rank)
    if axis == x.rank - 1:
        raise node.error(f"axis {axis} is that of real and imaginary parts", f"0 to {x.rank - 2}")
    given = x.shape[axis]
    length = 2 * (given - 1) if inverse and onesided else given
    if node.optional(1) is not None:
        length = node.known_int(1, "the length")
    if length < 1:
        raise node.error(f"a length of {length}", "1 and more")
    used = length // 2 + 1 if inverse and onesided else length
    parts = [_rows(g, x, axis, n, used) for n in range(x.shape[-1])]
    count = length // 2 + 1 if onesided and not inverse else length
    real, imaginary = _transformed(node, g, parts, length, count, inverse, onesided)
    results = [real] if inverse and onesided else [real, imaginary]
    lead = [e for d, e in enumerate(x.shape[:-1]) if d != axis]
    whole = g.concat([g.reshape(v, (*lead, count, 1)) for v in results], len(lead) + 1)
    perm = [d if d < axis else len(lead) if d == axis else d - 1 for d in range(x.rank - 1)]
    return g.cast(g.transpose(whole, [*perm, x.rank - 1]), x.element)


def _rows(g: GraphBuilder, x: Tensor, axis: int, part: int, used: int) -> Tensor:
    """The real or imaginary parts as rows along the axis, cut or padded with zeros."""
    values = g.reshape(g.narrow(g.widened(x), x.rank - 1, part, 1), x.shape[:-1])
    order = [*(d for d in range(values.rank) if d != axis), axis]
    rows = g.transpose(values, order)
    rows = g.reshape(rows, (prod(rows.shape[:-1]), rows.shape[-1]))
    rows = g.narrow(rows, 1, 0, min(used, rows.shape[1]))
    return g.pad(rows, (0, 0, 0, used - rows.shape[1]), 0)


def _transformed(
    node: Node, g: GraphBuilder, parts: list[Tensor], length: int, count: int, inverse: bool, onesided: bool
) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of `sum_m x[m] exp(-+ 2 pi i k m / n)`; an inverse is divided by n, and of one side
    every frequency that has a mirrored one counts twice."""
    used = parts[0].shape[1]
    node.reserve((used, count, 8), np.dtype(np.float64))
    angle = 2 * np.pi / length * (np.arange(used)[:, None] * np.arange(count) % length)
    scale = np.ones((used, 1))
    if inverse:
        scale /= length
        if onesided:
            mirrored = np.arange(used)
            scale[(mirrored > 0) & (2 * mirrored != length)] *= 2
    sign = 1 if inverse else -1
    cosine, sine = (g.constant((f(angle) * scale).astype(parts[0].dtype)) for f in (np.cos, np.sin))
    real, turned = (g.matmul(parts[0], v) for v in (cosine, sine))
    turned = turned if sign > 0 else g.unary("neg", turned)
    if len(parts) == 1:
        return real, turned
    other, back = (g.matmul(parts[1], v) for v in (cosine, sine))
    back = back if sign > 0 else g.unary("neg", back)
    return g.sub(real, back), g.add(turned, other)


@converts("STFT", since=17)
def stft(node: Node, g: GraphBuilder) -> Tensor:
    """`[batch, frames, frequencies, 2]`: the transform of each frame, multiplied by a window."""
    x, step = node.input(0), node.known_int(1, "the step between frames")
    window, onesided = node.optional(2), node.flag("onesided", True)
    if x.rank != 3 or x.shape[-1] not in (1, 2):
        raise node.error(f"a signal of shape {x.shape}", "[batch, length, 1], or 2 for complex numbers")
    if x.shape[-1] == 2 and onesided:
        raise node.error("onesided of a complex signal", "onesided = 0, or a real signal")
    length = node.known_int(3, "the frames' length") if node.optional(3) is not None else 0
    length = length or (0 if window is None else window.shape[0])
    if step < 1 or not 1 <= length <= x.shape[1] or (window is not None and window.shape != (length,)):
        raise node.error(f"frames of {length} every {step} of {x.shape[1]} samples", "at most the signal's length")
    frames = (x.shape[1] - length) // step + 1
    node.reserve((frames, length), np.dtype(np.int64))
    places = np.arange(bound_of(frames))[:, None] * step + np.arange(length)
    pieces = g.gather(g.widened(x), g.constant(places, (frames, length)), 1)
    if window is not None:
        pieces = g.mul(pieces, g.reshape(g.cast(window, pieces.element), (length, 1)))
    parts = [g.reshape(g.narrow(pieces, 3, n, 1), (x.shape[0] * frames, length)) for n in range(x.shape[-1])]
    count = length // 2 + 1 if onesided else length
    both = _transformed(node, g, parts, length, count, False, onesided)
    shaped = [g.reshape(v, (x.shape[0], frames, count, 1)) for v in both]
    return g.cast(g.concat(shaped, 3), x.element)


@converts("MelWeightMatrix", since=17)
def mel_weight_matrix(node: Node, g: GraphBuilder) -> Tensor:
    """`[dft_length / 2 + 1, bins]` of known numbers: triangles whose corners are at equal distances in mel.

    Source: Davis and Mermelstein, "Comparison of parametric representations for monosyllabic word recognition", IEEE
    Transactions on Acoustics, Speech, and Signal Processing 28(4), 1980; corners as the specification rounds them.
    """
    bins, length, rate = (node.known_int(n, w) for n, w in enumerate(("num_mel_bins", "dft_length", "sample_rate")))
    lower, upper = (float(node.known_scalar(n, w)) for n, w in ((3, "lower_edge_hertz"), (4, "upper_edge_hertz")))
    if bins < 1 or length < 1 or rate < 1 or not 0 <= lower < upper < np.inf:
        message = f"{bins} bins of {length} samples, {rate} a second, from {lower} to {upper} Hz"
        raise node.error(message, "numbers from 1 upwards, and edges in ascending order")
    dtype = dtype_of(node.int("output_datatype", TensorProto.FLOAT), node.where)
    node.reserve((length // 2 + 1, bins, 8), np.dtype(np.float64))
    low, high = (2595 * np.log10(1 + edge / 700) for edge in (lower, upper))
    hertz = 700 * (10 ** ((low + np.arange(bins + 2) * (high - low) / (bins + 2)) / 2595) - 1)
    corners = (length + 1) * hertz // rate
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    place = np.arange(length // 2 + 1)[:, None]
    rising = np.where(place >= left, (place - left) / np.maximum(peak - left, 1), 0)
    falling = np.where(place < right, (right - place) / np.maximum(right - peak, 1), 0)
    weights = np.where(place == peak, 1, np.where(place < peak, rising, falling))
    return g.constant(weights.astype(dtype))
