"""The example computes what its layer says, by an oracle of its own."""

from __future__ import annotations

import numpy as np
import pytest

import treadle
from examples.embed_model import WEIGHTS, decisions, layer, main


def test_the_layer_is_compiled_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    x, b = np.random.default_rng(0).standard_normal((8, 48)).astype(np.float32), np.arange(16, dtype=np.float32)
    with treadle.compile(layer()) as model:
        (y,) = model(x=x, b=b)
        texts = "".join(path.read_text() for path in (model.folder / "kernels").glob("*.c"))
    np.testing.assert_allclose(y, np.maximum(x.astype(np.float64) @ WEIGHTS + b, 0), rtol=1e-5, atol=1e-5)
    assert "matmul 'layer/product', add 'layer/shift', relu 'layer/clamp'" in texts
    assert "schedule #schedule.use<" in decisions(layer())
    main()
    assert float(capsys.readouterr().out.split()[-1]) < 1e-5
