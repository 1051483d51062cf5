"""The process of TVM: what is asked and answered, what is said when it fails, and the layouts on either side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.paper_operators import OPERATORS
from benchmarks.tvm_peer import WORKER, Searched, channels_first, channels_last, tvm_peer
from treadle.backends.reference import evaluate_module
from treadle.errors import TreadleError

Array = NDArray[Any]
FAKE = """
import json
import sys
import numpy as np
print(json.dumps({"tvm": "fake", "cost_model": "none"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    reply = {}
    if request["do"] == "tune":
        reply = {"trials": request["trials"], "seconds": request["seconds"] + len(request["constants"])}
    if request["do"] == "run":
        np.save(request["output"], np.zeros_like(next(iter(np.load(request["inputs"]).values()))))
    if request["do"] == "time":
        reply = {"seconds": 1e-6 * request["count"]}
    if request["do"] == "time" and request["count"] == 13:
        reply = {"error": "RuntimeError: unlucky"}
    if request["do"] == "time" and request["count"] == 99:
        print("out of memory", file=sys.stderr)
        sys.exit(7)
    print(json.dumps(reply), flush=True)
"""
"""Answers as TVM's process does: seconds and one more for each constant, and a result of zeros."""


def test_requests_and_replies(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(FAKE)
    with tvm_peer(sys.executable, 2, worker) as peer:
        assert peer.versions == {"tvm": "fake", "cost_model": "none"}
        assert peer.tune("GMM", trials=9, seconds=3.0, seed=0) == Searched(9, 3.0)
        assert peer.tune("C2D", trials=9, seconds=3.0, seed=0) == Searched(9, 4.0)
        arrays = OPERATORS["SFM"].arrays(small=True)
        np.testing.assert_array_equal(peer.result("SFM", arrays), np.zeros_like(arrays[0]))
        assert peer.seconds(5) == pytest.approx(5e-6)
        with pytest.raises(TreadleError, match="TVM fails: RuntimeError: unlucky"):
            peer.seconds(13)
        assert peer.seconds(4) == pytest.approx(4e-6)
        with pytest.raises(TreadleError, match="TVM's process ended with 7: out of memory"):
            peer.seconds(99)


def test_a_python_without_tvm() -> None:
    missing = pytest.raises(TreadleError, match=r"No module named 'tvm'.*accepted: a Python with \"apache-tvm")
    with missing, tvm_peer(sys.executable, 2, WORKER):
        pass


def test_no_python_at_all(tmp_path: Path) -> None:
    missing = pytest.raises(TreadleError, match="cannot run it: No such file or directory")
    with missing, tvm_peer(str(tmp_path / "python"), 2):
        pass


def convolution(x: Array, w: Array, stride: int, pad: int, dilation: int = 1) -> Array:
    """Channels last: x is NHWC, w is HWIO, with as many groups as the channels say."""
    padded = np.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)])
    height, width = (
        (n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(padded.shape[1:3], w.shape, strict=False)
    )
    groups = x.shape[-1] // w.shape[2]
    per_group = w.shape[3] // groups
    result = np.zeros((1, height, width, w.shape[3]))
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            rows = slice(i * dilation, i * dilation + (height - 1) * stride + 1, stride)
            columns = slice(j * dilation, j * dilation + (width - 1) * stride + 1, stride)
            for group in range(groups):
                into = slice(group * per_group, (group + 1) * per_group)
                channels = slice(group * w.shape[2], (group + 1) * w.shape[2])
                result[..., into] += padded[:, rows, columns, channels] @ w[i, j][:, into]
    return result


def depthwise(x: Array, w: Array) -> Array:
    """w is 1HWC."""
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    height, width = x.shape[1:3]
    windows = (padded[:, i : i + height, j : j + width] * w[0, i, j] for i in range(3) for j in range(3))
    return np.sum(list(windows), axis=0)


def transposed(x: Array, w: Array) -> Array:
    """Of stride 2, without one row at each side; w is HWIO."""
    _, height, width, _ = x.shape
    full = np.zeros((1, 2 * height + 2, 2 * width + 2, w.shape[3]))
    for i in range(4):
        for j in range(4):
            full[:, i : i + 2 * height : 2, j : j + 2 * width : 2] += x @ w[i, j]
    return full[:, 1:-1, 1:-1]


DEFINITIONS = {
    "C2D": lambda x, w: convolution(x, w, 2, 3),
    "DIL": lambda x, w: convolution(x, w, 2, 3, 2),
    "GRP": lambda x, w: convolution(x, w, 2, 1),
    "DEP": depthwise,
    "T2D": transposed,
    "CBR": lambda x, w, bias, offset, factor: np.maximum((convolution(x, w, 2, 3) + bias) * factor + offset, 0),
    "GMM": lambda a, b: a @ b,
    "TBG": lambda q, v: q.transpose(0, 2, 1, 3) @ v.transpose(0, 2, 3, 1),
    "NRM": lambda x: np.sqrt(np.sum(x * x, axis=(1, 2))),
    "SFM": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
}
"""TVM's operators as its `te_workload` defines them, on its layouts."""


@pytest.mark.parametrize("name", DEFINITIONS)
def test_both_sides_compute_one_operator(name: str) -> None:
    operator = OPERATORS[name]
    arrays = operator.arrays(small=True, dtype=np.float64)
    (expected,) = evaluate_module(operator.module(small=True, dtype=np.float64), arrays[: operator.inputs])
    found = channels_first(name, DEFINITIONS[name](*channels_last(name, arrays)))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
