"""Which parts of a graph Treadle compiles: the largest convex sets of nodes that it supports, each as a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper

from treadle.frontends.onnx import NodeReport, check_model
from treadle.frontends.onnx.importer import live_nodes
from treadle.frontends.onnx.loader import DEFAULT_DOMAINS, graphs_of, node_context
from treadle.frontends.onnx.tensor_data import DTYPES

_TRIALS = (64, 1, 512)
"""Extents that stand for those which a graph leaves open while its nodes are looked at: a model may have windows that
few elements do not fill, and tables that many exceed."""
_TRIAL = "trial.onnx"
_PACKED = {TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2, TensorProto.FLOAT4E2M1}
"""Of which ONNX Runtime has several elements in a byte."""
_SHARED = DTYPES.keys() - _PACKED - {TensorProto.FLOAT8E8M0}
"""Elements that both have in the same bytes."""


@dataclass(frozen=True)
class Part:
    """Nodes that are compiled together, by their positions in the graph, as a model with their names of values."""

    positions: tuple[int, ...]
    model: ModelProto

    @property
    def is_static(self) -> bool:
        """Whether the graph says all extents of its inputs."""
        return all(_is_static(entry.type) for entry in self.model.graph.input)


class Graph:
    """A graph in a file, `model.onnx` in a folder, with types of its values, and what Treadle says of its nodes.

    Values that come from graphs around it are its inputs.
    """

    def __init__(self, folder: Path, name: str = "model.onnx"):
        self.folder = folder
        self.model = ModelProto.FromString((folder / name).read_bytes())
        graph = self.model.graph
        self.nodes: Sequence[NodeProto] = graph.node
        if not graph.output:  # of a node alone
            graph.output.extend(entry for entry in graph.value_info if entry.name in self.nodes[0].output)
        self.types = {entry.name: entry for entry in (*graph.input, *graph.value_info, *graph.output)}
        self.initializers = {each.name: each for each in graph.initializer}
        self.reads = [list(_reads(node)) for node in self.nodes]
        self.makers = {name: n for n, node in enumerate(self.nodes) for name in node.output if name}

    def reports(self) -> dict[int, NodeReport]:
        """The verdict on each node whose values are tensors that Treadle and ONNX Runtime have in the same bytes, of
        rank that is known, with the best one of several extents for those that are open. TreadleError: a graph that
        cannot be read at all."""
        shared = tuple(n for n in range(len(self.nodes)) if self._strange(n) is None)
        part = self._part(shared)
        found: dict[int, NodeReport] = {}
        for extent in _TRIALS[:1] if self._is_fixed else _TRIALS:
            for position, report in self._checked(part, extent).items():
                if report.supported or position not in found:
                    found[position] = report
            if all(report.supported for report in found.values()):
                break
        return found

    def refused(self, reports: Mapping[int, NodeReport]) -> list[str]:
        """Why nodes are not taken."""
        strange = [(n, self._strange(n)) for n in range(len(self.nodes))]
        values = [
            f"{self.where(n)}: '{name}' is no tensor of whole bytes and known rank" for n, name in strange if name
        ]
        return [*values, *(report.reason or report.verdict for report in reports.values() if not report.supported)]

    def where(self, position: int) -> str:
        """The node as errors name it."""
        opsets = {each.domain: each.version for each in self.model.opset_import}
        node = self.nodes[position]
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        return node_context(node, position, opsets.get(domain, opsets.get("", 0)))

    def parts(self, taken: set[int], reports: Mapping[int, NodeReport]) -> list[Part]:
        """The nodes `taken` in convex sets: no path leads out of one and back. Sets that compute no elements are left
        out, and nodes whose extents depend on data are where nothing outside of the set reads what they make.

        The level of a node counts the changes between nodes that are taken and others on the paths to it. What is
        taken on one level cannot reach itself by others; it falls into sets that have no values in common.
        """
        levels = self._levels(taken)
        groups = _connected((n for n in range(len(self.nodes)) if n in taken), self._neighbours(taken, levels))
        found = [self._part(tuple(group)) for group in groups]
        unknown = {name for n in taken for name in reports[n].open}
        leaving = {
            self.makers[entry.name] for part in found for entry in part.model.graph.output if entry.name in unknown
        }
        if leaving:
            return self.parts(taken - leaving, reports)
        return [part for part in found if any(self._computes(n, reports[n]) for n in part.positions)]

    @property
    def _is_fixed(self) -> bool:
        return all(_is_static(entry.type) for entry in self.types.values())

    def _checked(self, part: Part, extent: int) -> dict[int, NodeReport]:
        trial = ModelProto()
        trial.CopyFrom(part.model)
        trial.graph.value_info.extend(self.types.values())
        for entry in (*trial.graph.input, *trial.graph.value_info, *trial.graph.output):
            for dim in entry.type.tensor_type.shape.dim:
                if not dim.HasField("dim_value"):
                    dim.dim_value = extent
        path = self.folder / _TRIAL
        path.write_bytes(trial.SerializeToString())
        live = live_nodes(trial.graph.node, [entry.name for entry in trial.graph.output])
        return dict(zip((part.positions[n] for n in live), check_model(path), strict=True))

    def _strange(self, position: int) -> str | None:
        """A value of a node that Treadle cannot share with ONNX Runtime, if there is one."""
        values = (*self.reads[position], *filter(None, self.nodes[position].output))
        return next((name for name in values if name not in self.initializers and not self._is_shared(name)), None)

    def _is_shared(self, name: str) -> bool:
        entry = self.types.get(name)
        return (
            entry is not None
            and entry.type.tensor_type.HasField("shape")
            and entry.type.tensor_type.elem_type in _SHARED
        )

    def _computes(self, position: int, report: NodeReport) -> bool:
        return report.operations > 0 or bool(graphs_of(self.nodes[position]))

    def _levels(self, taken: set[int]) -> list[int]:
        levels: list[int] = []
        readers: list[list[int]] = [[] for _ in self.nodes]
        for position, names in enumerate(self.reads):
            before = {self.makers[name] for name in names if name in self.makers}
            for each in before:
                readers[each].append(position)
            levels.append(max((levels[n] + ((n in taken) != (position in taken)) for n in before), default=0))
        for position in reversed(range(len(levels))):  # as late as its readers, to be compiled with them
            bounds = [levels[n] - ((n in taken) != (position in taken)) for n in readers[position]]
            levels[position] = max(levels[position], min(bounds, default=levels[position]))
        return levels

    def _neighbours(self, taken: set[int], levels: list[int]) -> list[tuple[int, int]]:
        """Pairs of nodes that are taken, on one level, one of which reads what the other makes."""
        pairs = ((n, self.makers[name]) for n in taken for name in self.reads[n] if name in self.makers)
        return [(a, b) for a, b in pairs if b in taken and levels[a] == levels[b]]

    def _part(self, positions: tuple[int, ...]) -> Part:
        inside = set(positions)
        made = {name for n in positions for name in self.nodes[n].output}
        read = list(dict.fromkeys(name for n in positions for name in self.reads[n] if name not in made))
        wanted = {name for n, names in enumerate(self.reads) if n not in inside for name in names}
        wanted |= {entry.name for entry in self.model.graph.output}
        graph = helper.make_graph(
            [self.nodes[n] for n in positions],
            "part",
            [self.types[name] for name in read if name not in self.initializers],
            [self.types[name] for n in positions for name in self.nodes[n].output if name in wanted],
            [self.initializers[name] for name in read if name in self.initializers],
        )
        model = helper.make_model(graph, ir_version=self.model.ir_version)
        del model.opset_import[:]
        model.opset_import.extend(self.model.opset_import)
        return Part(positions, model)


def _reads(node: NodeProto) -> Iterator[str]:
    """The names of values that a node reads, itself or in its graphs."""
    yield from filter(None, node.input)
    for graph in graphs_of(node):
        own = {entry.name for entry in (*graph.input, *graph.initializer)}
        own |= {name for each in graph.node for name in each.output}
        inner = [name for each in graph.node for name in _reads(each)]
        yield from (name for name in (*inner, *(entry.name for entry in graph.output)) if name not in own)


def _is_static(type: TypeProto) -> bool:
    tensor = type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _connected(nodes: Iterable[int], pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The nodes, in order, in sets that pairs connect."""
    root: dict[int, int] = {}

    def find(node: int) -> int:
        while root.setdefault(node, node) != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for a, b in pairs:
        root[find(a)] = find(b)
    groups: dict[int, list[int]] = {}
    for node in nodes:
        groups.setdefault(find(node), []).append(node)
    return list(groups.values())
