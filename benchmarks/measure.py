"""Latencies of one model in Treadle and in ONNX Runtime, call by call in turn, and what they say."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

import treadle

Array = NDArray[Any]
Call = Callable[[], Sequence[Array]]

ERROR_LEVEL = 3
"""ONNX Runtime's log level: errors only."""


@dataclass(frozen=True)
class Latencies:
    """One model's calls. `pairs` are seconds of Treadle and of ONNX Runtime, one after the other.

    error: the largest difference of an output, divided by the largest magnitude of the reference's
    """

    name: str
    pairs: tuple[tuple[float, float], ...]
    error: float

    @property
    def treadle(self) -> float:
        """Treadle's median latency in seconds."""
        return statistics.median(ours for ours, _ in self.pairs)

    @property
    def onnxruntime(self) -> float:
        """ONNX Runtime's median latency in seconds."""
        return statistics.median(theirs for _, theirs in self.pairs)

    @property
    def ratio(self) -> float:
        """The median of Treadle's latency divided by ONNX Runtime's, pair by pair.

        What else the machine does slows both calls of a pair, so this wavers less than the medians' quotient.
        """
        return self.ratio_quartiles[1]

    @property
    def ratio_quartiles(self) -> tuple[float, float, float]:
        """The three quartiles of the pairs' ratios."""
        ratios = [ours / theirs for ours, theirs in self.pairs]
        if len(ratios) == 1:
            return ratios[0], ratios[0], ratios[0]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, middle, high


def measure_model(
    name: str,
    path: Path,
    inputs: Mapping[str, Array],
    *,
    threads: int,
    pairs: int,
    warmups: int,
    pause: float = 0.0,
) -> Latencies:
    """Compiles the model at `path` for the CPU and measures `pairs` calls of each side, both with `threads` threads."""
    shapes = {key: array.shape for key, array in inputs.items()}
    model = treadle.compile(path, "cpu", shapes, threads=threads)
    ordered = [inputs[tensor.name] for tensor in model.inputs]
    session = onnx_runtime_session(path, threads)
    names = [tensor.name for tensor in model.outputs]
    try:
        return compare(
            name,
            lambda: model(*ordered),
            lambda: cast("list[Array]", session.run(names, dict(inputs))),
            pairs=pairs,
            warmups=warmups,
            pause=pause,
        )
    finally:
        model.close()


def compare(name: str, ours: Call, theirs: Call, *, pairs: int, warmups: int, pause: float = 0.0) -> Latencies:
    """Calls both in turn (ours, theirs, ours, theirs, ...), the first `warmups` pairs without the clock.

    Before each call it waits `pause` seconds: the threads of the other side spin for a while after a call, and would
    take a core from this one.
    """
    error = relative_error(ours(), theirs())
    for _ in range(warmups):
        ours()
        theirs()
    return Latencies(name, tuple((_seconds(ours, pause), _seconds(theirs, pause)) for _ in range(pairs)), error)


def onnx_runtime_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session on the CPU with `threads` threads inside an operator; operators run one after the other."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = ERROR_LEVEL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def relative_error(actual: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest difference over all outputs, each divided by its largest expected magnitude."""
    errors = [0.0]
    for got, want in zip(actual, expected, strict=True):
        scale = float(np.abs(want).max()) or 1.0
        errors.append(float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max()) / scale)
    return max(errors)


def _seconds(call: Call, pause: float) -> float:
    time.sleep(pause)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
