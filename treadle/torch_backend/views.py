"""Nodes whose results are views of their operands."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx


def is_item(node: fx.Node) -> bool:
    """Whether a node is one of several results of another."""
    return node.op == "call_function" and node.target is operator.getitem


def is_view(node: fx.Node) -> bool:
    """Whether PyTorch makes a node's result a view of the memory of its operand."""
    if is_item(node):
        return is_view(node.all_input_nodes[0])
    if node.target is torch.ops.aten._unsafe_view.default:
        return True
    schema: Any = getattr(node.target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)


__all__ = ["is_item", "is_view"]
