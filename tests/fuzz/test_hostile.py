"""Mutated files: success or one error each, never a traceback, a crash, a hang or more memory than there may be."""

from __future__ import annotations

import pytest

from tests.fuzz.hostile import ATTEMPTS, findings

SEEDS = 100


@pytest.mark.parametrize("kind", ATTEMPTS)
def test_hostile_files(kind: str) -> None:
    assert list(findings(kind, 0, SEEDS)) == []
