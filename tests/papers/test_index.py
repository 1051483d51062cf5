"""docs/papers.md names what exists, counts its rows, and gives a reason for each item that is not here."""

from __future__ import annotations

import pytest

from docs.build import papers
from docs.build.architecture import ROOT, render
from tests.helpers.bless import assert_golden
from treadle.errors import TreadleError


def test_the_document_is_up_to_date() -> None:
    path = ROOT / papers.DOCUMENT
    assert_golden(render(path.read_text(), papers.DOCUMENT, papers.EXCERPTS), path)


def test_what_it_names_exists() -> None:
    assert papers.check() == 0
    assert [len([each for each in papers.items() if each.paper == paper]) for paper in PAPERS] == [45, 30, 37, 40]


PAPERS = ("Hidet", "DietCode", "Gensor", "MetaSchedule")
ROW = "| 1 | Mappings | {} | `{}` | `{}` | {} |"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (ROW.format("yes", "treadle/gone.py", "tests/papers/test_index.py", ""), "there is no treadle/gone.py"),
        (ROW.format("yes", "treadle/ir.py", "tests/papers/test_index.py::test_gone", ""), "has no test test_gone"),
        (ROW.format("yes", "treadle/ir.py", "python -m benchmarks.gone", ""), "there is no benchmarks/gone.py"),
        (ROW.format("no", "treadle/ir.py", "tests/papers/test_index.py", ""), "there is no reason"),
        (ROW.format("perhaps", "treadle/ir.py", "tests/papers/test_index.py", ""), "the verdict is 'perhaps'"),
        ("| 1 | Mappings | yes | | | |", "it has no code, or no test or command"),
        ("| 2 | Mappings | yes | | | |", "cannot read"),
        ("| 1 | Mappings | yes |", "cannot read"),
    ],
)
def test_what_is_wrong_is_named(row: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"## Hidet\n\n{row}\n"
    monkeypatch.setattr(papers, "items", lambda: list(papers._items(text)))
    with pytest.raises(TreadleError, match=r"docs/papers\.md: Hidet") as caught:
        papers.check()
    assert says in str(caught.value)
