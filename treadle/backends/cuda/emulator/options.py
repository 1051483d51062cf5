"""Options of a model that runs on the emulator."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.cuda.emulator.emulator import LIMIT, check_limit

OBSERVED_LIMIT = 600.0
"""Seconds that a kernel of a model may take with checks or counters, by default."""


@dataclass(frozen=True)
class Emulation:
    """How the kernels of a model run: the `checks`, `counters` and `limit` of `Emulator`.

    A limit of None is 60 seconds a kernel, and 600 with checks or counters. Raises TreadleError for a limit that is
    no number of seconds.
    """

    checks: tuple[str, ...] = ()
    counters: bool = False
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_limit(self.limit, "limit")

    @property
    def seconds(self) -> float:
        """The limit in force."""
        if self.limit is not None:
            return self.limit
        return OBSERVED_LIMIT if self.checks or self.counters else LIMIT

    @property
    def asked(self) -> str | None:
        """The first option that is set, as a message names it."""
        named = {"checks": bool(self.checks), "counters": self.counters, "a time limit": self.limit is not None}
        return next((name for name, is_set in named.items() if is_set), None)
