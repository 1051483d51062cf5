"""The comments above a kernel in the printed text: the nodes of the model that it computes, and how."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import LocationAttr, ModuleOp, StringAttr
from xdsl.ir import Operation

from treadle.backends.c_like.names import comment_text
from treadle.dialects.host import LaunchOp
from treadle.dialects.model_nodes import describe_nodes, fused_location

Nodes = Mapping[str, LocationAttr]
"""The nodes that kernels compute, by the kernels' symbols."""


def launched_nodes(module: ModuleOp) -> Nodes:
    """The nodes that each kernel computes in one of its launches."""
    locations: dict[str, list[LocationAttr]] = {}
    for op in module.walk():
        if isinstance(op, LaunchOp):
            locations.setdefault(op.kernel.string_value(), []).append(op.location)
    return {symbol: fused_location(found) for symbol, found in locations.items()}


def kernel_comments(kernel: Operation, nodes: LocationAttr) -> list[str]:
    """The lines above a kernel, for the inside of comments."""
    how = kernel.attributes.get("comment")
    texts = [describe_nodes(nodes), how.data if isinstance(how, StringAttr) else ""]
    return [comment_text(text) for text in texts if text]
