"""The example of a backend computes real models, by oracles of their own; what it has no form for is an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.scalar_backend import ScalarModel, layer, main
from tests.models.agreement import Case
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.shapes.dim import Dim


def test_the_layer_is_scalar_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((8, 48), (48, 16)))
    (y,) = ScalarModel(layer(), tmp_path)(a, b)
    product = np.maximum(a.astype(np.float64) @ b, 0)
    powers = np.exp(product - product.max(1, keepdims=True))
    np.testing.assert_allclose(y, powers / powers.sum(1, keepdims=True), rtol=2e-5)
    text = (tmp_path / "kernels.c").read_text()
    assert "v4f" not in text and "treadle_pool" not in text
    main()
    assert float(capsys.readouterr().out.split()[-1]) < 1e-5


@pytest.mark.parametrize("name", ["mtcnn_rnet", pytest.param("minilm", marks=pytest.mark.slow)])
def test_a_real_model_agrees(name: str, tmp_path: Path) -> None:
    case = Case.of(name, tmp_path)
    module = import_model(case.path, {name: value.shape for name, value in case.inputs.items()})
    outputs = ScalarModel(module, tmp_path)(*case.inputs.values())
    assert case.disagreements(dict(zip(case.expected, outputs, strict=True))) == []


def test_a_range_of_shapes_is_refused(tmp_path: Path) -> None:
    case = Case.of("minilm", tmp_path)
    shapes = {name: (1, Dim("n", 1, 128)) for name in case.inputs}
    with pytest.raises(TreadleError, match="accepted: a model of static shapes"):
        ScalarModel(import_model(case.path, shapes), tmp_path)
