"""The example names a pass that was broken on purpose, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import Rewriter

from examples.find_the_pass import main
from tests.helpers.onnx_models import linear_model
from treadle.passes.loop.loop_fuse_epilogue import LoopFuseEpiloguePass
from treadle.passes.lower.task_lower import TaskLowerPass

TARGETS = ("cpu", "sm_80")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(linear_model(tmp_path / "m.onnx", rows="batch"))


@pytest.mark.parametrize("target", TARGETS)
def test_every_pass_keeps_the_values(target: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([model, "--shape", "batch=3", "--target", target]) == 0
    printed = capsys.readouterr().out
    assert "graph-fold-constants" in printed and "loop-unroll" in printed and "<-- here" not in printed


@pytest.mark.parametrize("broken", [LoopFuseEpiloguePass, TaskLowerPass])
def test_a_broken_pass_is_named(
    broken: type[LoopFuseEpiloguePass | TaskLowerPass],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = broken.apply

    def apply(self: LoopFuseEpiloguePass | TaskLowerPass, ctx: Context, op: ModuleOp) -> None:
        whole(self, ctx, op)  # pyright: ignore[reportArgumentType]
        for product in [each for each in op.walk() if isinstance(each, arith.MulfOp)]:
            Rewriter.replace_op(product, arith.AddfOp(product.lhs, product.rhs))

    monkeypatch.setattr(broken, "apply", apply)
    assert main([model, "--shape", "batch=3"]) == 1
    first = next(line for line in capsys.readouterr().out.splitlines() if "<-- here" in line)
    assert broken.name in first
