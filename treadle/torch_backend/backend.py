"""The backend of torch.compile, and its options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._guards import TracingContext
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from treadle.errors import TreadleError
from treadle.frontends.torch.importer import Constants, decompositions
from treadle.torch_backend.partition import partitioned, runs_whole, with_whole_attention

# A graph with what was compiled of it, by the extents of its inputs.

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


def treadle(
    graph: fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Any = None
) -> Callable[..., Any]:
    """A callable for a graph of PyTorch's compiler.

    options: `freeze`: parameters and buffers are constants. Changes are seen where PyTorch counts them, not those
        through `.data` or another library's view of the memory.

    The graph of the gradients, where there are any, runs in PyTorch. TreadleError: an unknown option, any mode.
    """
    freeze = _freeze(mode, options)

    def forward(lowered: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return GraphOfShapes(lowered, _constants() if freeze else ())

    if not _needs_gradients(graph, example_inputs):
        graph = with_whole_attention(graph)
    compile_graph = aot_autograd(
        fw_compiler=forward,
        bw_compiler=_in_pytorch,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
    )
    try:
        return compile_graph(graph, example_inputs)
    except TorchDynamoException:
        raise
    except Exception as error:
        warn_in_pytorch(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        return graph.forward


def _freeze(mode: str | None, options: Mapping[str, object] | None) -> bool:
    """The option `freeze`; TreadleError for others."""
    accepted = 'options={"freeze": True}'
    if mode is not None:
        raise TreadleError(f"mode is '{mode}'", "torch.compile", f"no mode; {accepted}")
    given = dict(options or {})
    freeze = given.pop("freeze", False)
    if given or not isinstance(freeze, bool):
        raise TreadleError(f"options are {options}", "torch.compile", accepted)
    return freeze


def _needs_gradients(graph: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    tensors = [each for each in (*inputs, *graph.parameters()) if isinstance(each, torch.Tensor)]
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def _constants() -> Sequence[int]:
    """Positions of the inputs of the graph that is being compiled that are parameters and buffers."""
    context = TracingContext.try_get()
    metadata: Any = None if context is None else context.fw_metadata
    if metadata is None:
        return ()
    changed = set(metadata.mutated_inp_runtime_indices)
    return [n for n in metadata.static_input_indices if n not in changed]


def _in_pytorch(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return make_boxed_func(graph.forward)
