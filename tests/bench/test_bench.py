"""`treadle bench`: what launches are said to do, who is measured, and what the command prints and refuses."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from tests.helpers.quick_bench import measure_briefly
from treadle.backends.c.executor import CpuProgram
from treadle.bench import model as bench_models
from treadle.bench.interleave import Disturbance, Times, waited_seconds
from treadle.bench.model import (
    OWN,
    Benchmark,
    KernelTime,
    bench_model,
    installed_peers,
    measure_streams,
    peer_call,
    points_of,
)
from treadle.bench.peaks import Launch, Level, Peaks, launches_in, launches_of, measure_peaks
from treadle.compiler.request import read_module
from treadle.errors import TreadleError
from treadle.model import CompiledModel
from treadle.shapes.dim import Dim
from treadle.target.host import Cache, caches_of
from treadle.tools import bench_command
from treadle.tools.bench_command import kernel_table
from treadle.tools.treadle_cli import main

X = np.linspace(-1, 1, 24 * 16, dtype=np.float32).reshape(24, 16)
SECONDS = 0.02
THREADS = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """softmax(x w), of 24 x 16 by 16 x 40."""
    w = numpy_helper.from_array(np.full((16, 40), 0.25, np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Softmax", ["a"], ["y"], "norm"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [24, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [24, 40])
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def compiled(model: Path) -> CompiledModel:
    return treadle.compile(model, threads=2)


def test_launches_have_their_nodes_operations_and_bytes(compiled: CompiledModel) -> None:
    product, norm = launches_of(compiled.artifact)
    assert (product.nodes, norm.nodes) == ("MatMul 'product'", "Softmax 'norm'")
    assert product.operations == 2 * 24 * 16 * 40
    assert norm.operations == 24 * (7 * 40 + 1)  # max, sub, exp, add; 1 / sum; sub, exp, mul
    # The weights lie in panels of some vectors, of which the last may reach beyond column 40.
    assert product.nbytes in {4 * (24 * 16 + 16 * columns + 24 * 40) for columns in (40, 48, 64, 96)}
    assert norm.nbytes == 4 * (24 * 40 * 2)


@pytest.mark.usefixtures("brief")
def test_kernels_of_a_loop_are_not_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How many launches a call has, its data decide: times in order would be those of others."""
    body = helper.make_graph(
        [helper.make_node("Tanh", ["s"], ["t"]), helper.make_node("Identity", ["c"], ["d"])],
        "b",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [8]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, [8]),
        ],
    )
    x = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [8]),
        helper.make_tensor_value_info("n", TensorProto.INT64, []),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8])
    graph = helper.make_graph([helper.make_node("Loop", ["n", "", "x"], ["y"], "loop", body=body)], "g", x, [y])
    path = tmp_path / "loop.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    with pytest.raises(TreadleError, match="which launches a call has, its shapes or its data decide"):
        launches_of(treadle.compile(path).artifact)
    assert bench(str(path), "--peers", "none", seconds=SECONDS) == 0
    assert "kernels are not timed: shapes or data decide which of them a call runs" in capsys.readouterr().out


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of `SECONDS`, which the command would refuse."""
    measure_briefly(monkeypatch)
    monkeypatch.setattr(bench_command, "_LEAST_SECONDS", SECONDS)


@pytest.mark.usefixtures("brief")
def test_sides_and_kernels_are_measured(model: Path, compiled: CompiledModel) -> None:
    called: list[int] = []
    result = bench_model(compiled, {"x": X}, {"other": lambda: called.append(1)}, seconds=SECONDS)
    assert list(result.times) == [OWN, "other"]
    assert len(called) > len(result.times["other"].seconds) >= 5
    assert sum(len(kernel.launches) for kernel in result.kernels) == 2
    seconds = [kernel.seconds for kernel in result.kernels]
    assert seconds == sorted(seconds, reverse=True)
    assert math.isclose(result.kernel_seconds, math.fsum(seconds))
    assert all(each > 0 for each in seconds)
    assert result.threads == 2
    assert [each.name for each in result.launches] == [each.kernel for each in launches_of(compiled.artifact)]
    assert sorted(each.seconds for each in result.launches) == sorted(seconds), "a launch a kernel here"


@pytest.mark.usefixtures("brief")
def test_streams_share_weights_and_are_counted(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every stream has calls of its own, and none counts that warmed up."""
    assert (
        bench(str(model), "--peers", "none", "--streams", "3", "--json", str(tmp_path / "n.json"), seconds=SECONDS) == 0
    )
    assert "Throughput of 3 streams of 2 threads" in capsys.readouterr().out
    numbers = json.loads((tmp_path / "n.json").read_text())
    throughput = numbers["throughput"]
    assert throughput["streams"] == 3
    assert throughput["latency"]["calls"] >= 3
    assert throughput["calls_a_second"] > 0
    latency = numbers["latency"]["treadle"]
    assert latency["calls"] >= len(numbers["seconds_a_call"]["treadle"])
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"]


def test_streams_add_up(compiled: CompiledModel) -> None:
    """By a clock that goes on by a second at each reading, which threads share, every stream is called."""
    ticks = itertools.count(0.0)
    found = measure_streams(compiled, {"x": X}, 2, seconds=0.0, clock=lambda: next(ticks))
    assert (found.streams, found.threads, found.latency.calls) == (2, THREADS, 2)
    # A stream reads it when it begins, around its call, before it goes on, and at its end.
    assert 0 < found.calls_a_second <= 2 / 4


def test_an_error_of_a_stream_is_raised(compiled: CompiledModel) -> None:
    with pytest.raises(TreadleError, match="input 'x'"):
        measure_streams(compiled, {"x": X[:, :3]}, 2, seconds=0.0)


def test_a_peer_computes_the_same_model(model: Path, compiled: CompiledModel) -> None:
    assert "onnxruntime" in installed_peers()
    (theirs,) = peer_call("onnxruntime", model, {"x": X}, 2)()  # pyright: ignore[reportGeneralTypeIssues]
    np.testing.assert_allclose(theirs, compiled(X)[0], rtol=1e-5)


def test_a_peer_that_cannot_load_the_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(TreadleError, match="onnxruntime cannot run the model"):
        peer_call("onnxruntime", tmp_path / "m.onnx", {"x": X}, 2)


def test_the_roofline_is_the_slower_of_arithmetic_and_memory() -> None:
    peaks = Peaks(operations=2e9, bandwidth=1e9)
    kernel = KernelTime("k", (Launch("k", "", 4_000, 1_000), Launch("k", "", 0, 500)), 4e-6)
    assert kernel.least_seconds(peaks) == pytest.approx(2e-6 + 0.5e-6)
    assert KernelTime("k", (Launch("k", "", 10, 3_000),), 1.0).least_seconds(peaks) == pytest.approx(3e-6)
    assert KernelTime("k", (Launch("k", "", 0, 3_000),), 0.0).of_the_roofline(peaks) == 0, "not timed"


CACHES = (Level("L1", 1_000, 8e9), Level("L2", 10_000, 4e9))


@pytest.mark.parametrize(
    ("launches", "touched", "level", "seconds"),
    [
        ([1_000], 0, "L1", 1_000 / 8e9),
        ([1_001], 0, "L2", 1_001 / 4e9),
        ([600, 600], 0, "L2", 1_200 / 4e9),  # each launch would fit into L1; the next call finds the other's data there
        ([600], 10_001, "DRAM", 600 / 1e9),  # one of a kernel's launches has the level of all
        ([20_000], 0, "DRAM", 20_000 / 1e9),
    ],
)
def test_data_are_in_the_smallest_level_that_holds_the_working_set(
    launches: list[int], touched: int, level: str, seconds: float
) -> None:
    peaks = Peaks(1e9, 1e9, CACHES)
    kernel = KernelTime("k", tuple(Launch("k", "", 0, each) for each in launches), 1.0, touched)
    assert kernel.level(peaks).name == level
    assert kernel.least_seconds(peaks) == pytest.approx(seconds)


@pytest.mark.usefixtures("brief")
def test_a_launch_has_the_level_of_its_kernel(compiled: CompiledModel) -> None:
    result = bench_model(compiled, {"x": X}, seconds=SECONDS)
    of_kernel = {kernel.name: kernel.working_set for kernel in result.kernels}
    assert [each.working_set for each in result.launches] == [of_kernel[each.name] for each in result.launches]


def test_of_two_measurements_the_higher_peaks_count() -> None:
    one = Peaks(100.0, 10.0, (Level("L1", 1_000, 50.0),))
    two = Peaks(90.0, 10.5, (Level("L1", 1_000, 80.0),))
    assert one.better(two) == two.better(one) == Peaks(100.0, 10.5, (Level("L1", 1_000, 80.0),))
    name, share = one.difference(two)
    assert (name, share) == ("L1", pytest.approx(1 - 50 / 80))
    assert one.difference(one)[1] == 0


def test_the_table_has_rates_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = (
        KernelTime("slow", (Launch("slow", "Conv 'a'", 6_000_000, 30_000),) * 2, 300e-6),
        KernelTime("fast", (Launch("fast", "Relu 'b'", 0, 90_000),), 100e-6),
    )
    times = {OWN: Times((1e-3,), 1)}
    result = Benchmark(times, kernels, Peaks(80e9, 9e9), 1, overhead_seconds=600e-6)
    table = kernel_table(result, 1)
    # 12,000,000 operations take 150 us at least, 90,000 bytes 10 us.
    assert str(table.title).startswith("2 kernels, 0.400 ms, 0.160 at the roofline of this machine's peaks: 80 GFLOP/s")
    assert Benchmark(times, kernels, Peaks(30e9, 9e9), 1).least_seconds == pytest.approx(310e-6), "never above its time"
    cells = [list(column.cells) for column in table.columns]
    assert [column[0] for column in cells] == ["slow", "2", "300.0", "30.0%", "40.0", "0.2", "50%", "DRAM", "Conv 'a'"]
    assert [column[1] for column in cells][:4] == ["1 others", "1", "100.0", "10.0%"]
    assert [column[2] for column in cells][:4] == ["not kernels", "", "600.0", "60.0%"]


@pytest.mark.usefixtures("brief")
def test_peaks_are_those_of_a_processor() -> None:
    """A core does between a tenth and a thousand GFLOP/s, and reads 0.1 to 10,000 GB/s, since about 1995."""
    caches = (Cache(1, 32 << 10, 4), Cache(2, 256 << 10, 2), Cache(3, 400 << 10, 1), Cache(4, 4 << 20, 1))
    peaks = measure_peaks(2, caches)
    assert 1e8 < peaks.operations < 1e13
    assert all(1e8 < level.bandwidth < 1e13 for level in peaks.levels)
    held = [(level.name, level.nbytes) for level in peaks.levels]
    assert held == [("L1", 64 << 10), ("L2", 512 << 10), ("L4", 4 << 20), ("DRAM", None)], "L3 holds less than both L2"


def test_a_system_that_tells_of_no_caches_has_memory_alone(tmp_path: Path) -> None:
    assert caches_of(tmp_path) == ()
    assert Peaks(1e9, 1e9).level_of(1).name == "DRAM"


def test_caches_are_counted_by_who_shares_them(tmp_path: Path) -> None:
    for cpu in range(4):
        rows = [("1", "Data", "48K", str(cpu)), ("1", "Instruction", "64K", str(cpu))]
        rows += [("2", "Unified", "2048K", "0-1" if cpu < 2 else "2-3"), ("3", "Unified", "30M", "0-3")]
        for n, row in enumerate(rows):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{n}"
            folder.mkdir(parents=True)
            for name, text in zip(("level", "type", "size", "shared_cpu_list"), row, strict=True):
                (folder / name).write_text(text + "\n")
    assert caches_of(tmp_path) == (Cache(1, 48 << 10, 4), Cache(2, 2 << 20, 2), Cache(3, 30 << 20, 1))


def bench(*arguments: str, seconds: float = 1) -> int:
    return main(["bench", *arguments, "--seconds", str(seconds), "--threads", "2"])


@pytest.mark.usefixtures("brief")
def test_the_command_measures_a_model_and_writes_all_numbers(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(str(model), "--peers", "onnxruntime", "--json", str(tmp_path / "n.json"), seconds=SECONDS) == 0
    out = capsys.readouterr().out
    assert re.search(r"^ treadle +\d+\.\d{3} ", out, re.M)
    assert re.search(r"^ onnxruntime \d\S+ +\d+\.\d{3} .* \d+\.\d{3} +\d+\.\d{3} - \d+\.\d{3}", out, re.M)
    memory = treadle.compile(model).memory
    assert f"memory of a call: {memory}" in out
    numbers = json.loads((tmp_path / "n.json").read_text())
    assert numbers["memory"] == vars(memory) and memory.weights > 0
    assert set(numbers["seconds_a_call"]) == {"treadle", "onnxruntime"}
    assert sorted(node for kernel in numbers["kernels"] for node in kernel["nodes"]) == [
        "MatMul 'product'",
        "Softmax 'norm'",
    ]
    assert numbers["peaks"]["operations"] > 0
    assert {kernel["level"] for kernel in numbers["kernels"]} <= {
        *(each["name"] for each in numbers["peaks"]["caches"]),
        "DRAM",
    }
    assert set(numbers["largest_change_of_a_peak"]) == {"peak", "share"}
    assert numbers["seconds_of_what_is_not_kernels"] >= 0
    assert re.search(r"^ not kernels +\d+\.\d +\d+\.\d%", out, re.M)


@pytest.mark.usefixtures("brief")
def test_a_compiled_model_is_measured_against_another(
    model: Path, compiled: CompiledModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled.save(tmp_path / "a")
    assert bench(str(tmp_path / "a"), "--against", str(tmp_path / "a"), "--json", "-", seconds=SECONDS) == 0
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)["seconds_a_call"]) == {"treadle", "against"}
    assert "against" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "tvm"], "there is no peer 'tvm'"),
        (["--target", "sm_80"], "what is compiled for sm_80 cannot be timed here"),
        (["--streams", "0"], "0 is not a number of streams"),
        (["--threads", "0"], "0 is not a number of threads"),
        (["--seconds", "0.5"], "at least 1"),
        (["--against", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    model: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(model), "--peers", "none", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_takes_neither_options_of_compilation_nor_peers(
    compiled: CompiledModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled.save(tmp_path / "a")
    assert bench(str(tmp_path / "a"), "--precision", "f16") == 2
    assert bench(str(tmp_path / "a"), "--peers", "onnxruntime") == 2
    err = capsys.readouterr().err
    assert "--precision needs the model itself" in err
    assert "onnxruntime need the model itself" in err


def test_another_artifact_has_to_take_the_same_inputs(
    model: Path, compiled: CompiledModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["z"], ["y"])],
        "g",
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    other = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    treadle.compile(other).save(tmp_path / "other")
    assert bench(str(model), "--peers", "none", "--against", str(tmp_path / "other")) == 2
    assert "it takes other inputs than the model: z: float32[3]" in capsys.readouterr().err


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a table of 3000 x 64, at nine places, normalised."""
    table, ones = np.zeros((3000, 64), np.float32), np.ones(64, np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "places"], ["rows"], "lookup"),
        helper.make_node("LayerNormalization", ["rows", "scale", "bias"], ["y"], "norm"),
    ]
    given = {"table": table, "scale": ones, "bias": ones}
    places = helper.make_tensor_value_info("places", TensorProto.INT64, [1, 9])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 9, 64])
    path = tmp_path_factory.mktemp("embedding") / "m.onnx"
    weights = [numpy_helper.from_array(array, name) for name, array in given.items()]
    graph = helper.make_graph(nodes, "g", [places], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_gather_moves_the_rows_that_it_reads(embedding: Path) -> None:
    (launch,) = launches_of(treadle.compile(embedding).artifact)
    assert sorted(launch.nodes.split(", ")) == ["Gather 'lookup'", "LayerNormalization 'norm'"]
    assert 2 * 9 * 64 * 4 <= launch.nbytes <= 2 * 9 * 64 * 4 + 9 * 8 + 2 * 64 * 4


@pytest.mark.parametrize("dims", [[], [1]])
def test_a_single_index_is_no_extent(embedding: Path, dims: list[int]) -> None:
    """The token of a decoder's step: one row moves, not the table."""
    graph = onnx.load(embedding)
    del graph.graph.node[1]
    graph.graph.input[0].CopyFrom(helper.make_tensor_value_info("places", TensorProto.INT64, dims))
    graph.graph.output[0].CopyFrom(helper.make_tensor_value_info("rows", TensorProto.FLOAT, [*dims, 64]))
    (launch,) = launches_of(treadle.compile(graph).artifact)
    assert launch.nbytes == 2 * 64 * 4 + 8


LAST_ROW = """
func.func @last(%n: memref<1xi64>, %x: memref<64xf32>, %y: memref<1xf32>, %worker: index, %workers: index)
    attributes {grid = 1 : i64} {
  %c0 = arith.constant 0 : index
  %0 = memref.load %n[%c0] : memref<1xi64>
  %1 = arith.index_cast %0 : i64 to index
  %2 = memref.load %x[%1] : memref<64xf32>
  memref.store %2, %y[%c0] : memref<1xf32>
  func.return
}
func.func @main() attributes {input_names = ["x", "n"], output_names = ["y"], arena_bytes = 0 : i64 EXTENTS} {
  %x = host.buffer input 0 : memref<64xf32>
  %n = host.buffer input 1 : memref<1xi64>
  %y = host.buffer output 0 : memref<1xf32>
  host.launch @last(%n, %x, %y) : memref<1xi64>, memref<64xf32>, memref<1xf32>
  host.return
}
"""


@pytest.mark.parametrize(("extents", "elements"), [("", 1), (', extents = ["n"]', 64)])
def test_an_extent_is_no_index(extents: str, elements: int) -> None:
    """All of a tensor counts whose rows beyond an extent are not read: how many are, the call decides."""
    (launch,) = launches_in(read_module(LAST_ROW.replace("EXTENTS", extents), "text"), "text")
    assert launch.nbytes == 8 + 4 * elements + 4


@dataclass
class Ticks:
    """A clock that goes on by two thousandths of a second whenever it is read."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 2e-3
        return self.now


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("part", "is_disturbed"), [(0.0, False), (0.01, False), (0.4, True)])
def test_a_machine_that_others_use_is_noticed(compiled: CompiledModel, part: float, is_disturbed: bool) -> None:
    ticks = Ticks()
    result = bench_model(compiled, {"x": X}, seconds=SECONDS, clock=ticks, waited=lambda: ticks.now * part * THREADS)
    assert result.threads == THREADS
    assert result.is_disturbed == is_disturbed
    assert result.waited == pytest.approx(part)
    table = kernel_table(result, 8)
    assert ("roofline" in str(table.title)) != is_disturbed
    shares = [cell for column in table.columns if "roofline" in str(column.header) for cell in column.cells]
    assert all(cell == "" for cell in shares) == is_disturbed


STEADY = Peaks(1e10, 1e10, (Level("L1", 32_000, 1e11),))


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (STEADY, ""),
        (Peaks(0.95e10, 1.05e10, STEADY.caches), ""),
        (Peaks(0.5e10, 1e10, STEADY.caches), "its peak of arithmetic differs by 50% between before and after"),
        (Peaks(1e10, 1e10, (Level("L1", 32_000, 2e11),)), "its peak of L1 differs by 50% between before and after"),
    ],
)
def test_a_machine_that_changes_meanwhile_is_noticed(
    compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch, after: Peaks, said: str
) -> None:
    monkeypatch.setattr(bench_models, "_BATCH_SECONDS", 1e-3)
    measured = iter([STEADY, after])
    result = bench_model(compiled, {"x": X}, seconds=SECONDS, waited=lambda: None, peaks=lambda _: next(measured))
    assert result.disturbance == (f"the machine changed: {said}" if said else "")
    assert ("roofline" in str(kernel_table(result, 8).title)) != bool(said)
    assert result.peaks == STEADY.better(after)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("step", "overhead"), [(10.0, 10.0), (0.0, 0.0)])
def test_what_a_call_takes_beside_its_kernels(
    compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch, step: float, overhead: float
) -> None:
    """By a clock that goes on by `step` more than the kernels take, which are one and two seconds."""
    monkeypatch.setattr(CpuProgram, "launch_seconds", lambda *_: [1.0, 2.0])
    ticks = itertools.count()

    def clock() -> float:
        return next(ticks) * (step + 3.0)

    result = bench_model(compiled, {"x": X}, seconds=SECONDS, clock=clock, peaks=lambda _: STEADY)
    assert result.kernel_seconds == 3.0
    assert result.overhead_seconds == pytest.approx(overhead)
    assert result.call_seconds == pytest.approx(3.0 + overhead)


def test_a_system_that_does_not_say_who_waits_claims_nothing(compiled: CompiledModel) -> None:
    with_peaks = Disturbance(2, lambda: None)
    assert with_peaks.part() == 0.0
    assert waited_seconds(Path("/nowhere")) is None


def test_threads_that_wait_are_counted(tmp_path: Path) -> None:
    for n, text in enumerate(["5 2000000000 7", "1 500000000 3", "nothing"]):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "schedstat").write_text(text)
    assert waited_seconds(tmp_path) == 2.5


def test_kernels_faster_than_their_level_are_above_its_roofline() -> None:
    kernels = (KernelTime("k", (Launch("k", "", 0, 90_000), Launch("k", "Relu 'b'", 0, 90_000)), 10e-6),)
    table = kernel_table(Benchmark({OWN: Times((1e-3,), 1)}, kernels, Peaks(80e9, 9e9), 1), 1)
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells[-3:] == ["above", "DRAM", "Relu 'b'"], "a launch without nodes has no text"


@pytest.mark.usefixtures("brief")
def test_missing_peers_and_whole_names_are_said(
    model: Path, compiled: CompiledModel, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    graph = onnx.load(model)
    graph.graph.node[0].name = long = (
        "/model/decoder/layers.0/self_attn/q_proj/MatMul_with_a_name_of_more_than_60_letters"
    )
    onnx.save(graph, tmp_path / "long.onnx")
    monkeypatch.setattr(bench_command, "installed_peers", dict)
    assert bench(str(tmp_path / "long.onnx"), "--json", str(tmp_path / "n.json"), seconds=SECONDS) == 0
    out = capsys.readouterr().out
    assert "not measured: onnxruntime, openvino, not installed (pip install onnxruntime openvino)" in out
    assert long in out
    assert any(
        long in node for each in json.loads((tmp_path / "n.json").read_text())["kernels"] for node in each["nodes"]
    )
    compiled.save(tmp_path / "a")
    assert bench(str(tmp_path / "a"), seconds=SECONDS) == 0
    assert "not measured: onnxruntime, openvino, which need the model itself" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        ([Dim("n", 1, 16)], [{"n": 1}, {"n": 2}, {"n": 4}, {"n": 8}, {"n": 16}]),
        ([Dim("p", 0, 16)], [{"p": 0}, {"p": 2}, {"p": 4}, {"p": 8}, {"p": 16}]),
        ([Dim("w", 32, 96, 32)], [{"w": 32}, {"w": 64}, {"w": 96}]),
        ([Dim("n", 2, 2), Dim("w", 1, 4)], [{"n": 2, "w": 1}, {"n": 2, "w": 2}, {"n": 2, "w": 3}, {"n": 2, "w": 4}]),
    ],
)
def test_points_lie_along_the_range(symbols: list[Dim], expected: list[dict[str, int]]) -> None:
    found = points_of(symbols)
    assert found == expected
    assert all(point[symbol.name] in symbol for point in found for symbol in symbols)


@pytest.mark.usefixtures("brief")
def test_a_folder_of_a_range_is_timed_along_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = onnx.load(model)
    for tensor in (graph.graph.input[0], graph.graph.output[0]):
        tensor.type.tensor_type.shape.dim[0].dim_param = "n"
    monkeypatch.setattr(bench_models, "_RANGE_BATCH_SECONDS", 0.001)
    treadle.compile(graph, shapes={"n": Dim("n", 1, 16)}).save(tmp_path / "a")
    assert bench(str(tmp_path / "a"), "--json", str(tmp_path / "n.json"), seconds=SECONDS) == 0
    out = capsys.readouterr().out
    assert "Milliseconds a call along the range" in out
    assert re.findall(r"^ +(\d+) +\d+\.\d{3} +\d+\.\d{3} - \d+\.\d{3} *$", out, re.M) == ["1", "2", "4", "8", "16"]
    along = json.loads((tmp_path / "n.json").read_text())["seconds_along_the_range"]
    assert [point["n"] for point in along] == [1, 2, 4, 8, 16]
    assert all(point["seconds"] for point in along)
    np.save(tmp_path / "x.npy", X[:4])
    assert bench(str(tmp_path / "a"), "--input", f"x={tmp_path / 'x.npy'}", seconds=SECONDS) == 0
    assert "along the range" not in capsys.readouterr().out
