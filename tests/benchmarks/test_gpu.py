"""`make gpu-bench` without a GPU: its arguments, order, statistics, table, files, and what it says about absent sides.

That it runs is a case on the fake driver, `tests/backends/cuda/fake_libcuda/runner_cases.py`.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

import treadle
from benchmarks import gpu, gpu_peers, machine
from benchmarks.gpu import Measured, main, measure, notices, row, slug, table
from benchmarks.gpu_peers import CUDA_PROVIDER, MAKERS, TREADLE, OnnxRuntimePeer, PeerMissing, TorchPeer, TritonPeer
from benchmarks.gpu_workloads import WORKLOADS, Workload, in_precision
from benchmarks.machine import describe_run, installed, nvidia_driver
from benchmarks.measure import relative_error, results_of
from benchmarks.paper_models import PAPER_MODELS
from benchmarks.result_files import write_results
from treadle.backends.program import read_program
from treadle.bench.interleave import Times, interleave
from treadle.bench.model import peer_call
from treadle.compiler.request import CompileRequest, lowered_module
from treadle.errors import TreadleError
from treadle.target import Target
from treadle.target.options import CompileOptions, Precision

Array = NDArray[Any]
HERE = Path("model.onnx")
WORKLOAD = WORKLOADS["softmax_128x8192"]


class FakePeer:
    """A side that computes `value` and notes what is asked of it."""

    graphed = True

    def __init__(self, value: float, weights: bool = True) -> None:
        self.outputs = [np.full(4, value, np.float32)] if weights else None
        self.runs = 0
        self.closed = False

    def run(self, times: int) -> None:
        self.runs += times

    def close(self) -> None:
        self.closed = True


def absent(workload: Workload, path: Path, precision: str) -> FakePeer:
    raise PeerMissing(f"nobody has {workload.name}")


def measured(missing: dict[str, str] | None = None) -> Measured:
    times = {TREADLE: Times((4e-6, 2e-6, 3e-6), 10), "other": Times((2e-6, 2e-6, 6e-6), 20)}
    return Measured(WORKLOAD, times, {TREADLE: True, "other": False}, {TREADLE: 0.0, "other": None}, missing or {})


def test_sides_take_turns_and_nobody_is_always_first() -> None:
    now, order = [0.0], list[tuple[str, int]]()

    def side(name: str, seconds: float) -> Callable[[int], None]:
        def run(times: int) -> None:
            order.append((name, times))
            now[0] += times * seconds

        return run

    times = interleave({"a": side("a", 1.0), "b": side("b", 0.25)}, 3, 2.0, lambda: now[0])
    assert (times["a"].repeats, times["b"].repeats) == (2, 8)  # batches of at least 2 s, by doubling
    assert order[-6:] == [("a", 2), ("b", 8), ("b", 8), ("a", 2), ("a", 2), ("b", 8)]
    assert times["a"].seconds == (1.0, 1.0, 1.0) and times["b"].median == 0.25


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = Times((4.0, 2.0, 3.0), 1), Times((2.0, 2.0, 6.0), 1)
    assert ours.ratios(theirs) == (0.75, 1.0, 1.5)
    assert ours.median == 3.0 and ours.quartiles == (2.5, 3.0, 3.5)
    assert Times((5.0,), 1).quartiles == (5.0, 5.0, 5.0)


def test_a_side_that_is_absent_is_left_out_and_the_others_are_closed() -> None:
    ours, theirs = FakePeer(1.0), FakePeer(1.5)
    makers = {TREADLE: lambda *_: ours, "other": lambda *_: theirs, "none": absent}
    found = measure(WORKLOAD, makers, rounds=2, batch_seconds=0.0)
    assert list(found.times) == [TREADLE, "other"] and len(found.times["other"].seconds) == 2
    assert found.differences == {TREADLE: 0.0, "other": 0.5}
    assert found.missing == {"none": "nobody has softmax_128x8192"}
    assert ours.closed and theirs.closed and ours.runs == theirs.runs


def test_other_weights_are_not_compared() -> None:
    makers = {TREADLE: lambda *_: FakePeer(1.0), "other": lambda *_: FakePeer(1.0, weights=False)}
    assert measure(WORKLOAD, makers, 1, 0.0).differences == {TREADLE: 0.0, "other": None}


def test_sides_are_closed_when_one_fails() -> None:
    ours = FakePeer(1.0)

    def broken(workload: Workload, path: Path, precision: str) -> FakePeer:
        raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        measure(WORKLOAD, {TREADLE: lambda *_: ours, "other": broken}, 1, 0.0)
    assert ours.closed


def test_a_model_that_cannot_be_written_here_is_left_out() -> None:
    def write(folder: Path) -> Path:
        raise ImportError("No module named 'torch'")

    found = measure(replace(WORKLOAD, write=write), {TREADLE: lambda *_: FakePeer(1.0)}, 1, 0.0)
    assert (found.times, found.missing) == ({}, {"softmax_128x8192": "No module named 'torch'"})
    assert row(found)["sides"] == {}
    screen = StringIO()
    Console(file=screen, width=120).print(table([measured(), found], "Some GPU"))
    assert screen.getvalue().count("softmax") == 1


def test_a_workload_that_fails_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_first(workload: Workload, path: Path, precision: str) -> FakePeer:
        if workload.name == "matmul_128":
            raise TreadleError("too few registers", where="launching a kernel")
        return FakePeer(1.0)

    monkeypatch.setattr(gpu, "why_no_gpu", lambda: None)
    monkeypatch.setattr(gpu, "describe_gpu", lambda: {"gpu": "Some GPU"})
    monkeypatch.setattr(gpu, "MAKERS", {TREADLE: fail_first})
    options = ["--workloads", "matmul_128", "matmul_256", "--rounds", "1", "--batch-ms", "1", "--output", str(tmp_path)]
    assert main([*options, "--peers", TREADLE]) == 1
    assert "treadle is left out: matmul_128: launching a kernel: too few registers" in capsys.readouterr().out
    (path,) = tmp_path.glob("gpu-some-gpu-*.json")
    assert [list(each["sides"]) for each in json.loads(path.read_text())["results"]] == [[], [TREADLE]]


def test_the_paper_s_models_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, {})
    assert list(PAPER_MODELS) == ["resnet50", "inception_v3", "mobilenet_v2", "bert_base", "gpt2"]
    for name, model in PAPER_MODELS.items():
        assert WORKLOADS[name].inputs.keys() == {model.input}
        with pytest.raises(ImportError, match="No module named 'torch'"):
            WORKLOADS[name].write(tmp_path)


def test_operands_are_drawn_when_they_are_asked_for() -> None:
    """Those of the largest product would take every importing process half a second."""
    product = replace(WORKLOADS["matmul_512"])
    assert "inputs" not in vars(product)
    assert {name: array.shape for name, array in product.inputs.items()} == {"a": (512, 512), "b": (512, 512)}


def test_several_results_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = MagicMock(spec=["double"]), MagicMock(spec=["double"])
    first, second = (each.double().cpu().numpy() for each in (one, two))
    assert gpu_peers._arrays(SimpleNamespace(to_tuple=lambda: (one, two))) == [first, second]
    assert gpu_peers._arrays((one, two)) == [first, second]
    assert gpu_peers._arrays(one) == [first]


def test_the_table_has_a_ratio_for_every_side() -> None:
    alone = Measured(WORKLOADS["minilm"], {TREADLE: Times((1e-3,), 1)}, {}, {})
    screen = StringIO()
    Console(file=screen, width=120).print(table([measured(), alone], "Some GPU"))
    lines = screen.getvalue().splitlines()
    assert "Some GPU" in lines[0] and "/ other" in lines[2]
    assert any("softmax_128x8192" in line and "3.0" in line and "1.00 (0.75 - 1.50)" in line for line in lines)
    assert any("minilm" in line and "1000.0" in line and " - " in line for line in lines)


def test_a_side_is_missed_once_for_each_reason() -> None:
    each = [measured({"torch": "not here"}), measured({"torch": "not here", "other": "too old"})]
    assert notices(each) == ["torch is left out: not here", "other is left out: too old"]


def test_results_are_written_with_their_circumstances(tmp_path: Path) -> None:
    device = {"gpu": "NVIDIA H100 80GB HBM3", "driver": "580.65.06"}
    path = write_results(f"gpu-{slug(device['gpu'])}", describe_run() | device, [row(measured({"x": "y"}))], tmp_path)
    content = json.loads(path.read_text())
    assert path.name == f"gpu-h100-80gb-hbm3-{content['date'][:10]}.json"
    assert {"date", "commit", "gpu", "driver", "versions"} <= content.keys()
    (found,) = content["results"]
    assert (found["workload"], found["kind"], found["missing"]) == ("softmax_128x8192", "operator", {"x": "y"})
    assert found["sides"]["other"] == {
        "median_us": 2.0,
        "quartiles_us": [2.0, 2.0, 4.0],
        "treadle_ratio": [0.75, 1.0, 1.5],
        "runs_of_a_batch": 20,
        "cuda_graph": False,
        "difference": None,
        "rounds_us": [2.0, 2.0, 6.0],
    }


@pytest.mark.parametrize(
    ("name", "part"),
    [("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"), ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"), ("", "unknown")],
)
def test_a_device_names_its_file(name: str, part: str) -> None:
    assert slug(name) == part


@pytest.mark.parametrize("options", [["--workloads", "gpt5"], ["--rounds", "0"], ["--peers", "nobody"]])
def test_wrong_arguments_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(options)
    assert "invalid choice" in capsys.readouterr().err or "0" in options


def test_without_a_gpu_there_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "why_no_gpu", lambda: "no GPU: none was built in")
    assert main([]) == 0
    assert capsys.readouterr().out == "gpu-bench skipped: no GPU: none was built in\n"


def test_the_driver_is_named(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC 12\n")
    assert nvidia_driver(version) == "580.65.06"
    assert nvidia_driver(tmp_path / "none") == "unknown"
    assert installed("numpy") == np.__version__ and installed("no-such-package") is None


def importing(monkeypatch: pytest.MonkeyPatch, modules: dict[str, object]) -> None:
    """Lets the peers import those modules, and none that is not named."""
    real = importlib.import_module

    def find(name: str, package: str | None = None) -> ModuleType | object:
        if name in modules:
            return modules[name]
        if name.split(".")[0] in ("torch", "torchvision", "transformers", "onnxruntime"):
            raise ImportError(f"No module named '{name}'")
        return real(name, package)

    monkeypatch.setattr(gpu_peers.importlib, "import_module", find)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != TREADLE])
def test_a_side_that_is_not_installed_is_named_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, {})
    with pytest.raises(PeerMissing, match=r"not installed; pip install") as caught:
        MAKERS[name](WORKLOAD, HERE, "f32")
    assert "\n" not in str(caught.value)


def test_sides_that_use_no_gpu_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch, runtime = MagicMock(), MagicMock()
    torch.cuda.is_available.return_value = False
    runtime.get_available_providers.return_value = ["CPUExecutionProvider"]
    importing(monkeypatch, {"torch": torch, "onnxruntime": runtime})
    with pytest.raises(PeerMissing, match="the installed PyTorch uses no GPU"):
        TorchPeer(WORKLOAD, HERE, "f32", compiled=False)
    with pytest.raises(PeerMissing, match="the installed ONNX Runtime has no CUDA provider"):
        OnnxRuntimePeer(WORKLOAD, HERE, "f32")


def test_torch_is_left_out_where_nobody_has_written_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, {"torch": MagicMock()})
    with pytest.raises(PeerMissing, match="nobody has written ppocr_cls in PyTorch"):
        TorchPeer(WORKLOADS["ppocr_cls"], HERE, "f32", compiled=False)
    with pytest.raises(PeerMissing, match="minilm: No module named 'transformers'"):
        TorchPeer(WORKLOADS["minilm"], HERE, "f32", compiled=False)


def test_torch_replays_what_it_recorded_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = MagicMock()
    importing(monkeypatch, {"torch": torch})
    peer = TorchPeer(WORKLOAD, HERE, "f32", compiled=False)
    assert torch.softmax.call_count == 4  # three to warm up, one that is recorded
    peer.run(5)
    assert torch.cuda.CUDAGraph().replay.call_count == 5 and torch.softmax.call_count == 4
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is False
    peer.close()


def test_torch_gets_weights_and_inputs_of_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    torch, floats, indices = MagicMock(), MagicMock(), MagicMock()
    floats.is_floating_point.return_value, indices.is_floating_point.return_value = True, False
    assert gpu_peers._narrowed(torch, floats, "bf16") is floats.to(torch.bfloat16)
    assert gpu_peers._narrowed(torch, indices, "bf16") is indices
    assert gpu_peers._narrowed(torch, floats, "tf32") is gpu_peers._narrowed(torch, floats, "f32") is floats
    floats.to.assert_called_with(torch.bfloat16)
    torch.from_numpy().cuda().is_floating_point.return_value = True
    importing(monkeypatch, {"torch": torch})
    TorchPeer(WORKLOAD, HERE, "f16", compiled=False)
    torch.softmax.assert_called_with(torch.from_numpy().cuda().to(torch.float16), -1)
    TorchPeer(WORKLOAD, HERE, "tf32", compiled=False)
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is True


def test_sides_without_a_precision_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, {"torch": MagicMock(), "onnxruntime": MagicMock()})
    with pytest.raises(PeerMissing, match="float32 models in float32: no bf16"):
        OnnxRuntimePeer(WORKLOAD, HERE, "bf16")
    with pytest.raises(PeerMissing, match="in Triton with TF32"):
        TritonPeer(WORKLOAD, HERE, "tf32")


def test_every_precision_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def make(workload: Workload, path: Path, precision: str) -> FakePeer:
        asked.append((workload.name, precision))
        if precision == "f16":
            raise ZeroDivisionError("a fault of the benchmark")
        return FakePeer(1.0)

    monkeypatch.setattr(gpu, "why_no_gpu", lambda: None)
    monkeypatch.setattr(gpu, "describe_gpu", lambda: {"gpu": "Some GPU"})
    monkeypatch.setattr(gpu, "MAKERS", {TREADLE: make})
    options = ["--workloads", "matmul_128", "--peers", TREADLE, "--rounds", "1", "--batch-ms", "1"]
    assert main([*options, "--precision", "f32", "f16", "tf32", "--output", str(tmp_path)]) == 1
    assert asked == [("matmul_128", precision) for precision in ("f32", "f16", "tf32")]
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["results"]
    assert [(each["precision"], bool(each["sides"])) for each in rows] == [
        ("f32", True),
        ("f16", False),
        ("tf32", True),
    ]
    assert rows[1]["missing"] == {TREADLE: "matmul_128: ZeroDivisionError: a fault of the benchmark"}


def test_triton_s_kernels_are_recorded_like_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    torch, kernels = MagicMock(), MagicMock()
    importing(monkeypatch, {"torch": torch, "benchmarks.triton_kernels": kernels})
    TritonPeer(WORKLOAD, HERE, "f32").run(5)
    assert kernels.softmax.call_count == 4 and torch.cuda.CUDAGraph().replay.call_count == 5
    with pytest.raises(PeerMissing, match="nobody has written ppocr_cls in Triton"):
        TritonPeer(WORKLOADS["ppocr_cls"], HERE, "f32")


def test_triton_is_left_out_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, {"torch": MagicMock()})
    monkeypatch.setitem(sys.modules, "benchmarks.triton_kernels", None)
    with pytest.raises(PeerMissing, match="Triton is not installed; pip install triton"):
        TritonPeer(WORKLOAD, HERE, "f32")


def test_every_operator_has_a_function_in_triton() -> None:
    text = (Path(gpu.__file__).parent / "triton_kernels.py").read_text()
    written = {f"def {each.triton}(" in text for each in WORKLOADS.values() if each.kind == "operator"}
    assert written == {True}


def test_compiled_torch_makes_its_own_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = MagicMock()
    importing(monkeypatch, {"torch": torch})
    peer = TorchPeer(WORKLOAD, HERE, "f32", compiled=True)
    peer.run(5)
    assert torch.compile.call_args.kwargs == {"mode": "max-autotune"}
    assert torch.compile().call_count == 3 + 5 and not torch.cuda.CUDAGraph.called


def test_onnx_runtime_tries_without_a_graph_what_cannot_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, options = MagicMock(), list[dict[str, str]]()
    state = runtime.capi.onnxruntime_pybind11_state
    state.Fail, state.RuntimeException, state.NotImplemented, state.EPFail = (RuntimeError,) * 4
    runtime.get_available_providers.return_value = [CUDA_PROVIDER]

    def session(path: str, _: object, providers: list[tuple[str, dict[str, str]]]) -> MagicMock:
        options.append(providers[0][1])
        if options[-1]["enable_cuda_graph"] == "1":
            raise RuntimeError("some nodes are on the CPU")
        made = MagicMock()
        made.get_providers.return_value = [CUDA_PROVIDER]
        return made

    runtime.InferenceSession = session
    importing(monkeypatch, {"onnxruntime": runtime})
    peer = OnnxRuntimePeer(WORKLOAD, HERE, "f32")
    assert not peer.graphed and [each["use_tf32"] for each in options] == ["0", "0"]
    peer.run(4)
    assert peer._session.run_with_iobinding.call_count == 3 + 4
    peer.close()


def test_the_circumstances_need_no_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has a checkout and little else."""

    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(machine, "version", version)
    versions = describe_run()["versions"]
    assert versions == {"python": platform.python_version(), "treadle": treadle.__version__}


@pytest.mark.parametrize(("precision", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_operators_have_inputs_of_the_precision(precision: Precision, dtype: Any, tmp_path: Path) -> None:
    """One kernel: a cast of the operands would be measured beside the product."""
    workload = WORKLOADS["matmul_128"]
    path, inputs = in_precision(workload, workload.write(tmp_path), precision)
    request = CompileRequest(path, Target.parse("sm_80"), options=CompileOptions(precision=precision))
    program = read_program(lowered_module(request))
    assert [spec.dtype for spec in (*program.inputs, *program.outputs)] == [np.dtype(dtype)] * 3
    assert [array.dtype for array in inputs.values()] == [np.dtype(dtype)] * 2 and len(program.launches) == 1


def test_models_and_wide_precisions_keep_their_inputs(tmp_path: Path) -> None:
    path, product, model = tmp_path / "x.onnx", WORKLOADS["matmul_128"], WORKLOADS["ppocr_cls"]
    assert in_precision(product, path, "tf32") == (path, product.inputs)
    assert in_precision(replace(model, draw=dict), path, "f16") == (path, {})


REFERENCES: dict[str, Callable[..., Array]] = {
    "matmul_128": lambda a, b: a @ b,
    "softmax_128x8192": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    "layer_norm_128x8192": lambda x, scale, bias: (
        (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * scale + bias
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_an_operator_is_an_onnx_model_that_treadle_compiles(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    workload = WORKLOADS[name]
    path = workload.write(tmp_path)
    expected = REFERENCES[name](*(array.astype(np.float64) for array in workload.inputs.values()))
    (found,) = results_of(peer_call("onnxruntime", path, workload.inputs, 1)())
    assert relative_error([np.asarray(found)], [expected]) < 1e-5
    model = treadle.compile(path, "sm_90")
    assert [tensor.name for tensor in model.inputs] == list(workload.inputs)


def test_every_kind_of_operator_has_a_reference() -> None:
    kinds = {name.rsplit("_", 1)[0] for name, workload in WORKLOADS.items() if workload.kind == "operator"}
    assert {name.rsplit("_", 1)[0] for name in REFERENCES} == kinds
