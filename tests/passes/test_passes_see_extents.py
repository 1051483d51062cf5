"""Every registered pass has an IR test with an extent: a model's shapes may change whatever passes it goes through."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from treadle.passes.registry import PASSES

_EXTENT = re.compile(r'\bextents = \["|%\w+: memref<i64>')
"""What @main says of extents, and one as a kernel reads it from memory."""


def _cases(name: str) -> list[str]:
    """The cases of the `.mlir` files that are named after a pass, as far as they run it."""
    found: list[str] = []
    for file in sorted(Path(__file__).parent.rglob(f"{name}*.mlir")):
        text = file.read_text()
        if re.search(rf"^// RUN: (?!not).*-p \S*\b{name}\b(?!-)", text, re.MULTILINE):
            found += text.split("// -----\n")
    return found


@pytest.mark.parametrize("name", PASSES)
def test_the_pass_has_a_case_with_an_extent(name: str) -> None:
    with_extents = [case for case in _cases(name) if _EXTENT.search(case)]
    assert any(re.search(r"^// [A-Z]+(-\w+)?: ", case, re.MULTILINE) for case in with_extents), (
        f"no case of tests/passes/**/{name}*.mlir has an extent (`extents = [...]` of @main, or a `memref<i64>` of a "
        f"kernel) and says what becomes of it: write {name}-extents.mlir"
    )
