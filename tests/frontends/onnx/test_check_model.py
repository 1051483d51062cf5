"""The report goes on after an unsupported node."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontends.onnx.models import model, node
from treadle.errors import TreadleError
from treadle.frontends.onnx import check_model, look_up_nodes


def test_every_obstacle_is_reported() -> None:
    """The file declares the shape of RandomNormalLike; that of Multinomial is not known."""
    proto = model(
        [
            node("Relu", "x", "a", "relu"),
            node("RandomNormalLike", "a", "b", "hard"),
            node("Flatten", "b", "c", "flat"),
            node("Multinomial", "c", "d", "nz"),
            node("Cast", "d", "e", "cast", to=1),
            node("Bernoulli", "e", "y", "sum"),
            node("Compress", "x x", "unused", "det"),
        ],
        {"x": ["n", 3, 4]},
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 3, 4]))
    reports = check_model(proto.SerializeToString(), {"x": (2, 3, 4)})
    assert [(r.name, r.verdict) for r in reports] == [
        ("relu", "supported"),
        ("hard", "unsupported"),
        ("flat", "supported"),
        ("nz", "unsupported"),
        ("cast", "unknown"),
        ("sum", "unsupported"),
    ]
    assert reports[0].supported and reports[0].reason is None
    assert reports[1].reason is not None and "operator RandomNormalLike is not supported" in reports[1].reason
    assert reports[4].reason is not None and "the shape of 'd' is unknown" in reports[4].reason


def test_shapes_are_needed_here_too() -> None:
    proto = model([node("Relu", "x", "y")], {"x": ["n"]})
    with pytest.raises(TreadleError, match="without a value"):
        check_model(proto.SerializeToString())


def test_nodes_are_looked_up_without_shapes() -> None:
    proto = model([node("Relu", "x", "a", "relu"), node("RandomNormalLike", "a", "y", "hard")], {"x": ["n"]})
    reports = look_up_nodes(proto.SerializeToString())
    assert [(r.name, r.verdict) for r in reports] == [("relu", "supported"), ("hard", "unsupported")]
    assert reports[1].reason is not None and "(RandomNormalLike, opset" in reports[1].reason


def test_what_a_node_becomes_and_takes() -> None:
    nodes = [
        node("Gemm", "x w b", "a", "product"),
        node("HardSigmoid", "a", "c", "gate"),
        node("Shape", "x", "s", "shape"),
        node("Reshape", "c s", "y", "same"),
    ]
    weights = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    product, gate, shape, same = check_model(model(nodes, {"x": [2, 4]}, weights=weights).SerializeToString())
    assert product.becomes == ("matmul", "add") and product.operations == 2 * 2 * 4 * 4 + 2 * 4
    assert product.bytes == 4 * (8 + 16 + 8) + 4 * (8 + 4 + 8)
    assert gate.becomes[:2] == ("mul", "add") and gate.operations >= 2 * 8
    assert (shape.becomes, shape.operations, same.becomes, same.bytes) == ((), 0, (), 0)
