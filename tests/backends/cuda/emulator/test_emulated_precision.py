"""A transformer's layer in each lower precision: the printed CUDA kernels, run on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import treadle
from tests.helpers.graphs import name_arguments
from tests.passes.graph.test_transformer_layer import Layer, bert, gpt
from treadle.backends.reference import evaluate_module
from treadle.target.options import EPSILON, Precision


@pytest.mark.parametrize(("write", "precision"), [(bert, "f16"), (gpt, "bf16")])
def test_a_layer(write: Callable[[], Layer], precision: Precision) -> None:
    """About twenty values on the longest way through the layer are rounded; their errors partly cancel."""
    layer = write()
    module = layer.module(*layer.results)
    expected = evaluate_module(module, layer.inputs)[0]
    name_arguments(module, 2, 1)
    model = treadle.compile(module, "sm_80", device="emulator", precision=precision)
    limit = np.sqrt(20) * EPSILON[precision] * float(np.abs(expected).max())
    np.testing.assert_allclose(model(*layer.inputs)[0], expected, rtol=0, atol=limit)
