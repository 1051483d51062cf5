"""Windows that lie partly beside their image, under operators whose kernels compute them at each read: as compiled C,
on the emulator and by ONNX Runtime, beside their definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.fuzz.case import Case
from tests.fuzz.check import Checker
from tests.fuzz.draw import Draw


@dataclass(frozen=True)
class Window:
    """An operator on an image, and what reads its result."""

    operator: str
    image: Sequence[int]
    attributes: dict[str, Any]
    reader: str
    read: dict[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1

    def case(self) -> Case:
        draw, rng = Draw(0), np.random.default_rng(0)
        draw.opset = 21
        names = [draw.input(rng.standard_normal(self.image).astype(np.float32))]
        if self.operator == "ConvTranspose":
            shape = (self.image[1], self.outputs, *self.attributes["kernel_shape"])
            names.append(draw.constant(rng.standard_normal(shape).astype(np.float32)))
        draw.node(self.operator, names, **self.attributes)
        draw.node(self.reader, ["t0_0"], **self.read)
        return draw.case(["t1_0"])


WINDOWS = {
    "borders of two dimensions, a third without": Window(
        "AveragePool", (2, 1, 5, 5, 2), {"kernel_shape": [3, 2, 2], "pads": [0, 1, 1, 0, 0, 1]}, "Softmax"
    ),
    "distant taps, read by another pool": Window(
        "AveragePool", (1, 4, 8, 7, 8),
        {"kernel_shape": [5, 3, 2], "pads": [0, 2, 1, 2, 0, 1], "strides": [1, 1, 2], "dilations": [1, 1, 3]},
        "MaxPool", {"kernel_shape": [1, 1, 2], "pads": [0, 0, 1, 0, 0, 0]},
    ),
    "a last window beyond the padding, which counts": Window(
        "AveragePool", (1, 2, 5, 6),
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [3, 3], "ceil_mode": 1, "count_include_pad": 1},
        "Softmax",
    ),
    "a last window that would begin in the padding": Window(
        "MaxPool", (2, 1, 4, 7), {"kernel_shape": [1, 3], "pads": [0, 1, 0, 2], "strides": [2, 3], "ceil_mode": 1},
        "Transpose", {"perm": [0, 3, 1, 2]},
    ),
    "padding by a rule, more of it behind": Window(
        "AveragePool", (1, 2, 8, 5), {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_UPPER"}, "Softmax"
    ),
    "padding by a rule, more of it before": Window(
        "MaxPool", (1, 2, 8, 5), {"kernel_shape": [3, 2], "strides": [2, 1], "auto_pad": "SAME_LOWER"}, "Softmax"
    ),
    "no padding, by a rule": Window(
        "MaxPool", (1, 2, 8, 5), {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "VALID"}, "Softmax"
    ),
    "every second tap, one row at a time": Window(
        "ConvTranspose", (1, 4, 13, 3), {"kernel_shape": [4, 1], "pads": [0, 0, 2, 0], "strides": [2, 1]},
        "ArgMax", {"axis": 1},
    ),
    "every second tap": Window(
        "ConvTranspose", (1, 1, 17), {"kernel_shape": [4], "pads": [0, 2], "strides": [2]}, "Softmax", {"axis": 0}, 4
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def windows() -> Checker:
    return Checker({name: window.case() for name, window in WINDOWS.items()}, list(WINDOWS))


@pytest.mark.parametrize("name", WINDOWS)
def test_window(name: str, windows: Checker) -> None:
    report = windows.check(name)
    assert not report.findings and not report.skipped and not report.undecided
