"""`--emit onnx`: ONNX Runtime runs a compiled model as a custom operator, and its own operators are the oracle."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.backends.c.toolchains import COMMANDS
from tests.helpers.environment import environment_with
from tests.helpers.onnx_models import WEIGHTS, linear_model, save_model, single_node_model, value
from tests.helpers.onnxruntime_host import INPUT, sum_of_host
from tests.models.derived import mobilenet_v2
from treadle.tools.treadle_cli import main

onnxruntime: Any = pytest.importorskip("onnxruntime")

Array = NDArray[Any]
Feed = Mapping[str, Array]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def built(model: Path, *options: str, name: str = "model") -> Path:
    """The folder of a model's operator."""
    folder = model.parent / f"operator-{name}"
    assert main(["compile", str(model), "--emit", "onnx", "--name", name, *options, "-o", str(folder)]) == 0
    return folder


def session(folder: Path, name: str = "model", threads: str = "2", model: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("treadle.threads", threads)
    options.register_custom_ops_library(str(folder / f"lib{name}.so"))
    return onnxruntime.InferenceSession(
        str(model or folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
    )


def check(model: Path, run: Any, *feeds: Feed, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Compares calls with ONNX Runtime's own operators."""
    oracle = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for feed in feeds:
        for mine, theirs in zip(run.run(None, dict(feed)), oracle.run(None, dict(feed)), strict=True):
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, rtol, atol)


def described(run: Any) -> list[tuple[str, str, list[object]]]:
    return [(each.name, each.type, each.shape) for each in (*run.get_inputs(), *run.get_outputs())]


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of 0 to 16 rows; its weights are a file."""
    path = linear_model(tmp_path_factory.mktemp("ranged") / "m.onnx", rows="batch")
    return built(path, "--shape", "batch=0..16").parent


def test_a_range_keeps_its_name_and_serves_every_call(ranged: Path) -> None:
    run = session(ranged / "operator-model")
    assert described(run) == [("x", "tensor(float)", ["batch", 8]), ("y", "tensor(float)", ["batch", 4])]
    check(ranged / "m.onnx", run, *({"x": numbers(n, 8, seed=n)} for n in (1, 16, 7, 0, 3)))
    assert {each.name for each in (ranged / "operator-model").iterdir()} == {
        "model.onnx",
        "libmodel.so",
        "model.weights",
    }


def test_calls_out_of_a_range_are_refused(ranged: Path) -> None:
    run = session(ranged / "operator-model")
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match=(
        r"Treadle: model: input x has 17 for dimension batch; accepted: 0 to 16"
    )):  # fmt: skip
        run.run(None, {"x": numbers(17, 8)})
    check(ranged / "m.onnx", run, {"x": numbers(2, 8)})


def test_multiples_and_computed_extents(tmp_path: Path) -> None:
    """The output's extent is an expression of the input's; another input has to agree with it."""
    nodes = [
        helper.make_node("Concat", ["x", "x", "b"], ["c"], axis=0),
        helper.make_node("Add", ["z", "x"], ["s"]),
        helper.make_node("ReduceSum", ["s"], ["t"], keepdims=0),
    ]
    inputs = [value("x", ("n", 3)), value("b", (2, 3)), value("z", ("n", 3))]
    model = save_model(tmp_path / "m.onnx", nodes, inputs, [value("c", ("m", 3)), value("t", ())])
    run = session(built(model, "--shape", "n=4..12:4"))
    (_, _, shape), (_, _, scalar) = described(run)[3:]
    assert (shape, scalar) == (["8 * (n // 4) + 2", 3], [])
    feed = {"x": numbers(8, 3), "b": numbers(2, 3), "z": numbers(8, 3, seed=1)}
    check(model, run, feed, {**feed, "x": numbers(12, 3), "z": numbers(12, 3)})
    with pytest.raises(Exception, match="has 6 for dimension n; accepted: 4 to 12, multiples of 4"):
        run.run(None, {**feed, "x": numbers(6, 3)})
    with pytest.raises(Exception, match=r"input z has shape \[4, 3\]; accepted: \[8, 3\]"):
        run.run(None, {**feed, "z": numbers(4, 3)})


def test_several_outputs_and_metadata(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["a score"]),
        helper.make_node("ArgMax", ["m"], ["class"], axis=1, keepdims=0),
        helper.make_node("Greater", ["m", "zero"], ["positive"]),
    ]
    outputs = [
        value("a score", (5, 4)), value("class", (5,), TensorProto.INT64), value("positive", (5, 4), TensorProto.BOOL),
    ]  # fmt: skip
    weights = [numpy_helper.from_array(WEIGHTS, "w"), numpy_helper.from_array(np.zeros((), np.float32), "zero")]
    model = save_model(tmp_path / "m.onnx", nodes, [value("x", (5, 8))], outputs, weights)
    proto = onnx.load(model)
    helper.set_model_props(proto, {"alphabet": "äbc"})
    onnx.save(proto, model)
    run = session(built(model))
    assert [each[1:] for each in described(run)[1:]] == [
        ("tensor(float)", [5, 4]), ("tensor(int64)", [5]), ("tensor(bool)", [5, 4]),
    ]  # fmt: skip
    assert run.get_modelmeta().custom_metadata_map == {"alphabet": "äbc"}
    check(model, run, {"x": numbers(5, 8)}, {"x": numbers(5, 8, seed=1)})
    onnx.checker.check_model(str(tmp_path / "operator-model" / "model.onnx"))


@pytest.mark.parametrize("dtype", ["float16", "double", "int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_types(tmp_path: Path, dtype: str) -> None:
    element = getattr(TensorProto, dtype.upper())
    array = (numbers(4, 5) * 10).astype(helper.tensor_dtype_to_np_dtype(element))
    kind = "Xor" if dtype == "bool" else "Add"
    inputs = [value("x", (4, 5), element), value("s", (), element)]
    node = helper.make_node(kind, ["x", "s"], ["y"])
    model = save_model(tmp_path / "m.onnx", [node], inputs, [value("y", (4, 5), element)])
    check(model, session(built(model)), {"x": array, "s": np.asarray(array[0, 0])}, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_floats_that_numpy_lacks(tmp_path: Path, name: str) -> None:
    """They go in and come out as values of ONNX Runtime. NumPy is the oracle: ONNX Runtime adds none on CPUs."""
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    element, bits = helper.np_dtype_to_tensor_dtype(dtype), np.dtype(f"uint{8 * dtype.itemsize}")
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT), helper.make_node("Add", ["a", "a"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=element),
    ]  # fmt: skip
    inputs, outputs = [value("x", (4, 5), element)], [value("y", (4, 5), element)]
    run = session(built(save_model(tmp_path / "m.onnx", nodes, inputs, outputs, opset=19)))
    x: Array = numbers(4, 5).astype(dtype)
    binding = run.io_binding()
    given = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(x.view(bits), element)
    made = onnxruntime.OrtValue.ortvalue_from_shape_and_type([4, 5], element)
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("y", made)
    run.run_with_iobinding(binding)
    found = np.frombuffer(ctypes.string_at(made.data_ptr(), x.nbytes), dtype).reshape(4, 5)
    np.testing.assert_array_equal(found, (2 * x.astype(np.float32)).astype(dtype))


def test_tensors_without_elements_and_a_model_without_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["y"]), helper.make_node("ReduceSum", ["y"], ["s"], keepdims=0)]
    model = save_model(tmp_path / "m.onnx", nodes, [value("x", (0, 3))], [value("y", (0, 3)), value("s", ())])
    check(model, session(built(model)), {"x": numbers(0, 3)})
    (tmp_path / "other").mkdir()
    node = helper.make_node("Exp", ["c"], ["y"])
    constant = [numpy_helper.from_array(numbers(3), "c")]
    model = save_model(tmp_path / "other" / "m.onnx", [node], [], [value("y", (3,))], constant)
    check(model, session(built(model)), {})


def test_threads_call_sessions_at_once(ranged: Path) -> None:
    """Calls of one session take turns; sessions have threads of their own."""
    runs = [session(ranged / "operator-model", threads=str(n)) for n in (1, 2, 2)]
    errors: list[object] = []

    def call(seed: int) -> None:
        for turn in range(50):
            x = numbers(1 + (seed + turn) % 16, 8, seed=seed)
            (y,) = runs[(seed + turn) % 3].run(None, {"x": x})
            if not np.allclose(y, np.maximum(x @ WEIGHTS, 0), 1e-4, 1e-5):
                errors.append((seed, turn))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("threads", ["0", "many", "2x", "1" * 40])
def test_numbers_of_threads_that_are_none(ranged: Path, threads: str) -> None:
    with pytest.raises(Exception, match=r"entry treadle.threads: not a number of threads; accepted: 1 upwards"):
        session(ranged / "operator-model", threads=threads)


def test_two_operators_in_one_session(tmp_path: Path) -> None:
    """They are nodes of one graph, which a program may put together."""
    (tmp_path / "a").mkdir()
    first = built(linear_model(tmp_path / "a" / "m.onnx"), name="first")
    second = built(single_node_model(tmp_path / "m.onnx", "Relu"), name="second")
    nodes = [
        helper.make_node("first", ["x"], ["a"], domain="treadle.first"),
        helper.make_node("Concat", ["a", "a"], ["b"], axis=1),
        helper.make_node("second", ["b"], ["y"], domain="treadle.second"),
        helper.make_node("first", ["x"], ["z"], domain="treadle.first"),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [value("x", (2, 8))], [value("y", (2, 8)), value("z", (2, 4))])
    imports = [
        helper.make_opsetid(domain, 17 if domain == "" else 1) for domain in ("", "treadle.first", "treadle.second")
    ]
    options = onnxruntime.SessionOptions()
    for folder, name in ((first, "first"), (second, "second")):
        options.register_custom_ops_library(str(folder / f"lib{name}.so"))
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    run = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = numbers(2, 8)
    y, z = run.run(None, {"x": x})
    np.testing.assert_allclose(z, np.maximum(x @ WEIGHTS, 0), 1e-5, 1e-5)
    np.testing.assert_array_equal(y, np.concatenate([z, z], 1))


@pytest.fixture
def moved(ranged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ranged / "operator-model", tmp_path / "elsewhere with ünicode"))


def test_a_folder_that_was_moved(ranged: Path, moved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are found beside the library, also where it is opened by a relative path, or a link."""
    check(ranged / "m.onnx", session(moved), {"x": numbers(3, 8)})
    monkeypatch.chdir(moved.parent)
    again = session(Path(moved.name))
    monkeypatch.chdir("/")
    check(ranged / "m.onnx", again, {"x": numbers(3, 8)})
    (moved.parent / "libmodel.so").symlink_to(moved / "libmodel.so")
    check(ranged / "m.onnx", session(moved.parent, model=moved / "model.onnx"), {"x": numbers(3, 8)})


def test_weights_that_are_missing_or_damaged(moved: Path) -> None:
    weights = moved / "model.weights"
    data = weights.read_bytes()
    weights.unlink()
    with pytest.raises(Exception, match=r"Treadle: .*model\.weights: No such file or directory"):
        session(moved)
    for damaged, message in ((data[:-1], "has another size"), (bytes([data[0] ^ 1]) + data[1:], "its sha256 differs")):
        weights.write_bytes(damaged)
        with pytest.raises(Exception, match=rf"Treadle: .*model\.weights: .*{message}"):
            session(moved)


def test_an_older_runtime_is_refused(ranged: Path) -> None:
    """The table of functions is asked for by version: here it has none but the first."""
    library = ctypes.CDLL(str(ranged / "operator-model" / "libmodel.so"))
    said: list[tuple[int, bytes]] = []
    status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    create = status(lambda code, text: said.append((code, text)) or 1)  # pyright: ignore
    table = (ctypes.c_void_p * 1)(ctypes.cast(create, ctypes.c_void_p))
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda n: ctypes.addressof(table) if n == 1 else None)
    version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.cast(text, ctypes.c_void_p).value)
    text = ctypes.create_string_buffer(b"1.15.1")
    base = (ctypes.c_void_p * 2)(ctypes.cast(get, ctypes.c_void_p), ctypes.cast(version, ctypes.c_void_p))
    assert library.RegisterCustomOps(None, base)
    assert said == [(1, b"Treadle: ONNX Runtime is version 1.15.1; accepted: 1.16 or newer")]


def test_a_process_without_treadle(ranged: Path, tmp_path: Path) -> None:
    """Nothing but ONNX Runtime is imported; sessions come and go, and the library with them."""
    program = """if True:
        import sys, numpy, onnxruntime
        for turn in range(20):
            options = onnxruntime.SessionOptions()
            options.register_custom_ops_library(sys.argv[1] + "/libmodel.so")
            session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx", options)
            y = session.run(None, {"x": numpy.full((2, 8), -turn, numpy.float32)})[0]
            del session, options
        numpy.save(sys.argv[2], y)
        assert "treadle" not in sys.modules
    """
    variables = environment_with({"TREADLE_NUM_THREADS": "2", "PATH": ""})
    command = [sys.executable, "-c", program, str(ranged / "operator-model"), str(tmp_path / "y.npy")]
    subprocess.run(command, env=variables, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), np.maximum(np.full((2, 8), -19.0) @ WEIGHTS, 0), 1e-5)


def test_a_host_without_python(tmp_path: Path) -> None:
    operator = built(linear_model(tmp_path / "m.onnx", rows=4))
    found = sum_of_host(tmp_path, "operator", operator / "libmodel.so", operator / "model.onnx", {})
    assert found == pytest.approx(np.maximum(INPUT @ WEIGHTS, 0).sum(), abs=1e-3)


@pytest.mark.slow
def test_mobilenet(tmp_path: Path) -> None:
    model, feed = mobilenet_v2(tmp_path)
    check(model, session(built(model)), feed, rtol=1e-3)


def refused(capsys: pytest.CaptureFixture[str], model: Path, *options: str) -> str:
    """The message of what is not compiled, and leaves nothing behind."""
    output = model.parent / "refused"
    assert main(["compile", str(model), "--emit", "onnx", *options, "-o", str(output)]) == 2
    assert not output.exists()
    return capsys.readouterr().err


WHERE = "a custom operator of ONNX Runtime"


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = linear_model(tmp_path / "m.onnx")
    assert "target sm_80; accepted: a cpu target" in refused(capsys, model, "--target", "sm_80")
    assert "a C identifier, such as my_model" in refused(capsys, model, "--name", "my-model")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert main(["compile", str(model), "--emit", "onnx", "-o", str(tmp_path / "other")]) == 2
    assert "the folder holds other files" in capsys.readouterr().err
    assert main(["compile", str(model), "--name", "x", "-o", str(tmp_path / "folder")]) == 2
    assert "a name without a library; accepted: --emit c-library, --emit onnx" in capsys.readouterr().err


@pytest.mark.skipif("zig" not in COMMANDS, reason="no ziglang")
def test_webassembly_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, linear_model(tmp_path / "m.onnx"), "--target", "wasm")
    assert f"{WHERE}: target wasm; accepted: a cpu target of which ONNX Runtime opens libraries" in said


def test_extents_that_depend_on_data_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("NonZero", ["x"], ["y"])
    outputs = [value("y", (2, "m"), TensorProto.INT64)]
    model = save_model(tmp_path / "m.onnx", [node], [value("x", (2, 3))], outputs)
    said = refused(capsys, model)
    assert WHERE in said and "depends on data" in said


def test_states_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("Add", ["past", "x"], ["present"])
    model = save_model(tmp_path / "m.onnx", [node], [value("x", (3,)), value("past", (3,))], [value("present", (3,))])
    said = refused(capsys, model, "--states", "past=present")
    assert f"{WHERE}: the model keeps 'past' between calls; accepted: a model without --states" in said


@pytest.mark.parametrize(
    ("element", "outputs", "message"),
    [
        (TensorProto.INT4, ("y",), "'x' has elements of int4; accepted: types whose elements take whole bytes"),
        (TensorProto.FLOAT, ("x",), "output 'x' has the name of another tensor"),
    ],
)
def test_tensors_that_no_node_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], element: int, outputs: Sequence[str], message: str
) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    listed = [value("y", (4,)), *(value(name, (4,)) for name in outputs if name != "y")]
    model = save_model(tmp_path / "m.onnx", [node], [value("x", (4,), element)], listed, opset=21)
    assert message in refused(capsys, model)


def test_systems_on_which_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "no custom operator on darwin; accepted: Linux" in refused(capsys, linear_model(tmp_path / "m.onnx"))


def test_an_earlier_operator_is_replaced(tmp_path: Path) -> None:
    folder = built(linear_model(tmp_path / "m.onnx"))
    before = os.stat(folder / "libmodel.so").st_ino
    built(single_node_model(tmp_path / "m.onnx", "Relu"))
    assert os.stat(folder / "libmodel.so").st_ino != before
    assert not (folder / "model.weights").exists()
