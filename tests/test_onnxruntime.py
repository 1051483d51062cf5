"""treadle.onnxruntime: the signatures of ONNX Runtime, its answers, and what is compiled for which call."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import treadle
import treadle.onnxruntime as ort
from tests.frontends.onnx.models import model, node
from tests.models.catalog import require_model
from treadle.errors import TreadleError, TreadleWarning
from treadle.onnxruntime import session as sessions
from treadle.onnxruntime.plans import Plan, plans_for
from treadle.shapes.dim import Dim

real: Any = pytest.importorskip("onnxruntime")

Array = NDArray[Any]
WEIGHTS = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)


def quiet() -> Any:
    """Options of ONNX Runtime that write errors alone."""
    options = real.SessionOptions()
    options.log_severity_level = 3
    return options


def described(proto: ModelProto, ir_version: int = 8) -> bytes:
    """The bytes of a model with a version that ONNX Runtime reads."""
    proto.ir_version = ir_version
    return proto.SerializeToString()


def product(rows: str | int | None = "batch", columns: str | int | None = "seq") -> bytes:
    """y = relu(x @ w) and z = -y for x of shape [rows, columns, 8], with metadata."""
    nodes = [node("MatMul", "x w", "m"), node("Relu", "m", "y"), node("Neg", "y", "z")]
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, columns, 8])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, columns, 4]) for name in "yz"]
    weights = [numpy_helper.from_array(WEIGHTS, "w")]
    graph = helper.make_graph(nodes, "layers", [shape], outputs, weights, doc_string="a graph")
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="tests", doc_string="a model",
        domain="example", model_version=7,
    )  # fmt: skip
    helper.set_model_props(proto, {"classes": "4"})
    return described(proto)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def assert_same(own: list[Array], other: list[Array]) -> None:
    assert isinstance(own, list) and len(own) == len(other)
    for mine, right in zip(own, other, strict=True):
        assert mine.dtype == right.dtype and mine.shape == right.shape
        np.testing.assert_allclose(mine.astype(np.float64), right.astype(np.float64), rtol=1e-3, atol=1e-5)


def test_signatures_and_names_are_those_of_onnx_runtime() -> None:
    for method in ("__init__", "run"):
        own, other = (inspect.signature(getattr(each.InferenceSession, method)) for each in (ort, real))
        assert list(own.parameters) == list(other.parameters), method
        wanted = {name: parameter.default for name, parameter in other.parameters.items()}
        assert {name: parameter.default for name, parameter in own.parameters.items()} == wanted, method
    assert {name for name in ort.__all__ if name not in dir(real)} == {
        "Fail", "InvalidArgument", "InvalidProtobuf", "NoSuchFile", "Unsupported", "provider_library", "register",
    }  # fmt: skip
    for own, other in ((ort.SessionOptions(), real.SessionOptions()), (ort.RunOptions(), real.RunOptions())):
        for name in (each for each in dir(other) if not each.startswith("_") and hasattr(own, each)):
            if not callable(getattr(other, name)):
                value: Any = getattr(other, name)
                assert getattr(own, name) == (int(value) if hasattr(value, "name") else value), name
    for enum in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        wanted = {name: int(value) for name, value in getattr(real, enum).__members__.items()}
        assert {each.name: each.value for each in getattr(ort, enum)} == wanted


def test_what_a_session_says_of_a_model() -> None:
    own, other = ort.InferenceSession(product()), real.InferenceSession(product(), quiet())
    for mine, right in zip(own.get_inputs() + own.get_outputs(), other.get_inputs() + other.get_outputs(), strict=True):
        assert (mine.name, mine.type, mine.shape, str(mine)) == (right.name, right.type, right.shape, str(right))
    mine, right = own.get_modelmeta(), other.get_modelmeta()
    for name in (each for each in dir(right) if not each.startswith("_")):
        assert getattr(mine, name) == getattr(right, name), name
    assert own.get_providers() == other.get_providers() and own.get_provider_options() == other.get_provider_options()
    assert own.get_overridable_initializers() == [] and ort.get_device() in ("CPU", "GPU")
    assert own.get_session_options().intra_op_num_threads == 0


@pytest.mark.parametrize("names", [None, [], ["y"], ["z", "y"], ["z", "z"], ("y",)])
def test_outputs_in_the_order_that_is_asked_for(names: list[str] | None) -> None:
    data, feed = product(1, 3), {"x": drawn(1, 3, 8)}
    session = ort.InferenceSession(data)
    assert len(session.compiled) == 1, "its shapes are known"
    assert_same(session.run(names, feed), real.InferenceSession(data, quiet()).run(names, feed))


def test_calls_of_any_shape_are_served_by_few_artifacts() -> None:
    session, other = ort.InferenceSession(product()), real.InferenceSession(product(), quiet())
    shapes = [(1, 3), (1, 5), (1, 700), (2, 9), (7, 100), (1, 1), (1, 3000), (1, 2999)]
    counts: list[int] = []
    for shape in shapes:
        feed = {"x": drawn(*shape, 8)}
        assert_same(session.run(None, feed), other.run(None, feed))
        counts.append(len(session.compiled))
    assert counts == [1, 2, 2, 3, 3, 3, 4, 4]
    assert [dim.name for dim in session.compiled[-1].symbols] == ["batch", "seq"]


@pytest.mark.parametrize(
    ("element", "dtype"),
    [("FLOAT16", np.float16), ("DOUBLE", np.float64), ("INT32", np.int32), ("INT64", np.int64), ("UINT8", np.uint8)],
)
def test_types_and_scalars(element: str, dtype: type) -> None:
    number = getattr(TensorProto, element)
    data = described(model([node("Mul", "x x", "y")], {"x": []}, element=number))
    session, other = ort.InferenceSession(data), real.InferenceSession(data, quiet())
    assert session.get_inputs()[0].type == other.get_inputs()[0].type
    assert session.get_outputs()[0].type == other.get_outputs()[0].type
    feed = {"x": np.array(3, dtype)}
    assert_same(session.run(None, feed), other.run(None, feed))
    assert session.run(None, {"x": 3})[0] == session.run(None, {"x": dtype(3)})[0] == 9


def test_bfloat16() -> None:
    """ONNX Runtime takes no such arrays: it computes with casts inside."""
    nodes = [node("Cast", "x", "a", to=TensorProto.BFLOAT16), node("Cast", "a", "y", to=TensorProto.FLOAT)]
    feed = {"x": drawn(4)}
    data = described(model(nodes, {"x": [4]}))
    (rounded,) = real.InferenceSession(data, quiet()).run(None, feed)
    assert_same(ort.InferenceSession(data).run(None, feed), [rounded])
    session = ort.InferenceSession(described(model([node("Neg", "x", "y")], {"x": [4]}, element=TensorProto.BFLOAT16)))
    assert session.get_inputs()[0].type == "tensor(bfloat16)"
    (y,) = session.run(None, {"x": feed["x"].astype(ml_dtypes.bfloat16)})
    np.testing.assert_array_equal(y.astype(np.float32), -rounded)


def test_optional_results_of_nodes_are_left_out() -> None:
    nodes = [node("LSTM", "x w r", "_ h", hidden_size=2)]
    data = described(model(nodes, {"x": [3, 1, 2]}, ["h"], {"w": drawn(1, 8, 2), "r": drawn(1, 8, 2)}))
    feed = {"x": drawn(3, 1, 2)}
    assert_same(ort.InferenceSession(data).run(None, feed), real.InferenceSession(data, quiet()).run(None, feed))


def test_lists_are_arrays() -> None:
    session, other = ort.InferenceSession(product(1, 1)), real.InferenceSession(product(1, 1), quiet())
    feed = {"x": [[[1, 2, 3, 4, 5, 6, 7, 8]]]}
    assert_same(session.run(None, feed), other.run(None, feed))
    strided = {"x": drawn(1, 1, 16)[..., ::2]}
    assert_same(session.run(None, strided), other.run(None, strided))


X = drawn(1, 3, 8)


@pytest.mark.parametrize(
    ("names", "feed", "message"),
    [
        (["q"], {"x": X}, "run: there is no output 'q'; accepted: y, z"),
        (None, {}, "run: input x missing; accepted: x"),
        (None, {"q": X}, "run: input x missing; accepted: x"),
        (None, {"x": X, "q": X}, "run: 'q' is no input; accepted: x"),
        (None, {"x": X.astype(np.float64)}, r"input 'x': an array of float64 is given; accepted: float32, tensor\(fl"),
        (None, {"x": X[0]}, r"input 'x': an array of shape \[3, 8\] is given; accepted: \[batch, seq, 8\]"),
        (None, {"x": X[..., :7]}, r"input 'x': an array of shape \[1, 3, 7\] is given; accepted: \[batch, seq, 8\]"),
        (None, {"x": np.array([[["a"] * 8]])}, "input 'x': an array of <U1 is given; accepted: float32"),
        (None, {"x": [["a"]]}, "input 'x': no array of tensor.float.: could not convert string"),
        (None, {"x": "text"}, "input 'x': a str is given; accepted: an array of tensor"),
        (None, [X], "run: input_feed is a list; accepted: a dict of arrays by input"),
    ],
)
def test_calls_that_do_not_fit(names: Any, feed: Any, message: str) -> None:
    with pytest.raises(Exception):  # noqa: B017  # ONNX Runtime's have no common type
        real.InferenceSession(product(), quiet()).run(names, feed)
    with pytest.raises(ort.InvalidArgument, match=message) as raised:
        ort.InferenceSession(product()).run(names, feed)
    assert isinstance(raised.value, TreadleError) and isinstance(raised.value, ValueError)


def test_an_initialiser_is_no_input() -> None:
    proto = model([node("Add", "x w", "y")], {"x": [2], "w": [2]}, weights={"w": np.ones(2, np.float32)})
    session = ort.InferenceSession(described(proto))
    assert [each.name for each in session.get_inputs()] == ["x"]
    with pytest.raises(ort.InvalidArgument, match="'w' is an initialiser, whose value is compiled in; accepted: x"):
        session.run(None, {"x": drawn(2), "w": drawn(2)})


def test_models_that_cannot_be_sessions(tmp_path: Path) -> None:
    cases: list[tuple[Any, type[TreadleError], str]] = [
        ("nowhere.onnx", ort.NoSuchFile, "nowhere.onnx: there is no such file"),
        (b"abc", ort.InvalidProtobuf, "3 bytes are no ONNX model"),
        (5, ort.InvalidArgument, "the model is a int; accepted: the path of an .onnx file, or its bytes"),
        (model([node("Neg", "x", "y")], {"x": [1]}), ort.InvalidArgument, "the model is a ModelProto"),
        (
            described(model([node("Identity", "x", "y")], {"x": ["n"]}, element=TensorProto.STRING)),
            ort.Unsupported,
            r"input 'x': the input is of type tensor\(string\); accepted: float16",
        ),
        (
            described(model([node("Nothing", "x", "y")], {"x": ["n"]})),
            ort.Unsupported,
            "operator Nothing is not supported",
        ),
    ]
    for given, kind, message in cases:
        with pytest.raises(kind, match=message):
            ort.InferenceSession(given)
    path = tmp_path / "m.onnx"
    path.write_bytes(product(1, 3))
    for given in (str(path), path):
        assert_same(ort.InferenceSession(given).run(["y"], {"x": X}), [np.maximum(X @ WEIGHTS, 0)])


def test_values_that_decide_about_shapes() -> None:
    proto = model([node("Reshape", "x s", "y")], {"x": ["n", 3]})
    proto.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [2]))
    session, other = (each(described(proto)) for each in (ort.InferenceSession, real.InferenceSession))
    for rows, shape in ((2, [3, 2]), (2, [6, 1]), (4, [6, 2]), (2, [3, 2])):
        feed = {"x": drawn(rows, 3), "s": np.array(shape)}
        assert_same(session.run(None, feed), other.run(None, feed))
    assert len(session.compiled) == 3


def test_dimensions_without_names_that_are_alike() -> None:
    """One range serves both while they are equal, as the operator wants it."""
    data = described(model([node("Add", "a b", "y")], {"a": ["?", 4], "b": [cast("str", None), 4]}))
    session, other = ort.InferenceSession(data), real.InferenceSession(data, quiet())
    for rows in (2, 3, 5):
        feed = {"a": drawn(rows, 4), "b": drawn(rows, 4)}
        assert_same(session.run(None, feed), other.run(None, feed))
    assert len(session.compiled) == 2


def test_an_extent_that_is_computed_of_others() -> None:
    data = described(model([node("Concat", "p n", "c", axis=0), node("Add", "c m", "y")],
                           {"p": ["past"], "n": ["new"], "m": ["past + new"]}))  # fmt: skip
    session, other = ort.InferenceSession(data), real.InferenceSession(data, quiet())
    for past, new in ((2, 1), (3, 1), (4, 2), (9, 5)):
        feed = {"p": drawn(past), "n": drawn(new), "m": drawn(past + new)}
        assert_same(session.run(None, feed), other.run(None, feed))
    assert len(session.compiled) == 3


def test_a_model_without_ranges_is_compiled_shape_by_shape() -> None:
    data = described(model([node("Reshape", "x s", "y")], {"x": ["n", 4]}, weights={"s": np.array([2, -1])}))
    session, other = ort.InferenceSession(data), real.InferenceSession(data, quiet())
    session.run(None, {"x": drawn(1, 4)})
    with pytest.warns(
        TreadleWarning, match=r"shapes are compiled one by one: no artifact for x n:1..1024, 4: node 'y'"
    ):
        session.run(None, {"x": drawn(2, 4)})
    for rows in (3, 1):
        feed = {"x": drawn(rows, 4)}
        assert_same(session.run(None, feed), other.run(None, feed))
    assert len(session.compiled) == 3


def test_what_was_not_used_for_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_KEPT", 1)
    session = ort.InferenceSession(product(1))
    first = session.run(["y"], {"x": drawn(1, 2, 8)})
    session.run(["y"], {"x": drawn(1, 3, 8)})
    assert len(session.compiled) == 1
    assert_same(session.run(["y"], {"x": drawn(1, 2, 8)}), first)


def test_options_that_are_honoured() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_free_dimension_override_by_name("batch", 1)
    options.add_session_config_entry("treadle.shapes", "seq=1..64")
    options.add_session_config_entry("treadle.precision", "f16")
    assert options.get_session_config_entry("treadle.shapes") == "seq=1..64"
    session = ort.InferenceSession(product(), options, providers=["CPUExecutionProvider"], disabled_optimizers=[])
    assert session.get_inputs()[0].shape == [1, "seq", 8]
    (compiled,) = session.compiled
    assert compiled.symbols == (Dim("seq", 1, 64),) and compiled.manifest.precision == "f16"
    assert isinstance(compiled.threads, treadle.ThreadPool) and compiled.threads.threads == 2
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(session.run, ["y"], {"x": drawn(1, n, 8)}, ort.RunOptions()) for n in range(1, 30)]
        assert [call.result()[0].shape for call in calls] == [(1, n, 4) for n in range(1, 30)]
    with pytest.raises(ort.InvalidArgument, match=r"an array of shape \[2, 3, 8\] is given; accepted: \[1, seq, 8\]"):
        session.run(None, {"x": drawn(2, 3, 8)})


Change = Callable[[ort.SessionOptions], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o.register_custom_ops_library("l.so"), "custom operators of l.so; accepted: a model of ONNX's"),
        (lambda o: o.add_initializer("w", 1), "another value for initialiser 'w'; accepted: the model's own weights"),
        (lambda o: o.add_external_initializers(["w"], [1]), "other values for initialisers"),
        (lambda o: o.add_session_config_entry("session.set_denormal_as_zero", "1"), "as_zero' is '1'; accepted"),
        (lambda o: o.add_session_config_entry("treadle.speed", "1"), "no 'treadle.speed'; accepted: treadle.precision"),
        (lambda o: o.get_session_config_entry("a"), "there is no entry 'a'; accepted: no entries"),
        (lambda o: setattr(o, "enable_profiling", True), "enable_profiling is True; accepted: False; CompiledModel.tr"),
        (lambda o: setattr(o, "optimized_model_filepath", "o"), "optimized_model_filepath is 'o'; accepted: ''"),
        (lambda o: setattr(o, "intra_op_num_threads", -1), "intra_op_num_threads is -1; accepted: 0, which means"),
        (lambda o: o.add_session_config_entry("treadle.shapes", "q=1..2"), "'q' is no open dimension; accepted: batch"),
        (lambda o: o.add_session_config_entry("treadle.shapes", "seq=x"), "cannot read the dimension 'x'"),
        (lambda o: o.add_session_config_entry("treadle.precision", "f1"), "f1'; accepted: f32"),
    ],
)  # fmt: skip
def test_options_that_are_refused(change: Change, message: str) -> None:
    options = ort.SessionOptions()
    with pytest.raises((ort.InvalidArgument, ort.Unsupported, ort.Fail), match=message):
        change(options)
        ort.InferenceSession(product(), options)
        ort.InferenceSession(product(1, 3), options)


def test_other_options() -> None:
    with pytest.raises(AttributeError):
        ort.SessionOptions().no_such_option = 1  # pyright: ignore
    with pytest.raises(ort.InvalidArgument, match="sess_options is a SessionOptions of onnxruntime"):
        ort.InferenceSession(product(), quiet())
    terminated = ort.RunOptions(terminate=True)
    terminated.add_run_config_entry("a", "b")
    assert terminated.get_run_config_entry("a") == "b"
    with pytest.raises(ort.InvalidArgument, match="there is no entry 'b'; accepted: a"):
        terminated.get_run_config_entry("b")
    with pytest.raises(ort.Fail, match="terminate is set"):
        ort.InferenceSession(product()).run(None, {"x": X}, terminated)
    for accepted in (ort.set_default_logger_severity, ort.set_default_logger_verbosity, ort.set_seed):
        accepted(3)


def test_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "why_no_gpu", lambda: "no GPU")
    assert ort.get_available_providers() == ["CPUExecutionProvider"]
    wanted: list[Any] = [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
    with pytest.warns(TreadleWarning, match="not available: CUDAExecutionProvider; available: CPUExecutionProvider"):
        session = ort.InferenceSession(product(), providers=wanted)
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(ort.Unsupported, match="device_id is 1; accepted: 0, the first GPU"):
        ort.InferenceSession(product(), None, ["CUDAExecutionProvider"], [{"device_id": 1}])
    monkeypatch.setattr(sessions, "why_no_gpu", lambda: None)
    assert ort.get_device() == "GPU"
    session = ort.InferenceSession(product(), providers=wanted)
    assert session.get_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_plans() -> None:
    forms: list[Mapping[str, tuple[int, ...]]] = [{"x": (4, 40)}, {"x": (4, 50)}]
    plans = plans_for(forms, {"x": ["n", "m"]})
    assert [str(each) for each in plans] == [
        f"x 4, m:{ends}" for ends in ("1..1024", "16..1024", "1..128", "16..128", "40..50")
    ]
    assert plans[0].serves({"x": (4, 1)}) and not plans[0].serves({"x": (5, 1)})
    assert not plans[1].serves({"x": (4, 1)}) and not plans[0].serves({"x": (4,)})
    twice = plans_for([{"a": (1,), "b": (1,)}, {"a": (2,), "b": (3,)}], {"a": ["n"], "b": ["n"]})[0]
    assert str(twice) == "a n:1..64; b n0:1..256", "a name that means two extents"
    assert plans_for([{"x": (0,)}, {"x": (3,)}], {"x": [None]})[0] == Plan({"x": (Dim("d0", 0, 1024),)})
    huge = plans_for([{"x": (1, 1)}, {"x": (3000, 2000)}], {"x": [None, None]})[0]
    assert [dim.upper for dim in huge.ranges.values()] == [8192, 4096], "what calls need is not cut"


def test_onnx_runtime_is_not_imported() -> None:
    program = (
        "import sys; sys.modules['onnxruntime'] = None; import treadle.onnxruntime as ort; print(ort.get_device())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip() in ("CPU", "GPU"), done.stderr


def test_a_real_model_finds_faces_in_pictures_of_any_size() -> None:
    """Its windows allow no extent of 1."""
    found = require_model("mtcnn_pnet")
    session, other = ort.InferenceSession(found.path()), real.InferenceSession(str(found.path()), quiet())
    for mine, right in zip(
        session.get_inputs() + session.get_outputs(), other.get_inputs() + other.get_outputs(), strict=True
    ):
        assert (mine.name, mine.type, mine.shape) == (right.name, right.type, right.shape)
    for height, width in ((40, 60), (48, 72), (44, 61)):
        feed = found.with_shapes({"input_1": (1, height, width, 3)}).sample_inputs()
        assert_same(session.run(None, feed), other.run(None, feed))
    assert len(session.compiled) == 2
