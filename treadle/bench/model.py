"""Measures a compiled model: its latency beside others', in turn, and the time of each of its launches."""

from __future__ import annotations

import importlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier
from typing import Any

from numpy.typing import NDArray

from treadle.artifact.manifest import Tensor
from treadle.backends.c.executor import CpuProgram
from treadle.backends.launch_names import has_choices
from treadle.bench.interleave import (
    Disturbance,
    Latency,
    Timed,
    Times,
    busy_text,
    interleave,
    latency_of,
    waited_seconds,
)
from treadle.bench.peaks import Launch, Level, Peaks, launches_in, measure_peaks, module_of
from treadle.errors import TreadleError
from treadle.model import CompiledModel
from treadle.shapes.dim import Dim
from treadle.shapes.dynamic import ExtentExpression

# Other runtimes for ONNX models on the CPU, where they are installed.

Inputs = Mapping[str, NDArray[Any]]
Call = Callable[[], object]

_ERRORS_ONLY = 3


def installed_peers() -> dict[str, str]:
    """Names and versions of the peers that can be imported here."""
    found: dict[str, str] = {}
    for name in PEERS:
        try:
            if find_spec(name) is not None:
                found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def peer_call(name: str, model: Path, inputs: Inputs, threads: int, precision: str = "f32") -> Call:
    """A call of the model in a peer, with `threads` threads, which gives its outputs; TreadleError if it cannot load
    the model. Arithmetic is float32, or of a narrower type where `precision` names it and the peer has it."""
    try:
        return PEERS[name](model, inputs, threads, precision)
    except Exception as error:  # whatever a peer raises: their exceptions have no common type
        message = f"{name} cannot run the model: {' '.join(str(error).split())[:200]}"
        raise TreadleError(message, model, "another choice of --peers") from error


def _onnxruntime(model: Path, inputs: Inputs, threads: int, precision: str) -> Call:
    del precision  # it computes what the model says
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _ERRORS_ONLY
    session = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    given = dict(inputs)
    session.run(None, given)
    return lambda: session.run(None, given)


def _openvino(model: Path, inputs: Inputs, threads: int, precision: str) -> Call:
    runtime = importlib.import_module("openvino")
    core = runtime.Core()
    read = core.read_model(str(model))
    read.reshape({name: list(array.shape) for name, array in inputs.items()})
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    request = core.compile_model(read, "CPU", settings).create_infer_request()
    given = dict(inputs)
    request.infer(given)
    return lambda: request.infer(given)


PEERS: Mapping[str, Callable[[Path, Inputs, int, str], Call]] = {"onnxruntime": _onnxruntime, "openvino": _openvino}
"""By the name of the package: prepares a call."""


# The latency of a model with symbols along its range.

POINTS = 5
_RANGE_BATCH_SECONDS = 0.02
_FEWEST_ROUNDS = 5


def points_of(symbols: Sequence[Dim], count: int = POINTS) -> list[dict[str, int]]:
    """Values of the symbols from their least to their greatest, each by about the same factor, the greatest last."""
    found: dict[tuple[int, ...], None] = {}
    for n in range(count):
        found[tuple(_between(symbol, n / max(count - 1, 1)) for symbol in symbols)] = None
    return [dict(zip([symbol.name for symbol in symbols], values, strict=True)) for values in found]


def tensors_at(tensors: Sequence[Tensor], values: Mapping[str, int]) -> list[Tensor]:
    """The inputs of a call where the symbols have these values."""
    names = list(values)
    return [
        replace(each, shape=tuple(ExtentExpression(text, names).value(values) for text in each.extents), extents=())
        if each.extents
        else each
        for each in tensors
    ]


def bench_range(
    model: CompiledModel,
    calls: Sequence[Inputs],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Times]:
    """The times of some calls, in turn, for about `seconds` in all."""
    sides = {str(n): repeated(called(model, inputs)) for n, inputs in enumerate(calls)}
    rounds = max(_FEWEST_ROUNDS, int(seconds / (_RANGE_BATCH_SECONDS * len(sides))))
    times = interleave(sides, rounds, _RANGE_BATCH_SECONDS, clock)
    return [times[str(n)] for n in range(len(calls))]


def _between(symbol: Dim, part: float) -> int:
    """The legal extent next to a point between the least and the greatest, on a logarithmic scale."""
    first = max(symbol.least, 1)
    wanted = first * (symbol.greatest / first) ** part if part else symbol.least
    nearest = round(wanted / symbol.multiple) * symbol.multiple
    return min(max(nearest, symbol.least), symbol.greatest)


Array = NDArray[Any]

OWN = "treadle"
"""The name of the side that is measured."""

DRIFT = 0.1
"""By which share a peak may differ between before and after. Measured on two cores of a guest, ten pairs each: with a
core free for it the peak that differed most did so by 2 to 7 %, once by 11 %; with both cores, beside another program
on one of them, by 10 to 52 %."""
_BATCH_SECONDS = 0.1


@dataclass(frozen=True)
class KernelTime:
    """What the launches of one kernel took in a call.

    launches: those of the model's launches that run it; seconds: the sum of their medians
    touched: bytes of all launches of the kernel in a call, where these are only some of them
    """

    name: str
    launches: tuple[Launch, ...]
    seconds: float
    touched: int = 0

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

    @property
    def working_set(self) -> int:
        """Bytes that all launches of the kernel in a call touch, those of each launch by themselves."""
        return max(self.touched, self.nbytes)

    def level(self, peaks: Peaks) -> Level:
        """The memory that the kernel's data are taken to be in: the smallest level that holds its working set.

        Of what else a call touches between two launches, nothing is known here: data that it has driven out take
        longer, and data that one launch has just written may be in a smaller cache, and take less.
        """
        return peaks.level_of(self.working_set)

    def least_seconds(self, peaks: Peaks) -> float:
        """The attainable time by the roofline: what each launch takes at least for its arithmetic, or to move its bytes
        from `level`."""
        bounds = (peaks.least_seconds(each.operations, each.nbytes, self.working_set) for each in self.launches)
        return sum(bounds)

    def of_the_roofline(self, peaks: Peaks) -> float:
        """The attainable time as a share of the kernel's; above 1 where the data were in a smaller level, or the
        arithmetic is of a type that is faster than float32. 0 for a kernel that was not timed."""
        return self.least_seconds(peaks) / self.seconds if self.seconds else 0.0


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
    launches: tuple[KernelTime, ...] = ()
    """Each launch by itself, in the order of `launches_of`; seconds are medians."""
    latencies: Mapping[str, Latency] = field(default_factory=dict[str, Latency])
    """Of each side's single calls."""
    drift: tuple[str, float] = ("", 0.0)
    """The peak that differed most between before and after, and by which share (`Peaks.difference`)."""
    overhead_seconds: float = 0.0
    """Of a call what is not kernels, of the calls in which these were timed, each without its own kernels: the median.

    It is making outputs, checking inputs, and what lies between two launches; 0 where kernels are not timed. Of a model
    for a range, what checks and packs its shapes is not in it.
    """

    @property
    def is_disturbed(self) -> bool:
        """Whether times cannot be compared with what the machine can do: threads waited for more than `interleave.BUSY`
        of their time, or a peak after differs from that before by more than `DRIFT`."""
        return bool(self.disturbance)

    @property
    def disturbance(self) -> str:
        """What is said of a machine that was disturbed; empty of one that was not."""
        name, share = self.drift
        changed = f"the machine changed: its peak of {name} differs by {share:.0%} between before and after"
        return "; ".join(filter(None, [busy_text(self.waited), changed if share > DRIFT else ""]))

    @property
    def kernel_seconds(self) -> float:
        """Of all kernels in a call."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def call_seconds(self) -> float:
        """Of the kernels and of what is not kernels: what shares are shares of."""
        return self.kernel_seconds + self.overhead_seconds

    @property
    def least_seconds(self) -> float:
        """Of all kernels if none took longer than is attainable; some take less (`KernelTime.of_the_roofline`)."""
        return sum(min(kernel.seconds, kernel.least_seconds(self.peaks)) for kernel in self.kernels)


def bench_model(
    model: CompiledModel,
    inputs: Mapping[str, Array],
    others: Mapping[str, Callable[[], object]] | None = None,
    *,
    seconds: float = 10.0,
    clock: Callable[[], float] = time.perf_counter,
    waited: Callable[[], float | None] = waited_seconds,
    peaks: Callable[[int], Peaks] = measure_peaks,
) -> Benchmark:
    """Times calls of a model for the CPU in turn with `others`, and then its kernels, for about `seconds` in all, and
    about two seconds more for the machine's peaks before and after, of which the higher ones count.

    A model of which shapes or data decide which launches a call has has no kernels in the result.
    TreadleError for a model for another target. Measure on a machine that does nothing else: times of one run can be
    compared with one another, not with those of another day. What other programs took meanwhile is `waited`.
    """
    if model.manifest.kind != "cpu":
        message = f"what is compiled for {model.target} cannot be timed here"
        raise TreadleError(message, "bench", "a model for a CPU; benchmarks/gpu.py measures GPUs")
    module = module_of(model.artifact)
    launches = [] if has_choices(module) else launches_in(module, model.folder)
    program = model.open()
    assert isinstance(program, CpuProgram)
    model.reset()
    ordered = model.arguments(inputs)
    if launches:
        program.launch_seconds(ordered, len(launches))  # says at once if the library cannot
    before = peaks(program.threads)
    own = called(model, inputs) if model.symbols else partial(program.run, ordered)
    sides = {OWN: own, **(others or {})}
    rounds = max(_FEWEST_ROUNDS, int(0.8 * seconds / (_BATCH_SECONDS * len(sides))))
    calls_alone = Disturbance(program.threads, waited, clock)
    runs = {name: Timed(call, clock) for name, call in sides.items()}
    times = interleave(runs, rounds, _BATCH_SECONDS, clock)
    latencies = {name: run.latency(rounds * times[name].repeats) for name, run in runs.items()}
    part = 0.0 if others else calls_alone.part()  # threads of others that spin make each other wait
    disturbance = Disturbance(program.threads, waited, clock)
    calls = max(_FEWEST_ROUNDS, int(0.2 * seconds / times[OWN].median)) if launches else 0
    medians, overhead = _launch_medians(program, ordered, len(launches), calls, clock)
    part = max(part, disturbance.part()) if launches else part
    after = peaks(program.threads)
    each = _timed(launches, medians)
    found = before.better(after)
    drift = before.difference(after)
    return Benchmark(times, _by_kernel(each), found, program.threads, part, each, latencies, drift, overhead)


def _launch_medians(
    program: CpuProgram, inputs: Sequence[Array], launches: int, calls: int, clock: Callable[[], float]
) -> tuple[list[float], float]:
    """The median seconds of each launch over some calls, and of what a call takes beside its launches."""
    samples: list[list[float]] = []
    beside: list[float] = []
    for _ in range(calls):
        start = clock()
        samples.append(program.launch_seconds(inputs, launches))
        beside.append(clock() - start - sum(samples[-1]))
    medians = [statistics.median(each) for each in zip(*samples, strict=True)]
    return medians, max(0.0, statistics.median(beside)) if beside else 0.0


def _timed(launches: Sequence[Launch], seconds: Sequence[float]) -> tuple[KernelTime, ...]:
    """Each launch by itself, with what all launches of its kernel touch."""
    touched = Counter[str]()
    for launch in launches:
        touched[launch.kernel] += launch.nbytes
    pairs = zip(launches, seconds, strict=True)
    return tuple(KernelTime(launch.kernel, (launch,), took, touched[launch.kernel]) for launch, took in pairs)


@dataclass(frozen=True)
class Throughput:
    """What instances of a model did at the same time, each called by a thread of its own.

    calls_a_second: of all of them together; latency: of their single calls, in seconds; threads: of each instance
    """

    streams: int
    threads: int
    calls_a_second: float
    latency: Latency


def measure_streams(
    model: CompiledModel,
    inputs: Mapping[str, Array],
    streams: int,
    *,
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Throughput:
    """Calls `streams` instances of a model for the CPU for `seconds`, each at least once, after a call that warms up.

    An instance has its own memory for a call and its own threads, as many as the model has; the weights are one mapping
    of the artifact's file, which all of them read. What a call raises is raised here.
    """
    program = model.open()
    assert isinstance(program, CpuProgram)
    threads = program.threads
    with ExitStack() as stack, ThreadPoolExecutor(streams) as callers:
        models = [stack.enter_context(CompiledModel(model.artifact, threads)) for _ in range(streams)]
        runs = [Timed(called(each, inputs), clock) for each in models]
        for run in runs:
            run(1)
        start = Barrier(streams)
        running = [callers.submit(_call_until, run, start, seconds, clock) for run in runs]
        spans = [each.result() for each in running]
        calls = [run.seconds[1:] for run in runs]
        rate = sum(len(each) / span for each, span in zip(calls, spans, strict=True))
        latency = latency_of([second for each in calls for second in each])
        return Throughput(streams, threads, rate, latency)


def _call_until(run: Timed, start: Barrier, seconds: float, clock: Callable[[], float]) -> float:
    """The seconds from the moment at which all streams start to the end of this one's last call."""
    start.wait()
    began = clock()
    run(1)
    while clock() - began < seconds:
        run(1)
    return clock() - began


def called(model: CompiledModel, inputs: Mapping[str, Array]) -> Callable[[], object]:
    """A call of a model, each time with states that hold nothing."""
    if not model.lengths:
        return partial(model.run, inputs)

    def call() -> object:
        model.rewind()
        return model.run(inputs)

    return call


def repeated(call: Callable[[], object]) -> Callable[[int], None]:
    """Many calls as one run."""

    def run(count: int) -> None:
        for _ in range(count):
            call()

    return run


def _by_kernel(launches: Sequence[KernelTime]) -> tuple[KernelTime, ...]:
    """The launches of each kernel together, the longest first."""
    groups: dict[str, list[KernelTime]] = {}
    for launch in launches:
        groups.setdefault(launch.name, []).append(launch)
    kernels = [_together(name, group) for name, group in groups.items()]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.seconds))


def _together(name: str, group: Sequence[KernelTime]) -> KernelTime:
    launches = tuple(launch for each in group for launch in each.launches)
    return KernelTime(name, launches, sum(each.seconds for each in group))
