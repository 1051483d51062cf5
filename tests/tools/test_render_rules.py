"""The page of rules says what the rules write."""

from __future__ import annotations

from tests.helpers.bless import assert_golden
from treadle.tools.render_architecture import ROOT, render
from treadle.tools.render_rules import DOCUMENT, EXCERPTS


def test_the_page_is_up_to_date() -> None:
    path = ROOT / DOCUMENT
    assert_golden(render(path.read_text(), DOCUMENT, EXCERPTS), path)
