"""`torch.compile(model, backend="treadle")`: graphs of PyTorch's compiler as compiled models, for inference.

Each shape of a graph's inputs is compiled when it first comes. Parameters and buffers become constants; after a change
of one the graph is compiled anew. Nodes that Treadle cannot convert run in PyTorch, what is between them as compiled
models, with one warning that names their operators.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from treadle.api import compile as compile_model
from treadle.errors import TreadleError
from treadle.frontends.torch.arrays import array_of, tensor_of
from treadle.frontends.torch.export import decomposed, export
from treadle.frontends.torch.importer import Constants, UnsupportedNodes, import_graph

_log = logging.getLogger(__name__)

Run = Callable[[Sequence[Any]], list[Any]]
"""The results of a graph, for all of its inputs in order."""


def treadle(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The backend: a callable for a graph, whose examples are not looked at: shapes are those of each call."""
    return _Graph(graph)


class _Graph:
    """A graph, with what was compiled of it by the shapes of the inputs."""

    def __init__(self, graph: fx.GraphModule):
        self._graph = graph
        self._compiled: dict[object, tuple[Run, list[Any]]] = {}
        """With the constants, so that no other tensor gets their addresses."""

    def __call__(self, *inputs: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
            return cast("Any", _Inference).apply(self._run, *inputs)
        return self._run(*inputs)

    def _run(self, *inputs: Any) -> Any:
        key = tuple(map(_identity, inputs))
        found = self._compiled.get(key)
        if found is None:
            self._compiled = {k: r for k, r in self._compiled.items() if _shapes(k) != _shapes(key)}
            found = self._compiled[key] = (_compiled(self._graph, inputs), [x for x in inputs if _is_constant(x)])
        return tuple(found[0](inputs))


class _Inference(torch.autograd.Function):
    """A graph whose results have no gradient: asking for one is an error."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], *inputs: Any) -> Any:
        """The graph's results."""
        return run(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """TreadleError."""
        raise TreadleError("a gradient through a compiled graph", "torch.compile", "inference, without backward()")


def _is_constant(value: object) -> bool:
    """Whether an input is a parameter, or another tensor that PyTorch's compiler knows to belong to the module."""
    if not isinstance(value, torch.Tensor):
        return False
    return isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None


def _identity(value: object) -> tuple[object, ...]:
    """What a compiled graph depends on: the elements of constants, the shapes of other tensors, numbers."""
    if not isinstance(value, torch.Tensor):
        return ("number", value)
    if not _is_constant(value):
        return ("shape", tuple(value.shape), value.dtype)
    version = 0 if value.is_inference() else value._version  # pyright: ignore[reportPrivateUsage]
    return ("constant", value.data_ptr(), tuple(value.shape), value.dtype, version)


def _shapes(key: object) -> object:
    return tuple(each for each in cast("tuple[tuple[object, ...], ...]", key) if each[0] != "constant")


def _compiled(graph: fx.GraphModule, inputs: Sequence[Any]) -> Run:
    """A graph for inputs like these; PyTorch itself where it cannot be exported."""
    try:
        program = decomposed(export(graph, inputs))
    except TreadleError as error:
        _log.warning("a graph runs in PyTorch: %s", error)
        return lambda given: list(graph(*given))
    places = _places(program, len(inputs))
    held = {**program.state_dict, **program.constants}
    constants: dict[str, tuple[str, torch.Tensor]] = {}
    for spec, place in zip(program.graph_signature.input_specs, places, strict=True):
        value: object = inputs[place] if place is not None else held.get(spec.target or "")
        if isinstance(value, torch.Tensor) and (place is None or _is_constant(value)):
            constants[spec.arg.name] = (spec.target or spec.arg.name, value)
    return _Program.of(program, constants, places)


def _places(program: ExportedProgram, count: int) -> list[int | None]:
    """For each input of the program, the position of the graph's input that it is, None for what the program holds."""
    numbers = iter(range(count))
    kinds = [spec.kind for spec in program.graph_signature.input_specs]
    return [next(numbers) if kind == InputKind.USER_INPUT else None for kind in kinds]


@dataclass(frozen=True)
class _Program:
    """A program whose inputs are those of the graph and what it holds itself.

    results: for each result, the position of the input that it replaces, -1 for one that is returned, None for a token
    """

    run: Callable[..., Any]
    given: Sequence[int | torch.Tensor | None]
    results: Sequence[int | None]

    @staticmethod
    def of(program: ExportedProgram, constants: Constants, places: Sequence[int | None]) -> Run:
        signature = program.graph_signature
        names = {spec.arg.name: n for n, spec in zip(places, signature.input_specs, strict=True)}
        given = [
            place if place is not None else constants[spec.arg.name][1] if spec.arg.name in constants else None
            for place, spec in zip(places, signature.input_specs, strict=True)
        ]
        results = [
            names[spec.target or ""] if spec.kind == OutputKind.USER_INPUT_MUTATION
            else -1 if spec.kind == OutputKind.USER_OUTPUT else None
            for spec in signature.output_specs
        ]  # fmt: skip
        return _Program(_callable(program.graph_module, constants), given, results)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        results = self.run(*(inputs[x] if isinstance(x, int) else x for x in self.given))
        kept: list[Any] = []
        for result, place in zip(results, self.results, strict=True):
            if place == -1:
                kept.append(result)
            elif place is not None:
                inputs[place].copy_(result)
        return kept


def _callable(graph: fx.GraphModule, constants: Constants) -> Callable[..., Any]:
    """A graph of ATen operators, with what can be converted of it compiled."""
    try:
        return _model(graph, constants)
    except UnsupportedNodes as error:
        refused = dict(error.nodes)
    while True:
        parts = _partitioned(graph, set(refused))
        failed = _replaced(parts, constants)
        if not failed:
            break
        refused |= failed
    operators = sorted({str(node.target) for node in graph.graph.nodes if node.name in refused})
    _log.warning("these operators run in PyTorch: %s", ", ".join(operators))
    return parts


class _Convertible(OperatorSupportBase):
    """The nodes that were not refused."""

    def __init__(self, refused: set[str]):
        self._refused = refused

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        """Whether it is an operator that can be converted."""
        return node.op == "call_function" and node.name not in self._refused


def _partitioned(graph: fx.GraphModule, refused: set[str]) -> fx.GraphModule:
    """The graph with a submodule for each largest part without refused nodes."""
    copy = fx.GraphModule(graph, fx.Graph())
    values: dict[fx.Node, fx.Node] = {}
    copy.graph.output(copy.graph.graph_copy(graph.graph, values))
    copy.recompile()
    for old, new in values.items():
        assert old.name == new.name
    partitioner = CapabilityBasedPartitioner(copy, _Convertible(refused), allows_single_node_partition=True)
    return partitioner.partition_and_fuse()


def _replaced(graph: fx.GraphModule, constants: Constants) -> dict[str, TreadleError]:
    """Replaces the submodules by compiled models; what is refused of them is returned."""
    failed: dict[str, TreadleError] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_module":
            continue
        part = cast("fx.GraphModule", graph.get_submodule(str(node.target)))
        inner = [each for each in part.graph.nodes if each.op == "placeholder"]
        pairs = zip(inner, node.args, strict=True)
        known = {p.name: constants[a.name] for p, a in pairs if isinstance(a, fx.Node) and a.name in constants}
        try:
            setattr(graph, str(node.target), _Part(part, _model(part, known)))
        except UnsupportedNodes as error:
            failed |= error.nodes
    graph.recompile()
    return failed


class _Part(torch.nn.Module):
    """A compiled part of a graph; one with a single result returns it alone."""

    def __init__(self, part: fx.GraphModule, run: Callable[..., Any]):
        super().__init__()
        (returned,) = _output(part.graph).args
        self._alone = isinstance(returned, fx.Node)
        self._run = run

    def forward(self, *inputs: Any) -> Any:
        """The results of the part."""
        results = self._run(*inputs)
        return results[0] if self._alone else tuple(results)


def _output(graph: fx.Graph) -> fx.Node:
    return next(node for node in graph.nodes if node.op == "output")


def _model(graph: fx.GraphModule, constants: Constants) -> Callable[..., Any]:
    """A compiled model for a graph, all of whose inputs it takes, constants included."""
    (returned,) = _output(graph.graph).args
    listed = [returned] if isinstance(returned, fx.Node) else list(cast("Sequence[Any]", returned))
    nodes = [each for each in listed if isinstance(each, fx.Node)]
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    names = {node.name for node in placeholders}
    computed = list(dict.fromkeys(node.name for node in nodes if node.name not in names))
    positions = {node.name: n for n, node in enumerate(placeholders)}
    taken = [
        positions[n.name]
        for n in placeholders
        if n.name not in constants and isinstance(n.meta.get("val"), torch.Tensor)
    ]
    model = compile_model(import_graph(graph.graph, constants, computed)) if computed else None

    def run(*inputs: Any) -> list[Any]:
        arrays = () if model is None else model(*(array_of(inputs[n], f"input {n}") for n in taken))
        found = {name: tensor_of(array) for name, array in zip(computed, arrays, strict=True)}
        found |= {name: inputs[n] for name, n in positions.items()}
        return [found[each.name] if isinstance(each, fx.Node) else each for each in listed]

    return run


__all__ = ["treadle"]
