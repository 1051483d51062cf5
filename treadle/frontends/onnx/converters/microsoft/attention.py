"""Attention: MultiHeadAttention, Attention with its projections, GroupQueryAttention, RotaryEmbedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from xdsl.dialects.builtin import i64

from treadle.frontends.common import composed
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import joined, matmul, split_heads
from treadle.frontends.common.extent import Extent, Symbolic, bound_of
from treadle.frontends.common.result_extents import symbols_in
from treadle.frontends.common.window import concatenated
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

# Queries, keys and values by heads: `[batch, heads, sequence, size]`.


def packed_heads(node: Node, g: GraphBuilder, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first three inputs of MultiHeadAttention by heads, with its bias.

    Each is `[batch, sequence, heads * size]`; queries, keys and values, or keys and values, may be one tensor
    `[batch, sequence, heads, 3 or 2, size]`; keys and values may be by heads already, and get no bias then.
    TreadleError for shapes that are none of the operator's.
    """
    q, k, v, bias = node.input(0), node.optional(1), node.optional(2), node.optional(3)
    parts = [q, k, v]
    if q.rank == 5 and k is None and v is None:
        parts = _unpacked(g, q)
    elif k is not None and k.rank == 5 and v is None:
        parts = [q, *_unpacked(g, k)]
    found = [part for part in parts if part is not None]
    if len(found) != 3:
        raise node.error("keys or values are missing", "three operands, or packed ones of rank 5")
    start = 0
    results: list[Tensor] = []
    for part in found:
        if part.rank == 4 and part.shape[1] == heads and part is not q:
            results.append(part)
            start += heads * part.shape[3]
            continue
        if part.rank != 3 or part.shape[2] % heads:
            raise node.error(f"an operand of shape {part.shape} for {heads} heads", "rows of whole heads")
        width = part.shape[2]
        shifted = part if bias is None else g.add(part, g.narrow(bias, 0, start, width))
        results.append(split_heads(g, shifted, heads))
        start += width
    return results[0], results[1], results[2]


def _unpacked(g: GraphBuilder, x: Tensor) -> list[Tensor | None]:
    rows = (*x.shape[:2], x.shape[2] * x.shape[4])
    return [g.reshape(g.entry(x, 3, n), rows) for n in range(x.shape[3])]


def rotated(
    node: Node, g: GraphBuilder, x: Tensor, positions: Tensor, caches: tuple[Tensor, Tensor], interleaved: bool
) -> Tensor:
    """Pairs of the first elements of each head, as many as the caches have angles for, turned; the rest as it is.

    positions: `[batch or 1, sequence]`, of rows of the caches, which hold cosines and sines. Source: Su et al.,
    "RoFormer: Enhanced transformer with rotary position embedding", 2021, section 3.2.2.
    """
    half, size = caches[0].shape[-1], x.shape[-1]
    if caches[0].shape != caches[1].shape or 2 * half > size:
        raise node.error(f"caches of shapes {caches[0].shape} and {caches[1].shape} for heads of {size}", "half a head")
    rows = [g.gather(cache, positions, 0) for cache in caches]
    cos, sin = (g.reshape(row, (row.shape[0], 1, *row.shape[1:])) for row in rows)
    turned, kept = g.narrow(x, 3, 0, 2 * half), g.narrow(x, 3, 2 * half, size - 2 * half) if size > 2 * half else None
    if interleaved:
        pairs = g.reshape(turned, (*x.shape[:3], half, 2))
        a, b = (g.entry(pairs, 4, n) for n in (0, 1))
    else:
        a, b = (g.narrow(turned, 3, n, half) for n in (0, half))
    first, second = g.sub(g.mul(a, cos), g.mul(b, sin)), g.add(g.mul(a, sin), g.mul(b, cos))
    if interleaved:
        y = g.reshape(g.stack([first, second], 4), (*x.shape[:3], 2 * half))
    else:
        y = g.concat([first, second], 3)
    return y if kept is None else g.concat([y, kept], 3)


MASKED = -10000.0
"""Added to a score where nothing else is asked for."""


@converts("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Queries, keys and values by heads, of `[batch, sequence, heads * size]`, packed into one, or keys and values by
    heads already. The present keys and values are the past ones and the new ones; a past has room for those where
    `past_sequence_length` says how much of it there is."""
    _refuse(node, 9, "cache_indirection")
    heads = _heads(node, "num_heads")
    q, k, v = packed_heads(node, g, heads)
    begin, pasts = _begin(node, g, 8), [node.optional(6), node.optional(7)]
    _check_past(node, begin, pasts)
    k, v = (_with_past(g, past, new, begin, 2) for past, new in zip(pasts, (k, v), strict=True))
    y = _attention(node, g, (q, k, v), node.optional(4), node.optional(5), begin)
    return [joined(g, y), k, v]


def _begin(node: Node, g: GraphBuilder, index: int) -> Tensor | None:
    """How many elements of a past there are that has room for more, a scalar of i64; None for one that grows."""
    given = node.optional(index)
    if given is None:
        return None
    if given.shape not in ((), (1,)):
        raise node.error(f"input {index} ('past_sequence_length') of shape {given.shape}", "one number")
    return g.cast(g.reshape(given, ()), i64)


def _check_past(node: Node, begin: Tensor | None, pasts: Sequence[Tensor | None]) -> None:
    missing = sum(past is None for past in pasts)
    if missing not in (0, len(pasts)) or (missing and begin is not None):
        raise node.error("keys or values of a past are missing", "both, or neither and no 'past_sequence_length'")
    for past in pasts if begin is not None else ():
        if past is not None and isinstance(past.shape[-2], Extent):
            raise node.error(
                f"a past of {past.shape[-2]} that has room", "a static extent, or no 'past_sequence_length'"
            )


def _with_past(g: GraphBuilder, past: Tensor | None, new: Tensor, begin: Tensor | None, dim: int) -> Tensor:
    """Keys, values or both behind those of a past, or from a position on in one that has room."""
    if past is None:
        return new
    return concatenated(g, [past, new], dim) if begin is None else _appended(g, past, new, begin, past.shape[dim], dim)


@converts("Attention", domain=DOMAIN)
def attention(node: Node, g: GraphBuilder) -> list[Tensor]:
    """The projection of the input to queries, keys and values, then attention; the past and the present hold keys and
    values one after the other. A past that is shared with the present has room for what is new."""
    _zero(node, "do_rotary")
    begin, shared = _begin(node, g, 6), node.flag("past_present_share_buffer")
    if shared != (begin is not None):
        accepted = "1 with input 6 ('past_sequence_length'), 0 without it"
        raise node.error(f"attribute 'past_present_share_buffer' is {int(shared)}", accepted)
    node.ignore("rotary_embedding_dim")
    x, weights, bias = node.input(0), node.input(1), node.optional(2)
    if x.rank != 3 or weights.rank != 2:
        raise node.error(f"an input of rank {x.rank}, weights of rank {weights.rank}", "ranks 3 and 2")
    product = matmul(g, x, weights)
    return projected_attention(node, g, product if bias is None else g.add(product, bias), (3, 4, 5), begin)


def projected_attention(
    node: Node, g: GraphBuilder, x: Tensor, inputs: Sequence[int], begin: Tensor | None = None
) -> list[Tensor]:
    """Attention of queries, keys and values that lie one behind the other in the last dimension.

    inputs: the numbers of the mask, the past and the bias of the scores among the node's
    begin: how many elements of the past there are, if it has room for more
    """
    heads, width = _heads(node, "num_heads"), x.shape[-1]
    sizes = node.ints("qkv_hidden_sizes") or [width // 3] * 3
    if len(sizes) != 3 or sum(sizes) != width or sizes[0] != sizes[1] or any(s < 1 or s % heads for s in sizes):
        raise node.error(f"sizes {sizes} of a projection to {width}", f"three multiples of {heads} that add up to it")
    starts = (0, sizes[0], 2 * sizes[0])
    parts = [g.narrow(x, 2, start, size) for start, size in zip(starts, sizes, strict=True)]
    q, k, v = (split_heads(g, part, heads) for part in parts)
    mask, past, bias = (node.optional(n) for n in inputs)
    _check_past(node, begin, [past])
    present: list[Tensor] = []
    if past is not None or any(node.used[1:]):
        present = [_with_past(g, past, g.stack([k, v], 0), begin, 3)]
    k, v = (k, v) if past is None else (g.entry(present[0], 0, n) for n in (0, 1))
    return [joined(g, _attention(node, g, (q, k, v), mask, bias, begin)), *present]


def _attention(
    node: Node,
    g: GraphBuilder,
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    bias: Tensor | None,
    begin: Tensor | None,
) -> Tensor:
    """By the attributes `scale`, `mask_filter_value` and `unidirectional`; rows begin somewhere if keys have room."""
    q, k, v = qkv
    added = None if mask is None else _mask(node, g, mask, q, k, node.float("mask_filter_value", MASKED))
    node.ignore("mask_filter_value")
    if bias is not None:
        added = bias if added is None else g.add(added, bias)
    scale = node.float("scale", 0.0) or 1 / sqrt(q.shape[-1])
    causal = node.flag("unidirectional")
    length = None if begin is None else g.add(begin, g.numbers(q.shape[2]))
    offset = begin if causal else None
    return composed.attention(g, q, k, v, added, scale=scale, causal=causal, length=length, offset=offset)


def _mask(node: Node, g: GraphBuilder, mask: Tensor, q: Tensor, k: Tensor, hidden: float) -> Tensor:
    """What is added to the scores: the filter's value where the mask is 0, or beyond the ends that it names."""
    batch, rows, columns = q.shape[0], q.shape[2], k.shape[2]
    places = g.cast(g.iota(columns), mask.element)
    if mask.shape == (batch, columns) and mask.rank == 2:
        seen = g.reshape(g.binary("gt", mask, 0), (batch, 1, 1, columns))
    elif mask.shape == (batch, rows, columns):
        seen = g.reshape(g.binary("gt", mask, 0), (batch, 1, rows, columns))
    elif mask.shape == (batch,):
        seen = g.binary("lt", places, g.reshape(mask, (batch, 1, 1, 1)))
    elif mask.shape == (2 * batch,):
        ends, starts = (g.reshape(g.narrow(mask, 0, n, batch), (batch, 1, 1, 1)) for n in (0, batch))
        seen = g.binary("and", g.binary("lt", places, ends), g.binary("ge", places, starts))
    else:
        shapes = f"({batch}, {columns}), ({batch}, {rows}, {columns}), ({batch},) or ({2 * batch},)"
        raise node.error(f"a mask of shape {mask.shape}", shapes)
    return g.where(seen, g.scalar(0.0, q), g.scalar(hidden, q))


@converts("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(node: Node, g: GraphBuilder) -> Tensor:
    """Pairs of elements of each head turned by the angle of the position."""
    _zero(node, "is_packed_batching")
    if node.float("scale", 1.0) != 1:
        raise node.error(f"attribute 'scale' is {node.float('scale', 1.0)}", "1")
    x, positions, cos, sin = (node.input(n) for n in range(4))
    turned = node.int("rotary_embedding_dim", 0)
    heads = node.int("num_heads", 0)
    if x.rank not in (3, 4) or cos.rank != 2 or (turned and not heads and x.rank == 3):
        raise node.error(f"an input of rank {x.rank}, a cache of rank {cos.rank}", "ranks 3 or 4, and 2; num_heads")
    size = x.shape[-1] if x.rank == 4 else x.shape[-1] // heads if heads else 2 * cos.shape[1]
    if size < 1 or (x.rank == 3 and x.shape[-1] % size):
        raise node.error(f"heads of {size} elements in rows of {x.shape[-1]}", "a divisor")
    split = x if x.rank == 4 else split_heads(g, x, x.shape[-1] // size)
    y = rotated(node, g, split, _positions(node, g, positions, split), (cos, sin), node.flag("interleaved"))
    return y if x.rank == 4 else joined(g, y)


def _positions(node: Node, g: GraphBuilder, positions: Tensor, x: Tensor) -> Tensor:
    """`[batch, sequence]`, or `[1, sequence]` of one first position."""
    batch, length = x.shape[0], x.shape[2]
    if positions.shape == (1,):
        steps = g.reshape(g.cast(g.iota(length), positions.element), (1, length))
        return g.add(g.reshape(positions, (1, 1)), steps)
    if positions.shape != (batch, length):
        raise node.error(f"positions of shape {positions.shape}", f"(1,) or ({batch}, {length})")
    return positions


@converts("GroupQueryAttention", domain=DOMAIN)
def group_query_attention(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Causal attention of several query heads to one head of keys and values, those of a past before the new ones.

    `seqlens_k` says how many keys each sequence has, less one; without a past it only says which rows are padding, and
    what they hold is not defined. Scores that have a soft cap, and a softmax with a sink, are written out.
    """
    for n, name in {12: "k_scale", 13: "v_scale", 16: "query_seqlens"}.items():
        _refuse(node, n, name)
    _zero(node, "qk_output", "kv_cache_bit_width", "sliding_window_cache")
    if not node.flag("causal", True):
        raise node.error("attribute 'causal' is 0", "1")
    node.ignore("k_quant_type", "v_quant_type")
    q, k, v = _grouped(node, g, _heads(node, "num_heads"), _heads(node, "kv_num_heads"))
    q, k = _normal(node, g, 14, "q", q), _normal(node, g, 15, "k", k)
    how = _Grouped(
        node.float("scale", 0.0) or 1 / sqrt(q.shape[-1]),
        node.int("local_window_size", -1),
        (node.input(7), node.input(8)) if node.flag("do_rotary") else None,
        node.flag("rotary_interleaved"),
        node.float("softcap", 0.0),
        _sink(node, g, q),
    )
    past_k, past_v, positions = node.optional(3), node.optional(4), node.optional(9) if how.caches else None
    if past_k is None and past_v is None:
        q, k = how.rotated(node, g, q, None, positions), how.rotated(node, g, k, None, positions)
        bias = _bias(node, q, k.shape[2])
        return [joined(g, how.attended(g, q, k, v, bias, None, None)), k, v]
    batch = q.shape[0]
    if past_k is None or past_v is None or isinstance(batch, Extent) or batch < 1:
        raise node.error(f"a past of {batch} sequences", "'past_key' and 'past_value' of a static number of sequences")
    if any(x.rank != 4 or (*x.shape[:2], x.shape[3]) != (batch, k.shape[1], k.shape[3]) for x in (past_k, past_v)):
        shapes = f"{past_k.shape} and {past_v.shape}"
        raise node.error(f"a past of {shapes}", f"[{batch}, {k.shape[1]}, past, {k.shape[3]}]")
    totals = g.add(g.cast(g.reshape(node.input(5), (batch,)), i64), 1)
    whole = _present_extent(past_k, k, node.input(6))
    bias = _bias(node, q, whole)
    found: list[list[Tensor]] = []
    for n in range(batch):
        own = [g.narrow(x, 0, n, 1) for x in (q, k, v, past_k, past_v)]
        given = None if positions is None else g.narrow(positions, 0, n, 1)
        added = bias if bias is None or bias.shape[0] == 1 else g.narrow(bias, 0, n, 1)
        found.append(how.with_past(node, g, own, added, g.entry(totals, 0, n), whole, given))
    return [g.concat(list(each), 0) for each in zip(*found, strict=True)]


@dataclass(frozen=True)
class _Grouped:
    """How a GroupQueryAttention scores its rows.

    caches: cosines and sines, if it rotates queries and keys
    sink: the score of what each row's softmax has beside the keys, if it has that
    """

    scale: float
    window: int
    caches: tuple[Tensor, Tensor] | None
    interleaved: bool
    softcap: float
    sink: Tensor | None

    def attended(
        self,
        g: GraphBuilder,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        total: Tensor | None,
        begin: Tensor | None,
    ) -> Tensor:
        """The result by heads, of `total` keys where not all count, and rows that begin at a position."""
        mask = _window(g, q, k, begin, self.window)
        if bias is not None:
            mask = bias if mask is None else g.add(bias, mask)
        return composed.attention(
            g, q, k, v, mask, scale=self.scale, softcap=self.softcap, sink=self.sink, causal=True, length=total,
            offset=begin,
        )  # fmt: skip

    def rotated(self, node: Node, g: GraphBuilder, x: Tensor, begin: Tensor | None, positions: Tensor | None) -> Tensor:
        """Queries or keys, turned by their positions: those given, or from the beginning on."""
        if self.caches is None:
            return x
        places = g.iota(x.shape[2]) if begin is None else g.add(g.iota(x.shape[2]), begin)
        rows = positions or g.reshape(places, (1, x.shape[2]))
        return rotated(node, g, x, rows, self.caches, self.interleaved)

    def with_past(
        self,
        node: Node,
        g: GraphBuilder,
        operands: Sequence[Tensor],
        bias: Tensor | None,
        total: Tensor,
        whole: Symbolic,
        positions: Tensor | None,
    ) -> list[Tensor]:
        """One sequence of queries, keys, values, and keys and values of its past, with `total` keys in all, in tensors
        of `whole` ones; its result and present keys and values. A first prompt has no past, and may end with padding.
        """
        q, k, v, past_k, past_v = operands
        begin = g.binary("max", g.sub(total, g.numbers(q.shape[2])), 0)
        q, k = (self.rotated(node, g, x, begin, positions) for x in (q, k))
        k, v = _appended(g, past_k, k, begin, whole, 2), _appended(g, past_v, v, begin, whole, 2)
        return [joined(g, self.attended(g, q, k, v, bias, total, begin)), k, v]


def _present_extent(past: Tensor, new: Tensor, total: Tensor) -> Symbolic:
    """A past whose extent changes grows; another has room for what is new, unless all keys are known to be more."""
    room = past.shape[2]
    if isinstance(room, Extent):
        return room + new.shape[2]
    known = total.array if total.elements is None else total.elements
    count = room if known is None else symbols_in(np.asarray(known, np.object_).reshape(1))[0]
    return room if isinstance(count, Extent) else max(room, int(count))


def _appended(g: GraphBuilder, past: Tensor, new: Tensor, begin: Tensor, whole: Symbolic, dim: int) -> Tensor:
    """Keys or values with new ones from a position on, in a tensor of so many along the last dimension but one."""
    room, count = past.shape[dim], new.shape[dim]
    if past.ssa in g.states and (isinstance(room, Extent) or room == whole):
        return g.append(past, new, begin, dim)
    places = g.sub(g.iota(whole), begin)
    inside = g.binary("and", g.binary("ge", places, 0), g.binary("lt", places, g.numbers(count)))
    fresh = g.gather(new, places, dim, laid_out=True)
    if room == 0:
        return fresh
    older = past if room is whole or room == whole else g.gather(past, g.iota(whole), dim, laid_out=True)
    return g.where(g.reshape(inside, (whole, 1)), fresh, older)


def _grouped(node: Node, g: GraphBuilder, heads: int, groups: int) -> list[Tensor]:
    """Queries, keys and values by heads, which may lie one behind the other in the first input."""
    q, k, v = node.input(0), node.optional(1), node.optional(2)
    counts = [heads, groups, groups]
    if q.rank != 3:
        raise node.error(f"queries of rank {q.rank}", "[batch, sequence, heads * size]")
    if k is None or v is None:
        size, rest = divmod(q.shape[-1], sum(counts))
        if rest:
            message = f"rows of {q.shape[-1]} for {heads} and twice {groups} heads"
            raise node.error(message, f"a multiple of {sum(counts)}")
        starts = (0, heads * size, (heads + groups) * size)
        parts = [g.narrow(q, 2, start, n * size) for start, n in zip(starts, counts, strict=True)]
    else:
        parts = [q, k, v]
    for part, count in zip(parts, counts, strict=True):
        if part.rank != 3 or part.shape[-1] % count or part.shape[:2] != q.shape[:2]:
            raise node.error(f"an operand of shape {part.shape} for {count} heads", "rows of whole heads")
    return [split_heads(g, part, count) for part, count in zip(parts, counts, strict=True)]


def _bias(node: Node, q: Tensor, keys: Symbolic) -> Tensor | None:
    """What is added to the scores `[batch, heads, rows, keys]`."""
    bias = node.optional(10)
    if bias is None:
        return None
    scores = (*q.shape[:3], keys)
    fits = bias.rank == 4 and all(b in (1, s) for b, s in zip(bias.shape[:2], scores[:2], strict=True))
    if not fits or bias.shape[2:] != scores[2:]:
        raise node.error(f"input 10 ('attention_bias') of shape {bias.shape}", f"{scores}, the first two or 1")
    return bias


def _normal(node: Node, g: GraphBuilder, index: int, name: str, x: Tensor) -> Tensor:
    """Queries or keys whose heads are divided by the root of their mean square, where a weight for that is given."""
    weight = node.optional(index)
    epsilon = node.float("qk_norm_epsilon", 1e-6)
    if node.has(f"{name}_norm_epsilon"):
        epsilon = node.float(f"{name}_norm_epsilon", 1e-6)
    if weight is None:
        return x
    if weight.shape != (x.shape[3],):
        raise node.error(f"input {index} ('{name}_norm_weight') of shape {weight.shape}", (x.shape[3],))
    return composed.rms_norm(g, x, [3], weight, epsilon)


def _sink(node: Node, g: GraphBuilder, q: Tensor) -> Tensor | None:
    """The score of the sink of each head, or 0 of all where the softmax is smooth."""
    sink, smooth = node.optional(11), node.int("smooth_softmax", 0) > 0
    if sink is None:
        return g.scalar(0.0, q) if smooth else None
    if sink.shape != (q.shape[1],):
        raise node.error(f"input 11 ('head_sink') of shape {sink.shape}", (q.shape[1],))
    return g.reshape(sink, (q.shape[1], 1, 1))


def _window(g: GraphBuilder, q: Tensor, k: Tensor, begin: Tensor | None, window: int) -> Tensor | None:
    """A mask that hides what is further back than the window; None where it has no end. Rows begin at a position."""
    rows, keys = q.shape[2], k.shape[2]
    if window < 0 or window >= bound_of(keys):
        return None
    row = g.reshape(g.iota(rows) if begin is None else g.add(g.iota(rows), begin), (rows, 1))
    near = g.binary("gt", g.iota(keys), g.sub(row, window))
    return g.where(near, g.scalar(0.0, q), g.scalar(-inf, q))


def _heads(node: Node, name: str) -> int:
    count = node.int(name, 0)
    if count < 1:
        raise node.error(f"attribute '{name}' is {count}", "a number from 1 upwards")
    return count


def _refuse(node: Node, index: int, name: str) -> None:
    if node.optional(index) is not None:
        raise node.error(f"input {index} ('{name}') is given", "no such input")


def _zero(node: Node, *names: str) -> None:
    """Attributes that have to be 0."""
    for name in names:
        value = node.int(name, 0)
        if value:
            raise node.error(f"attribute '{name}' is {value}", "0")
