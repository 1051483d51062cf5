"""What the emulator's tests share: one cache of compiled texts for the session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.c.toolchains import knobs
from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.knobs import Knobs


@pytest.fixture(scope="session")
def emulator_knobs(tmp_path_factory: pytest.TempPathFactory) -> Knobs:
    """Knobs whose cache lives as long as the session."""
    folder: Path = tmp_path_factory.mktemp("emulator")
    return knobs(folder)


@pytest.fixture(scope="session")
def emulate(emulator_knobs: Knobs) -> Callable[..., Emulator]:
    """Compiles a text with all checks, unless told otherwise."""

    def make(source: str, checks: tuple[str, ...] = tuple(CHECKS), limit: float = 60.0, workers: int = 2) -> Emulator:
        return Emulator(source, checks, limit=limit, workers=workers, knobs=emulator_knobs)

    return make
