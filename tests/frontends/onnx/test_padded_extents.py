"""Padding and windows along a dimension of a range: every extent of it against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto
from onnx.helper import make_node

from tests.helpers.ranged_model import Case, shape_of, weights
from treadle.errors import TreadleError
from treadle.frontends.onnx.importer import import_model

RANGE = ["l:1..20"]
Inputs = dict[str, list[int | str]]
X: Inputs = {"x": [3, "l", 2]}
ROW: Inputs = {"x": [1, 2, "l"]}
IMAGE: Inputs = {"x": [1, 2, "l", 5]}
LONG = [*shape_of("x", 1, "L"), make_node("Sub", ["L", "c1"], ["less"]), make_node("Sub", ["c20", "L"], ["rest"])]
"""`L`: the second extent of x; `rest`: what it has less than 20."""
NUMBERS = {f"c{n}": np.array([n]) for n in (0, 1, 2, 3, 5, 20, 2**31)} | {
    "back1": np.array([-1]),
    "back3": np.array([-3]),
}


def _case(*nodes: NodeProto, inputs: Inputs = X, opset: int = 19, **constants: Any) -> Case:
    read = {name for node in nodes for name in node.input}
    outputs = [name for node in nodes for name in node.output if name.startswith("y")]
    arrays = {name: np.asarray(value) for name, value in (NUMBERS | constants).items() if name in read}
    return Case(nodes, inputs, RANGE, (), arrays, opset=opset, outputs=outputs)


def _pads(*amounts: tuple[str, str], mode: str = "constant", x: str = "x", value: str = "") -> list[NodeProto]:
    """A tensor padded by amounts before and behind along its second dimension."""
    nodes: list[NodeProto] = []
    for n, (before, after) in enumerate(amounts):
        nodes.append(make_node("Concat", ["c0", before, "c0", "c0", after, "c0"], [f"p{n}"], axis=0))
        nodes.append(make_node("Pad", [x, f"p{n}", value], [f"y{n}"], mode=mode))
    return nodes


def _windows(*nodes: tuple[str, dict[str, Any]], opset: int = 22, **constants: Any) -> Case:
    """Windows on `[1, 2, l]`."""
    made = [
        make_node(operator, ["x", *([f"w{attributes['kernel_shape'][0]}"] if operator.startswith("Conv") else [])],
                  [f"y{n}"], **attributes)
        for n, (operator, attributes) in enumerate(nodes)
    ]  # fmt: skip
    kernels = {f"w{n}": weights(2, 2, n) for n in (2, 3, 4)}
    return _case(*made, inputs=ROW, opset=opset, **kernels, **constants)


def _same(*operators: str, **attributes: Any) -> Case:
    """By a rule, of strides up to the window's extent."""
    sizes = ((2, 2), (3, 2), (3, 3), (4, 2), (4, 3))
    return _windows(*(
        (operator, {"kernel_shape": [size], "strides": [stride], "auto_pad": rule, **attributes})
        for operator in operators for size, stride in sizes for rule in ("SAME_UPPER", "SAME_LOWER")
    ))  # fmt: skip


def _rounded_up(operator: str, **attributes: Any) -> Case:
    """With `ceil_mode`, where the last window begins inside in every call, in some calls, or in none."""
    found = [
        {"kernel_shape": [size], "strides": [stride], "pads": [before, after], **attributes}
        for size, before, after in ((1, 0, 0), (2, 1, 0), (2, 0, 1), (3, 1, 1), (3, 2, 2), (3, 0, 2))
        for stride in (1, 2, 3, 4)
    ]
    return _windows(*((operator, each | {"ceil_mode": 1}) for each in found))


CASES: dict[str, Case] = {
    "to a fixed length": _case(*LONG, *_pads(("c0", "rest"), ("rest", "c1"), ("c3", "rest"))),
    "by amounts of either sign": _case(
        *LONG, make_node("Sub", ["c5", "L"], ["to5"]), make_node("Sub", ["L", "c5"], ["over5"]),
        *_pads(("c0", "to5"), ("to5", "c0"), ("over5", "c20"), ("to5", "rest"), ("back1", "L")),
    ),
    "a constant by an extent": _case(*LONG, *_pads(("L", "less"), x="row"), row=weights(3, 4, 2)),
    "with a value of the call": _case(
        *LONG, make_node("ReduceMax", ["x"], ["v"], keepdims=0), *_pads(("c2", "c3"), ("c0", "rest"), value="v"),
    ),
    "by the border": _case(
        *LONG, *_pads(("less", "less"), ("rest", "L"), ("c2", "c3"), ("c0", "c1"), mode="edge"),
    ),
    "by a cut border": _case(
        *LONG, make_node("Concat", ["row", "x"], ["k"], axis=1),
        *_pads(("back1", "c3"), ("rest", "back3"), ("back1", "back1"), x="k", mode="edge"), row=weights(3, 3, 2),
    ),
    "by a reflection": _case(
        *LONG, make_node("Concat", ["row", "x"], ["k"], axis=1),
        *_pads(("c2", "c3"), ("less", "c0"), ("c0", "L"), ("back1", "c2"), x="k", mode="reflect"), row=weights(3, 3, 2),
    ),
    "by copies": _case(*LONG, *_pads(("less", "L"), ("rest", "c3"), ("c3", "c0"), mode="wrap")),
    "both extents of an image": Case(
        [
            make_node("Shape", ["x"], ["all"]), make_node("Sub", ["c9", "all"], ["rest"]),
            make_node("Slice", ["rest", "c2", "c4"], ["r"]), make_node("Concat", ["c0", "c0", "r"], ["a"], axis=0),
            make_node("Concat", ["zeros", "a"], ["p"], axis=0), make_node("Pad", ["x", "p"], ["y"], mode="edge"),
        ],
        {"x": [1, 2, "h", "w"]}, ["h:2..6:2", "w:1..5"], (),
        {"c9": np.array([9]), "c2": np.array([2]), "c4": np.array([4]), "c0": np.array([0]),
         "zeros": np.zeros(4, np.int64)}, opset=18,
    ),
    "SAME, the largest": _same("MaxPool"),
    "SAME, means": _same("AveragePool"),
    "SAME, means of padding, too": _same("AveragePool", count_include_pad=1),
    "SAME, roots of powers": _same("LpPool"),
    "SAME, convolutions": _same("Conv", "ConvTranspose"),
    "rounded up, the largest": _rounded_up("MaxPool"),
    "rounded up, means": _rounded_up("AveragePool"),
    "rounded up, means of padding, too": _rounded_up("AveragePool", count_include_pad=1),
    "rounded up, roots of powers": _rounded_up("LpPool"),
    "means of what is inside": _windows(
        *(("AveragePool", {"kernel_shape": [3], "pads": pads, "strides": [s]})
          for pads in ([1, 1], [2, 0], [0, 2]) for s in (1, 2)),
    ),
    "means of dilated windows": replace(_windows(
        *(("AveragePool", {"kernel_shape": [2], "dilations": [2], "pads": [1, 1], **more})
          for more in ({}, {"strides": [2], "ceil_mode": 1}, {"strides": [3], "count_include_pad": 1, "ceil_mode": 1})),
    ), ranges=["l:2..20"]),
    "windows on images": _case(
        make_node("AveragePool", ["x"], ["y0"], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1),
        make_node("AveragePool", ["x"], ["y1"], kernel_shape=[3, 2], strides=[2, 1], auto_pad="SAME_UPPER"),
        make_node("MaxPool", ["x"], ["y2"], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 0], ceil_mode=1),
        make_node("Conv", ["x", "w"], ["y3"], strides=[2, 2], auto_pad="SAME_LOWER"),
        make_node("Conv", ["y3", "w"], ["y4"], strides=[2, 1], auto_pad="SAME_UPPER"), inputs=IMAGE,
        w=weights(2, 2, 3, 2),
    ),
    "positions that agree": _case(
        make_node("MaxPool", ["x"], ["a"], kernel_shape=[3], strides=[2], auto_pad="SAME_UPPER"),
        make_node("AveragePool", ["x"], ["b"], kernel_shape=[2], strides=[2], ceil_mode=1),
        make_node("Conv", ["x", "w"], ["c"], strides=[2], pads=[1, 1]), make_node("Add", ["a", "b"], ["d"]),
        make_node("Add", ["c", "d"], ["y"]), inputs=ROW, w=weights(2, 2, 3),
    ),
    "integers": _case(
        make_node("Cast", ["x"], ["i"], to=3),
        make_node("MaxPool", ["i"], ["y"], kernel_shape=[3], strides=[2], auto_pad="SAME_UPPER"), inputs=ROW,
    ),
    "convolutions of integers": _case(
        make_node("Mul", ["x", "c100"], ["m"]), make_node("Cast", ["m"], ["i"], to=3),
        make_node("ConvInteger", ["i", "w", "zero"], ["y"], strides=[2], auto_pad="SAME_UPPER"), inputs=ROW,
        c100=np.float32(100), w=np.arange(-6, 6, dtype=np.int8).reshape(2, 2, 3), zero=np.int8(7),
    ),
    "transposed to a fixed extent": Case(
        [make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2], output_shape=[7])],
        {"x": [1, 2, "l"]}, ["l:3..9"], (), {"w": weights(2, 2, 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_extent_agrees_with_onnx_runtime(name: str) -> None:
    CASES[name].check_import(CASES[name].every_call)


COMPILED = [
    "to a fixed length", "by the border", "by a reflection", "by copies", "windows on images", "positions that agree",
    "means of what is inside",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_calls_agree_with_onnx_runtime(name: str) -> None:
    CASES[name].check_compiled(CASES[name].every_call, threads=1)


def test_padding_of_the_call_agrees_on_the_emulator() -> None:
    case = _case(
        make_node("Conv", ["x", "w"], ["a"], strides=[2], auto_pad="SAME_UPPER"),
        make_node("AveragePool", ["a"], ["b"], kernel_shape=[2], strides=[2], ceil_mode=1),
        *shape_of("b", 2, "L"), make_node("Sub", ["c5", "L"], ["rest"]),
        make_node("Concat", ["c0", "c0", "c0", "c0", "c0", "rest"], ["p"], axis=0),
        make_node("Pad", ["b", "p"], ["y"], mode="edge"), inputs=ROW, w=weights(2, 2, 3),
    )  # fmt: skip
    case.check_emulated(case.every_call[::6])


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            _case(*_pads(("c1", "c2"), mode="reflect")),
            "node 'y0' (Pad, opset 19): padding of 1 before and 2 behind l <= 20 elements by mode reflect has too few "
            "to repeat in some call; accepted: more elements than are mirrored in every call",
        ),
        (
            _case(*_pads(("back1", "c2"), mode="edge")),
            "padding of 0 before and 2 behind l - 1 <= 19 elements by mode edge has too few to repeat in some call; "
            "accepted: at least one element in every call",
        ),
        (
            _case(*LONG, make_node("Sub", ["L", "c5"], ["over5"]), *_pads(("c5", "over5"), mode="wrap")),
            "padding of 5 before and l - 5 <= 15 behind l <= 20 elements by mode wrap cuts some off in some call; "
            "accepted: amounts from 0 upwards, or mode constant",
        ),
        (
            _case(*_pads(("back3", "c0"))),
            "3 elements are cut off l <= 20, of which some call has fewer; accepted: a range of extents from there on",
        ),
        (
            _case(*LONG, make_node("Sub", ["c3", "L"], ["to3"]), *_pads(("back1", "to3"), ("to3", "back3"))),
            "3 elements are cut off l <= 20, of which some call has fewer",
        ),
        (
            _case(*LONG, make_node("Mul", ["L", "back3"], ["cut"]), *_pads(("cut", "c1"))),
            "padding of -3 * l <= -3 before and 1 behind l <= 20 elements leaves -39 in some call; accepted: 0 or more "
            "in every call of the range",
        ),
        (
            _case(*LONG, make_node("Mul", ["L", "huge"], ["far"]), *_pads(("far", "c1")), huge=np.array([1 << 20])),
            "20971541 elements at computed positions; accepted: at most 16777216",
        ),
        (
            _case(make_node("Reshape", ["x", "flat"], ["r"]), make_node("Shape", ["r"], ["s"]),
                  make_node("Concat", ["c0", "s"], ["p"], axis=0), make_node("Pad", ["r", "p"], ["y"]),
                  flat=np.array([-1])),
            "positions in the merged dimension 6 * l <= 120; accepted: a dimension that merges at most one",
        ),
        (
            _windows(("MaxPool", {"kernel_shape": [3], "pads": [1, 0], "ceil_mode": 1})),
            "a window of 3 elements on 1 elements with padding of 1 and 0, the fewest of l <= 20; of extents "
            "[1, 2, l <= 20]; accepted: a range of extents from 2 on",
        ),
    ],
)  # fmt: skip
def test_what_some_call_has_no_elements_for_is_refused_by_its_node(case: Case, message: str) -> None:
    with pytest.raises(TreadleError) as caught:
        import_model(case.model().SerializeToString(), case.shapes)
    assert message in str(caught.value)


def test_positions_of_the_largest_need_static_extents() -> None:
    case = _case(make_node("MaxPool", ["x"], ["y0", "y1"], kernel_shape=[1]), inputs=ROW)
    with pytest.raises(TreadleError, match=r"positions in an input of shape .*; accepted: static extents"):
        import_model(case.model().SerializeToString(), case.shapes)
