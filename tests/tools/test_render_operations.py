"""docs/operations.md is what the definitions say, and every operation says something."""

from __future__ import annotations

import pytest

from docs.build.architecture import ROOT, render
from docs.build.operations import DOCUMENT, EXCERPTS
from tests.helpers.bless import assert_golden
from treadle.dialects.registry import dialect_factories


def test_the_document_is_up_to_date() -> None:
    path = ROOT / DOCUMENT
    assert_golden(render(path.read_text(), DOCUMENT, EXCERPTS), path)


@pytest.mark.parametrize("name", list(dialect_factories()))
def test_every_operation_has_an_example(name: str) -> None:
    silent = [op.name for op in dialect_factories()[name]().operations if "```mlir" not in (op.__doc__ or "")]
    assert silent == []
