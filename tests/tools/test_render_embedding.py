"""The pages for embedders, for backends and on tiles say what the code says."""

from __future__ import annotations

import pytest

from docs.build.architecture import ROOT, Excerpts, render
from docs.build.embedding import DOCUMENTS
from tests.helpers.bless import assert_golden


@pytest.mark.parametrize(("page", "excerpts"), DOCUMENTS.items())
def test_a_page_is_up_to_date(page: str, excerpts: Excerpts) -> None:
    path = ROOT / page
    assert_golden(render(path.read_text(), page, excerpts), path)
