"""ONNX's own node tests, sorted: those that Treadle compiles, those that it refuses, and those out of its scope.

Taken are the cases whose operators all have a converter and whose inputs and outputs have supported element
types. The ones among them that are known not to work are listed with the error that they have to give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase

from tests.frontends.onnx.backend import with_compile_time_inputs
from tests.frontends.onnx.shared_cases import node_cases
from tests.helpers.limits import assert_within, module_limits
from treadle.dialects.graph.dtypes import element_type, is_stored
from treadle.frontends.onnx import import_model, supported_operators
from treadle.frontends.onnx.registry import functions_expanded
from treadle.frontends.onnx.tensor_data import DTYPES

Array = NDArray[Any]

UNSUPPORTED: dict[str, Sequence[str]] = {
    "training_mode": ("test_training_dropout", "test_training_dropout_mask", "test_training_dropout_default*"),
    "output 1 .* is used": ("test_maxpool_with_argmax_2d_*",),
    "Scan of opset 8": ("test_scan_sum",),
}
"""Cases by what their error says; names as shell patterns, the last reason that fits a name counts."""


ROUNDED = ("test_dft_inverse", "test_dft_inverse_opset19")
"""Cases of float32 that expect an exact zero of sums that round: what ONNX's own transform rounds is relative to its
largest element (Higham, "Accuracy and stability of numerical algorithms", 24.1), as the case's tolerance is not."""


def _name(node: NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _element_types(model: ModelProto) -> set[int | None]:
    values = [*model.graph.input, *model.graph.output]
    return {v.type.tensor_type.elem_type if v.type.HasField("tensor_type") else None for v in values}


def _is_in_scope(model: ModelProto) -> bool:
    known = set(supported_operators())
    nodes = all(_name(node) in known for node in model.graph.node)
    return nodes and _element_types(model) <= set(DTYPES)


def _calls_functions(model: ModelProto) -> bool:
    functions = set(functions_expanded())
    return all(_name(node) in functions for node in model.graph.node)


def reason_of(name: str) -> str | None:
    """What the error of an unsupported case says; None if the case is supported."""
    fitting = [r for r, patterns in UNSUPPORTED.items() if any(fnmatch(name, p) for p in patterns)]
    return fitting[-1] if fitting else None


def array_of(value: Any) -> Array:
    """A case's input or output."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def model_of(case: TestCase) -> ModelProto:
    """A case's model."""
    assert case.model is not None
    return case.model


def data_of(case: TestCase) -> Iterator[tuple[ModelProto, list[Array], list[Array]]]:
    """For each data set the model for it, its inputs and the outputs that ONNX expects."""
    assert case.data_sets
    whole = _BY_NAME.get(case.name.removesuffix("_expanded"))
    for inputs, outputs in case.data_sets:
        arrays = [array_of(value) for value in inputs]
        model, left = with_compile_time_inputs(model_of(case), arrays, None if whole is None else model_of(whole))
        yield model, left, [array_of(value) for value in outputs]


def assert_expected(
    case: TestCase, model: ModelProto, inputs: Sequence[Array], results: Sequence[Array], expected: Sequence[Array]
) -> None:
    """Shapes, types, and values within the case's own tolerance; those of types without arithmetic are equal.

    ONNX rounds its expectations of float16 after each operator of an expanded attention, and is off itself. There both,
    the results and what ONNX expects, have to be within the limits of the imported graph (docs/adr/0024). Results of
    the cases `ROUNDED` have to be, too; what ONNX expects has its rounding.
    """
    for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        if is_stored(element_type(wanted.dtype)):
            np.testing.assert_array_equal(result.astype(np.float32), wanted.astype(np.float32))
            continue
        narrow = wanted.dtype == np.float16 or wanted.dtype == ml_dtypes.bfloat16
        if not narrow:
            rounding = 4 * np.finfo(wanted.dtype).eps * np.abs(wanted).max() if case.name in ROUNDED else 0
            np.testing.assert_allclose(result, wanted, rtol=case.rtol, atol=max(case.atol, rounding))
        if narrow or case.name in ROUNDED:
            limited = module_limits(import_model(model.SerializeToString()), inputs)[number]
            assert_within(result, limited, wanted.dtype, case.name)
            if narrow:
                assert_within(wanted, limited, wanted.dtype, f"what ONNX expects of {case.name}")


CASES = node_cases(_is_in_scope)
_BY_NAME = {case.name: case for case in CASES}
IN_SCOPE = [case for case in CASES if _is_in_scope(model_of(case))]
SUPPORTED = [case for case in IN_SCOPE if reason_of(case.name) is None]
REFUSED = [case for case in IN_SCOPE if reason_of(case.name) is not None]
EXPANDED = {
    case.name
    for case in SUPPORTED
    for whole in [_BY_NAME.get(case.name.removesuffix("_expanded"))]
    if whole is not None and whole is not case and _is_in_scope(model_of(whole)) and _calls_functions(model_of(whole))
}
"""Cases that are the bodies of functions which Treadle expands itself: the modules of two cases are the same."""
OUT_OF_SCOPE = [case for case in CASES if not _is_in_scope(model_of(case))]
