"""What pytest knows besides its own: `.mlir` files with RUN lines are tests, tests marked `gpu` need one, and the
user's cache is left alone.
"""

import gc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from tests.backends.c.toolchains import private_environment
from tests.helpers.mlir_collector import MlirFile, is_ir_test
from treadle.backends.cuda.gpu_probe import why_no_gpu
from treadle.environment import Environment, load_environment

# Speed is measured by benchmarks: a busy machine fails no test. The same commit draws the same cases.
settings.register_profile("treadle", deadline=None, derandomize=True)
settings.load_profile("treadle")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--reverse`: the last file first, and in each the last test first, which shows what depends on others."""
    parser.addoption("--reverse", action="store_true", help="run all tests in reverse order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of `--reverse`."""
    if config.getoption("reverse"):
        items.reverse()


def pytest_configure(config: pytest.Config) -> None:
    """Sets a cache folder for the whole run, gone after it: processes of pytest-xdist inherit it and share what they
    compile. A test that needs an empty cache sets its own.

    With a process for each core, further threads of NumPy's matrix products would only wait, busily.
    """
    if hasattr(config, "workerinput"):
        return
    folder, patch = TemporaryDirectory(prefix="treadle-cache-"), pytest.MonkeyPatch()
    patch.setenv("TREADLE_CACHE_DIR", folder.name)
    patch.setenv("OPENBLAS_NUM_THREADS", "1")
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(patch.undo)


def pytest_collection_finish() -> None:
    """Tests and modules live to the end: the garbage collector need not visit them, nor run every thousand objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collects the IR tests; see `tests/helpers/run_lines.py` for what a RUN line may say."""
    if not is_ir_test(file_path):
        return None
    return MlirFile.from_parent(parent, path=file_path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a GPU where there is none: from one place, so that pytest reports it in one line."""
    if item.get_closest_marker("gpu") is not None and (reason := why_no_gpu()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def emulator_environment() -> Environment:
    """An environment without flags of the caller's. Its cache is the run's: the emulator's runtime is built once."""
    return private_environment(load_environment().cache_dir)
