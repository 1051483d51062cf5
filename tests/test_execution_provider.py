"""The execution provider of ONNX Runtime: programs change the name of the provider, and ONNX Runtime's CPU is the
oracle."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import treadle.onnxruntime
from tests.helpers.environment import environment_with
from tests.helpers.onnxruntime_host import INPUT, sum_of_host
from tests.helpers.random_weights import with_random_weights
from tests.models.catalog import require_model
from treadle.errors import TreadleError
from treadle.onnxruntime import compiler_process

onnxruntime: Any = pytest.importorskip("onnxruntime")

PROVIDER = "TreadleExecutionProvider"
Array = NDArray[Any]
Feed = Mapping[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    treadle.onnxruntime.register()


def model(nodes: Sequence[str], inputs: str, outputs: str, weights: Mapping[str, Array] | None = None) -> bytes:
    """A model of nodes in ONNX's own text, such as `y = Relu (x)`."""
    listed = ", ".join(f"{_type(w)} {name}" for name, w in (weights or {}).items())
    opsets = '"": 18, "com.microsoft": 1'
    head = f"<ir_version: 9, opset_import: [{opsets}]> graph ({inputs}) => ({outputs})"
    text = f"{head} {f'<{listed}>' if listed else ''} {{ {' '.join(nodes)} }}"
    proto = onnx.parser.parse_model(text)
    del proto.graph.value_info[:]
    proto.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in (weights or {}).items())
    return proto.SerializeToString()


def _type(array: Array) -> str:
    name = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(array.dtype)).lower()
    return f"{name}[{','.join(map(str, array.shape))}]"


def session(given: bytes | Path, options: Mapping[str, str] | None = None, **entries: str) -> Any:
    """A session with the provider; `entries` are of its configuration, with `__` for a dot."""
    chosen = onnxruntime.SessionOptions()
    chosen.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    chosen.log_severity_level = 3
    for name, value in entries.items():
        chosen.add_session_config_entry(name.replace("__", "."), value)
    source = str(given) if isinstance(given, Path) else given
    return onnxruntime.InferenceSession(
        source, chosen, providers=[(PROVIDER, dict(options or {})), "CPUExecutionProvider"], enable_fallback=0
    )


def parts(run: Any) -> list[list[str]]:
    """The operators of each part that the provider took."""
    found = (each for each in run.get_provider_graph_assignment_info() if each.ep_name == PROVIDER)
    return sorted(sorted(node.op_type for node in each.get_nodes()) for each in found)


def check(
    given: bytes | Path,
    *feeds: Feed,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    run: Any = None,
) -> Any:
    """Compares calls with ONNX Runtime's CPU; the session."""
    run = run or session(given)
    source = str(given) if isinstance(given, Path) else given
    oracle = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    for feed in feeds:
        for mine, theirs in zip(run.run(None, dict(feed)), oracle.run(None, dict(feed)), strict=True):
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, rtol, atol)
    return run


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


W = numbers(8, 4, seed=1)
LINEAR = model(["m = MatMul (x, w)", "y = Relu (m)"], "float[2,8] x", "float[2,4] y", {"w": W})
OPEN = model(["m = MatMul (x, w)", "y = Relu (m)"], "float[batch,8] x", "float[batch,4] y", {"w": W})
AROUND = model(
    ["a = MatMul (x, w)", "b = Relu (a)", "c = com.microsoft.SampleOp (b)", "d = MatMul (c, v)", "y = Tanh (d)"],
    "float[4,8] x", "float[4,6] y", {"w": W, "v": numbers(4, 6, seed=2)},
)  # fmt: skip


def test_a_model_is_one_part():
    run = check(LINEAR, {"x": numbers(2, 8)}, {"x": numbers(2, 8, seed=3)})
    assert parts(run) == [["MatMul", "Relu"]]
    assert run.get_providers() == [PROVIDER, "CPUExecutionProvider"]


@pytest.mark.slow
def test_devices_choose_the_provider_as_well():
    options = onnxruntime.SessionOptions()
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
    options.add_provider_for_devices(devices, {"threads": "1"})
    run = onnxruntime.InferenceSession(LINEAR, options)
    assert run.get_providers()[0] == PROVIDER
    check(LINEAR, {"x": numbers(2, 8)}, run=run)


def test_parts_around_an_operator_that_treadle_lacks():
    run = check(AROUND, {"x": numbers(4, 8)})
    assert parts(run) == [["MatMul", "Relu"], ["MatMul", "Tanh"]]


@pytest.mark.slow
def test_a_part_is_convex():
    """`e` reads `a` and what is made of it elsewhere: it cannot be of the part of `a`."""
    nodes = ["a = Tanh (x)", "b = com.microsoft.SampleOp (a)", "e = Add (a, b)"]
    run = check(model(nodes, "float[4,4] x", "float[4,4] e"), {"x": numbers(4, 4)})
    assert parts(run) == [["Add"], ["Tanh"]]


@pytest.mark.slow
def test_what_is_read_late_is_compiled_with_its_reader():
    nodes = ["b = com.microsoft.SampleOp (x)", "c = Exp (z)", "y = Add (b, c)"]
    feed = {"x": numbers(4, 4), "z": numbers(4, 4, seed=1)}
    run = check(model(nodes, "float[4,4] x, float[4,4] z", "float[4,4] y"), feed)
    assert parts(run) == [["Add", "Exp"]]


@pytest.mark.slow
def test_what_computes_nothing_is_left_alone():
    nodes = ["a = Transpose <perm = [1, 0]> (x)", "y = Unsqueeze (a, axes)"]
    run = check(model(nodes, "float[2,8] x", "float[1,8,2] y", {"axes": np.array([0])}), {"x": numbers(2, 8)})
    assert parts(run) == []


def test_calls_of_any_shape():
    feeds = [{"x": numbers(n, 8)} for n in (3, 1, 5, 1000, 2000, 3)]
    assert parts(check(OPEN, *feeds)) == [["MatMul", "Relu"]]


@pytest.mark.slow
def test_calls_without_elements():
    check(OPEN, {"x": numbers(3, 8)}, {"x": numbers(0, 8)}, {"x": numbers(4, 8)})


@pytest.mark.slow
def test_a_range_is_compiled_with_the_session():
    run = session(OPEN, {"shapes": "batch=1..16"})
    check(OPEN, *({"x": numbers(n, 8)} for n in (1, 16, 7)), run=run)
    check(OPEN, {"x": numbers(40, 8)}, run=run)


@pytest.mark.slow
def test_shapes_that_follow_from_shapes():
    """The chain that computes a shape is compiled with the node that reads it."""
    nodes = [
        "s = Shape (x)", "i = Gather (s, zero)", "d = Concat <axis = 0> (i, minus)", "e = Exp (x)",
        "y = Reshape (e, d)",
    ]  # fmt: skip
    weights = {"zero": np.array([0]), "minus": np.array([-1])}
    run = check(model(nodes, "float[n,2,3] x", "float[n,m] y", weights), *({"x": numbers(n, 2, 3)} for n in (2, 5, 7)))
    assert ["Concat", "Exp", "Gather", "Reshape", "Shape"] in parts(run)


@pytest.mark.slow
def test_extents_that_depend_on_data_are_left_to_others():
    nodes = ["a = Exp (x)", "n = NonZero (a)", "y = Mul (n, n)"]
    run = check(model(nodes, "float[2,3] x", "int64[2,m] y"), {"x": numbers(2, 3)})
    assert ["Exp"] in parts(run)


def test_strings_are_left_to_others():
    nodes = ["t = Identity (s)", "y = Exp (x)"]
    given = model(nodes, "string[2] s, float[2,3] x", "string[2] t, float[2,3] y")
    run = session(given)
    words, y = run.run(None, {"s": np.array(["a", "b"], object), "x": np.ones((2, 3), np.float32)})
    assert list(words) == ["a", "b"]
    np.testing.assert_allclose(y, np.exp(np.ones((2, 3))), 1e-6)
    assert parts(run) == [["Exp"]]


@pytest.mark.slow
def test_optional_inputs_that_are_not_given():
    nodes = ['y = Clip (x, "", most)']
    check(model(nodes, "float[2,8] x", "float[2,8] y", {"most": np.asarray(0.5, np.float32)}), {"x": numbers(2, 8)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "double", "int32", "int64", "uint8", "int8", "bool"])
def test_types(dtype: str):
    array = numbers(4, 8) * 10
    element = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, dtype.upper()))
    nodes = ["y = Not (x)"] if dtype == "bool" else ["y = Add (x, x)"]
    check(model(nodes, f"{dtype}[4,8] x", f"{dtype}[4,8] y"), {"x": array.astype(element)}, rtol=0, atol=0)


BRANCHES = """
<ir_version: 9, opset_import: ["": 18]>
graph (bool c, float[2,8] x, float[8,4] w) => (float[2,4] y) {
    a = MatMul (x, w)
    b = If (c) <then_branch = then () => (float[2,4] t) { u = Exp (a)  t = OPERATOR },
                else_branch = else () => (float[2,4] e) { e = Neg (a) }>
    y = Tanh (b)
}
"""


@pytest.mark.slow
def test_branches_are_compiled_with_the_nodes_around_them():
    given = onnx.parser.parse_model(BRANCHES.replace("OPERATOR", "Add (u, a)")).SerializeToString()
    feed = {"x": numbers(2, 8), "w": W}
    run = check(given, {**feed, "c": np.array(True)}, {**feed, "c": np.array(False)})
    assert any("If" in part for part in parts(run))


@pytest.mark.slow
def test_parts_inside_of_a_branch():
    """The operator that is missing is in one branch: the rest of that is a part, which reads values around it."""
    lacking = "v = com.microsoft.SampleOp (u)  t = Mul (v, a)"
    text = (
        BRANCHES.replace("t = OPERATOR", lacking)
        .replace('["": 18]', '["": 18, "com.microsoft": 1]')
        .replace("2,", "4,")
    )
    feed = {"x": numbers(4, 8), "w": W}
    given = onnx.parser.parse_model(text).SerializeToString()
    run = check(given, {**feed, "c": np.array(True)}, {**feed, "c": np.array(False)})
    assert ["Mul"] in parts(run) and ["MatMul"] in parts(run)


LOOP = """
<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>
graph (float[4,4] x) => (float[4,4] y) {
    n = Constant <value = int64 {3}> ()
    k = Constant <value = bool {1}> ()
    a = Exp (x)
    y = Loop (n, k, a) <body = b (int64 i, bool c, float[4,4] v) => (bool d, float[4,4] w)
        { d = Identity (c)  u = Tanh (v)  r = OPERATOR (u)  w = Add (r, a) }>
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "operator, expected",
    [("Relu", [["Exp", "Loop"]]), ("com.microsoft.SampleOp", [["Add"], ["Exp"], ["Tanh"]])],
)
def test_loops_are_taken_as_a_whole_or_in_parts(operator: str, expected: list[list[str]]):
    given = onnx.parser.parse_model(LOOP.replace("OPERATOR", operator)).SerializeToString()
    assert parts(check(given, {"x": numbers(4, 4)})) == expected


@pytest.mark.slow
def test_branches_whose_arguments_are_padded_are_compiled_for_each_shape():
    text = BRANCHES.replace("OPERATOR", "Add (u, a)").replace("[2,", "[n,")
    given = onnx.parser.parse_model(text).SerializeToString()
    check(given, *({"x": numbers(n, 8), "w": W, "c": np.array(n > 2)} for n in (2, 3, 5)))


@pytest.mark.slow
def test_weights_of_few_bits():
    """Two elements are in a byte. ONNX Runtime rounds the other operand, too, so that NumPy is the oracle."""
    q = np.arange(256).reshape(32, 8) % 7 - 3
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["d"]), helper.make_node("MatMul", ["x", "d"], ["y"])]
    weights = [
        helper.make_tensor("q", TensorProto.INT4, [32, 8], q.reshape(-1)),
        numpy_helper.from_array(np.asarray(0.1, np.float32), "s"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, k]) for n, k in (("x", 32), ("y", 8)))
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    run = session(proto.SerializeToString())
    (result,) = run.run(None, {"x": numbers(4, 32)})
    np.testing.assert_allclose(result, numbers(4, 32) @ (q * np.float32(0.1)), 1e-4, 1e-5)
    assert parts(run) == [["DequantizeLinear", "MatMul"]]


@pytest.mark.slow
def test_weights_in_a_file(tmp_path: Path):
    proto = ModelProto.FromString(
        model(["y = MatMul (x, w)"], "float[2,64] x", "float[2,64] y", {"w": numbers(64, 64)})
    )
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert parts(check(tmp_path / "m.onnx", {"x": numbers(2, 64)})) == [["MatMul"]]


def test_threads_call_sessions_at_once():
    """Calls of one session take turns, those of others do not wait; new shapes are compiled meanwhile."""
    runs = [session(OPEN, {"threads": "2"}), session(OPEN), session(LINEAR)]
    errors: list[object] = []

    def call(seed: int) -> None:
        for turn in range(20):
            run = runs[(seed + turn) % 3]
            x = numbers(2 if run is runs[2] else 1 + (seed + turn) % 4, 8, seed=seed)
            (y,) = run.run(None, {"x": x})
            if not np.allclose(y, np.maximum(x @ W, 0), 1e-4, 1e-5):
                errors.append((seed, turn))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.slow
def test_a_session_ends_while_another_runs():
    kept = session(OPEN)
    for n in (1, 2, 3):
        other = session(OPEN)
        check(OPEN, {"x": numbers(n, 8)}, run=other)
        del other
        check(OPEN, {"x": numbers(n, 8)}, run=kept)


@pytest.mark.slow
def test_precision_is_an_option():
    x = numbers(2, 8)
    (exact,), (rounded,) = (
        session(LINEAR).run(None, {"x": x}),
        session(LINEAR, {"precision": "bf16"}).run(None, {"x": x}),
    )
    assert 0 < np.abs(exact - rounded).max() < 0.1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"thread": "2"}, "TreadleExecutionProvider: there is no option 'thread'; accepted: threads, precision"),
        ({"threads": "many"}, "option 'threads' is no number from 1 upwards: many"),
        ({"precision": "f8"}, "f8"),
        ({"shapes": "batch=x"}, "x"),
    ],
)
def test_wrong_options(options: dict[str, str], message: str):
    with pytest.raises(Exception, match=message.replace("(", r"\(")):
        session(LINEAR, options)


def written(folder: Path, embedded: str, given: bytes = AROUND, options: Mapping[str, str] | None = None) -> Path:
    """A model with compiled models in its nodes."""
    (folder / "m.onnx").write_bytes(given)
    path = folder / "written.onnx"
    entries = {"ep__context_file_path": str(path), "ep__context_embed_mode": embedded}
    session(folder / "m.onnx", options, ep__context_enable="1", **entries)
    return path


@pytest.mark.parametrize("embedded", ["0", "1"])
def test_compiled_models_in_files(tmp_path: Path, embedded: str):
    """What is written runs in another process, which has neither a cache nor a compiler, and cannot start one."""
    path, x = written(tmp_path, embedded), numbers(4, 8)
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "EPContext"]
    assert len(nodes) == 2 and all(onnx.helper.get_node_attr_value(n, "embed_mode") == int(embedded) for n in nodes)
    shutil.move(path.parent, moved := tmp_path.with_name(f"{tmp_path.name}-moved"))
    np.save(moved / "x.npy", x)
    program = """if True:
        import sys, numpy, onnxruntime
        onnxruntime.register_execution_provider_library("Treadle", sys.argv[1])
        session = onnxruntime.InferenceSession(sys.argv[2], providers=["TreadleExecutionProvider"], enable_fallback=0)
        numpy.save(sys.argv[4], session.run(None, {"x": numpy.load(sys.argv[3])})[0])
    """
    variables = environment_with({"TREADLE_CACHE_DIR": str(moved / "cache"), "TREADLE_CC": "none", "PATH": ""})
    files = [treadle.onnxruntime.provider_library(), moved / path.name, moved / "x.npy", moved / "y.npy"]
    subprocess.run([sys.executable, "-c", program, *map(str, files)], env=variables, check=True)
    (y,) = onnxruntime.InferenceSession(AROUND, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(np.load(moved / "y.npy"), y, 1e-3, 1e-5)
    assert not (moved / "cache").exists()


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda data: data[:20], "too short"),
        (lambda data: b"x" + data[1:], "damaged, or of another version of Treadle"),
        (lambda data: data[:-1], "its sha256 differs"),
        (lambda data: data[:9] + b"\xff" * 8 + data[17:], "a part of it is missing"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "its sha256 differs"),
    ],
)  # fmt: skip
def test_damaged_compiled_models(tmp_path: Path, damage: Any, message: str):
    path = written(tmp_path, "0", LINEAR)
    (compiled,) = tmp_path.glob("*.bin")
    compiled.write_bytes(damage(compiled.read_bytes()))
    with pytest.raises(Exception, match=message):
        session(path)


def test_compiled_models_that_are_elsewhere(tmp_path: Path):
    path = written(tmp_path, "0", LINEAR)
    (compiled,) = tmp_path.glob("*.bin")
    compiled.rename(tmp_path / "gone")
    with pytest.raises(Exception, match="No such file"):
        session(path)
    proto = onnx.load(path)
    (attribute,) = (each for each in proto.graph.node[0].attribute if each.name == "ep_cache_context")
    attribute.s = b"../gone"
    with pytest.raises(Exception, match="not the name of a file beside the model"):
        onnx.save(proto, path)
        session(path)


@pytest.mark.slow
def test_open_shapes_are_not_written(tmp_path: Path):
    with pytest.raises(Exception, match=r"its shapes are open.*accepted: the provider's option shapes"):
        written(tmp_path, "0", OPEN)
    path = written(tmp_path, "0", OPEN, {"shapes": "batch=1..8"})
    run = check(OPEN, {"x": numbers(3, 8)}, run=session(path))
    with pytest.raises(Exception, match="other shapes or types than it was compiled for"):
        run.run(None, {"x": numbers(9, 8)})


def test_an_older_runtime_is_refused():
    """The table of functions is asked for by version: here it has none but the first."""
    library = ctypes.CDLL(str(treadle.onnxruntime.provider_library()))
    said: list[tuple[int, bytes]] = []
    status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    create = status(lambda code, text: said.append((code, text)) or 1)  # pyright: ignore
    table = (ctypes.c_void_p * 1)(ctypes.cast(create, ctypes.c_void_p))
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda n: ctypes.addressof(table) if n == 1 else None)
    version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.cast(text, ctypes.c_void_p).value)
    text = ctypes.create_string_buffer(b"1.20.1")
    base = (ctypes.c_void_p * 2)(ctypes.cast(get, ctypes.c_void_p), ctypes.cast(version, ctypes.c_void_p))
    factory, count = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.CreateEpFactories(b"x", base, None, ctypes.byref(factory), ctypes.c_size_t(1), ctypes.byref(count))
    assert said == [(11, b"Treadle: ONNX Runtime is version 1.20.1; accepted: 1.24 or newer")]


def test_the_compiler_answers_whatever_it_is_asked(tmp_path: Path):
    """A request that fails is an answer with an error, and the process goes on."""
    (tmp_path / "model.onnx").write_bytes(b"no model")
    requests = [("partition", str(tmp_path)), ("partition", str(tmp_path / "none")), ("options", "precision", "f7")]
    host, process = socket.socketpair()
    thread = threading.Thread(target=compiler_process.serve, args=(process,))
    thread.start()
    for words, expected in zip(requests, ("DecodeError", "FileNotFoundError", "unknown precision 'f7'"), strict=True):
        data = b"".join(word.encode() + b"\0" for word in words)
        host.sendall(len(data).to_bytes(8, "little") + data)
        size = int.from_bytes(host.recv(8, socket.MSG_WAITALL), "little")
        messages, error, *rest = host.recv(size, socket.MSG_WAITALL).decode().split("\0")
        assert messages == "0" and error.startswith("Treadle: ") and expected in error and rest == [""]
    host.close()
    thread.join()
    process.close()


def test_registering_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.2")
    with pytest.raises(TreadleError, match=r"ONNX Runtime is 1.23.2; accepted: onnxruntime 1.24 or newer"):
        treadle.onnxruntime.register()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(TreadleError, match="ONNX Runtime is not installed"):
        treadle.onnxruntime.register()


def test_systems_on_which_there_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(TreadleError, match="this Python does not know its interpreter"):
        treadle.onnxruntime.provider_library()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(TreadleError, match="no execution provider on darwin; accepted: Linux"):
        treadle.onnxruntime.provider_library()


@pytest.mark.slow
def test_a_library_is_registered_once_and_unregistered():
    program = """if True:
        import numpy, onnxruntime, treadle.onnxruntime, sys
        paths = {treadle.onnxruntime.register(), treadle.onnxruntime.register()}
        assert len(paths) == 1
        session = onnxruntime.InferenceSession(sys.stdin.buffer.read(), providers=["TreadleExecutionProvider"])
        session.run(None, {"x": numpy.ones((2, 8), numpy.float32)})
        del session
        onnxruntime.unregister_execution_provider_library("TreadleExecutionProvider")
        assert "TreadleExecutionProvider" not in onnxruntime.get_available_providers()
        treadle.onnxruntime.register()
        assert "TreadleExecutionProvider" in onnxruntime.get_available_providers()
    """
    subprocess.run([sys.executable, "-c", program], input=LINEAR, check=True)


@pytest.mark.slow
def test_what_cannot_be_compiled_is_left_to_others_with_a_message(capfd: pytest.CaptureFixture[str]):
    """The compiler process has the variables of the time when it starts: this one has no C compiler."""
    program = """if True:
        import numpy, onnxruntime, os, sys
        onnxruntime.register_execution_provider_library("Treadle", sys.argv[1])
        session = onnxruntime.InferenceSession(sys.stdin.buffer.read(), providers=["TreadleExecutionProvider"])
        print(session.run(None, {"x": numpy.ones((2, 8), numpy.float32)})[0].shape)
    """
    variables = environment_with({"TREADLE_CC": "no-compiler"})
    done = subprocess.run(
        [sys.executable, "-c", program, str(treadle.onnxruntime.provider_library())], input=LINEAR, env=variables,
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == b"(2, 4)\n"
    assert b"2 nodes are left to other providers, which cannot be compiled: cpu target" in done.stderr


LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_light_models(tmp_path: Path, name: str):
    path = with_random_weights(require_model(f"light_{name}").path(), tmp_path / "m.onnx")
    (entry,) = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()
    run = check(path, {entry.name: numbers(1, 3, 224, 224)}, rtol=1e-3, atol=1e-5)
    assert len(parts(run)) == 1


@pytest.mark.slow
def test_a_host_without_python(tmp_path: Path):
    """A program in C registers the library; a model of open shapes has it start the compiler."""
    (tmp_path / "m.onnx").write_bytes(OPEN)
    found = sum_of_host(tmp_path, "provider", treadle.onnxruntime.provider_library(), tmp_path / "m.onnx")
    assert found == pytest.approx(np.maximum(INPUT @ W, 0).sum(), abs=1e-3)


@pytest.mark.slow
def test_a_forked_child_has_a_compiler_of_its_own():
    """Both ask for new shapes: answers of one must not reach the other."""
    program = """if True:
        import numpy, onnxruntime, os, sys, treadle.onnxruntime, warnings
        treadle.onnxruntime.register()
        options = onnxruntime.SessionOptions()
        session = onnxruntime.InferenceSession(sys.stdin.buffer.read(), options, providers=["TreadleExecutionProvider"])
        def shapes(first):
            return [session.run(None, {"x": numpy.ones((n, 8), numpy.float32)})[0].shape[0] for n in (first, first + 2)]
        assert shapes(1) == [1, 3]
        warnings.simplefilter("ignore")
        child = os.fork()
        found = shapes(3000 if child else 5000)
        if not child:
            os._exit(0 if found == [5000, 5002] else 1)
        assert found == [3000, 3002] and os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", program], input=OPEN, check=True)
