"""A graph with what was compiled of it, by the extents of its inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from treadle.frontends.torch.importer import Constants
from treadle.torch_backend.partition import partitioned, runs_whole

_log = logging.getLogger("treadle.torch_backend")


def warn_in_pytorch(reason: str) -> None:
    """Says that a graph runs in PyTorch."""
    _log.warning("a graph runs in PyTorch: %s", reason)


class GraphOfShapes:
    """A graph of ATen operators without side effects; each shape of its inputs is compiled when it first comes.

    constants: positions of inputs whose elements are compiled in, and compared by address and PyTorch's count of
        changes at every call
    """

    _boxed_call = True
    """For AOTAutograd: one list of arguments, which is emptied."""

    def __init__(self, graph: fx.GraphModule, constants: Sequence[int]):
        self._graph = graph
        self._constants = constants
        self._dynamic = any(_is_dynamic(node.meta.get("val")) for node in graph.graph.nodes)
        self._compiled: dict[object, tuple[fx.GraphModule, list[torch.Tensor]]] = {}
        """With the constants, so that no other tensor gets their addresses."""

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        shapes = tuple(map(_shape, inputs)) if self._dynamic else ()
        constants = [inputs[n] for n in self._constants]
        key = (shapes, tuple(map(_identity, constants)))
        found = self._compiled.get(key)
        if found is None:
            self._compiled = {k: c for k, c in self._compiled.items() if cast("tuple[object, object]", k)[0] != shapes}
            found = self._compiled[key] = (self._compile(inputs), constants)
        given = tuple(inputs)
        inputs.clear()
        return found[0](*given)

    def _compile(self, inputs: Sequence[Any]) -> fx.GraphModule:
        graph = _specialised(self._graph, inputs) if self._dynamic else self._graph
        refusal = runs_whole(graph.graph)
        if refusal is not None:
            warn_in_pytorch(refusal)
            return graph
        placeholders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        known: Constants = {placeholders[n]: (placeholders[n], inputs[n]) for n in self._constants}
        return partitioned(graph, known)


def _is_dynamic(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        extents = (*value.shape, *value.stride(), value.storage_offset())
        return any(isinstance(extent, torch.SymInt) for extent in cast("Sequence[object]", extents))
    if isinstance(value, (tuple, list)):
        return any(map(_is_dynamic, cast("Sequence[object]", value)))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _shape(value: object) -> object:
    """What the extents of a graph depend on, of one input."""
    if not isinstance(value, torch.Tensor):
        return value
    return (tuple(value.shape), value.stride(), value.storage_offset())


def _identity(value: torch.Tensor) -> tuple[object, ...]:
    version = 0 if value.is_inference() else value._version  # pyright: ignore[reportPrivateUsage]
    return (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype, version)


def _specialised(graph: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph for the shapes and numbers of these inputs."""
    run: Callable[..., Any] = fx.Interpreter(graph).run
    with torch.no_grad(), preserve_node_meta():
        return make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


__all__ = ["GraphOfShapes", "warn_in_pytorch"]
