"""Records of decisions: a number each, which the title repeats."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = sorted((ROOT / "docs" / "adr").glob("*.md"))


def test_each_record_has_a_number_of_its_own() -> None:
    numbers = Counter(path.name[:4] for path in RECORDS)
    assert [number for number, count in numbers.items() if count > 1 or not number.isdigit()] == []
    for path in RECORDS[1:]:  # the first is the template
        assert path.read_text().startswith(f"# {path.name[:4]}: "), path.name
