"""Measures a compiled model: its latency beside others', in turn, and the time of each of its launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from treadle.backends.c.executor import CpuProgram
from treadle.bench.disturbance import BUSY, Disturbance, waited_seconds
from treadle.bench.interleave import Times, interleave
from treadle.bench.launches import Launch, launches_of, takes_one_of_several
from treadle.bench.peaks import Peaks, measure_peaks
from treadle.errors import TreadleError
from treadle.model import CompiledModel

Array = NDArray[Any]

OWN = "treadle"
"""The name of the side that is measured."""

_BATCH_SECONDS = 0.1
_FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class KernelTime:
    """What the launches of one kernel took in a call.

    launches: those of the model's launches that run it; seconds: the sum of their medians
    """

    name: str
    launches: tuple[Launch, ...]
    seconds: float

    @property
    def operations(self) -> int:
        """Arithmetic operations of all launches."""
        return sum(launch.operations for launch in self.launches)

    @property
    def nbytes(self) -> int:
        """Bytes of operands and results of all launches."""
        return sum(launch.nbytes for launch in self.launches)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the model, for each launch."""
        return tuple(launch.nodes for launch in self.launches)

    def least_seconds(self, peaks: Peaks) -> float:
        """The roofline's bound: no machine with these peaks takes less, unless caches hold the operands."""
        return max(self.operations / peaks.operations, self.nbytes / peaks.bandwidth)


@dataclass(frozen=True)
class Benchmark:
    """What `bench_model` measured.

    times: of each side, in seconds a call; the model's own is `OWN`
    kernels: the model's, longest first, timed in calls of their own
    """

    times: Mapping[str, Times]
    kernels: tuple[KernelTime, ...]
    peaks: Peaks
    threads: int
    waited: float = 0.0
    """The part of the threads' time in which they waited for a core: other programs ran."""

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs took so much that no time can be compared with what the machine can do."""
        return self.waited > BUSY

    @property
    def kernel_seconds(self) -> float:
        """Of all kernels in a call."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def least_seconds(self) -> float:
        """The same if none took longer than its roofline's bound; some take less, whose operands a cache holds."""
        return sum(min(kernel.seconds, kernel.least_seconds(self.peaks)) for kernel in self.kernels)


def bench_model(
    model: CompiledModel,
    inputs: Mapping[str, Array],
    others: Mapping[str, Callable[[], object]] | None = None,
    *,
    seconds: float = 10.0,
    clock: Callable[[], float] = time.perf_counter,
    waited: Callable[[], float | None] = waited_seconds,
) -> Benchmark:
    """Times calls of a model for the CPU in turn with `others`, and then its kernels, for about `seconds` in all.

    A model with kernels for several shapes, of which each call takes one, has no kernels in the result.
    TreadleError for a model for another target. Measure on a machine that does nothing else: times of one run can be
    compared with one another, not with those of another day. What other programs took meanwhile is `waited`.
    """
    if model.manifest.kind != "cpu":
        message = f"what is compiled for {model.target} cannot be timed here"
        raise TreadleError(message, "bench", "a model for a CPU; benchmarks/gpu.py measures GPUs")
    launches = [] if takes_one_of_several(model.artifact) else launches_of(model.artifact)
    program = model.open()
    assert isinstance(program, CpuProgram)
    ordered = model.arguments(inputs)
    if launches:
        program.launch_seconds(ordered, len(launches))  # says at once if the library cannot
    own = partial(model.run, inputs) if model.symbols else partial(program.run, ordered)
    sides = {OWN: own, **(others or {})}
    rounds = max(_FEWEST_ROUNDS, int(0.8 * seconds / (_BATCH_SECONDS * len(sides))))
    calls_alone = Disturbance(program.threads, waited, clock)
    times = interleave({name: repeated(call) for name, call in sides.items()}, rounds, _BATCH_SECONDS, clock)
    part = 0.0 if others else calls_alone.part()  # threads of others that spin make each other wait
    disturbance = Disturbance(program.threads, waited, clock)
    calls = max(_FEWEST_ROUNDS, int(0.2 * seconds / times[OWN].median)) if launches else 0
    samples = [program.launch_seconds(ordered, len(launches)) for _ in range(calls)]
    medians = [statistics.median(each) for each in zip(*samples, strict=True)]
    part = max(part, disturbance.part()) if launches else part
    return Benchmark(times, _by_kernel(launches, medians), measure_peaks(program.threads), program.threads, part)


def repeated(call: Callable[[], object]) -> Callable[[int], None]:
    """Many calls as one run."""

    def run(count: int) -> None:
        for _ in range(count):
            call()

    return run


def _by_kernel(launches: Sequence[Launch], seconds: Sequence[float]) -> tuple[KernelTime, ...]:
    """The launches of each kernel together, the longest first."""
    groups: dict[str, list[int]] = {}
    for number, launch in enumerate(launches):
        groups.setdefault(launch.kernel, []).append(number)
    kernels = [
        KernelTime(name, tuple(launches[n] for n in numbers), sum(seconds[n] for n in numbers))
        for name, numbers in groups.items()
    ]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.seconds))


__all__ = ["OWN", "Benchmark", "KernelTime", "bench_model", "repeated"]
