"""The pages for embedders and for backends say what the code says."""

from __future__ import annotations

import pytest

from docs.build.architecture import ROOT, Excerpts, render
from docs.build.embedding import BACKEND, BACKEND_EXCERPTS, DOCUMENT, EXCERPTS
from tests.helpers.bless import assert_golden


@pytest.mark.parametrize(("page", "excerpts"), [(DOCUMENT, EXCERPTS), (BACKEND, BACKEND_EXCERPTS)])
def test_a_page_is_up_to_date(page: str, excerpts: Excerpts) -> None:
    path = ROOT / page
    assert_golden(render(path.read_text(), page, excerpts), path)
