"""Operators whose value ONNX's evaluator errs in, beside their definition here: as compiled C and on the emulator."""

from __future__ import annotations

import numpy as np

from tests.fuzz.check import check_case
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
