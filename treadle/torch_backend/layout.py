"""How a result lies in memory, which PyTorch's compiler knows before it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx


@dataclass(frozen=True)
class Layout:
    """Shape and strides of a result.

    order: the dimensions from the outermost to the innermost where the elements lie without gaps, else None: such a
        result is computed in row-major order and copied
    """

    shape: Sequence[int]
    strides: Sequence[int]
    order: Sequence[int] | None

    @staticmethod
    def of(value: torch.Tensor) -> Layout:
        """The layout of a result of static shape."""
        shape, strides = tuple(value.shape), value.stride()
        order = sorted(range(len(shape)), key=lambda d: (-strides[d], shape[d] == 1, d))
        dense = not value.numel() or torch.ops.aten.is_non_overlapping_and_dense(value)
        return Layout(shape, strides, order if dense else None)

    def written(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        """The node with the elements of a result in the order in which they lie in memory."""
        if self.order is None or list(self.order) == sorted(self.order):
            return node
        with graph.inserting_before(next(each for each in graph.nodes if each.op == "output")):
            permuted = graph.call_function(torch.ops.aten.permute.default, (node, list(self.order)))
        permuted.meta.update(node.meta, val=node.meta["val"].permute(self.order))
        return permuted

    def tensor(self, written: torch.Tensor) -> torch.Tensor:
        """The result, of the elements that were written in that order."""
        if self.order is None:
            return torch.empty_strided(self.shape, self.strides, dtype=written.dtype).copy_(written)
        if written.shape == self.shape and written.stride() == self.strides:
            return written
        return written.as_strided(self.shape, self.strides)


__all__ = ["Layout"]
