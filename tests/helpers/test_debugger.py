"""A debugger in an IR test: what is typed reaches it, and what the tool reads and writes does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.environment import environment_with

ROOT = Path(__file__).parents[2]
BREAKS = """
from treadle.passes.graph.graph_deduplicate import GraphDeduplicatePass
whole = GraphDeduplicatePass.apply
def apply(self, context, op):
    answer = 6 * 7
    breakpoint()
    whole(self, context, op)
GraphDeduplicatePass.apply = apply
"""


def run(options: list[str], typed: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "breaks.py").write_text(BREAKS)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-p", "breaks", *options]
    return subprocess.run(
        [*command, str(ROOT / "tests/passes/graph/graph-deduplicate.mlir")],
        input=typed, env=environment_with({"PYTHONPATH": f"{ROOT}:{folder}"}), cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("options", [["-s"], []], ids=["streams", "captured"])
def test_a_breakpoint_asks_at_the_terminal(options: list[str], tmp_path: Path) -> None:
    done = run(options, "p answer\nc\n" * 9, tmp_path)
    assert "(Pdb) 42" in done.stdout and "1 passed" in done.stdout, done.stdout + done.stderr


def test_leaving_the_debugger_ends_the_run(tmp_path: Path) -> None:
    done = run([], "q\n", tmp_path)
    assert "Quitting debugger" in done.stdout and done.returncode == 2
