"""What pytest knows besides its own: `.mlir` files with RUN lines are tests, tests marked `gpu` need one, and the
user's cache is left alone.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from tests.helpers.mlir_collector import MlirFile, is_ir_test
from treadle.backends.cuda.gpu_probe import why_no_gpu

# Speed is measured by benchmarks: a busy machine fails no test. The same commit draws the same cases.
settings.register_profile("treadle", deadline=None, derandomize=True)
settings.load_profile("treadle")


def pytest_configure(config: pytest.Config) -> None:
    """Sets a cache folder for the whole run, gone after it: processes of pytest-xdist inherit it and share what they
    compile. A test that needs an empty cache sets its own.
    """
    if hasattr(config, "workerinput"):
        return
    folder, patch = TemporaryDirectory(prefix="treadle-cache-"), pytest.MonkeyPatch()
    patch.setenv("TREADLE_CACHE_DIR", folder.name)
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(patch.undo)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collects the IR tests; see `tests/helpers/run_lines.py` for what a RUN line may say."""
    if not is_ir_test(file_path):
        return None
    return MlirFile.from_parent(parent, path=file_path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a GPU where there is none: from one place, so that pytest reports it in one line."""
    if item.get_closest_marker("gpu") is not None and (reason := why_no_gpu()) is not None:
        pytest.skip(reason)
