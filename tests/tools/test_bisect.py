"""treadle bisect names passes that are broken on purpose, and writes the smallest model on which they are wrong."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from tests.helpers.graphs import operators
from tests.helpers.onnx_models import linear_model, save_model, value
from treadle import ir
from treadle.backends.c import write_artifact
from treadle.backends.c.compiler import Unit
from treadle.compiler.request import read_module
from treadle.dialects.graph import BinaryOp, ComputeOp, ConstantOp, MatmulOp, SoftmaxOp, UnaryOp
from treadle.dialects.graph.constant import constant_array, constant_attribute
from treadle.passes.graph.graph_fold_constants import GraphFoldConstantsPass
from treadle.passes.graph.graph_inline import GraphInlinePass
from treadle.passes.loop.loop_simplify_index import LoopSimplifyIndexPass
from treadle.tools.treadle_cli import main

Break = Callable[[ModuleOp, ModuleOp], None]
"""Changes the module after a pass; the second argument is the one before it."""


@pytest.fixture
def model(tmp_path: Path) -> str:
    """softmax(relu(((x + a * b) @ w) - z)). An ONNX model's a * b would be folded by the importer."""
    entry = ir.Entry({"x": ir.tensor_type("float32", (6, 24)), "z": ir.tensor_type("float32", (6, 20))})
    a, b = (entry.constant(np.linspace(*ends, 24, dtype=np.float32)) for ends in ((1, 2), (3, 1)))
    shifted = entry.add(BinaryOp("add", entry["x"], entry.add(BinaryOp("mul", a, b), node="scale")), node="shift")
    weights = entry.constant(np.random.default_rng(3).standard_normal((24, 20)).astype(np.float32))
    product = entry.add(MatmulOp(shifted, weights), node="product")
    difference = entry.add(BinaryOp("sub", product, entry["z"]), node="difference")
    clamped = entry.add(UnaryOp("relu", difference), node="clamp")
    path = tmp_path / "m.mlir"
    path.write_text(ir.print_text(entry.module({"y": entry.add(SoftmaxOp(clamped, 1), node="weights")})))
    return str(path)


def break_pass(monkeypatch: pytest.MonkeyPatch, broken: type[ModulePass], wrong: Break) -> None:
    whole = broken.apply

    def apply(self: ModulePass, ctx: Context, op: ModuleOp) -> None:
        before = op.clone()
        whole(self, ctx, op)
        wrong(op, before)

    monkeypatch.setattr(broken, "apply", apply)


def fold_wrong(module: ModuleOp, before: ModuleOp) -> None:
    """A constant that the pass made has a wrong last element."""
    known = {each.value for each in before.walk() if isinstance(each, ConstantOp)}
    for each in [op for op in module.walk() if isinstance(op, ConstantOp) and op.value not in known]:
        wrong = np.array(constant_array(each), np.float32)
        wrong.reshape(-1)[-1:] += 1
        Rewriter.replace_op(each, ConstantOp(constant_attribute(wrong), each.type))


def swap_operands(module: ModuleOp, before: ModuleOp) -> None:
    """Where definitions were merged, differences have their operands exchanged."""
    if len([op for op in module.walk() if isinstance(op, ComputeOp)]) < len(
        [op for op in before.walk() if isinstance(op, ComputeOp)]
    ):
        for each in [op for op in module.walk() if isinstance(op, arith.SubfOp)]:
            Rewriter.replace_op(each, arith.SubfOp(each.rhs, each.lhs))


def drop_iteration(module: ModuleOp, before: ModuleOp) -> None:
    """Loops over 24 products end one iteration early."""
    count = IntegerAttr.from_index_int_value(24)
    for loop in [op for op in module.walk() if isinstance(op, scf.ForOp)]:
        bound = loop.ub.owner
        multiplies = any(isinstance(op, arith.MulfOp) for op in loop.walk())
        if multiplies and isinstance(bound, arith.ConstantOp) and bound.value == count:
            less = arith.ConstantOp.from_int_and_width(23, IndexType())
            Rewriter.insert_op(less, InsertPoint.before(loop))
            loop.operands[1] = less.result


def test_a_clean_model(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert main(["bisect", model, "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "all agree with the definition: the passes above, and the compiled code" in printed
    assert "loop-lower-accesses" in printed and "and the code" in printed and "DIFFERS" not in printed
    assert not output.exists()


@pytest.mark.parametrize(
    ("broken", "wrong", "operator", "left"),
    [
        (GraphFoldConstantsPass, fold_wrong, "mul 'scale'", ["constant", "constant", "binary"]),
        (GraphInlinePass, swap_operands, "relu 'clamp'", ["binary", "unary"]),
        (LoopSimplifyIndexPass, drop_iteration, "matmul 'product'", ["constant", "matmul"]),
    ],
)
def test_a_broken_pass(
    broken: type[ModulePass],
    wrong: Break,
    operator: str,
    left: list[str],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    break_pass(monkeypatch, broken, wrong)
    output = tmp_path / "out"
    assert main(["bisect", model, "-o", str(output)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"first to differ: pass '{broken.name}'" in "\n".join(lines)
    assert next(line for line in lines if line.startswith("operator: ")).endswith(operator)
    assert operators(read_module((output / "model.mlir").read_text(), "model.mlir")) == left
    assert (output / "before.mlir").read_text() != (output / "after.mlir").read_text()


def test_the_reduced_model_is_all_that_it_needs(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, second = tmp_path / "out", tmp_path / "second"
    with pytest.MonkeyPatch.context() as broken:
        break_pass(broken, LoopSimplifyIndexPass, drop_iteration)
        assert main(["bisect", model, "-o", str(output)]) == 1
        monkeypatch.setenv("TREADLE_CACHE_DIR", str(output / "cache"))  # the constants are there
        last = capsys.readouterr().out.splitlines()[-1]
        command = shlex.split(last.removeprefix("again: "))
        assert command[:3] == [f"TREADLE_CACHE_DIR={output / 'cache'}", "treadle", "bisect"]
        assert main([*command[2:], "-o", str(second)]) == 1
        assert f"first to differ: pass '{LoopSimplifyIndexPass.name}'" in capsys.readouterr().out
    assert main(command[2:]) == 0


def test_kernels_that_are_too_large_to_interpret_are_reduced_first(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bisect", model, "--operations", "1000", "-o", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert "operations, more than 1000: judged by the compiled code only" in capsys.readouterr().out
    break_pass(monkeypatch, LoopSimplifyIndexPass, drop_iteration)
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert f"first to differ: pass '{LoopSimplifyIndexPass.name}'" in printed and "matmul 'product'" in printed
    assert "  1 operators left\n" in printed


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [(" - ", " + ", "max abs error"), ("worker, long workers) {", "worker, long workers) { abort();", "SIGABRT")],
)
def test_wrong_code(
    right: str,
    wrong: str,
    problem: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The printer is wrong, or its text ends the process: every pass before agrees."""
    whole = write_artifact.print_kernels

    def printed(module: ModuleOp) -> list[Unit]:
        texts = ((unit.name, unit.text.replace(right, wrong)) for unit in whole(module))
        return [Unit(name, f"#include <stdlib.h>\n{text}") for name, text in texts]

    monkeypatch.setattr(write_artifact, "print_kernels", printed)
    assert main(["bisect", model, "-o", str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().out
    assert "first to differ: the code (pass 'loop-to-c', the printer, or the compiler)" in lines and problem in lines


def _lstm(path: Path) -> Path:
    """Three steps, in a loop whose counter is a buffer of one element."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 8, 3), "r": (1, 8, 2), "b": (1, 16)}
    weights = [numpy_helper.from_array(rng.uniform(-1, 1, s).astype(np.float32), name) for name, s in shapes.items()]
    node = helper.make_node("LSTM", ["x", *shapes], ["y"], hidden_size=2)
    return save_model(path, [node], [value("x", (3, 2, 3))], [value("y", (3, 1, 2, 2))], weights)


def _non_zero(path: Path) -> Path:
    result = helper.make_tensor_value_info("y", TensorProto.INT64, [2, "n"])
    return save_model(path, [helper.make_node("NonZero", ["x"], ["y"])], [value("x", (2, 3))], [result])


@pytest.mark.parametrize("make", [_lstm, _non_zero])
def test_loops_and_extents_that_are_data(
    make: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", str(make(tmp_path / "m.onnx")), "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "all agree with the definition" in printed
    assert "the interpreter runs the kernels after each pass" in printed


def test_a_gpu_target(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", model, "--target", "sm_80", "-o", str(tmp_path / "out")]) == 0
    assert "loop-to-cuda, and the code" in capsys.readouterr().out


def test_bad_options(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = str(linear_model(tmp_path / "m.onnx", rows="batch"))
    np.save(tmp_path / "q.npy", np.zeros((2, 8), np.float32))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    rejected = (
        ([onnx, "--shape", "batch=1..4"], "the shape has a range"),
        ([onnx, "--shape", "batch=2", "--input", f"q={tmp_path / 'q.npy'}"], "'q' is no input"),
        ([model, "--input", f"q={tmp_path / 'q.npy'}"], "there is no input 'q'"),
        ([model, "--seed", "-1"], "-1 is no seed"),
        ([model, "--operations", "-1"], "-1 operations"),
        ([model, "-o", str(tmp_path / "other")], "the folder holds other files"),
        ([str(tmp_path / "missing.onnx")], "missing.onnx"),
    )
    for arguments, message in rejected:
        assert main(["bisect", *arguments]) == 2
        assert message in capsys.readouterr().err
