"""A part of a graph as a compiled model that is called with tensors, and gives tensors with PyTorch's strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from xdsl.dialects.builtin import ModuleOp

from treadle.api import compile as compile_model
from treadle.frontends.torch.arrays import array_of, tensor_of
from treadle.frontends.torch.importer import Constants, import_graph
from treadle.torch_backend.layout import Layout


@dataclass(frozen=True)
class ImportedPart:
    """A part as graph operators.

    taken:   positions of the inputs that are tensors, and no constants, and the types that the graph says they have
    results: the layout of each result
    alone:   whether the part gives its only result instead of a tuple
    """

    module: ModuleOp
    taken: Sequence[tuple[int, torch.dtype]]
    results: Sequence[Layout]
    alone: bool

    @staticmethod
    def of(graph: fx.Graph, constants: Constants) -> ImportedPart:
        """UnsupportedNodes if there are nodes that cannot be converted."""
        output = next(node for node in graph.nodes if node.op == "output")
        (returned,) = output.args
        nodes = [returned] if isinstance(returned, fx.Node) else list(cast("Sequence[fx.Node]", returned))
        layouts = [Layout.of(node.meta["val"]) for node in nodes]
        written = [layout.written(graph, node) for layout, node in zip(layouts, nodes, strict=True)]
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        variable = [(n, node) for n, node in enumerate(placeholders) if node.name not in constants]
        taken = [(n, node.meta["val"].dtype) for n, node in variable]
        module = import_graph(graph, constants, [node.name for node in written])
        return ImportedPart(module, taken, layouts, isinstance(returned, fx.Node))


class CompiledPart(torch.nn.Module):
    """A compiled part: what the submodule that it replaces computes."""

    def __init__(self, part: ImportedPart):
        super().__init__()
        self._part = part
        self._model = compile_model(part.module)

    def forward(self, *inputs: Any) -> Any:
        """The results of the part. What PyTorch computes may have another type than its graph says (statistics)."""
        taken = [(n, inputs[n].to(dtype)) for n, dtype in self._part.taken]
        arrays = self._model(*(array_of(x, f"input {n}") for n, x in taken))
        results = [how.tensor(tensor_of(array)) for how, array in zip(self._part.results, arrays, strict=True)]
        return results[0] if self._part.alone else tuple(results)


__all__ = ["CompiledPart", "ImportedPart"]
