"""docs/schedules.md says what the templates are and compile to."""

from __future__ import annotations

import pytest

from tests.helpers.bless import assert_golden
from treadle.tools.render_architecture import ROOT, render
from treadle.tools.render_schedules import DOCUMENT, EXCERPTS


def test_the_document_is_up_to_date() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    path = ROOT / DOCUMENT
    assert_golden(render(path.read_text(), DOCUMENT, EXCERPTS), path)
