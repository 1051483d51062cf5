"""Models imported with a range: every extent of it against ONNX Runtime, by the definition of what was imported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto
from onnx.helper import make_node

from tests.helpers.ranged_model import Case, weights
from treadle.backends.reference.run_module import find_function
from treadle.errors import TreadleError
from treadle.frontends.onnx.importer import import_model

RANGE = ["l:1..20"]
NEAREST: dict[str, Any] = {
    "mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor",
}  # fmt: skip
Inputs = dict[str, list[int | str]]
X: Inputs = {"x": [3, "l", 2]}
IMAGE: Inputs = {"x": [1, 2, "l", 3]}
EXTENT = [make_node("Shape", ["x"], ["all"]), make_node("Slice", ["all", "c1", "c2"], ["L"])]
"""`L`: the second extent of x, as a list of one."""
NUMBERS = {
    **{f"c{n}": np.array([n]) for n in range(6)},
    **{"minus1": np.array([-1]), "minus5": np.array([-5]), "minus30": np.array([-30]), "twenty": np.array([20])},
    **{"zero": np.array(0), "one": np.array(1)},
    "table": weights(25, 4),
    "integers": np.arange(100).reshape(25, 4),
}


def _case(*nodes: NodeProto, inputs: Inputs = X, opset: int = 17, integers: int = 0, **constants: object) -> Case:
    outputs = list(dict.fromkeys(name for node in nodes for name in node.output if name.startswith("y")))
    read = {name for node in nodes for name in node.input}
    arrays = {name: np.asarray(value) for name, value in (NUMBERS | constants).items() if name in read}
    return Case(nodes, inputs, RANGE, (), arrays, integers, opset=opset, outputs=outputs)


def _along(operator: str, opset: int, **attributes: Any) -> Case:
    """An operator along each axis."""
    return _case(*(make_node(operator, ["x"], [f"y{n}"], axis=n, **attributes) for n in range(3)), opset=opset)


def _reductions(*operators: str) -> Case:
    nodes = [make_node("Abs", ["x"], ["a"])]
    for operator in operators:
        for axes in ([0], [1], [2], [0, 1, 2]):
            for keep in (0, 1):
                name = f"y_{operator}_{len(axes)}_{axes[0]}_{keep}"
                nodes.append(make_node(operator, ["a"], [name], axes=axes, keepdims=keep))
    return _case(*nodes)


def _values(operator: str, **attributes: Any) -> Case:
    """An operator of integers that are computed from shapes, of either sign."""
    nodes, divides = [*EXTENT], operator in ("Div", "Mod")
    for n, shift in enumerate(("c0", "minus5", "minus30")):
        nodes.append(make_node("Add", ["L", shift], [f"k{n}"]))
        for number in ("c5", "c2", "minus5", "L"):
            if not (divides and number == "L" and n == 0):
                nodes.append(make_node(operator, [f"k{n}", number], [f"y{n}{number}"], **attributes))
    return _case(*nodes)


def _scaled_sizes() -> Case:
    """Extents times a float, rounded: what exporters write for scale factors."""
    nodes, constants = [*EXTENT, make_node("Cast", ["L"], ["f"], to=1)], dict[str, Any]()
    for n, scale in enumerate((2.0, 0.5, 1.5, 1 / 3, 0.7, 1.1)):
        constants[f"k{n}"] = np.array([scale], np.float32)
        nodes.append(make_node("Mul", ["f", f"k{n}"], [f"m{n}"]))
        for rounding in ("Identity", "Floor", "Ceil"):
            name = f"{n}{rounding}"
            nodes += [make_node(rounding, [f"m{n}"], [f"r{name}"]), make_node("Cast", [f"r{name}"], [f"n{name}"], to=7)]
            nodes.append(make_node("ConstantOfShape", [f"n{name}"], [f"y{name}"]))
    return _case(*nodes, **constants)


def _slices() -> Case:
    """Slices whose bounds lie inside in each call."""
    bounds = (
        *((1, 99, 1), (0, -1, 1), (-1, 99, 1), (0, 1, 1), (0, 99, 2), (1, 99, 3)),
        *((-1, -999, -1), (-1, -999, -2), (0, -999, -1)),
    )
    nodes = [make_node("Slice", ["x", f"a{n}", f"b{n}", "c1", f"s{n}"], [f"y{n}"]) for n in range(len(bounds))]
    constants: dict[str, Any] = {
        f"{word}{n}": [value] for n, each in enumerate(bounds) for word, value in zip("abs", each, strict=True)
    }
    return _case(*nodes, **constants)


CASES: dict[str, Case] = {
    "rows turned around": _case(make_node("Slice", ["x", "minus1", "end", "c1", "minus1"], ["y"]), end=[-99],
                                inputs={"x": [3, 3, "l"]}),
    **{name: _along(name, 13) for name in ("Softmax", "LogSoftmax", "Hardmax")},
    **{f"{name} of rows": _case(make_node(name, ["x"], ["y"], axis=1), opset=9)
       for name in ("Softmax", "LogSoftmax", "Hardmax")},
    "ArgMax": _along("ArgMax", 17),
    "ArgMin": _along("ArgMin", 17, keepdims=0),
    "LpNormalization": _along("LpNormalization", 17, p=1),
    "reductions": _reductions("ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin"),
    "reductions of functions": _reductions("ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
    "CumSum": _case(
        *(make_node("CumSum", ["x", f"c{n}"], [f"y{n}{r}{e}"], reverse=r, exclusive=e)
          for n in range(3) for r in (0, 1) for e in (0, 1))
    ),
    "MeanVarianceNormalization": _case(make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 1])),
    "InstanceNormalization": _case(
        make_node("InstanceNormalization", ["x", "s", "b"], ["y"]), inputs=IMAGE, s=weights(2), b=weights(2)
    ),
    "global pools": _case(
        make_node("GlobalAveragePool", ["x"], ["y0"]), make_node("GlobalMaxPool", ["x"], ["y1"]),
        make_node("GlobalLpPool", ["x"], ["y2"]), inputs=IMAGE,
    ),
    "Size and Shape": _case(make_node("Size", ["x"], ["y0"]), make_node("Shape", ["x"], ["y1"])),
    "Expand and ConstantOfShape": _case(
        make_node("Shape", ["x"], ["s"]), make_node("Expand", ["b", "s"], ["y0"]),
        make_node("ConstantOfShape", ["s"], ["y1"]), inputs={**X, "b": ["l", 1]},
    ),
    "Tile": _case(
        *EXTENT, make_node("Tile", ["row", "L"], ["y0"]), make_node("Tile", ["x", "twice"], ["y1"]),
        row=np.arange(3), twice=np.array([2, 1, 3]),
    ),
    "Range": _case(
        *EXTENT, make_node("Squeeze", ["L"], ["n"]), make_node("Range", ["zero", "n", "one"], ["y0"]),
        make_node("Range", ["one", "n", "two"], ["y1"]), two=np.array(2),
    ),
    "EyeLike": _case(make_node("EyeLike", ["x"], ["y"], dtype=1, k=-2), inputs={"x": ["l", 7]}),
    "Trilu": _case(
        make_node("Trilu", ["x"], ["y0"]), make_node("Trilu", ["x", "k"], ["y1"], upper=0), k=np.array(-3),
        inputs={"x": ["l", "l"]},
    ),
    "TopK": _case(
        make_node("TopK", ["x", "c1"], ["y0", "y1"], axis=1), make_node("TopK", ["x", "c2"], ["y2", "y3"], axis=0),
    ),
    "OneHot": _case(make_node("OneHot", ["i", "c5", "v"], ["y"]), inputs={"i": ["l"]}, integers=5, v=np.array([1, 2])),
    "diagonals": _case(make_node("Einsum", ["x"], ["y0"], equation="ii->i"),
                       make_node("Einsum", ["x"], ["y1"], equation="ii"), inputs={"x": ["l", "l"]}),
    "DepthToSpace": _case(make_node("DepthToSpace", ["x"], ["y"], blocksize=2), inputs={"x": [1, 4, "l", 3]}),
    "Pad": _case(make_node("Pad", ["x", "p"], ["y"]), p=np.array([0, 2, 1, 0, 3, 1])),
    "Concat": _case(make_node("Concat", ["c", "x"], ["y0"], axis=1), make_node("Concat", ["x", "x"], ["y1"], axis=0),
                    c=weights(3, 2, 2)),
    "slices": _slices(),
    "slices to half": _case(
        *EXTENT, make_node("Div", ["L", "c2"], ["h"]), make_node("Slice", ["x", "c0", "h", "c1"], ["y0"]),
        make_node("Slice", ["table", "c0", "L", "c0"], ["y1"]), make_node("Slice", ["x", "h", "end", "c1"], ["y2"]),
        make_node("Slice", ["table", "L", "end", "c0"], ["y3"]),
        make_node("Slice", ["table", "h", "L", "c0", "c2"], ["y4"]), end=[99],
    ),
    "Split at an extent": _case(
        *EXTENT, make_node("Sub", ["twenty", "L"], ["rest"]), make_node("Concat", ["L", "rest"], ["to"], axis=0),
        make_node("Split", ["row", "to"], ["y0", "y1"]), row=weights(20),
    ),
    "Concat behind an extent": _case(
        make_node("Concat", ["x", "c"], ["y0"], axis=1), make_node("Concat", ["x", "c", "x"], ["k"], axis=1),
        make_node("Softmax", ["k"], ["y1"], axis=1), make_node("ReduceMax", ["k"], ["y2"], axes=[1]),
        c=weights(3, 1, 2),
    ),
    "ScatterElements": _case(
        *(make_node("ScatterElements", ["x", "i", "u"], [f"y{n}"], axis=n) for n in range(3)),
        inputs={**X, "i": [3, "l", 2], "u": [3, "l", 2]}, integers=1,
    ),
    "ScatterND": _case(make_node("ScatterND", ["x", "at", "u"], ["y0"]), at=[[0], [-1]],
                       inputs={"x": ["l", 2], "u": [2, 2]}),
    "ReverseSequence": _case(
        make_node("ReverseSequence", ["x", "ones"], ["y"], time_axis=1, batch_axis=0), ones=[1, 1, 1],
    ),
    "windows": _case(
        make_node("MaxPool", ["x"], ["y0"], kernel_shape=[3, 1], pads=[1, 0, 1, 0], strides=[2, 1]),
        make_node("AveragePool", ["x"], ["y1"], kernel_shape=[1, 1], strides=[3, 1]),
        make_node("Conv", ["x", "w"], ["y2"], pads=[1, 0, 1, 0], strides=[2, 1]),
        make_node("ConvTranspose", ["x", "w"], ["y3"], strides=[2, 1]),
        make_node("LpPool", ["x"], ["y4"], kernel_shape=[2, 1], pads=[1, 0, 1, 0]), inputs=IMAGE, w=weights(2, 2, 3, 1),
    ),
    "GridSample": _case(make_node("GridSample", ["x", "g"], ["y"], align_corners=1),
                        inputs={"x": [1, 2, "l", 4], "g": [1, 3, 3, 2]}),
    "pictures sampled": _case(make_node("GridSample", ["x", "g"], ["y"]),
                              inputs={"x": ["l", 1, 3, 3], "g": ["l", 1, 2, 2]}),
    "Resize": _case(
        make_node("Shape", ["x"], ["s"]), make_node("Mul", ["s", "k"], ["to"]),
        make_node("Resize", ["x", "", "", "to"], ["y"], **NEAREST), inputs=IMAGE, k=np.array([1, 1, 2, 1]),
    ),
    "rows of a table at the length of a cache": _case(
        *EXTENT, make_node("Sub", ["L", "c1"], ["last"]), make_node("Neg", ["L"], ["back"]),
        make_node("Gather", ["table", "last"], ["y0"]), make_node("Gather", ["integers", "last"], ["y1"]),
        make_node("Gather", ["table", "back"], ["y2"]), make_node("GatherND", ["table", "L"], ["y3"]),
        make_node("Unsqueeze", ["L", "c1"], ["cell"]), make_node("GatherElements", ["table", "cell"], ["y4"]),
        make_node("Add", ["L", "c2"], ["stop"]), make_node("Slice", ["table", "L", "stop", "c0"], ["y5"]),
        make_node("Slice", ["integers", "L", "stop", "c0"], ["y6"]), make_node("Gather", ["large", "last"], ["y7"]),
        large=weights(20, 300),
    ),
    "an extent that falls with the symbol": _case(
        *EXTENT, make_node("Sub", ["twenty", "L"], ["rest"]), make_node("Concat", ["rest", "c4"], ["to"], axis=0),
        make_node("Expand", ["row", "to"], ["y0"]), make_node("ReduceSum", ["y0", "c0"], ["y1"]),
        make_node("Mul", ["rest", "L"], ["area"]), make_node("ConstantOfShape", ["area"], ["y2"]),
        row=np.arange(1, 5, dtype=np.float32)[None],
    ),
    "sizes through floats": _scaled_sizes(),
    "sizes of Resize through floats": _case(
        make_node("Shape", ["x"], ["s"]), make_node("Slice", ["s", "c2", "c3"], ["h"]),
        make_node("Cast", ["h"], ["f"], to=1), make_node("Mul", ["f", "two"], ["m"]), make_node("Floor", ["m"], ["r"]),
        make_node("Cast", ["r"], ["n"], to=7), make_node("Slice", ["s", "c0", "c2"], ["front"]),
        make_node("Concat", ["front", "n", "c3"], ["sizes"], axis=0),
        make_node("Resize", ["x", "", "", "sizes"], ["y0"], **NEAREST), make_node("Div", ["r", "f"], ["scale"]),
        make_node("Concat", ["ones", "scale", "unit"], ["scales"], axis=0),
        make_node("Resize", ["x", "", "scales"], ["y1"], **NEAREST), inputs=IMAGE, two=np.array([2], np.float32),
        ones=np.ones(2, np.float32), unit=np.ones(1, np.float32),
    ),
    "values through floats": _case(
        *EXTENT, make_node("Cast", ["L"], ["f"], to=1), make_node("Sqrt", ["f"], ["root"]),
        make_node("Div", ["x", "root"], ["y0"]), make_node("Mul", ["f", "k"], ["m"]),
        make_node("Cast", ["m"], ["y1"], to=7), make_node("Round", ["m"], ["y2"]), k=np.array([-0.3], np.float32),
    ),
    "Range from an extent": _case(
        *EXTENT, make_node("Squeeze", ["L"], ["n"]), make_node("Add", ["n", "n"], ["n2"]),
        make_node("Range", ["n", "n2", "one"], ["y0"]), make_node("Sub", ["n", "one"], ["last"]),
        make_node("Range", ["last", "back", "back"], ["y1"]), make_node("Cast", ["n"], ["f"], to=1),
        make_node("Range", ["zero_f", "f", "one_f"], ["y2"]), back=np.array(-1), zero_f=np.float32(0),
        one_f=np.float32(1),
    ),
    **{f"{name} of integers": _values(name) for name in
       ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Equal", "Less", "GreaterOrEqual")},
    "remainders of C": _values("Mod", fmod=1),
    "casts": _case(
        *EXTENT, make_node("Sub", ["L", "c5"], ["k"]), make_node("Mul", ["L", "big"], ["m"]),
        *(make_node("Cast", [name], [f"y{name}{to}"], to=to) for name in "km" for to in (1, 2, 3, 5, 6, 7, 9, 11, 12)),
        big=np.array([30_000]),
    ),
    "functions of integers": _case(
        *EXTENT, make_node("Sub", ["L", "c5"], ["k"]), make_node("Abs", ["k"], ["y0"]),
        make_node("Sign", ["k"], ["y1"]), make_node("Neg", ["k"], ["y2"]),
        make_node("Clip", ["L", "two", "five"], ["y3"]),
        make_node("Greater", ["L", "c5"], ["more"]), make_node("Where", ["more", "L", "c2"], ["y4"]),
        make_node("CumSum", ["all", "zero"], ["y5"]), make_node("ReduceMax", ["all"], ["y6"]),
        make_node("ReduceProd", ["all"], ["y7"]), make_node("ArgMax", ["all"], ["y8"]), two=2, five=5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_extent_agrees_with_onnx_runtime(name: str) -> None:
    CASES[name].check_import(CASES[name].every_call)


COMPILED = [
    "Hardmax", "slices", "rows turned around", "Concat behind an extent", "rows of a table at the length of a cache",
    "an extent that falls with the symbol", "Div of integers",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_calls_agree_with_onnx_runtime(name: str) -> None:
    CASES[name].check_compiled(CASES[name].every_call, threads=1)


def test_a_row_of_a_table_agrees_on_the_emulator() -> None:
    case = _case(*EXTENT, make_node("Gather", ["table", "L"], ["y"]))
    case.check_emulated(case.every_call[::9])


NEEDED = "which changes from call to call, where a number is needed"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            _case(make_node("Reshape", ["x", "minus1"], ["r"]), make_node("Concat", ["r", "r"], ["y"], axis=0)),
            "node 'y' (Concat, opset 17): positions in the merged dimension 6 * l <= 120",
        ),
        (
            _case(make_node("Concat", ["x", "i"], ["y"], axis=1), inputs={**X, "i": [3, "l", 2]}),
            "node 'y' (Concat, opset 17): tensor<3x20x2xf32> and tensor<3x20x2xi64> are not concatenated",
        ),
        (
            _case(make_node("Shape", ["x"], ["s"]), make_node("Resize", ["row", "", "", "s"], ["y"], **NEAREST),
                  inputs=IMAGE, row=weights(1, 2, 4, 3)),
            "node 'y' (Resize, opset 17): extent 4 is resized to l <= 20, which is no whole multiple",
        ),
        (
            _case(make_node("Resize", ["x", "", "", "to"], ["y"], axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
                  inputs=IMAGE, opset=18, to=[6, 6]),
            "node 'y' (Resize, opset 18): 6 divided by l <= 20 is no whole number for every extent",
        ),
        (
            _case(*EXTENT, make_node("OneHot", ["L", "L", "v"], ["y"]), v=[0, 1]),
            f"node 'y' (OneHot, opset 17): the extent l <= 20, {NEEDED}",
        ),
        (
            _case(*EXTENT, make_node("Squeeze", ["L"], ["n"]), make_node("Cast", ["n"], ["f"], to=1),
                  make_node("Range", ["half", "f", "f"], ["y"]),
                  half=np.float32(0.5)),
            "a range from 0.5 in steps of l <= 20; accepted: a delta that is a number",
        ),
        (
            _case(*EXTENT, make_node("Squeeze", ["L"], ["n"]), make_node("Cast", ["n"], ["f"], to=1),
                  make_node("Range", ["half", "f", "half"], ["y"]), half=np.float32(0.5)),
            "a range of 0.5 and of extents; accepted: whole numbers",
        ),
        (
            _case(*EXTENT, make_node("Cast", ["L"], ["f"], to=1), make_node("Mul", ["f", "half"], ["m"]),
                  make_node("Round", ["m"], ["r"]), make_node("Cast", ["r"], ["n"], to=7),
                  make_node("ConstantOfShape", ["n"], ["y"]), half=np.array([0.5], np.float32)),
            "node 'y' (ConstantOfShape, opset 17): the shape (input 'n') depends on the model's input data",
        ),
    ],
)  # fmt: skip
def test_what_needs_a_number_is_refused_by_its_node(case: Case, message: str) -> None:
    with pytest.raises(TreadleError) as caught:
        import_model(case.model().SerializeToString(), case.shapes)
    assert message in str(caught.value)


def test_a_model_gets_no_extents_that_nothing_reads() -> None:
    case = CASES["sizes of Resize through floats"]
    module = import_model(case.model().SerializeToString(), case.shapes)
    assert [text.data for text in find_function(module, "main").attributes["input_names"]][1:] == [  # pyright: ignore
        "extent(2 * l)"
    ]
