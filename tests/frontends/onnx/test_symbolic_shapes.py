"""Models whose shapes change, imported with ranges: compiled once, every call against ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto
from onnx.helper import make_node

import treadle
from tests.helpers.ranged_model import Case, drawn, shape_of, weights
from treadle.errors import TreadleError

NUMBERS = {f"c{n}": np.array([n]) for n in range(5)} | {"last": np.array([-1]), "zero": np.array(0), "one": np.array(1)}
WIDTHS = [{"w": w} for w in (1, 2, 7, 16, 31, 32)]
ROWS = [{"n": 1, "s": 1}, {"n": 3, "s": 5}, {"n": 2, "s": 17}, {"n": 4, "s": 32}, {"n": 4, "s": 1}]

CASES: dict[str, Case] = {
    "elementwise": Case(
        [make_node("Add", ["x", "b"], ["a"]), make_node("Relu", ["a"], ["y"])],
        {"x": ["n", "s", 3], "b": ["s", 1]}, ["n:1..4", "s:1..32"], ROWS,
    ),
    "merged rows of a product": Case(
        [make_node("MatMul", ["x", "m"], ["a"]), make_node("Softmax", ["a"], ["y"], axis=-1)],
        {"x": ["n", "s", 5]}, ["n:1..4", "s:1..32"], ROWS, {"m": weights(5, 7)},
    ),
    "heads": Case(
        [
            *shape_of("x", 0, "n"), *shape_of("x", 1, "s"),
            make_node("Concat", ["n", "s", "c2", "c4"], ["to"], axis=0), make_node("Reshape", ["x", "to"], ["h"]),
            make_node("Transpose", ["h"], ["q"], perm=[0, 2, 1, 3]),
            make_node("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]),
            make_node("MatMul", ["q", "k"], ["scores"]), make_node("Softmax", ["scores"], ["p"], axis=-1),
            make_node("MatMul", ["p", "q"], ["o"]), make_node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
            make_node("Concat", ["n", "s", "last"], ["back"], axis=0), make_node("Reshape", ["t", "back"], ["y"]),
        ],
        {"x": ["n", "s", 8]}, ["n:1..4", "s:1..32"], ROWS, NUMBERS,
    ),
    "a result of merged rows": Case(
        [make_node("Reshape", ["x", "to"], ["y"])], {"x": ["n", "s", 8]}, ["n:1..4", "s:1..32"], ROWS,
        {"to": np.array([-1, 8])},
    ),
    "mean": Case(
        [make_node("ReduceMean", ["x"], ["y"], axes=[2, 3])], {"x": [2, 3, 4, "w"]}, ["w:1..32"], WIDTHS,
    ),
    "largest": Case([make_node("ReduceMax", ["x"], ["y"], axes=[-1])], {"x": [2, 3, "w"]}, ["w:1..32"], WIDTHS),
    "product over a symbol": Case(
        [make_node("MatMul", ["x", "z"], ["y"])], {"x": [3, "w"], "z": ["w", 5]}, ["w:1..32"], WIDTHS,
    ),
    "position of the largest": Case(
        [make_node("ArgMax", ["x"], ["y"], axis=1)], {"x": [3, "w"]}, ["w:1..32"], WIDTHS,
    ),
    "sum of logarithms": Case(
        [make_node("LogSoftmax", ["x"], ["y"], axis=1)], {"x": [3, "w", 2]}, ["w:1..32"], WIDTHS,
    ),
    "convolution": Case(
        [
            make_node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
            make_node("MaxPool", ["a"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]),
            make_node("AveragePool", ["p"], ["y"], kernel_shape=[1, 1]),
        ],
        {"x": [1, 3, "h", "w"]}, ["h:1..20", "w:1..32"],
        [{"h": h, "w": w} for h, w in ((1, 1), (20, 32), (7, 5), (2, 31), (19, 1))], {"k": weights(8, 3, 3, 3)},
    ),
    "convolution of multiples": Case(
        [
            make_node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
            make_node("ConvTranspose", ["a", "up"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
            make_node("Concat", ["b", "x"], ["y"], axis=1),
        ],
        {"x": [1, 3, "h", "w"]}, ["h:8..24:8", "w:8..32:4"],
        [{"h": h, "w": w} for h, w in ((8, 8), (24, 32), (16, 12))],
        {"k": weights(8, 3, 3, 3), "up": weights(8, 4, 2, 2)},
    ),
    "as many windows as strides": Case(
        [
            make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 3], auto_pad="SAME_UPPER", strides=[2, 1]),
            make_node("Conv", ["a", "k"], ["b"], auto_pad="SAME_LOWER", strides=[1, 1]),
            make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 1], auto_pad="SAME_UPPER", strides=[2, 1]),
            make_node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], auto_pad="SAME_UPPER", count_include_pad=1),
        ],
        {"x": [1, 3, "h", "w"]}, ["h:1..20", "w:1..32"],
        [{"h": h, "w": w} for h, w in ((1, 1), (20, 32), (7, 5), (2, 31), (19, 4), (18, 3))],
        {"k": weights(8, 3, 2, 3)},
    ),
    "windows over multiples of strides": Case(
        [make_node("Conv", ["x", "k"], ["y"], auto_pad="SAME_UPPER", strides=[2, 4])],
        {"x": [1, 3, "h", "w"]}, ["h:2..20:2", "w:8..32:8"],
        [{"h": h, "w": w} for h, w in ((2, 8), (20, 32), (6, 24))], {"k": weights(8, 3, 3, 3)},
    ),
    "padding": Case(
        [make_node("Pad", ["x", "pads", "v"], ["a"]), make_node("ReduceSum", ["a"], ["y"])],
        {"x": [3, "w"]}, ["w:1..32"], WIDTHS, {"pads": np.array([0, 2, 0, 3]), "v": np.array(2.5, np.float32)},
    ),
    "positions": Case(
        [
            make_node("Shape", ["i"], ["all"]), make_node("Gather", ["all", "one"], ["s"]),
            make_node("Range", ["zero", "s", "one"], ["r"]), make_node("Add", ["i", "r"], ["t"]),
            make_node("Mul", ["t", "s"], ["y"]),
        ],
        {"i": ["n", "s"]}, ["n:1..4", "s:1..32"], ROWS, NUMBERS, 9,
    ),
    "expanded zeros": Case(
        [
            make_node("Shape", ["x"], ["all"]), make_node("ConstantOfShape", ["all"], ["z"]),
            make_node("Expand", ["b", "all"], ["e"]), make_node("Sub", ["e", "x"], ["d"]),
            make_node("Add", ["z", "d"], ["y"]),
        ],
        {"x": ["n", "s"], "b": ["n", 1]}, ["n:1..4", "s:1..32"], ROWS,
    ),
    "the last token": Case(
        [make_node("Gather", ["x", "minus"], ["y"], axis=1)], {"x": ["n", "s", 5]}, ["n:1..4", "s:1..32"], ROWS,
        {"minus": np.array(-1)},
    ),
    "the last two tokens": Case(
        [make_node("Slice", ["x", "minus", "end", "one1"], ["y"])], {"x": [2, "w", 5]}, ["w:2..32"], WIDTHS[1:],
        {"minus": np.array([-2]), "end": np.array([2**31]), "one1": np.array([1])},
    ),
    "rows of a table, counted from its end": Case(
        [make_node("Sub", ["i", "half"], ["j"]), make_node("Gather", ["x", "j"], ["y"])],
        {"x": ["n", 3], "i": ["s"]}, ["n:3..8", "s:1..32"], [{"n": 3, "s": 7}, {"n": 8, "s": 32}, {"n": 5, "s": 1}],
        {"half": np.array(3)}, 6,
    ),
    "a token in front": Case(
        [make_node("Concat", ["t", "x"], ["a"], axis=1), make_node("ReduceMax", ["a"], ["y"], axes=[1], keepdims=0)],
        {"x": [2, "w", 5], "t": [2, 1, 5]}, ["w:1..32"], WIDTHS,
    ),
    "all but the first": Case(
        [make_node("Slice", ["x", "c1", "end", "c1"], ["a"]), make_node("ReduceSum", ["a", "c1"], ["y"])],
        {"x": [2, "w", 5]}, ["w:2..32"], WIDTHS[1:], NUMBERS | {"end": np.array([2**31])},
    ),
    "nearest neighbours": Case(
        [make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric",
                   nearest_mode="floor")],
        {"x": [1, 2, "h", "w"]}, ["h:1..20", "w:1..32"], [{"h": 1, "w": 1}, {"h": 7, "w": 5}, {"h": 20, "w": 32}],
        {"scales": np.array([1, 1, 2, 3], np.float32)},
    ),
    "cumulative sums": Case(
        [
            make_node("CumSum", ["x", "one"], ["a"]), make_node("CumSum", ["x", "one"], ["b"], reverse=1, exclusive=1),
            make_node("Sub", ["a", "b"], ["y"]),
        ],
        {"x": [3, "w"]}, ["w:1..32"], WIDTHS, NUMBERS,
    ),
    "gathered by coordinates": Case(
        [make_node("GatherND", ["x", "i"], ["y"])], {"x": ["n", "s", 3], "i": [5, 2]}, ["n:2..4", "s:2..32"],
        [{"n": 2, "s": 2}, {"n": 4, "s": 32}, {"n": 3, "s": 9}], None, 2,
    ),
    "gathered along": Case(
        [make_node("GatherElements", ["x", "i"], ["y"], axis=1)], {"x": ["n", 4], "i": ["n", "s"]},
        ["n:1..4", "s:1..32"], ROWS, None, 4,
    ),
    "positions looked up": Case(
        [
            make_node("Shape", ["x"], ["all"]), make_node("Gather", ["all", "one"], ["s"]),
            make_node("Range", ["zero", "s", "one"], ["r"]), make_node("Unsqueeze", ["r", "c0"], ["p"]),
            make_node("GatherElements", ["t", "p"], ["g"], axis=1), make_node("Add", ["x", "g"], ["y"]),
        ],
        {"x": [1, "s"]}, ["s:1..32"], [{"s": s} for s in (1, 7, 32)], NUMBERS | {"t": weights(1, 64)},
    ),
    "layer norm": Case(
        [make_node("LayerNormalization", ["x", "g", "b"], ["y"])], {"x": ["n", "s", 6]}, ["n:1..4", "s:1..32"], ROWS,
        {"g": weights(6), "b": weights(6)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_call_agrees_with_onnx_runtime(name: str) -> None:
    CASES[name].check_compiled(CASES[name].calls, threads=2)


def test_no_call_starts_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled for another shape: no compiler is found, and none could be started."""
    case = CASES["heads"]
    with treadle.compile(case.model(), shapes=case.shapes, threads=2) as compiled:
        compiled.save(tmp_path / "heads.treadle")
    oracle = case.oracle()

    def started(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork") and watching:
            raise AssertionError(f"{event}: {arguments}")

    watching = True
    sys.addaudithook(started)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    try:
        with treadle.load(tmp_path / "heads.treadle", threads=2) as loaded:
            for call in case.calls:
                case.check(call, loaded, oracle)
    finally:
        watching = False


@pytest.mark.parametrize("name", ["heads", "mean", "the last token"])
def test_calls_agree_on_the_emulator(name: str) -> None:
    CASES[name].check_emulated(CASES[name].calls[:3])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_twenty_shapes_agree_on_the_emulator(name: str) -> None:
    """Ones, bounds, primes and multiples of tiles are among the cases' own calls."""
    case, generator = CASES[name], np.random.default_rng(3)
    least = {dim.name: dim.least for dim in case.dims}
    others = ({dim.name: drawn(dim, generator) for dim in case.dims} for _ in range(19 - len(case.calls)))
    case.check_emulated([*case.calls, least, *others])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [make_node("Add", ["x", "five"], ["y"])],
            "do not broadcast; of extents [3, w <= 32] and [3, 5]",
        ),
        ([make_node("Concat", ["x", "z"], ["y"], axis=0)], "do not broadcast in every call"),
        ([make_node("Reshape", ["x", "eights"], ["y"])], "depends on the extents of a call"),
        ([make_node("NonZero", ["x"], ["y"])], ""),
    ],
)
def test_what_depends_on_the_call_is_refused_by_its_node(nodes: list[NodeProto], message: str) -> None:
    constants = NUMBERS | {"five": weights(3, 5), "z": weights(3, 32), "eights": np.array([3, 8, -1])}
    case = Case(nodes, {"x": [3, "w"]}, [], [], constants)
    with pytest.raises(TreadleError) as caught:
        treadle.compile(case.model(), shapes={"w": treadle.Dim("w", 1, 32)})
    assert str(caught.value).startswith(f"node 'y' ({nodes[0].op_type}") and message in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (3, treadle.Dim("w", 1, 8)), "z": (treadle.Dim("w", 1, 9),)}, "dimension 'w' is w:1..9 here and w:1..8"),
        ({"x": (3, treadle.Dim("a", 1, 8)), "z": (treadle.Dim("b", 1, 8),)}, "dimension 'w' is a <= 8 elsewhere and b"),
        ({"x": (treadle.Dim("a", 1, 8), 4)}, "contradicts the model's"),
        ({"v": treadle.Dim("v", 1, 8)}, "'v' is no input and no dynamic dimension"),
    ],
)
def test_ranges_that_contradict_the_model_or_themselves(shapes: treadle.shapes.dim.Shapes, message: str) -> None:  # pyright: ignore
    case = Case([make_node("Add", ["x", "z"], ["y"])], {"x": [3, "w"], "z": ["w"]}, [], [])
    with pytest.raises(TreadleError) as caught:
        treadle.compile(case.model(), shapes=shapes)
    assert message in str(caught.value)
