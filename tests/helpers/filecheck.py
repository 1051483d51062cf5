"""Running RUN lines in this process: starting a tool costs 0.2 s, calling its `main` a few milliseconds."""

import io
import pkgutil
import sys
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import cast

from tests.helpers.run_lines import RunLine, Step

TOOLS: Mapping[str, str] = {
    "treadle-opt": "treadle.tools.treadle_opt:main",
    "treadle": "treadle.tools.treadle_cli:main",
    "filecheck": "filecheck.main:main",
}
"""Each tool's `main`, called as its console script calls it: without arguments, the words in `sys.argv`."""


class RunFailure(Exception):
    """A step ended other than its RUN line says; the message holds what it printed."""


@dataclass(frozen=True)
class Outcome:
    """What a tool left: its exit status and the text on its two streams."""

    status: int
    stdout: str
    stderr: str


@contextmanager
def _process_state(arguments: list[str], stdin: str) -> Generator[None]:
    """`sys.argv` and `sys.stdin` (with its binary `buffer`) as a new process would have them."""
    saved = sys.argv, sys.stdin
    sys.argv, sys.stdin = arguments, io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        yield
    finally:
        sys.argv, sys.stdin = saved


def _status(main: Callable[[], object]) -> int:
    """The exit status that a process would have whose console script calls `main`."""
    try:
        result = main()
    except SystemExit as stop:
        result = stop.code
    except BdbQuit:
        raise
    except Exception:
        traceback.print_exc()
        return 1
    if result is None or isinstance(result, int):
        return result or 0
    print(result, file=sys.stderr)
    return 1


def run_tool(tool: str, arguments: tuple[str, ...], stdin: str = "", stderr_to_stdout: bool = False) -> Outcome:
    """Runs `tool` as a process would run, in this one.

    Raises:
        RunFailure: no tool of that name can be run in-process.
    """
    if tool not in TOOLS:
        raise RunFailure(f"unknown tool {tool!r}; accepted: {', '.join(sorted(TOOLS))}")
    main = cast(Callable[[], object], pkgutil.resolve_name(TOOLS[tool]))
    stdout = io.StringIO()
    stderr = stdout if stderr_to_stdout else io.StringIO()
    with _process_state([tool, *arguments], stdin), redirect_stdout(stdout), redirect_stderr(stderr):
        status = _status(main)
    return Outcome(status, stdout.getvalue(), "" if stderr_to_stdout else stderr.getvalue())


def run_steps(steps: tuple[Step, ...], where: str) -> str:
    """Runs the steps as a pipeline and returns the last one's output.

    Raises:
        RunFailure: a step failed, or succeeded although the RUN line says `not`.
    """
    text = ""
    for step in steps:
        outcome = run_tool(step.tool, step.arguments, text, step.stderr_to_stdout)
        if (outcome.status != 0) != step.must_fail:
            expected = "had to fail but ended with 0" if step.must_fail else f"ended with {outcome.status}"
            shown = "\n".join(part for part in (outcome.stderr, outcome.stdout) if part)
            given = f"\nits input was:\n{text}" if step.tool == "filecheck" else ""
            raise RunFailure(f"{where}: {step.tool} {expected}\n{shown}{given}")
        text = outcome.stdout
    return text


def run_line(line: RunLine, path: str) -> None:
    """Runs one RUN line of the test file `path`, or raises `RunFailure`."""
    run_steps(line.steps, f"{path}:{line.line}")
