"""What a RUN line may say, and what happens when a step does not do what it says."""

from pathlib import Path

import pytest

from tests.helpers.bless import MARKER, assert_golden, check_lines
from tests.helpers.filecheck import RunFailure, run_line, run_tool
from tests.helpers.run_lines import RunLineError, Step, read_run_lines

HERE = Path("/somewhere/test.mlir")


def test_a_pipeline_with_quotes_and_continuation() -> None:
    text = "// RUN: treadle-opt %s -p 'a,b{x=1}' \\\n// RUN:   | filecheck %s --check-prefix=ONE\n"
    (line,) = read_run_lines(text, HERE)
    assert line.line == 1
    assert line.steps == (
        Step("treadle-opt", (str(HERE), "-p", "a,b{x=1}")),
        Step("filecheck", (str(HERE), "--check-prefix=ONE")),
    )


def test_not_and_redirection() -> None:
    (line,) = read_run_lines("  // RUN: not treadle-opt %S/x 2>&1 | filecheck %s", HERE)
    assert line.steps[0] == Step("treadle-opt", ("/somewhere/x",), must_fail=True, stderr_to_stdout=True)


@pytest.mark.parametrize("command", ["treadle-opt %s > %t", "treadle-opt %s && true", "treadle-opt %s |"])
def test_shell_syntax_outside_the_supported_part_is_named(command: str) -> None:
    with pytest.raises(RunLineError, match=r"test\.mlir:1: cannot run .*accepted: tools joined by"):
        read_run_lines(f"// RUN: {command}", HERE)


def test_a_file_without_run_line_is_an_error() -> None:
    with pytest.raises(RunLineError, match="no RUN line"):
        read_run_lines("// CHECK: x", HERE)


def test_an_unknown_tool_is_named() -> None:
    with pytest.raises(RunFailure, match="unknown tool 'mlir-opt'; accepted: filecheck"):
        run_tool("mlir-opt", ())


def checked(tmp_path: Path, checks: str, output: str) -> int:
    """filecheck's status for `output` against the lines `checks`."""
    file = tmp_path / "checks.mlir"
    file.write_text(checks, encoding="utf-8")
    return run_tool("filecheck", (str(file),), output).status


def test_filecheck_accepts_and_rejects(tmp_path: Path) -> None:
    assert checked(tmp_path, "// CHECK: a\n// CHECK-NEXT: b\n", "a\nb\n") == 0
    assert checked(tmp_path, "// CHECK: a\n// CHECK-NEXT: b\n", "a\nc\nb\n") == 1


def test_a_failing_step_shows_what_it_printed(tmp_path: Path) -> None:
    file = tmp_path / "empty.mlir"
    file.write_text("// RUN: filecheck %s\n// CHECK: a\n", encoding="utf-8")
    (line,) = read_run_lines(file.read_text(encoding="utf-8"), file)
    with pytest.raises(RunFailure, match=r"empty\.mlir:1: filecheck ended with 1\n.*is empty"):
        run_line(line, str(file))


def test_recorded_lines_match_exactly_what_was_printed(tmp_path: Path) -> None:
    output = "\nbuiltin.module {\n  x = [[1, 2]], {{3}}\n\n}\n"
    recorded = f"{MARKER}\n{check_lines(output)}"
    assert checked(tmp_path, recorded, output) == 0
    assert checked(tmp_path, recorded, output.replace("[[1", "[[9")) == 1


def test_golden_text_shows_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = tmp_path / "text.golden"
    monkeypatch.setenv("TREADLE_BLESS", "1")
    assert_golden("one\n", golden)
    monkeypatch.delenv("TREADLE_BLESS")
    assert_golden("one\n", golden)
    with pytest.raises(AssertionError, match=r"make bless[\s\S]*\+two"):
        assert_golden("two\n", golden)
