"""Records of decisions: a number each, which the title repeats, and links that lead somewhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = sorted((ROOT / "docs" / "adr").glob("*.md"))


def test_each_record_has_a_number_of_its_own() -> None:
    numbers = Counter(path.name[:4] for path in RECORDS)
    assert [number for number, count in numbers.items() if count > 1 or not number.isdigit()] == []
    for path in RECORDS[1:]:  # the first is the template
        assert path.read_text().startswith(f"# {path.name[:4]}: "), path.name


def test_documents_link_to_what_is_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())]
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []
