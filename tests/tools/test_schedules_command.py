"""What `treadle schedules` lists is what the templates' spaces hold."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from treadle.api import resolve_target
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.templates import TEMPLATES
from treadle.target.options import CompileOptions
from treadle.tools.treadle_cli import main
from treadle.tuning.model import tasks_of_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """softmax(x w), with a symbolic number of rows."""
    w = numpy_helper.from_array(np.ones((16, 40), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 40])
    path = tmp_path / "m.onnx"
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["schedules", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("target", ["cpu", "avx2", "sm_80"])
def test_groups_have_their_templates(model: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    out = listed(capsys, str(model), "--shape", "rows=24", "--target", target)
    tasks = tasks_of_model(model, resolve_target(target), {"rows": (24,)}, CompileOptions())
    blocks = out.strip().split("\n\n")
    assert len(blocks) == len(tasks)
    for task, block in zip(tasks, blocks, strict=True):
        assert block.startswith(f"{task}, 1 group\n  default #schedule.use<")
        default = re.search(r'#schedule\.use<"(\w+)", \{(.*)\}>', block)
        assert default is not None
        names = [each.partition(" = ")[0] for each in re.split(r", (?=\w+ = )", default[2])]
        assert sorted(names) == sorted(each.name for each in TEMPLATES[default[1]].knobs if each.unless_given is None)
        for name, count in re.findall(r"^  (\w+): (\d+) different kernels", block, re.MULTILINE):
            found = list(TEMPLATES[name].candidates(anchor_of(task.program.fused), resolve_target(target)))
            assert len(found) == int(count) > 0


def test_limits_are_counted(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = listed(capsys, str(model), "matmul", "--shape", "rows=24", "--limits")
    assert "softmax" not in out
    counts = re.search(r"of (\d+) combinations", out)
    rejected = re.findall(r"^    (\d+) rejected: rows of a chunk's tiles, at least [\d.]+% too much$", out, re.M)
    assert counts is not None
    assert [0 < int(count) < int(counts[1]) for count in rejected] == [True]
    (closest,) = re.findall(
        r"closest: @matmul_cpu .*: tiles of (\d+) rows overrun a chunk of (\d+) rows by (\d+)$", out, re.M
    )
    rows, chunk, over = map(int, closest)
    assert (chunk + over) % rows == 0


def test_the_other_knobs_and_the_anchor_decide(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = listed(capsys, str(model), "matmul", "--shape", "rows=24", "--target", "sm_80")
    assert re.search(r'^    a_order +"k" \(the anchor decides\): ', out, re.M)
    assert re.search(r"^    split_k .*\(the other knobs decide\): ", out, re.M)


def test_a_word_that_no_group_has(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedules", str(model), "pool", "--shape", "rows=24"]) == 2
    assert "no group is called pool; accepted: " in capsys.readouterr().err
