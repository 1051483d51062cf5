"""Recorded expectations, rewritten by `make bless`.

A `.mlir` test that holds the line `MARKER` has every line after it written by `make bless`: the exact output
of its one RUN line as CHECK lines. Write CHECK lines by hand, without the marker, where a few say enough.
`assert_golden` does the same for any other text.
"""

import difflib
from pathlib import Path

from tests.helpers.environment import blessing
from tests.helpers.filecheck import RunFailure, run_steps
from tests.helpers.run_lines import RunLine

MARKER = "// The expectation below is recorded; `make bless` rewrites it."


def is_recorded(text: str) -> bool:
    """Whether the test file's contents ask for a recorded expectation."""
    return MARKER in text.splitlines()


def check_lines(output: str) -> str:
    """`output` as CHECK lines that match it exactly, line after line."""
    lines: list[str] = []
    for line in output.strip("\n").splitlines():
        literal = line.replace("{{", r"{{\{\{}}").replace("[[", r"{{\[\[}}").rstrip()
        directive = "CHECK" if not lines else "CHECK-NEXT" if literal else "CHECK-EMPTY"
        lines.append(f"// {directive}: {literal}".rstrip())
    return "\n".join(lines) + "\n"


def bless_mlir(path: Path, run_lines: tuple[RunLine, ...]) -> None:
    """Rewrites the CHECK lines after `MARKER` in the test file `path`.

    Raises:
        RunFailure: the file has several RUN lines, or its one does not end in `| filecheck %s`.
    """
    if len(run_lines) != 1 or run_lines[0].steps[-1].tool != "filecheck":
        raise RunFailure(f"{path}: a recorded expectation needs exactly one RUN line, ending in `| filecheck %s`")
    output = run_steps(run_lines[0].steps[:-1], f"{path}:{run_lines[0].line}")
    head = path.read_text(encoding="utf-8").split(MARKER, maxsplit=1)[0]
    path.write_text(f"{head}{MARKER}\n{check_lines(output)}", encoding="utf-8")


def assert_golden(actual: str, golden: Path) -> None:
    """Compares `actual` with the committed text in `golden`; `make bless` writes it instead."""
    if blessing():
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(actual, encoding="utf-8")
        return
    expected = golden.read_text(encoding="utf-8") if golden.is_file() else ""
    difference = difflib.unified_diff(expected.splitlines(), actual.splitlines(), str(golden), "now", lineterm="")
    assert actual == expected, "\n".join(["`make bless` records the new text:", *difference])
