"""ONNX's own node tests as compiled C: what ships, against what ONNX expects."""

from __future__ import annotations

from functools import partial

import pytest
from onnx import ModelProto
from onnx.backend.test.case.test_case import TestCase
from xdsl.dialects.builtin import ModuleOp

from tests.frontends.onnx.node_cases import SUPPORTED, assert_expected, data_of
from tests.helpers.program_batch import ProgramBatch
from treadle.frontends.onnx import import_model

HALF_UNITS = 2
"""Last places by which a float16 may differ. Most cases allow one; ONNX's expectations round after every operator of an
expanded attention, and so are wrong by up to 1.5 themselves, and sums in another order are so the other way."""


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> ProgramBatch:
    """The chosen cases, in batches: one alone does not wait for a hundred others."""
    chosen = {item.name for item in request.session.items}
    cases = [case for case in SUPPORTED if f"test_compiled_case[{case.name}]" in chosen]
    data = {_name(case, n): model for case in cases for n, (model, _, _) in enumerate(data_of(case))}
    return ProgramBatch({name: partial(_imported, model) for name, model in data.items()})


def _imported(model: ModelProto) -> ModuleOp:
    return import_model(model.SerializeToString())


def _name(case: TestCase, number: int) -> str:
    return f"{case.name}.{number}"


@pytest.mark.parametrize("case", SUPPORTED, ids=lambda case: case.name)
def test_compiled_case(case: TestCase, compiled: ProgramBatch) -> None:
    for number, (_, inputs, expected) in enumerate(data_of(case)):
        assert_expected(case, compiled[_name(case, number)].run(inputs), expected, half_units=HALF_UNITS)
