"""Attention as one operator: AOTAutograd would decompose it before a converter sees it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

_SCHEMA = """(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0,
    bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"""


def _in_pytorch(*args: Any, **kwargs: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(*args, **kwargs)


_ATTENTION: Any = torch.library.custom_op(
    "treadle::scaled_dot_product_attention", _in_pytorch, mutates_args=(), schema=_SCHEMA
)
"""Has no derivative."""
_ATTENTION.register_fake(_in_pytorch)


def with_whole_attention(graph: fx.GraphModule) -> fx.GraphModule:
    """Replaces `scaled_dot_product_attention` of a graph of PyTorch's compiler by an operator that stays whole."""
    whole = torch.ops.treadle.scaled_dot_product_attention.default
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is F.scaled_dot_product_attention:
            node.target = whole
    graph.recompile()
    return graph


__all__ = ["with_whole_attention"]
