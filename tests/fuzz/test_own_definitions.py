"""What the definitions here say where ONNX's evaluator errs, or where rounding decides."""

from __future__ import annotations

import numpy as np

from tests.fuzz.check import check_case
from tests.fuzz.definition import expected_outputs
from tests.fuzz.draw import Draw


def test_a_leaky_relu_keeps_a_zero_as_it_is() -> None:
    """ONNX: `x` where `x >= 0`, so that a negative slope does not turn the sign of 0."""
    draw = Draw(0)
    draw.opset = 21
    draw.node("LeakyRelu", [draw.input(np.array([0.0, -0.0, -2.0, 3.0], np.float32))], alpha=-0.5)
    draw.node("Reciprocal", [draw.nodes[-1].output[0]])
    report = check_case(draw.case([draw.nodes[-1].output[0]]), emulated=True)
    assert report.findings == []
    assert report.undecided == 0


def test_what_is_divided_by_what_may_be_zero_is_undecided() -> None:
    """`1.0000001 + 1.5 - 2.5` is 0 where `1.0000001 + 1.5` is rounded first."""
    draw = Draw(0)
    draw.opset = 21
    draw.node("ReduceSum", [draw.input(np.array([[1.0000001, 1.5, -2.5]] * 100, np.float32)), draw.longs([1])])
    draw.node("Mod", [draw.input(np.full((100, 1), -2.5, np.float32)), "t0_0"], fmod=1)
    draw.node("Reciprocal", ["t0_0"])
    for expected in expected_outputs(draw.case(["t1_0", "t2_0"])).values():
        assert expected.undecided.all()
