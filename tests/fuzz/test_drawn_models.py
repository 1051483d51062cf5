"""Forty drawn models as compiled C, some on the emulator, beside ONNX Runtime and their definition in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.fuzz.case import Case
from tests.fuzz.check import Checker, check_case
from tests.fuzz.coverage import Coverage
from tests.fuzz.definition import expected_outputs
from tests.fuzz.draw import Draw
from tests.fuzz.generate import case_of_seed
from tests.fuzz.recipes import QUANTIZED, RECIPES
from tests.fuzz.shrink import shrunk
from treadle.frontends.onnx import supported_operators
from treadle.frontends.onnx.functions import functions_expanded

SEEDS = range(40)
EMULATED = 10
NOT_DRAWN = {
    **dict.fromkeys(set(functions_expanded()) - set(QUANTIZED), "expanded into others; ONNX's node tests have it"),
    **dict.fromkeys(
        (
            "Attention",
            "BitCast",
            "BitShift",
            "Col2Im",
            "CumProd",
            "CumSum",
            "DFT",
            "Einsum",
            "GRU",
            "GlobalLpPool",
            "GridSample",
            "Hardmax",
            "LSTM",
            "LpPool",
            "MaxUnpool",
            "RNN",
            "ReverseSequence",
            "STFT",
            "Scatter",
            "ScatterElements",
            "ScatterND",
            "TensorScatter",
            "TopK",
        ),
        "written with operators that are drawn; ONNX's node tests have it",
    ),
    **dict.fromkeys(("If", "Loop", "Scan"), "expanded into others; tests/frontends/onnx/test_functions.py has it"),
    **dict.fromkeys(
        (name for name in supported_operators() if name.startswith("com.microsoft.")),
        "written with operators that are drawn; tests/frontends/onnx/test_microsoft.py has it",
    ),
    **dict.fromkeys(
        ("Compress", "NonMaxSuppression", "NonZero", "Unique"),
        "as many elements as its values say; tests/frontends/onnx/test_data_extents.py has it",
    ),
    **dict.fromkeys(
        ("DeformConv", "Det", "MelWeightMatrix", "RoiAlign", "TfIdfVectorizer"),
        "written with operators that are drawn; tests/frontends/onnx/test_rare_operators.py has it",
    ),
    "SimplifiedLayerNormalization": "ONNX Runtime's name of RMSNormalization, in no schema of ONNX",
    "Upsample": "deprecated since opset 10; ONNX's node tests have it",
}


@pytest.fixture(scope="module")
def drawn() -> Checker:
    return Checker({str(s): case_of_seed(s) for s in SEEDS}, {str(s) for s in SEEDS if s % EMULATED == 0})


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_model(seed: int, drawn: Checker) -> None:
    report = drawn.check(str(seed))
    assert not report.findings, "\n".join(map(str, report.findings)) + "\n" + drawn.cases[str(seed)].text()


def test_every_operator_is_drawn_and_every_kind_of_tensor() -> None:
    assert set(supported_operators()) - {*RECIPES, *QUANTIZED} == set(NOT_DRAWN)
    coverage = Coverage()
    for seed in range(600):
        coverage.add(case_of_seed(seed))
    assert set(coverage.operators) == set(RECIPES) and len(RECIPES) >= 100
    assert not coverage.holes()


def test_a_seed_alone_gives_the_model() -> None:
    first, second = (case_of_seed(7) for _ in range(2))
    assert first.content() == second.content()
    for name, array in first.inputs.items():
        np.testing.assert_array_equal(array, second.inputs[name])


def test_most_elements_are_decided() -> None:
    reports = [expected_outputs(case_of_seed(seed)) for seed in range(100)]
    undecided = sum(int(e.undecided.sum()) for report in reports for e in report.values())
    assert undecided < 0.02 * sum(e.value.size for report in reports for e in report.values())


def _sum_of(x: np.ndarray, operator: str = "Add") -> Case:
    draw = Draw(0)
    draw.opset = 21
    for name in ("a", "b"):
        draw.values[name] = draw.inputs[name] = x
    draw.node("Neg", ["a"])
    draw.node(operator, ["t0_0", "b"])
    draw.node("Abs", ["t1_0"])
    return draw.case(["t1_0", "t2_0"])


def test_whether_an_overflowing_sum_is_nan_is_undecided_everywhere() -> None:
    """The sum is 0; in another order, or with products that are rounded by themselves, it is infinite or NaN."""
    draw = Draw(0)
    draw.opset = 21
    largest = np.finfo(np.float32).max
    draw.values["x"] = draw.inputs["x"] = np.full((64, 2), largest, np.float32)
    draw.values["w"] = draw.inputs["w"] = np.array([[2], [-2]], np.float32)
    draw.node("MatMul", ["x", "w"])
    draw.node("Reciprocal", ["t0_0"])
    draw.node("IsNaN", ["t1_0"])
    assert expected_outputs(draw.case(["t2_0"]))["t2_0"].undecided.all()


def test_whether_a_scale_overflows_before_the_bias_is_added_is_undecided() -> None:
    """A fused multiply-add does not round the product in between."""
    draw = Draw(0)
    draw.opset = 21
    draw.values["x"] = draw.inputs["x"] = np.array([[[-1.0, -1, -1, 1, 1, 3]]])
    largest = np.finfo(np.float64).max
    for name, value in (("scale", largest), ("bias", -largest)):
        draw.values[name] = draw.inputs[name] = np.array([value])
    draw.node("InstanceNormalization", ["x", "scale", "bias"])
    expected = expected_outputs(draw.case(["t0_0"]))["t0_0"]
    # The last one is 1.8 deviations from the mean, the others less than one: their sums are sure.
    np.testing.assert_array_equal(expected.undecided, [[[False] * 5 + [True]]])


def _undecided(node: str, operands: dict[str, np.ndarray], then: Sequence[tuple[str, list[str]]]) -> list[bool]:
    """Which elements of the last node's result are undecided."""
    draw = Draw(0)
    draw.opset = 21
    for name, array in operands.items():
        draw.values[name] = draw.inputs[name] = array
    draw.node(node, list(operands)[: 1 if node == "Neg" else 5 if node == "BatchNormalization" else 2])
    for operator, inputs in then:
        draw.node(operator, inputs)
    last = draw.nodes[-1].output[0]
    return expected_outputs(draw.case([last]))[last].undecided.reshape(-1).tolist()


def test_what_is_divided_by_squares_that_vanish_is_undecided() -> None:
    x = np.array([[1e-200, 1e-200], [1e-100, 1], [0, 0]])
    assert _undecided("LpNormalization", {"x": x}, []) == [True, True, False, False, False, False]


def test_whether_a_scale_that_moves_into_a_product_overflows_is_undecided() -> None:
    """`x @ w` is 0, and so is five times that; `x @ (5 * w)` has infinite terms."""
    largest = float(np.finfo(np.float32).max)
    x = np.array([[largest / 4, largest / 4]], np.float32)
    w = np.array([[1, 0.25], [-1, -0.25]], np.float32)
    operands = {"x": x, "w": w, "c": np.array([5], np.float32)}
    assert _undecided("MatMul", operands, [("Mul", ["t0_0", "c"])]) == [True, False]
    assert _undecided("MatMul", operands, []) == [False, False]


def test_whether_biases_of_a_product_overflow_together_is_undecided() -> None:
    """`(x @ w + a) + a` is a number, `x @ w + (a + a)` is infinite."""
    largest = float(np.finfo(np.float32).max)
    x, w = np.array([[-1]], np.float32), np.array([[largest * 0.9]], np.float32)
    operands = {"x": x, "w": w, "a": np.array([largest * 0.75], np.float32)}
    assert _undecided("MatMul", operands, []) == [False]
    assert _undecided("MatMul", operands, [("Sum", ["t0_0", "a", "a"])]) == [True]
    assert _undecided("MatMul", operands, [("Add", ["t0_0", "a"]), ("Add", ["t1_0", "a"])]) == [True]


def test_that_a_quotient_by_zero_is_infinite_is_decided() -> None:
    operands = {name: np.ones((1, 1), np.float32) for name in ("x", "w")} | {"zero": np.zeros(1, np.float32)}
    assert _undecided("MatMul", operands, [("Div", ["t0_0", "zero"])]) == [False]


def test_whether_a_centred_number_overflows_in_a_batch_norm_is_undecided() -> None:
    """`(x - mean) * scale` is infinite, `x * scale - mean * scale` is not."""
    largest = float(np.finfo(np.float64).max)
    parameters = {name: np.array([v], np.float64) for name, v in (("s", 0.1), ("b", 0), ("m", -largest / 2), ("v", 1))}
    assert _undecided("BatchNormalization", {"x": np.array([[largest, 1]], np.float64).T, **parameters}, []) == [
        True,
        False,
    ]


def test_whether_a_centred_number_overflows_before_it_is_scaled_by_zero_is_undecided() -> None:
    """`(x - mean) * 0` is NaN where the difference is infinite, `x * 0 - mean * 0` is 0."""
    largest = float(np.finfo(np.float64).max)
    parameters = {name: np.array([v], np.float64) for name, v in (("s", 0), ("b", 0), ("m", -largest / 2), ("v", 1))}
    x = np.array([[largest, 1]], np.float64).T
    assert _undecided("BatchNormalization", {"x": x, **parameters}, []) == [True, False]


def test_whether_a_number_divided_by_a_deviation_overflows_in_a_batch_norm_is_undecided() -> None:
    """`(x - mean) / deviation * scale` is infinite, `x * (scale / deviation)` is not."""
    largest = float(np.finfo(np.float64).max)
    parameters = {name: np.array([v], np.float64) for name, v in (("s", 0.1), ("b", 0), ("m", 0), ("v", 0.25))}
    assert _undecided("BatchNormalization", {"x": np.array([[largest, 1]], np.float64).T, **parameters}, []) == [
        True,
        False,
    ]


def test_a_number_whose_limits_are_beyond_the_type_is_undecided() -> None:
    info = np.finfo(np.float32)
    x = np.array([float(info.max) * (1 - 4 * float(info.eps)), float(info.max) / 2], np.float32)
    assert _undecided("Mul", {"x": x, "one": np.array([1], np.float32)}, []) == [True, False]


def test_whether_a_last_product_overflows_before_something_is_added_is_undecided() -> None:
    """As of `Mul`, so of every operator that ends in a product: a fused multiply-add does not round it."""
    largest = float(np.finfo(np.float32).max)
    operands = {
        "x": np.array([-largest, -1], np.float32),
        "slope": np.array([1.5], np.float32),
        "y": np.array([largest, 1], np.float32),
    }
    assert _undecided("PRelu", operands, [("Add", ["t0_0", "y"])]) == [True, False]


def _inverse_is_undecided(node: str, operands: dict[str, np.ndarray]) -> list[bool]:
    return _undecided(node, operands, [("Reciprocal", ["t0_0"])])


def test_which_zero_an_extremum_of_both_is_is_undecided() -> None:
    x, y = np.array([-0.0, 0.0, -0.0, -1.0], np.float32), np.array([0.0, 0.0, -0.0, 0.0], np.float32)
    assert _inverse_is_undecided("Max", {"x": x, "y": y}) == [True, False, False, False]
    assert _inverse_is_undecided("Min", {"x": x, "y": y}) == [True, False, False, False]
    assert _inverse_is_undecided("Relu", {"x": x}) == [True, False, True, False]
    assert _inverse_is_undecided("Sign", {"x": x}) == [True, False, True, False]
    assert _inverse_is_undecided("GlobalMaxPool", {"x": np.stack([x, y], 1)[:, None]}) == [True, False, False, False]
    assert _inverse_is_undecided("Neg", {"x": x}) == [False] * 4


def test_which_zero_a_sum_of_negative_zeros_is_is_undecided() -> None:
    """`0 + -0` is 0, and -0 alone is -0."""
    x = np.array([[-0.0, -0.0], [-0.0, 0.0], [-1.0, 1.0]], np.float32)
    assert _inverse_is_undecided("GlobalAveragePool", {"x": x[:, None]}) == [True, False, True]
    assert _inverse_is_undecided("ReduceSum", {"x": x[0]}) == [True]
    assert _inverse_is_undecided("ReduceSum", {"x": x[1]}) == [False]


def test_onnx_runtime_may_add_up_powers_beyond_the_type() -> None:
    """The definition subtracts the largest element first."""
    draw = Draw(0)
    draw.opset = 28
    draw.values["x"] = draw.inputs["x"] = np.array([1000, 1], np.float32)
    draw.node("ReduceLogSumExp", ["x"])
    report = check_case(draw.case(["t0_0"]))
    assert not report.findings and report.skipped


def test_whether_a_doubled_number_overflows_before_something_is_added_is_undecided() -> None:
    """`x + x` is `2 * x`."""
    x, y = np.array([-1.5e308, 1]), np.array([np.inf, np.inf])
    operands = {"x": x, "y": y}
    assert _undecided("Neg", operands, [("Sum", ["x", "x", "y"])]) == [True, False]
    assert _undecided("Neg", operands, [("Add", ["x", "x"]), ("Add", ["t1_0", "y"])]) == [True, False]
    assert _undecided("Neg", operands, [("Add", ["x", "y"]), ("Add", ["t1_0", "x"])]) == [False, False]


def test_a_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _sum_of(np.array([[1, 2, np.nan], [3, 4, np.inf]], np.float32))
    assert not check_case(case).findings
    wrong = np.array([[0, 0, 0], [1e-6, 0, np.nan]], np.float32)
    monkeypatch.setattr("tests.helpers.program_batch.CompiledProgram.run", lambda *_: [wrong, np.abs(wrong)])
    assert [f.output for f in check_case(case).findings] == ["t1_0", "t2_0"]


def test_a_case_shrinks_to_the_node_that_fails() -> None:
    case = _sum_of(np.arange(12, dtype=np.float32).reshape(3, 4))
    small = shrunk(case, lambda other: "Add" in other.operators)
    assert small.operators == ["Add"] and all(array.size == 1 for array in small.inputs.values())
