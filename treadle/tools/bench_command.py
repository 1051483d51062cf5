"""`treadle bench`: a model's latency beside its peers' and another artifact's, and the time of each kernel."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from treadle.api import compile
from treadle.backends.memory import Memory
from treadle.bench.interleave import Latency, Times
from treadle.bench.model import (
    OWN,
    PEERS,
    POINTS,
    Benchmark,
    KernelTime,
    Throughput,
    bench_model,
    bench_range,
    installed_peers,
    measure_streams,
    peer_call,
    points_of,
    tensors_at,
)
from treadle.bench.peaks import Peaks
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.model import CompiledModel, load
from treadle.runtime.inputs import Given, check_of_model, complete, empty_lengths, inputs_of, read_inputs
from treadle.shapes.dim import Shapes
from treadle.support.lazy import lazy_module
from treadle.support.output import STDOUT, output_stream
from treadle.support.progress import Progress
from treadle.support.version import __version__
from treadle.target.host import hardware_of, host_target
from treadle.tools.arguments import parse_states, shapes_of_call
from treadle.tools.progress_bar import progress_bar

if TYPE_CHECKING:
    from treadle.tools import oracle
else:
    oracle = lazy_module("treadle.tools.oracle")

Inputs = Mapping[str, NDArray[Any]]

_LEAST_SECONDS = 1.0
_WIDTH = 1000
"""Columns where the output is no terminal: as many as a table takes."""
_STREAMS_PART = 0.3
"""Of `--seconds`, which `--streams` takes beside them."""
_AGAINST = "against"
NO_ROOFLINE = "times may be too long, and say nothing of the roofline"
"""Of a disturbed machine."""
_TOO_LONG, _CALL_SECONDS = 2.0, 1e-3
"""A call may take so many times its kernels, and that much more, before something is said of it."""


def bench_command(args: argparse.Namespace) -> int:
    """Prints the tables, and writes the numbers where `--json` says; to stdout, the tables go to stderr."""
    if args.seconds < _LEAST_SECONDS:
        raise TreadleError(f"{args.seconds:g} seconds", "--seconds", f"at least {_LEAST_SECONDS:g}")
    if args.threads is not None and args.threads < 1:
        raise TreadleError(f"{args.threads} is not a number of threads", "--threads", "1 upwards")
    if args.streams is not None and args.streams < 1:
        raise TreadleError(f"{args.streams} is not a number of streams", "--streams", "1 upwards")
    path, given = Path(args.model), read_inputs(args.input)
    shapes = shapes_of_call(args.shape, given.shapes)
    peers = _peers(path, args)
    with ExitStack() as stack, progress_bar() as progress:
        model = stack.enter_context(model_of(path, shapes, given, args, progress))
        inputs = inputs_of(model, given.arrays, args.seed)
        progress("measuring", 1.0)
        others: dict[str, Callable[[], object]] = {}
        if args.against is not None:
            others[_AGAINST] = _other(stack.enter_context(load(args.against, args.threads)), model, inputs)
        fed = {**inputs, **(oracle.fed_constants(path, given.constants) if peers else {})}
        threads = load_environment().num_threads if args.threads is None else args.threads
        others |= {name: peer_call(name, path, fed, threads) for name in peers}
        along = times_along(model, given.arrays, args.seed, args.seconds / 2)
        seconds = args.seconds / 2 if along else args.seconds
        result = bench_model(model, inputs, others, seconds=seconds)
        throughput = None
        if args.streams is not None:
            throughput = measure_streams(model, inputs, args.streams, seconds=args.seconds * _STREAMS_PART)
        memory = model.memory
    console = Console(highlight=False, stderr=args.json == STDOUT)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH, stderr=args.json == STDOUT)
    if along:
        console.print("Milliseconds a call along the range")
        console.print(range_table(along))
    console.print(latency_table(result, peers, "at the largest shape" if along else ""))
    if throughput is not None:
        console.print(throughput_table(throughput))
    for line in _notes(result, path, args, peers):
        console.print(line, soft_wrap=True)
    console.print(f"memory of a call: {memory}")
    if result.kernels:
        console.print(kernel_table(result, args.kernels))
    if args.json is not None:
        with output_stream(args.json) as stream:
            stream.write(json.dumps(_numbers(result, memory, path, peers, along, throughput), indent=1) + "\n")
    return 0


def times_along(
    model: CompiledModel, given: Inputs, seed: int, seconds: float, count: int = POINTS
) -> list[tuple[dict[str, int], Times]]:
    """The times of a model with symbols at up to so many points of its range, unless a call is given: values of the
    symbols with theirs."""
    if not model.symbols or given:
        return []
    listed = [tuple({**point, **empty_lengths(model)}.items()) for point in points_of(model.symbols, count)]
    points = list(map(dict, dict.fromkeys(listed)))
    calls = [complete(tensors_at(model.inputs, values), {}, seed) for values in points]
    return list(zip(points, bench_range(model, calls, seconds), strict=True))


def _notes(result: Benchmark, path: Path, args: argparse.Namespace, measured: Mapping[str, str]) -> Iterator[str]:
    """What was not measured, and what is not to be believed."""
    if path.is_dir() and args.peers is None:
        yield f"not measured: {', '.join(PEERS)}, which need the model itself, an .onnx file"
    missing = [name for name in PEERS if name not in installed_peers()]
    if not path.is_dir() and args.peers is None and missing and path.suffix == ".onnx":
        yield f"not measured: {', '.join(missing)}, not installed (pip install {' '.join(missing)})"
    if not result.kernels:
        yield "kernels are not timed: shapes or data decide which of them a call runs"
    if result.is_disturbed:
        yield f"{result.disturbance}; {NO_ROOFLINE}"
    elif result.kernels and result.times[OWN].median > _TOO_LONG * result.kernel_seconds + _CALL_SECONDS:
        factor = result.times[OWN].median / result.kernel_seconds
        yield f"a call takes {factor:.1f} times its kernels: something else ran, or calls wait for each other"


def model_of(path: Path, shapes: Shapes, given: Given, args: argparse.Namespace, progress: Progress) -> CompiledModel:
    """The compiled model in a folder, or the model compiled; TreadleError for an option that only the latter takes."""
    if not path.is_dir():
        precision, target = args.precision or "f32", args.target or "cpu"
        return compile(
            path, target, shapes, constants=given.constants, precision=precision, weights=args.weights,
            convolution=args.convolution, database=args.database, construct=args.construct, threads=args.threads,
            states=parse_states(args.states), progress=progress,
        )  # fmt: skip
    check_of_model(given, path)
    asked = ("shape", "states", "target", "precision", "weights", "convolution", "database", "construct")
    for option in asked:
        if getattr(args, option):
            raise TreadleError(f"--{option} needs the model itself, not a compiled one", path, "an .onnx file")
    return load(path, args.threads)


def range_table(along: Sequence[tuple[Mapping[str, int], Times]]) -> Table:
    """A line for each point of a range: the median and the quartiles of its calls."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in along[0][0]:
        table.add_column(name, justify="right")
    for heading in ("median", "quartiles"):
        table.add_column(heading, justify="right", no_wrap=True)
    for values, times in along:
        low, middle, high = (f"{each * 1e3:.3f}" for each in times.quartiles)
        table.add_row(*map(str, values.values()), middle, f"{low} - {high}")
    return table


def latency_table(result: Benchmark, versions: Mapping[str, str], where: str = "") -> Table:
    """A line a side: percentiles of its calls, and how many times the model's own time it takes, a batch of calls of
    each in turn: the median of the rounds, and the quartiles."""
    threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
    title = f"Milliseconds a call with {threads}" + (f", {where}" if where else "")
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, title_style="")
    table.add_column("")
    for heading in ("p50", "p90", "p99", "calls", f"times {OWN}'s", "quartiles"):
        table.add_column(heading, justify="right", no_wrap=True)
    own = result.times[OWN]
    for name, times in result.times.items():
        least, ratio, most = times.ratios(own)
        ratios = ("", "") if times is own else (f"{ratio:.3f}", f"{least:.3f} - {most:.3f}")
        table.add_row(f"{name} {versions.get(name, '')}", *_latency_cells(result.latencies[name]), *ratios)
    return table


def _latency_cells(latency: Latency) -> tuple[str, str, str, str]:
    """Milliseconds, and the number of calls."""
    p50, p90, p99 = (f"{each * 1e3:.3f}" for each in (latency.p50, latency.p90, latency.p99))
    return p50, p90, p99, str(latency.calls)


def throughput_table(throughput: Throughput) -> Table:
    """One line: calls a second of all streams, and percentiles of their calls."""
    streams = "1 stream" if throughput.streams == 1 else f"{throughput.streams} streams"
    threads = "1 thread" if throughput.threads == 1 else f"{throughput.threads} threads"
    title = f"Throughput of {streams} of {threads}, milliseconds a call"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, title_style="")
    for heading in ("calls/s", "p50", "p90", "p99", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row(f"{throughput.calls_a_second:.1f}", *_latency_cells(throughput.latency))
    return table


def kernel_table(result: Benchmark, most: int) -> Table:
    """A line a kernel: its launches, time and share of a call, its rates, and the attainable time as a share of its
    time; then what the others take, and what is not kernels."""
    kernels = "1 kernel" if len(result.kernels) == 1 else f"{len(result.kernels)} kernels"
    title = f"{kernels}, {result.kernel_seconds * 1e3:.3f} ms"
    if not result.is_disturbed:
        title += (
            f", {result.least_seconds * 1e3:.3f} at the roofline of this machine's peaks: {peaks_text(result.peaks)}"
        )
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, title_style="")
    table.add_column("kernel", overflow="fold")
    for heading in ("launches", "us", "share", "GFLOP/s", " GB/s", "of the\nroofline", "data in"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("nodes of the model", overflow="fold")
    for kernel in result.kernels[:most]:
        table.add_row(*kernel_cells(kernel, result))
    rest = result.kernels[most:]
    if rest:
        seconds = sum(kernel.seconds for kernel in rest)
        launches = sum(len(kernel.launches) for kernel in rest)
        table.add_row(f"{len(rest)} others", str(launches), *_time_cells(seconds, result))
    table.add_row("not kernels", "", *_time_cells(result.overhead_seconds, result))
    return table


def _time_cells(seconds: float, result: Benchmark) -> tuple[str, str]:
    """Microseconds, and the share of a call."""
    return f"{seconds * 1e6:.1f}", f"{seconds / (result.call_seconds or float('nan')):.1%}"


def peaks_text(peaks: Peaks) -> str:
    """Arithmetic, and each level of memory."""
    read = ", ".join(f"{level.bandwidth / 1e9:.1f} from {level.name}" for level in peaks.levels)
    return f"{peaks.operations / 1e9:.0f} GFLOP/s of float32, GB/s: {read}"


def kernel_cells(kernel: KernelTime, result: Benchmark) -> list[str]:
    """Name, launches, us, share of a call, GFLOP/s, GB/s, of the roofline, the level that its data are in, nodes.

    The roofline and the level are empty where the run was disturbed. `above` is what took less than is attainable
    (`KernelTime.of_the_roofline`).
    """
    seconds = kernel.seconds or float("nan")
    return [
        kernel.name,
        str(len(kernel.launches)),
        *_time_cells(kernel.seconds, result),
        f"{kernel.operations / seconds / 1e9:.1f}",
        f"{kernel.nbytes / seconds / 1e9:.1f}",
        *_of_the_roofline(kernel, result),
        "; ".join(dict.fromkeys(filter(None, kernel.nodes))),
    ]


def _of_the_roofline(kernel: KernelTime, result: Benchmark) -> tuple[str, str]:
    """The attainable time as a share of the kernel's, and the level of memory that it is for."""
    if result.is_disturbed or not kernel.seconds:
        return "", ""
    share = kernel.of_the_roofline(result.peaks)
    return f"{share:.0%}" if share <= 1 else "above", kernel.level(result.peaks).name


def _peers(path: Path, args: argparse.Namespace) -> dict[str, str]:
    """Names and versions of the peers to measure: those asked for, else all that are installed; of an .onnx file."""
    asked = args.peers
    if asked == ["none"]:
        return {}
    installed = installed_peers()
    for name in asked or ():
        if name not in installed:
            known = f"{name} is not installed" if name in PEERS else f"there is no peer {name!r}"
            raise TreadleError(known, "--peers", ["none", *installed] if name not in PEERS else f"pip install {name}")
    if path.suffix != ".onnx" or path.is_dir():
        if asked:
            raise TreadleError(f"{' and '.join(asked)} need the model itself", path, "an .onnx file")
        return {}
    return {name: installed[name] for name in asked or installed}


def _other(other: CompiledModel, model: CompiledModel, inputs: Inputs) -> Callable[[], object]:
    """A call of another artifact with the same inputs; TreadleError if it takes others."""
    wanted = {tensor.name: (tensor.shape, tensor.dtype) for tensor in model.inputs}
    if {tensor.name: (tensor.shape, tensor.dtype) for tensor in other.inputs} != wanted:
        theirs = "; ".join(map(str, other.inputs))
        accepted = "; ".join(map(str, model.inputs))
        raise TreadleError(f"it takes other inputs than the model: {theirs}", other.folder, accepted)
    ordered = [inputs[tensor.name] for tensor in other.inputs]
    other.open()
    return lambda: other(*ordered)


def _numbers(
    result: Benchmark, memory: Memory, path: Path, versions: Mapping[str, str],
    along: Sequence[tuple[Mapping[str, int], Times]], throughput: Throughput | None,
) -> dict[str, object]:  # fmt: skip
    """All that was measured: seconds, operations and bytes."""
    return {
        "model": str(path),
        "machine": hardware_of(host_target()),
        "threads": result.threads,
        "versions": {OWN: __version__, **versions},
        "seconds_a_call": {name: list(times.seconds) for name, times in result.times.items()},
        "latency": {name: vars(latency) for name, latency in result.latencies.items()},
        "throughput": None if throughput is None else {**vars(throughput), "latency": vars(throughput.latency)},
        "seconds_along_the_range": [{**values, "seconds": list(times.seconds)} for values, times in along],
        "waited": result.waited,
        "memory": vars(memory),
        "disturbance": result.disturbance,
        "peaks": asdict(result.peaks),
        "largest_change_of_a_peak": dict(zip(("peak", "share"), result.drift, strict=True)),
        "seconds_of_kernels": result.kernel_seconds,
        "seconds_of_what_is_not_kernels": result.overhead_seconds if result.kernels else None,
        "kernels": [
            {
                "kernel": kernel.name,
                "seconds": kernel.seconds,
                "operations": kernel.operations,
                "bytes": kernel.nbytes,
                "level": kernel.level(result.peaks).name,
                "attainable_seconds": None if result.is_disturbed else kernel.least_seconds(result.peaks),
                "nodes": list(kernel.nodes),
            }
            for kernel in result.kernels
        ],
    }
