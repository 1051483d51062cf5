"""The backend of torch.compile, and its options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from treadle.torch_backend.partition import partitioned, runs_whole, with_plain_operators, with_whole_attention
from treadle.torch_backend.ranges import Plan, SymbolSources, Values

# A graph with what was compiled of it, by the extents of its inputs.

_log = logging.getLogger("treadle.torch_backend")


def warn_in_pytorch(reason: str) -> None:
    """Says that a graph runs in PyTorch."""
    _log.warning("a graph runs in PyTorch: %s", reason)


@dataclass(frozen=True)
class Options:
    """What a caller of torch.compile chose; see `treadle`."""

    freeze: bool = False
    largest: int | None = None
    patience: int = 0

    @staticmethod
    def of(mode: str | None, options: Mapping[str, object] | None) -> Options:
        """TreadleError for a mode, and for options that there are not."""
        accepted = 'options={"freeze": True, "largest": 2048, "patience": 1}, or some of them'
        if mode is not None:
            raise TreadleError(f"mode is '{mode}'", "torch.compile", f"no mode; {accepted}")
        given = dict(options or {})
        freeze, largest, patience = given.pop("freeze", False), given.pop("largest", None), given.pop("patience", 0)
        numbers = [number for number in (largest, patience) if number is not None]
        wrong = any(type(number) is not int or number < 0 for number in numbers) or largest == 0
        if given or wrong or not isinstance(freeze, bool):
            raise TreadleError(f"options are {options}", "torch.compile", accepted)
        return Options(freeze, cast("int | None", largest), cast("int", patience))


class GraphOfShapes:
    """A graph of ATen operators without side effects. Where PyTorch left extents open, an artifact serves a range of
    them (docs/adr/0081), or, if an operator has no range, each shape of its inputs is compiled when it first comes.

    constants: positions of inputs whose elements are compiled in, and compared by address and PyTorch's count of
        changes at every call
    """

    _boxed_call = True
    """For AOTAutograd: one list of arguments, which is emptied."""

    def __init__(self, graph: fx.GraphModule, constants: Sequence[int], options: Options):
        self._graph = graph
        self._constants = constants
        self._options = options
        self._waited = 0
        self._dynamic = any(_is_dynamic(node.meta.get("val")) for node in graph.graph.nodes)
        self._sources = SymbolSources.of(graph.graph) if self._dynamic else None
        self._plans: list[Plan] = []
        self._has_ranges = self._sources is not None
        self._compiled: dict[object, tuple[fx.GraphModule, list[torch.Tensor]]] = {}
        """With the constants, so that no other tensor gets their addresses."""

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        given = tuple(inputs)
        inputs.clear()
        values = None if self._sources is None else self._sources.values(given)
        plan = next((plan for plan in self._plans if values is not None and plan.serves(values)), None)
        shapes: object = plan or (tuple(map(_shape, given)) if self._dynamic else ())
        constants = [given[n] for n in self._constants]
        key = (shapes, tuple(map(_identity, constants)))
        found = self._compiled.get(key)
        if found is None and self._waited < self._options.patience:
            self._waited += 1
            return self._graph(*given)
        if found is None and values is not None and plan is None and self._has_ranges:
            plan = self._planned(values, given, constants)
            found = None if plan is None else self._compiled[(plan, key[1])]
        if found is None:
            self._compiled = {k: c for k, c in self._compiled.items() if cast("tuple[object, object]", k)[0] != shapes}
            found = self._compiled[key] = (self._compile(given, plan), constants)
        if plan is not None and values is not None:
            plan.current.values = {name: values[name] for name in plan.ranges.dims.dims}
        return found[0](*given)

    def _planned(self, values: Values, inputs: Sequence[Any], constants: list[torch.Tensor]) -> Plan | None:
        """A new plan for a call, compiled; None where an operator has no range: then no more are made."""
        assert self._sources is not None
        try:
            plan = Plan.of(self._sources, values, self._options.largest, self._plans)
            graph = self._compile(inputs, plan)
        except TreadleError as error:
            _log.warning("each shape of a graph is compiled anew: %s", error)
            self._has_ranges = False
            return None
        dims = ", ".join(map(str, plan.ranges.dims.dims.values()))
        _log.info("compiled a graph for %s (artifact %d of the graph)", dims, len(self._plans) + 1)
        self._plans.append(plan)
        self._compiled[(plan, tuple(map(_identity, constants)))] = graph, constants
        return plan

    def _compile(self, inputs: Sequence[Any], plan: Plan | None) -> fx.GraphModule:
        graph = _specialised(self._graph, inputs) if self._dynamic and plan is None else self._graph
        refusal = runs_whole(graph.graph)
        if refusal is not None:
            warn_in_pytorch(refusal)
            return graph
        placeholders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        known: Constants = {placeholders[n]: (placeholders[n], inputs[n]) for n in self._constants}
        return partitioned(graph, known, plan)


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
        through `.data` or another library's view of the memory. `largest`: the largest extent that an artifact is made
        for where PyTorch left it open; a call beyond it makes another, for twice that. `patience`: so many calls of a
        graph run in PyTorch before it is compiled.

    The graph of the gradients, where there are any, runs in PyTorch. TreadleError: an unknown option, any mode.
    """
    chosen = Options.of(mode, options)

    def forward(lowered: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return GraphOfShapes(with_plain_operators(lowered), _constants() if chosen.freeze else (), chosen)

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
