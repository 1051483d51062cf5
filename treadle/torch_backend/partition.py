"""Splits a graph into compiled parts and what runs in PyTorch between them."""

from __future__ import annotations

import logging
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp

from treadle.errors import TreadleError
from treadle.frontends.torch.call import DTYPES, find_converter
from treadle.frontends.torch.importer import Constants, UnsupportedNodes, import_graph
from treadle.frontends.torch.ranges import is_number
from treadle.torch_backend.devices import Place, place_of
from treadle.torch_backend.ranges import CurrentCall, Plan, number_of, restricted

# Nodes whose results are views of their operands.


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


# Attention as one operator: AOTAutograd would decompose it before a converter sees it.

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


def with_plain_operators(graph: fx.GraphModule) -> fx.GraphModule:
    """Replaces what PyTorch's compiler writes where numbers are or become tensors by operators with converters."""
    aten, prims = torch.ops.aten, torch.ops.prims
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is aten.true_divide.Tensor:
            node.target = aten.div.Tensor
        elif node.op == "call_function" and node.target is aten.lift_fresh_copy.default:
            node.target = aten.clone.default
        elif node.op == "call_function" and node.target is prims.convert_element_type.default:
            node.target, node.args, node.kwargs = aten._to_copy.default, node.args[:1], {"dtype": node.args[1]}
    graph.recompile()
    return graph


# How a result lies in memory, which PyTorch's compiler knows before it is computed.


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
        dense = not value.numel() or torch.ops.aten.is_non_overlapping_and_dense(value)
        return Layout(shape, strides, _outermost_first(shape, strides) if dense else None)

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
            empty = torch.empty_strided(self.shape, self.strides, dtype=written.dtype, device=written.device)
            return empty.copy_(written)
        if written.shape == self.shape and written.stride() == self.strides:
            return written
        return written.as_strided(self.shape, self.strides)


def _outermost_first(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    return sorted(range(len(shape)), key=lambda d: (-strides[d], shape[d] == 1, d))


@dataclass(frozen=True)
class RangedLayout(Layout):
    """Shape and strides of a result that change from call to call.

    current: the call
    """

    current: CurrentCall

    @staticmethod
    def of_range(value: torch.Tensor, plan: Plan) -> RangedLayout:
        """The layout of a result in the calls of a plan."""
        shape = plan.ranges.shape(value, _WHERE)
        strides = [plan.ranges.extent(each, _WHERE) for each in cast("Sequence[object]", value.stride())]
        order = _outermost_first(*([number_of(each, plan.example) for each in known] for known in (shape, strides)))
        # Extents of 1 lie anywhere.
        dims = [d for d in order if shape[d] != 1]
        dense = all(strides[d] == prod(shape[inner] for inner in dims[n + 1 :]) for n, d in enumerate(dims))
        return RangedLayout(shape, strides, order if dense else None, plan.current)

    def tensor(self, written: torch.Tensor) -> torch.Tensor:
        """The result, of the elements that were written in that order."""
        if self.order is None:
            strides = [number_of(each, self.current.values) for each in self.strides]
            empty = torch.empty_strided(written.shape, strides, dtype=written.dtype, device=written.device)
            return empty.copy_(written)
        return written.permute([self.order.index(d) for d in range(written.dim())])


_WHERE = "torch.compile"


# A part of a graph as a compiled model that is called with tensors, and gives tensors with PyTorch's strides.


@dataclass(frozen=True)
class ImportedPart:
    """A part as graph operators.

    taken:   positions of the inputs that are tensors, and no constants, and the types that the graph says they have
    results: the layout of each result
    alone:   whether the part gives its only result instead of a tuple
    carried: symbols that are no extents of inputs, each of which one more input has
    current: the call, where shapes are ranges
    """

    module: ModuleOp
    taken: Sequence[tuple[int, torch.dtype]]
    results: Sequence[Layout]
    alone: bool
    carried: Sequence[str] = ()
    current: CurrentCall = field(default_factory=CurrentCall)

    @staticmethod
    def of(graph: fx.Graph, constants: Constants, plan: Plan | None) -> ImportedPart:
        """UnsupportedNodes if there are nodes that cannot be converted.

        plan: the calls that are served; None: static shapes
        """
        output = next(node for node in graph.nodes if node.op == "output")
        (returned,) = output.args
        nodes = [returned] if isinstance(returned, fx.Node) else list(cast("Sequence[fx.Node]", returned))
        values = [node.meta["val"] for node in nodes]
        layouts = [Layout.of(value) if plan is None else RangedLayout.of_range(value, plan) for value in values]
        written = [layout.written(graph, node) for layout, node in zip(layouts, nodes, strict=True)]
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        variable = [(n, node.meta["val"]) for n, node in enumerate(placeholders) if node.name not in constants]
        taken = [(n, value.dtype) for n, value in variable if isinstance(value, torch.Tensor)]
        results, alone = [node.name for node in written], isinstance(returned, fx.Node)
        if plan is None:
            return ImportedPart(import_graph(graph, constants, results), taken, layouts, alone)
        ranges, carried = restricted(plan, graph)
        module = import_graph(graph, constants, results, ranges, carried)
        return ImportedPart(module, taken, layouts, alone, carried, plan.current)


class CompiledPart(torch.nn.Module):
    """A compiled part: what the submodule that it replaces computes."""

    def __init__(self, part: ImportedPart, place: Place):
        super().__init__()
        self._part, self._place = part, place
        self._model = place.compile(part.module)

    def forward(self, *inputs: Any) -> Any:
        """The results of the part. What PyTorch computes may have another type than its graph says (statistics)."""
        part = self._part
        taken = [inputs[n].to(dtype) for n, dtype in part.taken]
        carried = [np.broadcast_to(np.int8(0), part.current.values[name]) for name in part.carried]
        written = self._place.call(self._model, taken, carried)
        results = [how.tensor(tensor) for how, tensor in zip(part.results, written, strict=True)]
        return results[0] if part.alone else tuple(results)


_log = logging.getLogger("treadle.torch_backend")


def runs_whole(graph: fx.Graph) -> str | None:
    """Why a graph must run in the order in which it is written, None if only its data says what comes first."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    writing = [node for node in calls if getattr(getattr(node.target, "_schema", None), "is_mutable", False)]
    if writing:
        return f"{writing[0].target} writes into its operands"
    random = [node for node in calls if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())]
    if len(random) > 1:
        return f"{random[0].target} and {random[1].target} draw random numbers in turn"
    return None


def partitioned(graph: fx.GraphModule, constants: Constants, plan: Plan | None = None) -> fx.GraphModule:
    """The graph with a compiled submodule for each largest part of operators that have converters.

    A warning names the operators that have none. Views that PyTorch or a caller sees are views in PyTorch: they have
    their strides, and alias what they are views of. Numbers that depend on symbols are computed in PyTorch.

    Parts run on one device, that of `place_of`.

    plan: the calls that are served; None: static shapes. TreadleError if a node is refused for ranges of shapes only.
    """
    place = place_of(graph.graph)
    known = {**constants, **_held(graph)}
    refused: set[str] = set()
    while True:
        parts, imported, failed = _split(graph, known, refused, plan, place.device)
        if not failed:
            break
        if plan is not None:
            raise UnsupportedNodes(failed)
        more = _refused_with(graph.graph, failed) - refused
        if not more:
            raise UnsupportedNodes(failed)
        refused |= more
    for name, part in imported.items():
        setattr(parts, name, CompiledPart(part, place))
    parts.recompile()
    converted = _Convertible(refused, set(), place.device)
    calls = [node for node in graph.graph.nodes if node.op == "call_function" and not is_item(node)]
    calls = [node for node in calls if not is_number(node)]
    operators = sorted({str(node.target) for node in calls if not converted.takes(node)})
    if operators:
        _log.warning("these operators run in PyTorch: %s", ", ".join(operators))
    return parts


def _refused_with(graph: fx.Graph, failed: Collection[str]) -> set[str]:
    """The nodes of those names, and those whose results they are: the partitioner leaves items with their producers."""
    items = [node for node in graph.nodes if node.name in failed and is_item(node)]
    return {*failed, *(node.all_input_nodes[0].name for node in items)}


def _held(graph: fx.GraphModule) -> Constants:
    """The tensors that a graph holds itself."""
    names = {node.name: str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    values = {name: (target, getattr(graph, target)) for name, target in names.items() if "." not in target}
    return {name: each for name, each in values.items() if isinstance(each[1], torch.Tensor)}


class _Convertible(OperatorSupportBase):
    """The nodes that are compiled for a device."""

    def __init__(self, refused: set[str], left: set[fx.Node], device: torch.device):
        self._refused = refused
        self._left = left
        self._device = device

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        """For the partitioner: whether a node may be part of a compiled part."""
        return node not in self._left and self.takes(node)

    def takes(self, node: fx.Node) -> bool:
        """Whether there is a converter for an operator and for the tensors that it reads and gives."""
        if node.op != "call_function" or node.name in self._refused or is_number(node):
            return False
        if is_item(node):
            return self.takes(node.all_input_nodes[0])
        if find_converter(node.target) is None:
            return False
        operands = [each for each in node.all_input_nodes if not isinstance(each.meta.get("val"), torch.SymInt)]
        return all(_is_plain(each.meta.get("val"), self._device) for each in (node, *operands))


def _is_plain(value: object, device: torch.device) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(each, device) for each in cast("Sequence[object]", value))
    if not isinstance(value, torch.Tensor):
        return value is None
    return value.dtype in DTYPES and value.device == device and value.layout == torch.strided


def _split(
    graph: fx.GraphModule, constants: Constants, refused: set[str], plan: Plan | None, device: torch.device
) -> tuple[fx.GraphModule, dict[str, ImportedPart], dict[str, TreadleError]]:
    """A copy of the graph in parts, what their submodules become, and what is refused of them."""
    nodes, values = fx.Graph(), dict[fx.Node, fx.Node]()
    nodes.output(nodes.graph_copy(graph.graph, values))
    for old, new in values.items():
        assert old.name == new.name
    copy = fx.GraphModule(graph, nodes)
    left = _views_outside(copy.graph, _Convertible(refused, set(), device))
    copy.graph.eliminate_dead_code()
    convertible = _Convertible(refused, left, device)
    nodes = [node for node in copy.graph.nodes if node.op == "call_function" and node not in left]
    numbers = [node for node in nodes if is_number(node)]
    nodes = [node for node in nodes if not is_number(node)]
    if all(map(convertible.takes, nodes)) and not any(map(_reads_result, numbers)):
        partitions = [dict.fromkeys(nodes)] if nodes else []
    else:
        partitioner = CapabilityBasedPartitioner(copy, convertible, allows_single_node_partition=True)
        partitions = [each.nodes for each in partitioner.propose_partitions()]
    fused = fuse_by_partitions(copy, cast("Any", partitions), prefix="part_")
    return fused, *_imported(fused, constants, plan)


def _reads_result(node: fx.Node) -> bool:
    """Whether a number is computed from what a graph computes of tensors."""
    return any(each.op == "call_function" and not is_number(each) for each in node.all_input_nodes)


def _views_outside(graph: fx.Graph, convertible: _Convertible) -> set[fx.Node]:
    """Copies of the views that others than compiled parts read, for these to read: what a part gives is no view."""
    copies: dict[fx.Node, fx.Node] = {}

    def outside(node: fx.Node) -> fx.Node:
        if not (is_view(node) and convertible.takes(node)):
            return node
        if node not in copies:
            with graph.inserting_after(node):
                copies[node] = graph.node_copy(node, outside)
        return copies[node]

    for node in list(graph.nodes):
        if node.op == "output" or (node.op == "call_function" and not convertible.takes(node)):
            node.args = fx.map_arg(node.args, outside)
            node.kwargs = fx.map_arg(node.kwargs, outside)
    return set(copies.values())


def _imported(
    graph: fx.GraphModule, constants: Constants, plan: Plan | None
) -> tuple[dict[str, ImportedPart], dict[str, TreadleError]]:
    """What the submodules of a graph become, by their names."""
    imported: dict[str, ImportedPart] = {}
    failed: dict[str, TreadleError] = {}
    for node in graph.graph.nodes:
        if node.op != "call_module":
            continue
        part = cast("fx.GraphModule", graph.get_submodule(str(node.target)))
        inner = [each for each in part.graph.nodes if each.op == "placeholder"]
        pairs = zip(inner, node.args, strict=True)
        known = {p.name: constants[a.name] for p, a in pairs if isinstance(a, fx.Node) and a.name in constants}
        try:
            imported[str(node.target)] = ImportedPart.of(part.graph, known, plan)
        except UnsupportedNodes as error:
            failed |= error.nodes
    return imported, failed


__all__ = [
    "CompiledPart",
    "Constants",
    "ImportedPart",
    "Layout",
    "RangedLayout",
    "is_item",
    "is_view",
    "partitioned",
    "runs_whole",
    "with_plain_operators",
    "with_whole_attention",
]
