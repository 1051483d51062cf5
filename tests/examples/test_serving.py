"""Serving examples: requests are joined into calls of one artifact, and each gets its own rows."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import treadle
from examples.serving import batching
from examples.serving.batching import Batcher, joined, largest_batch, rows_of
from tests.helpers.environment import environment_with
from tests.helpers.onnx_models import WEIGHTS, linear_model
from treadle.errors import TreadleError
from treadle.tools.treadle_cli import main

SERVING = Path(batching.__file__).parent
LIMIT = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu(x @ WEIGHTS) for 1 to 8 rows."""
    where = tmp_path_factory.mktemp("served")
    compiled = treadle.compile(
        linear_model(where / "m.onnx", "batch"), shapes={"batch": treadle.Dim("batch", 1, LIMIT)}
    )
    compiled.save(where / "served")
    return where / "served"


@pytest.fixture
def model(folder: Path) -> Generator[treadle.CompiledModel]:
    with treadle.load(folder, threads=1) as loaded:
        yield loaded


def drawn(rows: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(x.astype(np.float64) @ WEIGHTS, 0)


def test_one_call_answers_several_requests(model: treadle.CompiledModel) -> None:
    requests = [drawn(rows, rows) for rows in (1, 3, 2)]
    for x, outputs in zip(requests, joined(model, [{"x": x} for x in requests]), strict=True):
        np.testing.assert_allclose(outputs["y"], expected(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"z": drawn(1)}, r"request: inputs \['z'\]; accepted: x"),
        ({"x": drawn(1).astype(np.float64)}, r"request: input 'x': float64\[1, 8\]; accepted: float32, rows of \[8\]"),
        ({"x": drawn(1)[0]}, r"request: input 'x': float32\[8\]; accepted"),
        ({"x": drawn(1)[:, :4]}, r"request: input 'x': float32\[1, 4\]; accepted"),
        ({"x": drawn(0)}, r"request: \[0\] rows; accepted: 1 to 8"),
        ({"x": drawn(9)}, r"request: \[9\] rows; accepted: 1 to 8"),
    ],
)
def test_what_is_no_request(model: treadle.CompiledModel, inputs: Any, message: str) -> None:
    with pytest.raises(TreadleError, match=message):
        rows_of(model, inputs)
    with Batcher(model) as batcher, pytest.raises(TreadleError, match=message):
        batcher.submit(inputs)


def test_a_model_of_one_shape_has_no_batches(tmp_path: Path) -> None:
    fixed = treadle.compile(linear_model(tmp_path / "fixed.onnx"))
    with pytest.raises(TreadleError, match=r"takes no batches of one range; accepted: .* --shape batch=1\.\.N"):
        largest_batch(fixed)


class Slow:
    """A model whose first call waits, so that requests come meanwhile."""

    def __init__(self, model: treadle.CompiledModel) -> None:
        self._model = model
        self.started, self.go = threading.Event(), threading.Event()
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, inputs: Any) -> Any:
        self.started.set()
        assert self.go.wait(60)
        self.rows.append(len(inputs["x"]))
        return self._model.run(inputs)


def test_what_comes_during_a_call_is_the_next(model: treadle.CompiledModel) -> None:
    slow: Any = Slow(model)
    sizes = (1, 3, 4, 2, 8, 1)
    with Batcher(slow, wait=0) as batcher:
        futures = [batcher.submit({"x": drawn(1)})]
        assert slow.started.wait(60)
        futures += [batcher.submit({"x": drawn(rows, rows)}) for rows in sizes]
        futures[4].cancel()
        slow.go.set()
        answers = [None if number == 4 else future.result(60) for number, future in enumerate(futures)]
    for rows, answer in zip(sizes, answers[1:], strict=True):
        if answer is not None:
            np.testing.assert_allclose(answer["y"], expected(drawn(rows, rows)), rtol=1e-5, atol=1e-6)
    assert max(slow.rows) <= LIMIT and sum(slow.rows) == 1 + sum(sizes) - 2 and batcher.calls == len(slow.rows)
    assert slow.rows[:2] == [1, LIMIT], "1 + 3 + 4 rows are a call, without waiting"


def test_an_error_of_a_call_is_each_requests(model: treadle.CompiledModel) -> None:
    slow: Any = Slow(model)
    slow.go.set()
    slow.run = raising
    with Batcher(slow, wait=0.2) as batcher:
        futures = [batcher.submit({"x": drawn(1)}) for _ in range(2)]
        for future in futures:
            with pytest.raises(MemoryError, match="none is left"):
                future.result(60)
        assert batcher.calls == 0


def raising(_: object) -> None:
    raise MemoryError("none is left")


def test_the_command_measures(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert batching.main([str(folder), "--clients", "4", "--requests", "5"]) == 0
    assert "requests/s" in capsys.readouterr().out
    assert batching.main([str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def imported(path: Path, name: str) -> ModuleType:
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TritonStandIn(ModuleType):
    """What `examples/serving/triton` uses of Triton's module, as its documentation has it."""

    class Tensor:
        def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
            self._name, self._array = name, array

        def name(self) -> str:
            return self._name

        def as_numpy(self) -> np.ndarray[Any, Any]:
            return self._array

    class TritonError(Exception):
        def message(self) -> str:
            return str(self)

    class InferenceResponse:
        def __init__(self, output_tensors: Sequence[Any] = (), error: Any = None) -> None:
            self._tensors, self._error = list(output_tensors), error

        def output_tensors(self) -> list[Any]:
            return self._tensors

        def error(self) -> Any:
            return self._error

    @staticmethod
    def get_input_tensor_by_name(request: dict[str, Any], name: str) -> Any:
        array = request.get(name)
        return None if array is None else TritonStandIn.Tensor(name, array)


@pytest.fixture
def triton(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """The model of a repository, laid out as docs/serving.md says, started and ended as by Triton."""
    version = tmp_path / "digits" / "1"
    version.mkdir(parents=True)
    for source in (SERVING / "triton" / "digits" / "1" / "model.py", SERVING / "batching.py"):
        (version / source.name).write_text(source.read_text())
    (version / "served").symlink_to(folder)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", TritonStandIn("triton_python_backend_utils"))
    monkeypatch.delitem(sys.modules, "batching", raising=False)
    monkeypatch.syspath_prepend(str(version))
    served = imported(version / "model.py", "triton_model").TritonPythonModel()
    served.initialize({"model_repository": str(tmp_path / "digits"), "model_version": "1", "model_config": "{}"})
    yield served
    served.finalize()
    sys.modules.pop("batching", None)


def test_tritons_requests_are_one_call(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, calls = (3, 4, 2, 6), list[int]()
    run: Callable[[Any], Any] = triton.model.run
    monkeypatch.setattr(triton.model, "run", lambda inputs: (calls.append(len(inputs["x"])), run(inputs))[1])
    responses = triton.execute([{"x": drawn(rows, rows)} for rows in sizes])
    for rows, response in zip(sizes, responses, strict=True):
        (y,) = response.output_tensors()
        assert response.error() is None and y.name() == "y"
        np.testing.assert_allclose(y.as_numpy(), expected(drawn(rows, rows)), rtol=1e-5, atol=1e-6)
    assert calls == [7, 8], "as many as have room in a call, in their order"


def test_tritons_wrong_request_spoils_no_other(triton: Any) -> None:
    wrong = [{"x": drawn(9)}, {"x": drawn(1)[:, :2]}, {}]
    right, *others = triton.execute([{"x": drawn(2)}, *wrong])
    np.testing.assert_allclose(right.output_tensors()[0].as_numpy(), expected(drawn(2)), rtol=1e-5, atol=1e-6)
    assert ["accepted: " in response.error().message() for response in others] == [True] * 3
    assert triton.execute([]) == []


def test_a_program_in_c_answers_a_stream(tmp_path: Path) -> None:
    source = linear_model(tmp_path / "m.onnx", "batch")
    library = tmp_path / "library"
    shape = ["--shape", f"batch=1..{LIMIT}"]
    assert main(["compile", str(source), *shape, "--emit", "c-library", "--name", "served", "-o", str(library)]) == 0
    server = tmp_path / "server"
    build = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{library}", str(SERVING / "server.c")]
    subprocess.run([*build, str(library / "libserved.a"), "-lm", "-lpthread", "-o", str(server)], check=True)
    x, command = drawn(21), [str(server), str(library / "served.weights"), "1"]
    done = subprocess.run(command, input=x.tobytes(), capture_output=True, check=True)
    y = np.frombuffer(done.stdout, np.float32).reshape(21, 4)
    np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
    calls = int(done.stderr.split()[-2])
    assert b"server: 21 requests in" in done.stderr and 3 <= calls <= 21
    cut = subprocess.run(command, input=x.tobytes()[:-1], capture_output=True, check=False)
    assert cut.returncode == 1 and b"standard input: ends within a request" in cut.stderr
    empty = subprocess.run(command, input=b"", capture_output=True, check=True)
    assert empty.stdout == b"" and b"0 requests in 0 calls" in empty.stderr


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `served` of a model of 64 pixels and 10 scores, where the process is."""
    weights = np.random.default_rng(3).standard_normal((64, 10)).astype(np.float32)
    source = linear_model(tmp_path / "digits.onnx", "batch", "pixels", weights=weights)
    treadle.compile(source, shapes={"batch": treadle.Dim("batch", 1, 32)}).save(tmp_path / "served")
    np.save(tmp_path / "weights.npy", weights)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(find_spec("bentoml") is None, reason="bentoml is not installed")
def test_bentoml_serves(digits: Path) -> None:
    """In a process of its own: BentoML's client asks its server."""
    script = digits / "ask.py"
    script.write_text(BENTOML)
    run_alone(script)


BENTOML = """
import concurrent.futures, bentoml, numpy as np
from examples.serving.bentoml_service import Digits
weights, pixels = np.load("weights.npy"), np.random.default_rng(0).random((40, 64), np.float32)
with bentoml.serve(Digits, port=36251) as server:
    with bentoml.SyncHTTPClient(server.url, server_ready_timeout=60) as client:
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            got = list(threads.map(lambda i: client.scores(pixels=pixels[i : i + 1]), range(40)))
np.testing.assert_allclose(np.concatenate(got), np.maximum(pixels @ weights, 0), rtol=1e-4, atol=1e-5)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_ray_serves(digits: Path) -> None:
    script = digits / "ask.py"
    script.write_text(RAY)
    run_alone(script)


RAY = """
import numpy as np, ray
from ray import serve
from examples.serving.ray_serve import application
weights, pixels = np.load("weights.npy"), np.random.default_rng(0).random((40, 64), np.float32)
ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
handle = serve.run(application({"folder": "FOLDER"}))
got = [answer.result(timeout_s=60) for answer in [handle.remote(row) for row in pixels]]
serve.shutdown()
np.testing.assert_allclose(np.stack(got), np.maximum(pixels @ weights, 0), rtol=1e-4, atol=1e-5)
"""


def run_alone(script: Path) -> None:
    """Runs a script with the repository's modules, in the script's folder."""
    script.write_text(script.read_text().replace("FOLDER", str(script.parent / "served")))
    paths = ":".join([str(SERVING.parents[1]), *(each for each in sys.path if each)])
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=script.parent, env=environment_with({"PYTHONPATH": paths}),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
