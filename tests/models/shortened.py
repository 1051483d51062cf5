"""Models of the catalog with fewer layers, for every run; whole models are slow tests.

Of layers that follow one another and are alike, but for a number of channels, the first remains: each kind of layer
meets each of its neighbours. The recogniser begins at its last stage, since the stages before are those of the
detector.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import TensorProto
from onnx.helper import make_tensor_value_info

from tests.models.catalog import require_model

REPEATED: Mapping[str, Mapping[str, str]] = {
    "ppocrv4_rec": {"p2o.Add.231": "p2o.Add.215", "p2o.Add.271": "p2o.Add.251"},
    "ppocrv4_det": {
        "p2o.Add.43": "p2o.Add.27",
        "p2o.Add.71": "p2o.Add.55",
        "p2o.Add.147": "p2o.Add.99",
        "p2o.Add.215": "p2o.Add.183",
    },
    "ppocr_cls": {"elementwise_add_4": "elementwise_add_1", "elementwise_add_6": "batch_norm_27.tmp_2"},
}
"""The value at the end of repetitions, and that of the same type at their start."""
STARTS: Mapping[str, str] = {"ppocrv4_rec": "p2o.Add.179"}
"""The value that is the input, float32[n, 480, height / 8, width / 4], of a model of which an end remains."""


def shortened(name: str, folder: Path) -> Path:
    """The model of that name without what lies between the values of `REPEATED` and before that of `STARTS`, in a file
    in `folder`."""
    model = onnx.load(require_model(name).path())
    graph, repeated = model.graph, dict(REPEATED[name])
    for node in graph.node:
        for n, value in enumerate(node.input):
            node.input[n] = repeated.get(value, value)
    start = STARTS.get(name)
    needed, nodes = {output.name for output in graph.output}, list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if start not in node.output and not needed.isdisjoint(node.output):
            needed.update(node.input)
            nodes.insert(0, node)
    assert needed.issuperset(repeated.values()) and needed.isdisjoint(repeated)
    initializers = [each for each in graph.initializer if each.name in needed]
    if start is not None:
        assert start in needed and needed.isdisjoint(each.name for each in graph.input)
        del graph.input[:]
        graph.input.append(make_tensor_value_info(start, TensorProto.FLOAT, ["n", 480, "height", "width"]))
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(initializers)
    onnx.save(model, folder / f"{name}-short.onnx")
    return folder / f"{name}-short.onnx"
