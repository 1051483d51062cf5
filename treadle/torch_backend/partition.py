"""Splits a graph into compiled parts and what runs in PyTorch between them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from treadle.errors import TreadleError
from treadle.frontends.torch.arrays import DTYPES
from treadle.frontends.torch.importer import Constants, UnsupportedNodes
from treadle.frontends.torch.registry import find_converter
from treadle.torch_backend.part import CompiledPart, ImportedPart
from treadle.torch_backend.views import is_item, is_view

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


def partitioned(graph: fx.GraphModule, constants: Constants) -> fx.GraphModule:
    """The graph with a compiled submodule for each largest part of operators that have converters.

    A warning names the operators that have none. Views that PyTorch or a caller sees are views in PyTorch: they have
    their strides, and alias what they are views of.
    """
    known = {**constants, **_held(graph)}
    refused: set[str] = set()
    while True:
        parts, imported, failed = _split(graph, known, refused)
        if not failed:
            break
        more = _refused_with(graph.graph, failed) - refused
        if not more:
            raise UnsupportedNodes(failed)
        refused |= more
    for name, part in imported.items():
        setattr(parts, name, CompiledPart(part))
    parts.recompile()
    converted = _Convertible(refused, set())
    calls = [node for node in graph.graph.nodes if node.op == "call_function" and not is_item(node)]
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
    """The nodes that are compiled."""

    def __init__(self, refused: set[str], left: set[fx.Node]):
        self._refused = refused
        self._left = left

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        """For the partitioner: whether a node may be part of a compiled part."""
        return node not in self._left and self.takes(node)

    def takes(self, node: fx.Node) -> bool:
        """Whether there is a converter for an operator and for the tensors that it reads and gives."""
        if node.op != "call_function" or node.name in self._refused:
            return False
        if is_item(node):
            return self.takes(node.all_input_nodes[0])
        if find_converter(node.target) is None:
            return False
        return all(_is_plain(each.meta.get("val")) for each in (node, *node.all_input_nodes))


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, cast("Sequence[object]", value)))
    if not isinstance(value, torch.Tensor):
        return value is None
    return value.dtype in DTYPES and value.device.type == "cpu" and value.layout == torch.strided


def _split(
    graph: fx.GraphModule, constants: Constants, refused: set[str]
) -> tuple[fx.GraphModule, dict[str, ImportedPart], dict[str, TreadleError]]:
    """A copy of the graph in parts, what their submodules become, and what is refused of them."""
    nodes, values = fx.Graph(), dict[fx.Node, fx.Node]()
    nodes.output(nodes.graph_copy(graph.graph, values))
    for old, new in values.items():
        assert old.name == new.name
    copy = fx.GraphModule(graph, nodes)
    left = _views_outside(copy.graph, _Convertible(refused, set()))
    copy.graph.eliminate_dead_code()
    convertible = _Convertible(refused, left)
    nodes = [node for node in copy.graph.nodes if node.op == "call_function" and node not in left]
    if all(map(convertible.takes, nodes)):
        partitions = [dict.fromkeys(nodes)] if nodes else []
    else:
        partitioner = CapabilityBasedPartitioner(copy, convertible, allows_single_node_partition=True)
        partitions = [each.nodes for each in partitioner.propose_partitions()]
    fused = fuse_by_partitions(copy, cast("Any", partitions), prefix="part_")
    return fused, *_imported(fused, constants)


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


def _imported(graph: fx.GraphModule, constants: Constants) -> tuple[dict[str, ImportedPart], dict[str, TreadleError]]:
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
            imported[str(node.target)] = ImportedPart.of(part.graph, known)
        except UnsupportedNodes as error:
            failed |= error.nodes
    return imported, failed


__all__ = ["Constants", "partitioned", "runs_whole"]
