"""Compiled models called with arrays of the device: ranges, states, extents that depend on data, bad arguments."""

from __future__ import annotations

import atexit
import importlib.util
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import treadle
from benchmarks import device_calls
from tests.backends.cuda.fake_libcuda.as_python import emulated
from tests.backends.cuda.fake_libcuda.device_cases import LENT, framework
from tests.backends.cuda.fake_libcuda.framework import calls, forget_calls, waits
from tests.backends.cuda.fake_libcuda.setting import fails
from tests.helpers.emulator_cache import cache_with_emulator
from treadle.backends.cuda import launcher, write_artifact
from treadle.model import CompiledModel

RANDOM = np.random.default_rng(5)
ROWS, WIDTH = 12, 8
N = treadle.Dim("n", 1, ROWS)
Shape = Sequence[int | str]


def floats(*shape: int) -> np.ndarray:
    """Numbers that are not 0."""
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def onnx_model(
    nodes: Sequence[NodeProto], inputs: Mapping[str, Shape], outputs: Mapping[str, Shape],
    constants: Mapping[str, np.ndarray],
) -> ModelProto:  # fmt: skip
    """A model of floats; an output called `i...` is of integers."""
    kinds = {True: TensorProto.INT64, False: TensorProto.FLOAT}
    given, made = (
        [make_tensor_value_info(name, kinds[name.startswith("i")], shape) for name, shape in each.items()]
        for each in (inputs, outputs)
    )
    weights = [from_array(value, name) for name, value in constants.items()]
    return make_model(make_graph(nodes, "g", given, made, weights), opset_imports=[make_opsetid("", 17)], ir_version=8)


def two_products(rows: int | str = ROWS) -> ModelProto:
    """Two launches, with two outputs of which one has another width."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["h"]), make_node("Relu", ["h"], ["y"]),
        make_node("MatMul", ["y", "v"], ["z"]), make_node("Transpose", ["z"], ["t"], perm=[1, 0]),
    ]  # fmt: skip
    outputs = {"y": (rows, WIDTH), "t": (4, rows)}
    return onnx_model(nodes, {"x": (rows, 16)}, outputs, {"w": floats(16, WIDTH), "v": floats(WIDTH, 4)})


@contextmanager
def compiling() -> Generator[Path]:
    """Kernels become what the fake driver loads; no other test finds these artifacts. A folder for files."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE_DIR", _cache())
        patch.setattr(write_artifact, "compile_cubins", _emulated)
        yield Path(folder)


@cache
def _cache() -> str:
    """A cache for the process: what was compiled there refers to the emulator's runtime in it."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return str(cache_with_emulator(Path(folder.name) / "cache"))


def _emulated(units: Sequence[Any], target: treadle.Target, **_: object) -> list[Any]:
    return [emulated(unit, target.name) for unit in units]


@contextmanager
def compiled(model: ModelProto, **options: Any) -> Generator[CompiledModel]:
    """A model for the fake driver's device, closed afterwards."""
    with compiling(), treadle.compile(model, "cuda", **options) as made:
        yield made


def a_model_gives_what_it_is_given() -> None:
    """Arrays of the host for such, `DeviceArray`s for arrays of the device, with the same bits."""
    with framework() as library, compiled(two_products()) as model:
        x = floats(ROWS, 16)
        expected = model(x)
        assert all(isinstance(array, np.ndarray) for array in expected)
        for kind in LENT:
            for stream in (library.stream, None):
                given = library.tensor(x, kind)
                library.synchronize()
                model(given, stream=stream)
                forget_calls()
                results = model(x=given, stream=stream)
                assert waits() == 0 and calls("HtoD", "DtoH", "DtoD", "cuMemAlloc_v2", "cuGraphLaunch")[:4] == [0] * 4
                assert calls("cuGraphLaunch", "cuLaunchKernel") == [1, 0]
                for result, host in zip(results, expected, strict=True):
                    assert isinstance(result, treadle.DeviceArray) and (result.device, result.ndim) == (0, 2)
                    np.testing.assert_array_equal(result.numpy(), host)
        given = library.tensor(x)
        with fails_as(TypeError, r"copied to the host by its method numpy\(\)"):
            np.asarray(model(given)[0])
        y, t = library.tensor(np.zeros((ROWS, WIDTH), np.float32)), library.tensor(np.zeros((4, ROWS), np.float32))
        assert model(given, out=(y, t), stream=library.stream) == (y, t)
        np.testing.assert_array_equal(library.read(t), expected[1])
        named = model.run({"x": given}, out={"t": t}, stream=library.stream)
        assert named["t"] is t and isinstance(named["y"], treadle.DeviceArray)
        (later,) = model.run_async(given).result()[:1]
        np.testing.assert_array_equal(later.numpy(), expected[0])


def fails_as(kind: type[Exception], expected: str) -> Any:
    """Expects another exception."""
    return pytest.raises(kind, match=expected)


def a_model_runs_where_it_is_told_to() -> None:
    """The second GPU, by number, name, and a `torch.device`; arrays of the first are refused."""
    with framework() as first, framework(1) as second, compiling() as folder:
        x = floats(ROWS, 16)
        with treadle.compile(two_products(), "cuda", device=1) as model:
            model.save(folder / "m")
            expected = model(x)
        chosen: list[Any] = [1, "cuda:1", SimpleNamespace(type="cuda", index=1)]
        for device in chosen:
            with treadle.load(folder / "m", device=device) as model:
                (y, _) = model(second.tensor(x), stream=second.stream)
                assert y.device == 1 and y.__dlpack_device__() == (2, 1)
                np.testing.assert_array_equal(second.read(y), expected[0])
                for kind in LENT:
                    with fails("input 'x': the array is on cuda:0; accepted: one on cuda:1, where the model is"):
                        model(first.tensor(x, kind))
        for device in (2, "cuda:2"):
            with fails("cuda driver: no GPU number 2; accepted: 0 to 1"):
                treadle.load(folder / "m", device=device)(x)
        unknown: list[Any] = ["gpu", -1, True, SimpleNamespace(type="cpu", index=None)]
        for device in unknown:
            with fails("device: unknown device .*; accepted: emulator, the number of a GPU, 'cuda:1', a torch.device"):
                treadle.load(folder / "m", device=device)
        with treadle.compile(two_products(), device=None) as on_cpu:
            on_cpu.save(folder / "c")
            with fails("input 'x': the array is on a CUDA device; accepted: an array in the CPU's memory"):
                on_cpu(first.tensor(x))
            with fails("call: out is given to a model for .*; accepted: that of a model on a GPU"):
                on_cpu(x, out=(None, None), stream=1)
            with fails("call: a stream is given to a model for .*; accepted: that of a model on a GPU"):
                on_cpu(x, stream=1)
        with fails("device: a GPU does not run what is compiled for .*; accepted: a target whose kernels are CUDA"):
            treadle.load(folder / "c", device=0)


def an_artifact_for_another_architecture() -> None:
    """Said before anything is loaded."""
    for target, accepted in (("sm_90a", "sm_80"), ("sm_86", "sm_80"), ("sm_75", "sm_80")):
        with compiling(), treadle.compile(two_products(), target) as model:
            expected = (
                rf"cuda:0 \(Treadle emulator\): the artifact is compiled for {target}, the device has capability 8.0"
            )
            with fails(f"{expected}; accepted: a model compiled for {accepted}"):
                model(floats(ROWS, 16))


def ranges_are_padded_and_cut_on_the_device() -> None:
    """Each shape of a range, with results in new arrays and in the caller's; extents need no copy."""
    with framework() as library, compiled(two_products("n"), shapes={"n": N}) as model:
        for kind in LENT:
            for rows in (5, ROWS, 1, 7):
                x = floats(rows, 16)
                expected = model(x)
                given = library.tensor(x, kind)
                library.synchronize()
                model(given, stream=library.stream)
                forget_calls()
                results = model(given, stream=library.stream)
                assert waits() == 0 and calls("HtoD", "DtoH", "cuMemAlloc_v2", "cuGraphLaunch") == [0, 0, 0, 1]
                out = [library.tensor(np.zeros_like(array), kind) for array in expected]
                assert model(given, out=out, stream=library.stream) == tuple(out)
                for host, new, own in zip(expected, results, out, strict=True):
                    np.testing.assert_array_equal(library.read(new), host)
                    np.testing.assert_array_equal(library.read(own), host)
        given, program = library.tensor(floats(7, 16)), cast("Any", model.open())
        assert 1 <= len(program._launcher._graphs) <= launcher.MOST_GRAPHS
        with fails(r"input 'x': dimension 0 \(n\) is 13; accepted: n from 1 to 12"):
            model(library.tensor(floats(13, 16)))
        with fails(r"output 'y': the buffer is float32 of shape \(12, 8\); accepted: y: float32\[7, 8\]"):
            model(given, out=(library.tensor(floats(ROWS, WIDTH)), None), stream=library.stream)


def extents_are_those_of_each_call() -> None:
    """A sum along a range; calls from the host leave other extents on the device."""
    nodes = [make_node("ReduceSum", ["x", "axis"], ["y"])]
    model = onnx_model(nodes, {"x": ("n", 16)}, {"y": (1, 16)}, {"axis": np.array([0], np.int64)})
    with framework() as library, compiled(model, shapes={"n": N}) as summed:
        for rows, other in ((9, 3), (3, 9)):
            x, y = np.ones((rows, 16), np.float32), np.ones((other, 16), np.float32)
            for _ in range(2):
                np.testing.assert_array_equal(summed(library.tensor(x))[0].numpy(), [[rows] * 16])
                np.testing.assert_array_equal(summed(y)[0], [[other] * 16])


def extents_that_depend_on_data_are_waited_for() -> None:
    """Their outputs are cut on the device, once the host knows them."""
    nodes = [make_node("NonZero", ["x"], ["i"])]
    model = onnx_model(nodes, {"x": (4, 5)}, {"i": (2, "k")}, {})
    with framework() as library, compiled(model) as counted:
        x = (floats(4, 5) > 0).astype(np.float32)
        (expected,) = counted(x)
        (found,) = counted(library.tensor(x), stream=library.stream)
        assert found.shape == expected.shape
        np.testing.assert_array_equal(library.read(found), expected)
        with fails("out: the outputs' shapes depend on data; accepted: a call without it"):
            counted(library.tensor(x), out=(None,), stream=library.stream)


def states_stay_on_the_device() -> None:
    """One that grows in place, and one that is computed anew: calls from the host and from the device take turns."""
    grown = [
        make_node("Concat", ["past", "x"], ["present"], axis=0),
        make_node("ReduceSum", ["present", "axis"], ["y"]),
    ]
    past = {"past": ("p", 4), "x": (1, 4)}
    grows = onnx_model(grown, past, {"y": (1, 4), "present": ("q", 4)}, {"axis": np.array([0], np.int64)})
    summed = [make_node("Add", ["past", "x"], ["present"]), make_node("Neg", ["present"], ["y"])]
    sums = onnx_model(summed, {"past": (1, 4), "x": (1, 4)}, {"y": (1, 4), "present": (1, 4)}, {})
    for model, shapes in ((grows, {"p": treadle.Dim("p", 0, 6)}), (sums, None)):
        with framework() as library, compiled(model, shapes=shapes, states={"past": "present"}) as kept:
            for _ in range(2):
                total = np.zeros((1, 4), np.float32)
                for step in range(4):
                    x = np.full((1, 4), step + 1, np.float32)
                    total += x
                    (y,) = kept(library.tensor(x), stream=library.stream) if step % 2 else kept(x)
                    found = library.read(y) if step % 2 else y
                    np.testing.assert_array_equal(found, total if model is grows else -total)
                kept.reset()


def buffers_for_outputs_that_do_not_fit() -> None:
    """Each says which output, and what would be accepted."""
    with framework() as library, compiled(two_products()) as model:
        x, y = library.tensor(floats(ROWS, 16)), library.tensor(floats(ROWS, WIDTH))
        with fails("call: out is 1 arrays; accepted: a tuple with one for each of y, t, or None for it"):
            model(x, out=(y,), stream=library.stream)
        with fails("call: out is a ByInterface; accepted: a tuple with one for each of y, t"):
            model(x, out=y, stream=library.stream)
        with fails("output 'y': the buffer is a ndarray on the host; accepted: an array on the GPU"):
            model(x, out=(np.zeros((ROWS, WIDTH), np.float32), None), stream=library.stream)
        with fails(r"output 't': the buffer is float32 of shape \(12, 8\); accepted: t: float32\[4, 12\]"):
            model(x, out=(None, y), stream=library.stream)
        with fails("call: out is given without a stream; accepted: stream=.*, behind whose work it is written"):
            model(x, out=(y, None))
        with fails("out: there is no output 'q'; accepted: y, t"):
            model.run({"x": x}, out={"q": y})
        for stream in ("s", True, -1):
            with fails(
                "stream: the stream is a .*; accepted: its handle as a number, such as torch.cuda.current_stream"
            ):
                model(x, stream=stream)
        with fails("stream 0x5: the stream cannot be used"):
            model(x, stream=5)
        assert model(x, out=(y, None), stream=library.stream)[0] is y
        np.testing.assert_array_equal(library.read(y) >= 0, True)


def an_input_may_be_called_as_a_keyword_is() -> None:
    """Then the keyword is the input's, and `run` has both."""
    nodes = [make_node("Sub", ["out", "stream"], ["y"])]
    shapes = {"out": (4,), "stream": (4,)}
    with framework() as library, compiled(onnx_model(nodes, shapes, {"y": (4,)}, {})) as model:
        a, b = floats(4), floats(4)
        np.testing.assert_array_equal(model(stream=b, out=a)[0], a - b)
        inputs = {"out": library.tensor(a), "stream": library.tensor(b)}
        buffer = library.tensor(b)
        model.run(inputs, out={"y": buffer}, stream=library.stream)
        np.testing.assert_array_equal(library.read(buffer), a - b)


def the_benchmark_of_calls_is_rehearsed() -> None:
    """Its arrays are the driver's own, since PyTorch has no GPU here; results differ in nothing."""
    with compiling() as folder, pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr("importlib.util.find_spec", _without_torch(importlib.util.find_spec))
        with treadle.compile(two_products(), "cuda", device=1) as model:
            model.save(folder / "m")
        assert device_calls.main([str(folder / "m"), "--device", "1", "--calls", "3", "--rounds", "2"]) == 0
    _, row = printed.getvalue().splitlines()
    *times, difference = map(float, row.split()[1:])
    assert len(times) == 4 and all(each > 0 for each in times) and difference == 0


def _without_torch(find: Any) -> Any:
    return lambda name, *rest: None if name == "torch" else find(name, *rest)


CASES = (
    a_model_gives_what_it_is_given,
    a_model_runs_where_it_is_told_to,
    an_artifact_for_another_architecture,
    ranges_are_padded_and_cut_on_the_device,
    extents_are_those_of_each_call,
    extents_that_depend_on_data_are_waited_for,
    states_stay_on_the_device,
    buffers_for_outputs_that_do_not_fit,
    an_input_may_be_called_as_a_keyword_is,
    the_benchmark_of_calls_is_rehearsed,
)
