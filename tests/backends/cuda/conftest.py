"""What the tests of the CUDA backend share: emulated texts, the fake driver, and the GPU."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.cuda.fake_libcuda.build import COMPILER, build_fake_libcuda
from treadle.backends.cuda.driver import Device
from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.backends.cuda.open_driver import open_driver
from treadle.environment import Environment


@pytest.fixture(scope="session")
def emulate(emulator_environment: Environment) -> Callable[..., Emulator]:
    """Compiles a text with all checks, unless told otherwise."""

    def make(source: str, checks: tuple[str, ...] = tuple(CHECKS), limit: float = 60.0, workers: int = 2) -> Emulator:
        return Emulator(source, checks, limit=limit, workers=workers, environment=emulator_environment)

    return make


@pytest.fixture(scope="session")
def fake_driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a `libcuda.so.1` lies whose device is the emulator; the test is skipped where nothing compiles it."""
    if COMPILER is None:
        pytest.skip("the fake driver needs g++")
    return build_fake_libcuda(tmp_path_factory.mktemp("fake_libcuda")).parent


@pytest.fixture(scope="module")
def driver() -> Iterator[Device]:
    """The GPU of this machine, for tests marked `gpu`, which are skipped where there is none."""
    driver = open_driver()
    yield driver
    driver.close()
