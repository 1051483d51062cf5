"""Small files that ask for much: each is refused where it asks, before anything is allocated."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.frontends.onnx.models import model, node
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BroadcastOp, ConstantOp
from treadle.dialects.location import LocatedParser
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.frontends.onnx.loader import MAX_NODES
from treadle.target import Target

HUGE, LARGEST, LOWEST = 2**40, 2**63 - 1, -(2**63)
NAN, INF = np.float32(np.nan), np.float32(np.inf)
ONE = np.float32(1)
KERNEL = np.ones((1, 1, 2, 2), np.float32)
TOO_LARGE = r"node 'y' \(.*tensor<.* takes \d+ bytes: at most 68719476736 are accepted"

CONSTANTS: list[tuple[NodeProto, Mapping[str, Any], str]] = [
    (node("Range", "s l d", "y"), {"s": NAN, "l": ONE, "d": ONE}, r"start nan, .*accepted: finite numbers"),
    (node("Range", "s l d", "y"), {"s": ONE, "l": INF, "d": ONE}, r"limit inf, .*accepted: finite numbers"),
    (node("Range", "s l d", "y"), {"s": ONE, "l": ONE, "d": 0 * ONE}, r"delta 0\.0; accepted: .*a delta other than 0"),
    (node("Range", "s l d", "y"), {"s": np.float64(-1e308), "l": np.float64(1e308), "d": np.float64(1)}, "fewer steps"),
    (node("Range", "s l d", "y"), {"s": np.zeros(0, np.float32), "l": ONE, "d": ONE}, "start has 0 elements"),
    (node("Range", "s l d", "y"), {"s": np.int64(0), "l": np.int64(HUGE), "d": np.int64(1)}, "takes too much memory"),
    (node("Resize", "x _ s", "y"), {"s": np.array([1, NAN])}, r"scales \[1\.0, nan\] for 2 axes; accepted: 2 finite"),
    (node("Resize", "x _ s", "y"), {"s": np.array([1, INF])}, r"scales \[1\.0, inf\] for 2 axes; accepted: 2 finite"),
    (node("Resize", "x _ s", "y"), {"s": np.array([1, 3e38], np.float32)}, "takes too much memory"),
    (
        node("Resize", "x _ _ s", "y", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        {"s": np.array([2, HUGE])},
        "takes too much memory",
    ),
    (node("Pad", "x p", "y"), {"p": np.array([0, HUGE, 0, 0])}, TOO_LARGE),
    (node("Pad", "x p", "y"), {"p": np.array([0, LARGEST, 0, LARGEST])}, TOO_LARGE),
    (node("Pad", "x p", "y"), {"p": np.array([0, LOWEST, 0, LOWEST])}, "9223372036854775808 does not fit 64 bits"),
    (node("Expand", "x p", "y"), {"p": np.array([HUGE, 2, 3])}, TOO_LARGE),
    (node("Tile", "x p", "y"), {"p": np.array([2**31, 2**31])}, TOO_LARGE),
    (node("ConstantOfShape", "p", "y"), {"p": np.array([HUGE, 2])}, "takes too much memory"),
    (node("Reshape", "x p", "y"), {"p": np.array([1] * 64 + [6])}, "65 dimensions: at most 32 are accepted"),
    (node("Reshape", "c p", "y"), {"c": np.ones(1), "p": np.ones(65, np.int64)}, "65 dimensions: at most 32"),
    (node("Unsqueeze", "x p", "y"), {"p": np.arange(2, 65)}, "65 dimensions: at most 32 are accepted"),
    (node("OneHot", "i d v", "y"), {"i": np.array([1]), "d": NAN, "v": np.zeros(2)}, "depth is nan; accepted: a whole"),
    (node("OneHot", "i d v", "y"), {"i": np.array([1]), "d": np.int64(HUGE), "v": np.zeros(2)}, "too much memory"),
    (node("Split", "x", "y z", num_outputs=3), {}, "num_outputs is 3, but there are 2; accepted: 2"),
]  # fmt: skip


def refused(proto: ModelProto, message: str) -> None:
    with pytest.raises(TreadleError, match=message):
        import_model(proto.SerializeToString())


def test_a_constant_that_repeats_an_element_is_not_expanded() -> None:
    """15 GiB of `false`, of which one byte is stored."""
    nodes = [
        node("IsInf", "x", "never", detect_negative=0, detect_positive=0),
        node("Where", "never a b", "y"),
    ]
    weights = {"a": np.zeros(1, np.int8), "b": np.ones(1, np.int8)}
    module = import_model(model(nodes, {"x": [5, 3, 2**30]}, weights=weights).SerializeToString())
    (broadcast,) = [op for op in module.walk() if isinstance(op, BroadcastOp)]
    assert isinstance(broadcast.x.owner, ConstantOp) and broadcast.shape == (5, 3, 2**30)


@pytest.mark.parametrize(("broken", "weights", "message"), CONSTANTS, ids=lambda v: getattr(v, "op_type", None))
def test_constants(broken: NodeProto, weights: Mapping[str, Any], message: str) -> None:
    refused(model([broken], {"x": [2, 3]}, weights=weights, opset=18), message)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (node("MaxPool", "x", "y", kernel_shape=[2, 2], dilations=[HUGE] * 2, pads=[HUGE] * 4), f"attribute of {HUGE}"),
        (node("Conv", "x w", "y", strides=[2**62, 1]), f"attribute of {2**62}; accepted: at most 2147483647"),
        (node("ConvTranspose", "x w", "y", strides=[2**31 - 1] * 2), TOO_LARGE),
        (node("ConvTranspose", "x w", "y", output_padding=[HUGE, HUGE]), TOO_LARGE),
        (node("LRN", "x", "y", size=HUGE), f"size {HUGE} for an input of rank 4; accepted: size from 1 to 2147483647"),
    ],
    ids=["MaxPool", "Conv", "strides", "padding", "LRN"],
)
def test_windows(broken: NodeProto, message: str) -> None:
    refused(model([broken], {"x": [1, 1, 4, 4]}, weights={"w": KERNEL}), message)


def test_a_number_that_the_type_does_not_hold() -> None:
    clip = node("Clip", "x", "y", max=1.0, min=float("nan"))
    refused(model([clip], {"x": [2]}, opset=6, element=TensorProto.INT32), "nan is no value of i32")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([HUGE, 2], r"input 'x': tensor<1099511627776x2xf32> takes 8796093022208 bytes: at most 68719476736"),
        ([0, HUGE, HUGE], r"input 'x': tensor<0x\d+x\d+xf32> is empty, but its other dimensions span \d+ bytes"),
        ([1] * 65, "input 'x': 65 dimensions: at most 32 are accepted"),
    ],
    ids=["bytes", "empty", "rank"],
)
def test_inputs(shape: Sequence[int], message: str) -> None:
    refused(model([node("Relu", "x", "y")], {"x": shape}), message)


def test_an_initialiser_of_many_dimensions() -> None:
    proto = model([node("Add", "x w", "y")], {"x": [1]}, weights={"w": np.ones(1, np.float32)})
    proto.graph.initializer[0].dims[:] = [1] * 65
    refused(proto, "initialiser 'w': the tensor has 65 dimensions; accepted: at most 32")


def test_tensors_that_are_too_large_together() -> None:
    """Thirty of 32 GiB each: no one is refused by itself."""
    chain = [node("Exp", f"t{n}", f"t{n + 1}") for n in range(40)]
    refused(model(chain, {"t0": [2**33]}, ["t40"]), r"node 't\d+' .*the tensors take \d+ bytes together: at most 10995")


def test_constants_that_are_too_large_together() -> None:
    nodes = [node("ConstantOfShape", "s", f"c{n}") for n in range(40)]
    total = node("Sum", "x " + " ".join(f"c{n}" for n in range(40)), "y")
    proto = model([*nodes, total], {"x": [1]}, weights={"s": np.array([2**25])})
    refused(proto, r"node 'c\d+' .*the constants that nodes make take \d+ bytes; accepted: at most 2147483648 bytes")


def test_ir_text() -> None:
    text = f"""
    func.func @main(%x: tensor<1xf32>) -> tensor<{HUGE}xf32> {{
      %y = graph.broadcast %x {{shape = array<i64: {HUGE}>}} : (tensor<1xf32>) -> tensor<{HUGE}xf32>
      func.return %y : tensor<{HUGE}xf32>
    }}"""
    module = LocatedParser(treadle_context(), text, "in.mlir").parse_module()
    with pytest.raises(TreadleError, match=r"in\.mlir:3:7: tensor<1099511627776xf32> takes 4398046511104 bytes"):
        lower(treadle_context(), module, Target.parse("cpu"))


VERSIONS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def nested(levels: int, calls: int) -> ModelProto:
    """Functions F0, F1, ... of which each calls the one before, so many times."""
    proto = model([node(f"F{levels}", "x", "y", domain="own")], {"x": [2]})
    proto.opset_import.append(VERSIONS[1])
    for level in range(levels + 1):
        called, domain = (f"F{level - 1}", "own") if level else ("Relu", "")
        names = ["v", *(f"n{n}" for n in range(1, calls)), "w"]
        body = [node(called, a, b, domain=domain) for a, b in itertools.pairwise(names)]
        proto.functions.append(helper.make_function("own", f"F{level}", ["v"], ["w"], body, VERSIONS))
    return proto


def test_functions_that_expand_without_bound() -> None:
    refused(nested(40, 2), rf"function 'F16' has 131072 nodes when .*expanded; accepted: up to {MAX_NODES}")


def test_bytes_that_expand_without_bound() -> None:
    proto = nested(12, 2)
    proto.functions[0].node[0].doc_string = "x" * (1 << 20)
    refused(
        proto, r"function 'F\d+' has \d+ bytes when the functions it calls are expanded; accepted: up to 1073741824"
    )


def test_functions_that_are_nested_deeply() -> None:
    refused(nested(2000, 1), "function 'F201' nests 201 calls of functions; accepted: up to 200")


def test_functions_that_call_each_other_in_a_circle() -> None:
    proto = nested(2, 1)
    proto.functions[0].node[0].op_type, proto.functions[0].node[0].domain = "F2", "own"
    refused(proto, r"function 'F\d' calls itself; accepted: functions that .*not recursive")


def test_functions_that_fit_are_expanded() -> None:
    module = import_model(nested(6, 2).SerializeToString())
    assert sum(op.name == "graph.unary" for op in module.walk()) == 128


def test_a_weight_without_elements_that_cannot_be_addressed() -> None:
    proto = model([node("Add", "x w", "y")], {"x": [2]})
    proto.graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[0, 1 << 40, 1 << 40]))
    refused(proto, "cannot be addressed; accepted: at most 9223372036854775807 bytes")
