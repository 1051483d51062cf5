"""Attention of ONNX's own domain, with a past that may be a state."""

from __future__ import annotations

from math import inf, sqrt

from onnx import TensorProto
from xdsl.dialects.builtin import f64, i1

from treadle.frontends.common import composed
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import joined, split_heads
from treadle.frontends.common.extent import is_symbolic
from treadle.frontends.common.window import concatenated
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node


@converts("Attention", since=23)
def attention(node: Node, g: GraphBuilder) -> list[Tensor] | None:
    """As `graph.attention`, its products and its softmax written out if scores have a soft cap.

    Left to ONNX's definition is what that cannot say: the output of scores, softmax in f64, windows, values of another
    type than keys, numbers of keys that are data for several sequences, and masks of fewer keys over a range.
    """
    if _needs_definition(node):
        return None
    node.ignore("softmax_precision", "qk_matmul_output_mode")
    q, k, v, sequences = _by_heads(node, g)
    past_k, past_v, given = node.optional(4), node.optional(5), node.optional(6)
    if (past_k is None) != (past_v is None):
        raise node.error("one of 'past_key' and 'past_value' is given", "both, or neither")
    if past_k is not None and past_v is not None:
        k, v = concatenated(g, [past_k, k], 2), concatenated(g, [past_v, v], 2)
    rows, keys = q.shape[2], k.shape[2]
    mask = None if node.optional(3) is None else _added(g, node.input(3), k, q)
    causal, softcap = node.flag("is_causal"), node.float("softcap", 0.0)
    length = None if given is None else g.reshape(given, ())
    offset = None
    if causal and past_k is None and (length is not None or rows != keys):
        offset = g.numbers(0) if length is None else g.sub(length, g.numbers(rows))
    scale = node.optional_float("scale")
    scale = 1 / sqrt(q.shape[3]) if scale is None else scale
    # Rows that see nothing are zeros.
    guard = mask is not None or length is not None
    y = composed.attention(
        g, q, k, v, mask, scale=scale, softcap=max(softcap, 0.0), causal=causal, guard=guard, length=length,
        offset=offset,
    )  # fmt: skip
    return [joined(g, y) if sequences else y, k, v]


def _needs_definition(node: Node) -> bool:
    q, k, v = (node.input(n) for n in range(3))
    mask, past, given = (node.optional(n) for n in (3, 4, 6))
    if len({x.element for x in (q, k, v)}) > 1 or any(node.used[3:]):
        return True
    if node.int("softmax_precision", 0) == TensorProto.DOUBLE and q.element != f64:
        return True
    if node.int("left_window_size", -1) >= 0 or node.int("right_window_size", -1) >= 0:
        return True
    if given is not None and (given.shape != (1,) or past is not None):
        return True
    keys = k.shape[k.rank - 2] + (0 if past is None else past.shape[2])
    if mask is None:
        return False
    if mask.rank == 0 or not (mask.is_float or mask.element == i1):
        return True
    return mask.shape[-1] != keys and is_symbolic((mask.shape[-1], keys))


def _by_heads(node: Node, g: GraphBuilder) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Queries, keys and values of rank 4, and whether they were sequences of rank 3."""
    heads, groups = node.int("q_num_heads", 0), node.int("kv_num_heads", 0)
    parts = [node.input(n) for n in range(3)]
    if all(x.rank == 4 for x in parts):
        return parts[0], parts[1], parts[2], False
    counts = (heads, groups, groups)
    for x, count in zip(parts, counts, strict=True):
        if x.rank != 3 or count < 1 or x.shape[2] % count:
            shown = f"an operand of shape {x.shape} for {heads} heads of queries and {groups} of keys"
            raise node.error(shown, "three of rank 4, or of rank 3 with rows of whole heads")
    q, k, v = (split_heads(g, x, count) for x, count in zip(parts, counts, strict=True))
    return q, k, v, True


def _added(g: GraphBuilder, mask: Tensor, k: Tensor, q: Tensor) -> Tensor:
    """What a mask adds to the scores; keys that it leaves out are hidden."""
    if mask.element == i1:
        mask = g.where(mask, g.scalar(0.0, q), g.scalar(-inf, q))
    missing = 0 if mask.shape[-1] == k.shape[2] else int(k.shape[2] - mask.shape[-1])
    return g.pad(mask, [*[0] * (2 * mask.rank - 1), missing], -inf)
