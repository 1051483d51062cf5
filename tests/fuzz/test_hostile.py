"""Mutated files: success or one error each, never a traceback, a crash, a hang or more memory than there may be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGALRM, SIGPROF, getsignal, signal

import pytest

from tests.fuzz import hostile
from tests.fuzz.hostile import ATTEMPTS, findings, try_seed

SEEDS = 50


@pytest.mark.parametrize("kind", ATTEMPTS)
def test_hostile_files(kind: str) -> None:
    assert list(findings(kind, 0, SEEDS)) == []


@pytest.fixture
def handlers() -> Iterator[None]:
    """Gives the handlers of signals back."""
    before = {number: getsignal(number) for number in (SIGPROF, SIGALRM)}
    yield
    for number, handler in before.items():
        signal(number, handler)


def _compute(_: int, __: Path) -> None:
    while True:
        pass


@pytest.mark.usefixtures("handlers")
def test_an_attempt_is_late_by_what_it_computes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not by what other processes compute meanwhile."""
    monkeypatch.setattr(hostile, "SECONDS", 0.1)
    try_seed(7, lambda *_: time.sleep(0.15), tmp_path)
    assert capsys.readouterr().out == ""
    try_seed(8, _compute, tmp_path)
    assert capsys.readouterr().out.startswith("8 Late: 'still busy after 0.1 s'")
    try_seed(9, lambda *_: time.sleep(60), tmp_path)
    assert capsys.readouterr().out.startswith("9 Late: 'waits for 1.0 s'")
