"""TVM's MetaSchedule as a peer for the operators of `benchmarks/paper_operators.py`, in a process of its own.

It takes an environment of its own, since TVM pins packages:

    pip install "apache-tvm==0.27.0.post1" "apache-tvm-ffi<0.1.15" numpy cloudpickle psutil xgboost-cpu

Without xgboost its cost model is random, which the results say. TVM computes its own definitions of the operators,
which have channels last: inputs, weights and results are transposed here. Weights are constants on both sides, and
either packs them before it is timed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper_operators import EPSILON, OPERATORS
from treadle.errors import TreadleError

Array = NDArray[Any]
WORKER = Path(__file__).resolve().with_name("tvm_worker.py")
PACKAGES = 'a Python with "apache-tvm==0.27.0.post1" "apache-tvm-ffi<0.1.15" numpy cloudpickle psutil xgboost-cpu'


@dataclass(frozen=True)
class Searched:
    """What a search took: candidates and seconds."""

    trials: int
    seconds: float


class TvmPeer:
    """TVM's side: one operator at a time. TreadleError where it fails or its process ends.

    versions: of TVM, and what it searches with
    """

    def __init__(self, process: subprocess.Popen[str], python: str, folder: Path, errors: Path):
        assert process.stdin is not None and process.stdout is not None
        self._process, self._python, self._folder, self._errors = process, python, folder, errors
        self._requests: IO[str] = process.stdin
        self._replies: IO[str] = process.stdout
        self.versions = self._reply()

    def tune(self, operator: str, trials: int, seconds: float, seed: int) -> Searched:
        """Searches for an operator's schedule until the trials or the seconds are over, rounds of 64 candidates."""
        constants = [] if OPERATORS[operator].inputs == len(OPERATORS[operator].shapes) else [1]
        found = self._ask(do="tune", operator=operator, constants=constants, trials=trials, seconds=seconds, seed=seed)
        return Searched(int(found["trials"]), float(found["seconds"]))

    def result(self, operator: str, arrays: Sequence[Array]) -> Array:
        """What the best schedule computes from an operator's inputs and weights, laid out as Treadle's result."""
        inputs, output = self._folder / "inputs.npz", self._folder / "output.npy"
        np.savez(inputs, *channels_last(operator, arrays))
        self._ask(do="run", inputs=str(inputs), output=str(output))
        return channels_first(operator, np.load(output))

    def seconds(self, count: int) -> float:
        """What so many runs of the best schedule take, without calls from Python."""
        return float(self._ask(do="time", count=count)["seconds"])

    def _ask(self, **request: object) -> Mapping[str, Any]:
        with suppress(BrokenPipeError):  # it has ended: what it says last is read below
            print(json.dumps(request), file=self._requests, flush=True)
        return self._reply()

    def _reply(self) -> Mapping[str, Any]:
        line = self._replies.readline()
        if not line:
            said = self._errors.read_text().split("\n")[-10:]
            code = self._process.wait()
            message = f"TVM's process ended with {code}: {' '.join(' '.join(said).split())[-300:]}"
            raise TreadleError(message, self._python, PACKAGES)
        reply = json.loads(line)
        if "error" in reply:
            raise TreadleError(f"TVM fails: {reply['error']}", self._python, PACKAGES)
        return reply


@contextmanager
def tvm_peer(python: str, threads: int, worker: Path = WORKER) -> Generator[TvmPeer]:
    """A process of TVM while the context lasts, with so many threads. TreadleError if it does not start.

    python: an interpreter that has TVM; worker: what it runs
    """
    with TemporaryDirectory() as folder:
        errors = Path(folder) / "stderr"
        with errors.open("w") as stderr:
            try:
                process = subprocess.Popen(
                    [python, str(worker), str(threads)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=folder,
                )  # fmt: skip
            except OSError as error:
                raise TreadleError(f"cannot run it: {error.strerror}", python, PACKAGES) from error
        try:
            yield TvmPeer(process, python, Path(folder), errors)
        finally:
            process.kill()
            process.communicate()


def channels_last(operator: str, arrays: Sequence[Array]) -> list[Array]:
    """An operator's inputs and weights as TVM's definition takes them."""
    if operator in ("NRM", "TBG"):
        return list(arrays)
    if operator == "SFM":
        return [arrays[0][0]]
    if operator == "GMM":
        return [each[None] for each in arrays]
    x, weights, *norm = arrays
    orders = {"DEP": (1, 2, 3, 0), "T2D": (2, 3, 0, 1)}
    order = orders.get(operator, (*range(2, weights.ndim), 1, 0))
    found = [np.moveaxis(x, 1, -1), weights.transpose(order)]
    if norm:  # TVM's operator has a bias of the convolution, and the norm's offset before its factor
        scale, bias, mean, variance = norm
        factor = scale / np.sqrt(variance + np.float32(EPSILON))
        found += [np.zeros_like(bias), bias - mean * factor, factor]
    return found


def channels_first(operator: str, result: Array) -> Array:
    """TVM's result as the operator of `OPERATORS` has it."""
    if operator in ("NRM", "TBG"):
        return result
    if operator == "SFM":
        return result[None]
    return result[0] if operator == "GMM" else np.moveaxis(result, -1, 1)


__all__ = ["Searched", "TvmPeer", "channels_first", "channels_last", "tvm_peer"]
