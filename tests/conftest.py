"""What pytest knows besides its own: `.mlir` files with RUN lines are tests."""

from pathlib import Path

import pytest

from tests.helpers.mlir_collector import MlirFile, is_ir_test


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collects the IR tests; see `tests/helpers/run_lines.py` for what a RUN line may say."""
    if not is_ir_test(file_path):
        return None
    return MlirFile.from_parent(parent, path=file_path)
