"""The sides of a measurement on a GPU: Treadle, and whatever else is installed.

Every side computes in one precision, keeps its inputs and outputs on the device, and launches a CUDA graph where it
can. All that differs is what the kernels do. Precisions are those of `treadle compile --precision`: f32 is float32
without TF32, tf32 lets products round their operands to it; in f16 and bf16 Treadle narrows products, convolutions and
attention of models, and single operators have inputs of that type; PyTorch and Triton get weights and inputs of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

import treadle
from benchmarks.gpu_workloads import Workload, in_precision
from benchmarks.measure import relative_error
from treadle.backends.cuda.open_artifact import open_program
from treadle.backends.cuda.open_driver import open_driver
from treadle.target import Target

Array = NDArray[Any]

TREADLE = "treadle"
CUDA_PROVIDER = "CUDAExecutionProvider"


class PeerMissing(Exception):
    """A side cannot take part; the message says why, in one line."""


class Peer(Protocol):
    """A workload made ready to run."""

    @property
    def graphed(self) -> bool:
        """Whether a run is one launch of a CUDA graph."""
        ...

    @property
    def outputs(self) -> list[Array] | None:
        """What it computes, to be compared with Treadle's; None if its weights are others."""
        ...

    def run(self, times: int) -> None:
        """Does so many runs and waits for them."""
        ...

    def close(self) -> None:
        """Gives the device's memory back."""
        ...


Maker = Callable[[Workload, Path, str], Peer]
"""A peer for a workload whose ONNX model lies at the path, in a precision; raises `PeerMissing`."""


class TreadlePeer:
    """Compiled for the GPU at hand, all launches in one CUDA graph."""

    graphed = True

    def __init__(self, workload: Workload, path: Path, precision: str) -> None:
        path, inputs = in_precision(workload, path, precision)
        shapes = {name: array.shape for name, array in inputs.items()}
        self._driver = open_driver()
        model = treadle.compile(path, Target.for_capability(*self._driver.capability), shapes, precision=precision)
        self._program = open_program(model.artifact, self._driver)
        self.outputs = self._program.run([inputs[spec.name] for spec in self._program.inputs])
        self._graph = self._program.capture()

    def run(self, times: int) -> None:
        """See `Peer`."""
        self._graph.launch(times)
        self._driver.synchronize()

    def close(self) -> None:
        """See `Peer`."""
        self._graph.close()
        self._program.close()
        self._driver.close()


class TorchPeer:
    """PyTorch, eager in a CUDA graph, or `torch.compile` with `mode="max-autotune"`, which makes its own graphs."""

    def __init__(self, workload: Workload, path: Path, precision: str, compiled: bool) -> None:
        del path
        self._torch = torch = _torch(precision)
        function = self._function_of(workload)
        if hasattr(function, "parameters"):
            function = _narrowed(torch, function, precision)
        if compiled:
            function = torch.compile(function, mode="max-autotune")
        self._inputs = [_narrowed(torch, torch.from_numpy(x).cuda(), precision) for x in workload.inputs.values()]
        self._function: Callable[..., Any] = function
        try:
            results = self._warm_up()
            self._graph = None if compiled else self._record()
        except RuntimeError as error:
            raise PeerMissing(f"{workload.name}: {str(error).splitlines()[0]}") from error
        self.graphed = True
        self.outputs = _arrays(results) if workload.same_weights else None

    def _function_of(self, workload: Workload) -> Callable[..., Any]:
        """What computes the workload on tensors of the device; `PeerMissing` where there is nothing."""
        if workload.torch is None:
            raise PeerMissing(f"nobody has written {workload.name} in PyTorch")
        try:
            return workload.torch(self._torch)
        except ImportError as error:
            raise PeerMissing(f"{workload.name}: {error}") from error

    def _warm_up(self) -> Any:
        """Calls the function on a stream of its own, as recording wants it."""
        torch, stream = self._torch, self._torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        results = None
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):
                results = self._function(*self._inputs)
        torch.cuda.synchronize()
        return results

    def _record(self) -> Any:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.no_grad(), self._torch.cuda.graph(graph):
            self._function(*self._inputs)
        return graph

    def run(self, times: int) -> None:
        """See `Peer`."""
        with self._torch.no_grad():
            for _ in range(times):
                if self._graph is None:
                    self._function(*self._inputs)
                else:
                    self._graph.replay()
        self._torch.cuda.synchronize()

    def close(self) -> None:
        """See `Peer`."""
        self._graph, self._inputs = None, []
        self._torch.cuda.empty_cache()


class TritonPeer(TorchPeer):
    """Single operators as Triton's own tutorials write them, tuned by its autotuner before they are recorded."""

    def __init__(self, workload: Workload, path: Path, precision: str) -> None:
        if precision == "tf32":
            raise PeerMissing("nobody has written the operators in Triton with TF32")
        super().__init__(workload, path, precision, compiled=False)

    def _function_of(self, workload: Workload) -> Callable[..., Any]:
        if workload.triton is None:
            raise PeerMissing(f"nobody has written {workload.name} in Triton")
        try:
            return getattr(importlib.import_module("benchmarks.triton_kernels"), workload.triton)
        except ImportError:
            raise PeerMissing("Triton is not installed; pip install triton") from None


class OnnxRuntimePeer:
    """ONNX Runtime's CUDA provider, inputs and outputs bound on the device, as a CUDA graph if it can be one."""

    def __init__(self, workload: Workload, path: Path, precision: str) -> None:
        if precision not in ("f32", "tf32"):
            raise PeerMissing(f"ONNX Runtime computes float32 models in float32: no {precision}")
        self._tf32 = str(int(precision == "tf32"))
        self._runtime = runtime = _onnxruntime()
        self.graphed = True
        errors = _runtime_errors(runtime)
        try:
            self._prepare(workload, path)
        except errors:
            # Not every operator of every model has a CUDA kernel, and a graph has to be all on the device.
            self.graphed = False
            try:
                self._prepare(workload, path)
            except errors as error:
                raise PeerMissing(f"{workload.name}: {str(error).splitlines()[0]}") from error
        self.outputs = [output.numpy() for output in self._binding.get_outputs()]

    def _prepare(self, workload: Workload, path: Path) -> None:
        runtime = self._runtime
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        provider = {"enable_cuda_graph": str(int(self.graphed)), "use_tf32": self._tf32}
        self._session: Any = runtime.InferenceSession(str(path), options, providers=[(CUDA_PROVIDER, provider)])
        if CUDA_PROVIDER not in self._session.get_providers():
            raise PeerMissing("ONNX Runtime's CUDA provider does not load; it needs cuDNN and CUDA's libraries")
        self._binding: Any = self._session.io_binding()
        for name, array in workload.inputs.items():
            self._binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for output in self._session.get_outputs():
            self._binding.bind_output(output.name, "cuda", 0)
        for _ in range(3):
            self._session.run_with_iobinding(self._binding)

    def run(self, times: int) -> None:
        """See `Peer`. Every single run waits for the device: ONNX Runtime offers nothing else."""
        for _ in range(times):
            self._session.run_with_iobinding(self._binding)

    def close(self) -> None:
        """See `Peer`."""
        del self._binding, self._session


def _arrays(results: Any) -> list[Array]:
    """A tensor, several, or those of a record as transformers return it, on the host."""
    tensors = results.to_tuple() if hasattr(results, "to_tuple") else results
    # NumPy has no bfloat16; doubles hold every other type's values.
    return [each.double().cpu().numpy() for each in (tensors if isinstance(tensors, tuple) else (tensors,))]


def _narrowed(torch: Any, what: Any, precision: str) -> Any:
    """A module or a tensor of floats in the type that the precision names; indices stay what they are."""
    name = {"f16": "float16", "bf16": "bfloat16"}.get(precision)
    is_index = hasattr(what, "is_floating_point") and not what.is_floating_point()
    return what if name is None or is_index else what.to(getattr(torch, name))


def _torch(precision: str) -> Any:
    """PyTorch with a GPU, in which products of float32 round their operands only for tf32; `PeerMissing` without."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise PeerMissing("PyTorch is not installed; pip install torch torchvision transformers") from None
    if not torch.cuda.is_available():
        raise PeerMissing("the installed PyTorch uses no GPU")
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return torch


def _onnxruntime() -> Any:
    """ONNX Runtime with its CUDA provider; `PeerMissing` without."""
    try:
        runtime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        raise PeerMissing("ONNX Runtime is not installed; pip install onnxruntime-gpu") from None
    if CUDA_PROVIDER not in runtime.get_available_providers():
        raise PeerMissing("the installed ONNX Runtime has no CUDA provider; pip install onnxruntime-gpu")
    return runtime


def _runtime_errors(runtime: Any) -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises for a session or a run that cannot be; they have no common base of its own."""
    state = runtime.capi.onnxruntime_pybind11_state
    return tuple(getattr(state, name) for name in ("Fail", "RuntimeException", "NotImplemented", "EPFail"))


MAKERS: Mapping[str, Maker] = {
    TREADLE: TreadlePeer,
    "torch eager": lambda workload, path, precision: TorchPeer(workload, path, precision, compiled=False),
    "torch.compile": lambda workload, path, precision: TorchPeer(workload, path, precision, compiled=True),
    "Triton": TritonPeer,
    "ONNX Runtime": OnnxRuntimePeer,
}
"""Every side by its name in the table. A candidate of a schedule space is one more maker."""


def difference(actual: list[Array] | None, expected: list[Array] | None) -> float | None:
    """The `relative_error` of one side's outputs from another's; None where one is unknown."""
    if actual is None or expected is None:
        return None
    return relative_error(actual, expected)
