"""The backend of torch.compile, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._guards import TracingContext

from treadle.errors import TreadleError
from treadle.frontends.torch.export import decompositions
from treadle.torch_backend.attention import with_whole_attention
from treadle.torch_backend.shapes import GraphOfShapes, warn_in_pytorch


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


__all__ = ["treadle"]
