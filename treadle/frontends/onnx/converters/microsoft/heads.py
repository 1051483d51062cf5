"""Queries, keys and values by heads: `[batch, heads, sequence, size]`."""

from __future__ import annotations

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.node import Node


def split_heads(g: GraphBuilder, x: Tensor, heads: int) -> Tensor:
    """`[batch, sequence, heads * size]` by heads."""
    split = g.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))
    return g.transpose(split, (0, 2, 1, 3))


def joined(g: GraphBuilder, x: Tensor) -> Tensor:
    """The heads of a position one behind the other again."""
    batch, heads, length, size = x.shape
    return g.reshape(g.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


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


def past_and_new(node: Node, g: GraphBuilder, index: int, new: Tensor) -> Tensor:
    """Keys or values of the past, an input, before the new ones."""
    past = node.optional(index)
    return new if past is None else g.concat([past, new], 2)


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


__all__ = ["joined", "packed_heads", "past_and_new", "rotated", "split_heads"]
