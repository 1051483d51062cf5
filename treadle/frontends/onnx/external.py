"""Which files beside a model hold its external data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx import GraphProto, TensorProto

from treadle.frontends.onnx.loader import load_model


def external_files(path: str | Path) -> tuple[str, ...]:
    """The locations that the model's tensors name, as they stand in the file, sorted; TreadleError as `load_model`."""
    graph = load_model(path).graph
    found = {_location(t) for t in _tensors(graph) if t.data_location == TensorProto.EXTERNAL}
    return tuple(sorted(found))


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _location(tensor: TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
