"""ONNX's own node tests, sorted: those that Treadle compiles, and those that it refuses (`expected_failures.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase

from tests.frontends.onnx.expected_failures import reason_of
from tests.frontends.onnx.shared_cases import node_cases
from tests.helpers.limits import assert_within, module_limits
from treadle.dialects.graph.dtypes import element_type, is_stored
from treadle.frontends.onnx import import_model, needed_inputs
from treadle.frontends.onnx.functions import functions_expanded
from treadle.frontends.onnx.tensor_data import DTYPES

Array = NDArray[Any]

ROUNDED = ("test_dft_inverse", "test_dft_inverse_opset19")
"""Cases of float32 that expect an exact zero of sums that round: what ONNX's own transform rounds is relative to its
largest element (Higham, "Accuracy and stability of numerical algorithms", 24.1), as the case's tolerance is not."""


def _name(node: NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _has_tensors(model: ModelProto) -> bool:
    """Whether all inputs and outputs are tensors of element types that Treadle knows."""
    values = [*model.graph.input, *model.graph.output]
    return all(v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in DTYPES for v in values)


def _calls_functions(model: ModelProto) -> bool:
    functions = set(functions_expanded())
    return all(_name(node) in functions for node in model.graph.node)


def array_of(value: Any) -> Array:
    """A case's input or output."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def model_of(case: TestCase) -> ModelProto:
    """A case's model."""
    assert case.model is not None
    return case.model


def data_of(case: TestCase) -> list[tuple[ModelProto, list[Array], list[Array]]]:
    """For each data set the model for it, its inputs and the outputs that ONNX expects.

    Inputs whose values the model cannot be compiled without are constants of it, as `treadle.onnx_backend` makes them.
    """
    found = _data.get(case.name)
    if found is None:
        assert case.data_sets
        found = _data[case.name] = [_data_set(model_of(case), *data_set) for data_set in case.data_sets]
    return found


_data: dict[str, list[tuple[ModelProto, list[Array], list[Array]]]] = {}


def _data_set(
    model: ModelProto, inputs: Sequence[Any], outputs: Sequence[Any]
) -> tuple[ModelProto, list[Array], list[Array]]:
    names = [entry.name for entry in model.graph.input]
    values = dict(zip(names, map(array_of, inputs), strict=False))
    needed = needed_inputs(model, values)
    return (
        _known(model, {name: values[name] for name in needed}),
        [values[n] for n in names if n not in needed],
        [array_of(value) for value in outputs],
    )


def _known(model: ModelProto, values: Mapping[str, Array]) -> ModelProto:
    """The model with some of its inputs as initialisers."""
    known = ModelProto()
    known.CopyFrom(model)
    for position in reversed(range(len(known.graph.input))):
        name = known.graph.input[position].name
        if name in values:
            del known.graph.input[position]
            known.graph.initializer.append(numpy_helper.from_array(values[name], name))
    return known


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


CASES = node_cases(_has_tensors)
_BY_NAME = {case.name: case for case in CASES}
SUPPORTED = [case for case in CASES if reason_of(case.name) is None]
REFUSED = [case for case in CASES if reason_of(case.name) is not None]
PER_OPERATORS = 8
"""Cases of the same operators that every run compiles."""


def thinned(cases: Sequence[TestCase], most: int = PER_OPERATORS) -> set[str]:
    """Names of `most` cases, at most, of each set of operators, evenly spread over their list.

    All of them take 190 seconds of a processor, `PER_OPERATORS` of each 130. The others are casts between more types,
    attributes in further combinations and the like: slow tests, and rows of `make conformance`.
    """
    alike: dict[frozenset[str], list[str]] = {}
    for case in cases:
        alike.setdefault(frozenset(map(_name, model_of(case).graph.node)), []).append(case.name)
    kept = set[str]()
    for names in alike.values():
        count = min(len(names), most)
        kept.update(names[n * len(names) // count] for n in range(count))
    return kept


EXPANDED = {
    case.name
    for case in SUPPORTED
    for whole in [_BY_NAME.get(case.name.removesuffix("_expanded"))]
    if whole is not None and whole is not case and reason_of(whole.name) is None and _calls_functions(model_of(whole))
}
"""Cases that are the bodies of functions which Treadle expands itself: the modules of two cases are the same."""
QUICK = thinned([case for case in SUPPORTED if case.name not in EXPANDED])
"""Names of the cases that every run compiles."""
