"""Collects `.mlir` files with RUN lines as pytest tests; `tests/conftest.py` installs it."""

from bdb import BdbQuit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.bless import bless_mlir, is_recorded
from tests.helpers.debugger import breakpoints_at_the_terminal
from tests.helpers.environment import blessing
from tests.helpers.filecheck import RunFailure, run_line
from tests.helpers.run_lines import RunLineError, read_run_lines

_TESTS = Path(__file__).resolve().parents[1]


def is_ir_test(path: Path) -> bool:
    """Whether pytest runs the file: not what lit runs, and not what other tests only read (`inputs/`)."""
    if path.suffix != ".mlir" or not path.is_relative_to(_TESTS):
        return False
    folders = path.relative_to(_TESTS).parts[:-1]
    return folders[:1] != ("filecheck",) and "inputs" not in folders


class MlirItem(pytest.Item):
    """All RUN lines of one `.mlir` file."""

    def runtest(self) -> None:
        """Runs the file's RUN lines in order, or records its expectation when blessing."""
        text = self.path.read_text(encoding="utf-8")
        run_lines = read_run_lines(text, self.path)
        if blessing() and is_recorded(text):
            bless_mlir(self.path, run_lines)
        try:
            with breakpoints_at_the_terminal(self.config):
                for line in run_lines:
                    run_line(line, str(self.path))
        except BdbQuit:
            pytest.exit("Quitting debugger")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *arguments: Any, **options: Any) -> Any:
        """The tools' own messages instead of this file's traceback."""
        if isinstance(excinfo.value, RunFailure | RunLineError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *arguments, **options)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test is, for pytest's report."""
        return self.path, None, str(self.path.relative_to(_TESTS))


class MlirFile(pytest.File):
    """A `.mlir` file: one test."""

    def collect(self) -> Iterator[MlirItem]:
        """The file's single test."""
        yield MlirItem.from_parent(self, name="run")
