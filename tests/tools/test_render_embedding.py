"""The page for embedders says what the code says."""

from __future__ import annotations

from docs.build.architecture import ROOT, render
from docs.build.embedding import DOCUMENT, EXCERPTS
from tests.helpers.bless import assert_golden


def test_the_page_is_up_to_date() -> None:
    path = ROOT / DOCUMENT
    assert_golden(render(path.read_text(), DOCUMENT, EXCERPTS), path)
