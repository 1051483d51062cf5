"""The catalog agrees with the files that it names."""

import numpy as np
import onnx
import pytest

from tests.models.catalog import MODELS, Locator, ModelMissing, require_model

NUMPY_TYPES: dict[int, type[np.generic]] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.INT64: np.int64,
}


@pytest.mark.parametrize("name", MODELS)
def test_inputs_agree_with_the_file(name: str) -> None:
    model = require_model(name)
    graph = onnx.load(model.path()).graph
    weights = {weight.name for weight in graph.initializer}
    declared = {value.name: value.type.tensor_type for value in graph.input if value.name not in weights}
    samples = model.sample_inputs()
    assert samples.keys() == declared.keys()
    for key, tensor in declared.items():
        fixed = [dim.dim_value for dim in tensor.shape.dim]
        assert len(fixed) == samples[key].ndim
        assert all(want <= 0 or want == have for want, have in zip(fixed, samples[key].shape, strict=True))
        assert samples[key].dtype == NUMPY_TYPES[tensor.elem_type]
        assert samples[key].shape == model.input_shapes[key]


def test_samples_are_the_same_at_every_call() -> None:
    for model in MODELS.values():
        first, second = model.sample_inputs(), model.sample_inputs()
        assert all(np.array_equal(first[key], second[key]) for key in first)


def test_minilm_samples_are_legal() -> None:
    samples = MODELS["minilm"].sample_inputs()
    assert samples["input_ids"].min() >= 0
    assert samples["input_ids"].max() < 30522
    assert set(np.unique(samples["attention_mask"])) == {0, 1}


def test_a_missing_wheel_names_its_remedy() -> None:
    with pytest.raises(ModelMissing, match="no-such-wheel is not installed; `make venv` installs it"):
        Locator("no-such-wheel", "x.onnx").find()
    with pytest.raises(ModelMissing, match=r"onnx is installed without x\.onnx"):
        Locator("onnx", "x.onnx").find()
