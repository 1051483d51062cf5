"""How large the package is: numbers that only a reviewed change of this file raises (docs/adr/0067)."""

from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "treadle"
MOST_FILES = 400
MOST_LINES = 600
"""Of one file."""
MOST_AT_THE_TOP = 10


def lengths() -> dict[Path, int]:
    return {path.relative_to(PACKAGE): path.read_text().count("\n") for path in PACKAGE.rglob("*.py")}


def test_files() -> None:
    found = lengths()
    assert len(found) <= MOST_FILES
    assert {path: lines for path, lines in found.items() if lines > MOST_LINES} == {}


def test_modules_at_the_top() -> None:
    assert len([path for path in lengths() if path.parent == Path()]) <= MOST_AT_THE_TOP
