"""Parameters of which `make test` takes some, and `make slow-test` all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

import pytest


def every(step: int, values: Iterable[Any], *, names: int = 1) -> list[Any]:
    """The values as parameters: every `step`-th, beginning with the first, is fast, the others are marked slow.

    names: of the test's arguments that a value is for; of several, it is a tuple of as many
    """
    return [value if n % step == 0 else _slow(value, names) for n, value in enumerate(values)]


def in_turn(first: Sequence[Any], second: Sequence[Any], *, turns: int | None = None, step: int = 1) -> list[Any]:
    """All pairs, as parameters of two arguments. With one of `first` every run takes one in `turns` of `second`, by
    default a single one, and with the following of `first` the next ones; the other pairs are marked slow.

    step: of `first` every run takes every so many-th only
    """
    turns = len(second) if turns is None else turns
    assert ceil(len(first) / step) >= turns, "some of `second` would be slow with all of `first`"
    return [
        (a, b) if n % step == 0 and (n // step - m) % turns == 0 else _slow((a, b), 2)
        for n, a in enumerate(first)
        for m, b in enumerate(second)
    ]


def _slow(value: Any, names: int) -> Any:
    return pytest.param(*([value] if names == 1 else value), marks=pytest.mark.slow)


__all__ = ["every", "in_turn"]
