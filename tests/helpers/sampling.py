"""Parameters of which `make test` takes some, and `make slow-test` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, values: Iterable[Any], *, names: int = 1) -> list[Any]:
    """The values as parameters: every `step`-th, beginning with the first, is fast, the others are marked slow.

    names: of the test's arguments that a value is for; of several, it is a tuple of as many
    """
    return [value if n % step == 0 else _slow(value, names) for n, value in enumerate(values)]


def _slow(value: Any, names: int) -> Any:
    return pytest.param(*([value] if names == 1 else value), marks=pytest.mark.slow)


__all__ = ["every"]
