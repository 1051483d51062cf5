"""ONNX's own node tests, through import and the evaluation of operators by their definitions.

Taken are the cases whose operators all have a converter and whose inputs and outputs have supported element
types. The ones among them that are known not to work are listed with the error that they have to give; all other
cases of the suite have to end in one clear error, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from tests.frontends.onnx.backend import TreadleBackend, with_compile_time_inputs
from treadle.errors import TreadleError
from treadle.frontends.onnx import supported_operators
from treadle.frontends.onnx.tensor_data import DTYPES

UNSUPPORTED: dict[str, Sequence[str]] = {
    "training_mode": ("test_batchnorm_*training_mode", "test_training_dropout*"),
    "depends on the model's input data": (
        "test_blackmanwindow*_expanded",
        "test_hammingwindow*_expanded",
        "test_hannwindow*_expanded",
        "test_center_crop_pad_*_expanded",
    ),
    "output 1 .* is used": ("test_maxpool_with_argmax_2d_*",),
    "fmod = 0 of floats": ("test_mod_float*fmod_0*",),
    "'mode' is 'wrap'": ("test_wrap_pad",),
    "mode (linear|cubic)": (
        "test_resize_upsample_scales_linear",
        "test_resize_upsample_scales_linear_align_corners",
        "test_resize_downsample_sizes_linear_antialias",
        "test_resize_downsample_sizes_linear_pytorch_half_pixel",
        "test_resize_downsample_scales_cubic*",
        "test_resize_upsample_scales_cubic*",
        "test_resize_*_sizes_cubic*",
        "test_resize_tf_crop_and_resize*",
    ),
    "mode nearest": (
        "test_resize_*_sizes_nearest",
        "test_resize_upsample_sizes_nearest_axes_*",
        "test_resize_upsample_sizes_nearest_floor_align_corners",
        "test_resize_upsample_sizes_nearest_round_prefer_ceil_asymmetric",
        "test_resize_upsample_sizes_nearest_ceil_half_pixel",
    ),
    "leaves no whole extent": (
        "test_resize_downsample_scales_nearest",
        "test_resize_downsample_scales_linear*",
        "test_resize_downsample_scales_cubic_antialias",
        "test_resize_upsample_scales_linear_half_pixel_symmetric",
    ),
    "keep_aspect_ratio_policy": ("test_resize_*_not_larger", "test_resize_*_not_smaller"),
}
"""Cases by what their error says; names as shell patterns, the last reason that fits a name counts."""


def _load() -> list[TestCase]:
    # The suite computes its own expectations, some of them with overflows.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_model_tests(kind="node")


def _element_types(model: ModelProto) -> set[int | None]:
    values = [*model.graph.input, *model.graph.output]
    return {v.type.tensor_type.elem_type if v.type.HasField("tensor_type") else None for v in values}


def _is_in_scope(model: ModelProto) -> bool:
    known = set(supported_operators())
    nodes = all(node.domain in ("", "ai.onnx") and node.op_type in known for node in model.graph.node)
    return nodes and _element_types(model) <= set(DTYPES)


def _reason(name: str) -> str | None:
    fitting = [r for r, patterns in UNSUPPORTED.items() if any(fnmatch(name, p) for p in patterns)]
    return fitting[-1] if fitting else None


def _array(value: Any) -> NDArray[Any]:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _model(case: TestCase) -> ModelProto:
    assert case.model is not None
    return case.model


CASES = _load()
IN_SCOPE = [case for case in CASES if _is_in_scope(_model(case))]
SUPPORTED = [case for case in IN_SCOPE if _reason(case.name) is None]
REFUSED = [case for case in IN_SCOPE if _reason(case.name) is not None]
OUT_OF_SCOPE = [case for case in CASES if not _is_in_scope(_model(case))]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", SUPPORTED, ids=lambda case: case.name)
def test_case(case: TestCase) -> None:
    assert case.data_sets
    for inputs, outputs in case.data_sets:
        model, left = with_compile_time_inputs(_model(case), [_array(v) for v in inputs])
        results = TreadleBackend.prepare(model).run(left)
        for result, expected in zip(results, map(_array, outputs), strict=True):
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(result, expected, rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused_case_says_why(case: TestCase) -> None:
    assert case.data_sets
    model, _ = with_compile_time_inputs(_model(case), [_array(v) for v in case.data_sets[0][0]])
    with pytest.raises(TreadleError, match=_reason(case.name)):
        TreadleBackend.prepare(model)


def test_all_other_cases_are_errors_of_treadle() -> None:
    """No model of the suite ends in a traceback of something else."""
    for case in OUT_OF_SCOPE:
        with pytest.raises(TreadleError):
            TreadleBackend.prepare(_model(case))


def test_most_cases_pass() -> None:
    """The suite of the installed onnx may differ from the one the lists were made with, but not by much."""
    assert len(SUPPORTED) > 0.9 * len(IN_SCOPE)
