"""Files, shapes and nodes that cannot be imported: one error names the thing, the place, and the way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from xdsl.dialects.func import FuncOp

from tests.frontends.onnx.models import model, node
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.shapes.dim import Shapes

WEIGHT = np.arange(64, dtype=np.float32).reshape(8, 8)


def _small() -> ModelProto:
    return model([node("MatMul", "x w", "y", "product")], {"x": [2, 8]}, weights={"w": WEIGHT})


def _error(source: ModelProto | Path | bytes, shapes: Shapes | None = None) -> str:
    with pytest.raises(TreadleError) as caught:
        import_model(source.SerializeToString() if isinstance(source, ModelProto) else source, shapes)
    return str(caught.value)


def _node_error(broken: NodeProto, opset: int = 17, **weights: np.ndarray) -> str:
    return _error(model([broken], {"x": [2, 8]}, weights=weights, opset=opset))


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.onnx"
    assert _error(path) == (f"{path}: cannot read: No such file or directory; accepted: the path of an .onnx file")


@pytest.mark.parametrize("data", [b"PK\x03\x04 no model", b"\xff" * 100, b"{}"])
def test_a_corrupt_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "corrupt.onnx"
    path.write_bytes(data)
    assert "accepted: a complete .onnx file" in _error(path)


def test_every_truncation_is_an_error() -> None:
    """Protobuf accepts a prefix that ends between two fields; the graph and the opset are then missing."""
    data = _small().SerializeToString()
    for length in range(len(data)):
        assert _error(data[:length])


def test_a_tensor_of_another_size_than_its_shape() -> None:
    proto = _small()
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:-4]
    assert _error(proto) == (
        "initialiser 'w': a tensor of float32 and shape (8, 8) holds 252 bytes; accepted: 256 bytes"
    )
    proto.graph.initializer[0].ClearField("raw_data")
    proto.graph.initializer[0].float_data.extend([1.0, 2.0])
    assert "holds 2 values in float_data; accepted: 64 values" in _error(proto)


@pytest.mark.parametrize("extent", [-1, 2**40])
def test_a_tensor_with_an_absurd_shape(extent: int) -> None:
    proto = _small()
    proto.graph.initializer[0].dims[0] = extent
    assert "initialiser 'w'" in _error(proto)


def test_graph_structure() -> None:
    undefined = model([node("Relu", "ghost", "y", "act")], {"x": [2]})
    assert "node 'act' (Relu): input 'ghost' is not defined before this node" in _error(undefined)
    twice = model([node("Relu", "x", "y"), node("Neg", "x", "y", "neg")], {"x": [2]})
    assert "node 'neg' (Neg): output 'y' is defined a second time" in _error(twice)
    assert "output 'z' is computed by no node" in _error(model([node("Relu", "x", "y")], {"x": [2]}, ["z"]))
    assert "the graph has no output" in _error(model([node("Relu", "x", "y")], {"x": [2]}, []))


def _with_external_data(folder: Path, location: str, **entries: str) -> Path:
    proto = _small()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"head" + WEIGHT.tobytes())
    import_model(_with_external_data(tmp_path, "w.bin", offset="4", length="256"))


def test_missing_external_data(tmp_path: Path) -> None:
    path = _with_external_data(tmp_path, "w.bin")
    assert _error(path) == (
        f"initialiser 'w': external data file 'w.bin' is missing; accepted: that file inside {tmp_path}"
    )
    assert "of a model given as bytes; accepted: the path of the model's file" in _error(path.read_bytes())


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "sub/../../secret.bin", "", "link.bin", "a\0b"])
def test_external_data_stays_in_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    message = _error(_with_external_data(folder, location))
    assert "leaves the model's folder; accepted: a relative path to a file inside" in message


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({}, "has 100 bytes, the tensor needs bytes 0 to 256"),
        ({"length": "100"}, "holds 100 bytes of external data; accepted: 256 bytes"),
        ({"offset": "-8"}, "external data has offset '-8'; accepted: a whole number from 0 upwards"),
    ],
)
def test_external_data_of_another_size(tmp_path: Path, entries: dict[str, str], says: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(100))
    assert says in _error(_with_external_data(tmp_path, "w.bin", **entries))


def test_a_dynamic_dimension_without_a_value() -> None:
    proto = model([node("Relu", "x", "y")], {"x": ["batch", 3, "?", 320]})
    assert _error(proto) == (
        "input 'x': dimensions 0 ('batch'), 2 ('?') without a value; accepted: --shape x=<batch>,3,<d2>,320"
        ", each a number, or a range such as 1..64"
    )


def test_a_shape_that_contradicts_the_model() -> None:
    proto = model([node("Relu", "x", "y")], {"x": ["batch", 3]})
    accepted = "contradicts the model's <batch>,3; accepted: --shape x=<batch>,3"
    assert _error(proto, {"x": (1, 4)}) == f"input 'x': shape 1,4 {accepted}"
    assert _error(proto, {"x": (1, 3, 1)}) == f"input 'x': shape 1,3,1 {accepted}"
    assert "negative extent" in _error(proto, {"x": (-1, 3)})


def test_a_shape_for_an_unknown_input() -> None:
    proto = model([node("Relu", "x", "y")], {"x": [2, 3]})
    assert _error(proto, {"X": (2, 3)}) == "shapes: 'X' is no input and no dynamic dimension; accepted: x"


def test_a_dimension_s_name_binds_it_in_every_input() -> None:
    proto = model([node("Add", "a b", "y")], {"a": ["batch", "width"], "b": ["batch", 1]})
    module = import_model(proto.SerializeToString(), {"batch": 2, "width": (5,)})
    (main,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    assert [str(type) for type in main.function_type.inputs] == ["tensor<2x5xf32>", "tensor<2x1xf32>"]
    assert _error(proto, {"batch": 2}) == (
        "input 'a': dimension 1 ('width') without a value; accepted: --shape a=2,<width>, or --shape width=<n>"
        ", each a number, or a range such as 1..64"
    )
    assert _error(proto, {"batch": (2, 3)}) == (
        "shapes: 'batch' is a dimension, and (2, 3) is a shape; accepted: one extent"
    )
    assert _error(proto, {"batch": 2, "a": (3, 4)}) == (
        "input 'a': shape 3,4 contradicts the model's 2,<width>; accepted: --shape a=2,<width>"
    )
    assert _error(proto, {"height": 2}) == (
        "shapes: 'height' is no input and no dynamic dimension; accepted: a, b, batch, width"
    )


@pytest.mark.parametrize(("element", "name"), [(TensorProto.COMPLEX64, "complex64"), (TensorProto.STRING, "string")])
def test_an_unsupported_element_type(element: int, name: str) -> None:
    proto = model([node("Identity", "x", "y")], {"x": [2]}, element=element)
    assert f"input 'x': element type {name} is not supported; accepted: float16, bfloat16, float32" in _error(proto)


def test_an_input_that_is_no_tensor() -> None:
    proto = model([node("Identity", "x", "y")], {"x": [2]})
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    proto.graph.input[0].CopyFrom(sequence)
    assert _error(proto) == "input 'x': the input is a sequence_type; accepted: a tensor"


def test_an_unsupported_operator() -> None:
    message = _node_error(node("MaxRoiPool", "x", "y", "/a/pool"))
    assert message.startswith("node '/a/pool' (MaxRoiPool, opset 17): operator MaxRoiPool is not supported; accepted: ")
    assert len(message) < 250 and "(`treadle check --operators` lists them)" in message
    message = _node_error(node("FusedConv", "x", "y", domain="com.example"))
    assert "node 'y' (com.example.FusedConv, opset 17): operators of domain 'com.example' are not" in message


@pytest.mark.parametrize("opset", [6, 99])
def test_an_unsupported_opset(opset: int) -> None:
    message = _node_error(node("Dropout", "x", "y"), opset)
    assert f"Dropout of opset {opset} is not supported; accepted: Dropout of opset 7 to" in message


def test_a_version_beyond_all_numbers_of_versions() -> None:
    """Of an operator that is imported by the body that ONNX defines it with."""
    message = _node_error(node("AffineGrid", "x s", "y"), 1 << 31, s=np.array([1, 1, 2, 2]))
    assert "(AffineGrid, opset 2147483648): operator AffineGrid is not supported" in message


def test_a_model_without_opset() -> None:
    proto = _small()
    del proto.opset_import[:]
    assert "imports no version of ONNX's operators" in _error(proto)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (node("MatMul", "x x", "y"), "8 columns against 2 rows"),
        (node("Relu", "x", "y", speed=1), "attribute 'speed' is not supported"),
        (node("Elu", "x", "y", alpha=1), "attribute 'alpha' has type INT; accepted: FLOAT"),
        (node("Reshape", "x x", "y"), "the shape (input 'x') depends on the model's input data"),
        (node("Add", "x", "y"), "input 1 is missing"),
        (node("Transpose", "x", "y", perm=[0, 0]), "(0, 0) is no permutation of 2 dimensions"),
        (node("Concat", "x x", "y", axis=2), "axis 2 of a tensor of rank 2; accepted: -2 to 1"),
        (node("ReduceMean", "x", "y", axes=[1, -1]), "axes [1, -1] name one twice"),
        (node("Cast", "x", "y", to=int(TensorProto.COMPLEX64)), "element type complex64 is not supported"),
        (node("MaxPool", "x", "y", kernel_shape=[2]), "a window (2,) over an input of shape (2, 8)"),
        (node("Dropout", "x _ t", "y"), "input 't' is not defined"),
        (node("Mod", "x x", "y"), "fmod = 0 of floats; accepted: fmod = 1, integers, or opset 28"),
    ],
)
def test_nodes(broken: NodeProto, says: str) -> None:
    message = _node_error(broken)
    assert says in message and message.startswith("node 'y' (")


@pytest.mark.parametrize(
    ("broken", "weights", "says"),
    [
        (node("Reshape", "x s", "y"), {"s": [3, -1]}, "[2, 8] does not reshape to [3, -1]"),
        (node("Reshape", "x s", "y"), {"s": [-1, -1]}, "-1 at most once"),
        (node("Squeeze", "x s", "y"), {"s": [1]}, "axis 1 of shape [2, 8] has 8 elements"),
        (node("Split", "x s", "y z"), {"s": [1, 3]}, "sizes [1, 3] of 2 elements in 2 outputs"),
        (node("ConstantOfShape", "s", "y"), {"s": [2**40]}, "takes too much memory"),
        (node("Expand", "x s", "y"), {"s": [3, 3]}, "do not broadcast"),
        (node("Slice", "x s s s s", "y"), {"s": [0]}, "a step is 0; accepted: another step"),
    ],
)
def test_nodes_with_constant_operands(broken: NodeProto, weights: dict[str, list[int]], says: str) -> None:
    assert says in _error(model([broken], {"x": [2, 8]}, weights=weights))


def test_resize_names_what_is_supported() -> None:
    resize = node("Resize", "x _ s", "y", mode="linear")
    message = _error(model([resize], {"x": [2, 8]}, weights={"s": [2.0, 2.0]}, element=TensorProto.INT32))
    assert "mode linear of i32; accepted: mode nearest, or floats" in message


def test_a_sparse_initialiser() -> None:
    proto = _small()
    values, indices = numpy_helper.from_array(np.array([1], np.float32)), numpy_helper.from_array(np.array([0]))
    proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    assert "sparse initialisers are not supported; accepted: dense initialisers" in _error(proto)


def test_a_recursive_function() -> None:
    proto = model([node("Twice", "x", "y", domain="own")], {"x": [2]})
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [node("Twice", "v", "w", domain="own")]
    proto.functions.append(helper.make_function("own", "Twice", ["v"], ["w"], body, versions))
    proto.opset_import.append(versions[1])
    assert "functions that are well formed and not recursive" in _error(proto)


def test_a_name_that_is_no_text() -> None:
    data = model([node("Relu", "input", "y")], {"input": [2]}).SerializeToString()
    assert "is no text; accepted: names in UTF-8" in _error(data.replace(b"input", b"inp\xfft"))


@pytest.mark.parametrize("operator", ["GatherND", "GatherElements"])
def test_indices_of_floats(operator: str) -> None:
    error = _error(model([node(operator, "x x", "y", "pick")], {"x": [2, 2]}, opset=13))
    assert error.endswith(f"node 'pick' ({operator}, opset 13): indices of f32: expected integers")


@pytest.mark.parametrize("operator", ["GatherND", "GatherElements", "OneHot"])
def test_indices_of_bools(operator: str) -> None:
    weights = {"i": np.array([[True, False]]), "d": np.array(4), "v": np.array([0, 1])}
    inputs = "i d v" if operator == "OneHot" else "x i"
    error = _error(model([node(operator, inputs, "y", "pick")], {"x": [2, 2]}, weights=weights, opset=13))
    assert error.endswith(f"node 'pick' ({operator}, opset 13): indices of i1: expected integers")


@pytest.mark.parametrize(("operator", "inputs"), [("BitwiseNot", "x"), ("BitShift", "x x")])
def test_bits_of_floats(operator: str, inputs: str) -> None:
    error = _error(model([node(operator, inputs, "y", "bits")], {"x": [2, 2]}, opset=18))
    assert error.endswith(f"node 'bits' ({operator}, opset 18): bits of f32; accepted: integers")


@pytest.mark.parametrize(
    ("operator", "inputs", "message"),
    [
        (
            "Add",
            {"a": ([3], 1), "b": ([3], 6)},
            "add of f32 and i32: element types differ; accepted: two operands of f32, ",
        ),
        (
            "Add",
            {"a": ([3], 1), "b": ([4], 1)},
            "shapes (3,), (4,) do not broadcast; accepted: extents that are equal or ",
        ),
        (
            "MatMul",
            {"a": ([2, 3], 1), "b": ([4, 2], 1)},
            "3 columns against 4 rows; accepted: as many rows of the second",
        ),
        (
            "Where",
            {"c": ([3], 9), "a": ([3], 1), "b": ([3], 6)},
            "branches of f32 and i32: element types differ; accepted: t",
        ),
        ("Concat", {"a": ([3], 1), "b": ([3], 6)}, "operands differ in element type; accepted: operands of f32"),
        (
            "Concat",
            {"a": ([3], 1), "b": ([2, 2], 1)},
            "dimension 0; accepted: the same extents in all dimensions but 0",
        ),
        ("Conv", {"a": ([1, 3, 8], 1), "b": ([4, 2, 3], 1)}, "not 1 groups of 2; accepted: an input of 2 channels"),
        ("Not", {"a": ([3], 1)}, "not is not defined on f32; accepted: bools"),
        ("Exp", {"a": ([3], 6)}, "exp is not defined on i32; accepted: floats"),
        ("Abs", {"a": ([3], 9)}, "abs is not defined on i1; accepted: floats and integers"),
        ("And", {"a": ([3], 1), "b": ([3], 1)}, "and is not defined on f32; accepted: bools, integers"),
    ],
)
def test_operands_that_do_not_fit_say_what_would(
    operator: str, inputs: dict[str, tuple[list[int], int]], message: str
) -> None:
    operation = node(operator, " ".join(inputs), "y")
    if operator == "Concat":
        operation = node(operator, " ".join(inputs), "y", axis=0)
    proto = model([operation], {name: shape for name, (shape, _) in inputs.items()})
    for entry in proto.graph.input:
        entry.type.tensor_type.elem_type = inputs[entry.name][1]
    assert message in _error(proto)
