"""Drawn models of quantised numbers as compiled C, some on the emulator, beside ONNX Runtime and their definition."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.fuzz.case import Case
from tests.fuzz.check import UNIT, Checker, check_case
from tests.fuzz.definition import expected_outputs
from tests.fuzz.draw import Draw
from tests.fuzz.generate import case_of_seed
from tests.fuzz.recipes import QUANTIZED
from tests.helpers import emulated_batch, program_batch
from treadle.frontends.onnx import import_model

SEEDS, EMULATED = range(16), range(8)


@cache
def drawn(seed: int) -> Case:
    return case_of_seed(seed, quantized=True)


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker({str(seed): drawn(seed) for seed in SEEDS}, {str(seed) for seed in EMULATED})


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_model(seed: int, checker: Checker) -> None:
    report = checker.check(str(seed))
    assert not report.findings, "\n".join(map(str, report.findings)) + "\n" + drawn(seed).text()


def test_every_operator_is_drawn() -> None:
    assert {operator for seed in range(100) for operator in drawn(seed).operators} >= {*QUANTIZED, "MatMul", "Conv"}


def test_most_elements_are_decided() -> None:
    reports = [expected_outputs(drawn(seed)) for seed in range(50)]
    undecided = sum(int(e.undecided.sum()) for report in reports for e in report.values())
    assert undecided < 0.05 * sum(e.value.size for report in reports for e in report.values())


def test_matrix_units_of_both_targets_multiply_bytes_of_many_models() -> None:
    """Else the tests above would compare little of them. Those that are emulated stand for all."""
    on_vectors = on_tensor_cores = 0
    for seed in EMULATED:
        content = drawn(seed).content()
        compiled = program_batch.print_program("drawn", import_model(content), UNIT)
        on_vectors += any("treadle_tiles_begin" in unit.text for unit in compiled.kernels)
        kernels = emulated_batch.print_program("drawn", import_model(content))
        on_tensor_cores += any("m16n8k32" in unit.text for unit in kernels.units)
    assert on_vectors >= len(EMULATED) / 3 and on_tensor_cores >= len(EMULATED) / 4


def _quantized_by_one(x: list[float], operator: str = "Identity") -> list[bool]:
    """Which elements are undecided that are quantised by a scale of 1, as they are or behind an operator."""
    draw = Draw(0)
    draw.opset = 21
    draw.values["x"] = draw.inputs["x"] = np.array(x, np.float32)
    draw.node(operator, ["x"])
    draw.node("QuantizeLinear", ["t0_0", draw.constant(np.array(1, np.float32))])
    return expected_outputs(draw.case(["t1_0"]))["t1_0"].undecided.tolist()


def test_what_is_at_a_tie_between_two_quanta_is_undecided_where_it_was_rounded() -> None:
    assert _quantized_by_one([0.5, 1.5, 1.49, 300]) == [False] * 4
    assert _quantized_by_one([0.5, 1 / 1.5, 300], "Reciprocal") == [False, True, False]


def test_onnx_runtime_may_quantise_a_range_of_zeros_by_another_scale() -> None:
    draw = Draw(0)
    draw.opset = 21
    draw.node_of(3, "DynamicQuantizeLinear", [draw.input(np.zeros(3, np.float32))])
    report = check_case(draw.case(["t0_1"]))
    assert not report.findings and report.skipped


def test_a_product_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Draw(0)
    draw.opset = 21
    x, w = (np.full(shape, 3, np.int8) for shape in ((2, 4), (4, 5)))
    draw.node("MatMulInteger", [draw.input(x), draw.constant(w)])
    case = draw.case(["t0_0"])
    assert not check_case(case).findings
    monkeypatch.setattr("tests.helpers.program_batch.CompiledProgram.run", lambda *_: [np.full((2, 5), 37, np.int32)])
    found = [(f.runner, f.output) for f in check_case(case).findings]
    assert found == [("C", "t0_0"), ("matrix unit", "t0_0")]


def test_scales_whose_product_is_subnormal_stay_in_front_of_a_product() -> None:
    """`1e-40 * 0.05` has few bits, the dequantised sums have all."""
    draw = Draw(0)
    draw.opset = 21
    rng = np.random.default_rng(0)
    for bytes_, scale in (((5, 8), 1e-40), ((8, 8), 0.05)):
        array = rng.integers(100, 255, bytes_).astype(np.uint8)
        name = draw.constant(array) if draw.nodes else draw.input(array)
        draw.node("DequantizeLinear", [name, draw.constant(np.array(scale, np.float32))])
    draw.node("MatMul", ["t0_0", "t1_0"])
    assert not check_case(draw.case(["t2_0"])).findings
