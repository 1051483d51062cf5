"""Products of a range on GPUs: the kernels of calls of few rows, what these read, and how their weights lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, save
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from xdsl.dialects.builtin import ModuleOp

import treadle
from tests.helpers.loads import bytes_read
from treadle.compiler.request import CompileRequest, lowered_module
from treadle.dialects.graph import ConstantOp, FusedOp, MatmulOp
from treadle.dialects.graph.constant import constant_array
from treadle.dialects.schedule import DispatchAttr, UseAttr
from treadle.passes.schedule.ranged_schedule import PointTimes, module_points, point_defaults
from treadle.shapes.decision_tree import kernel_for
from treadle.target import Target
from treadle.target.options import CompileOptions, Weights
from treadle.tools.treadle_cli import main
from treadle.tuning.tasks import tasks_of

ROWS = "matmul_rows_mma"


def numbers(terms: int, columns: int) -> NDArray[np.float16]:
    """Weights that 4 bits hold exactly: whole numbers from -8 to 7, of which each 32 of a column have one of -8."""
    found = np.random.default_rng(1).integers(-7, 8, (terms, columns)).astype(np.float16)
    found[::32] = -8
    return found


def written(folder: Path, terms: int, columns: int) -> Path:
    """`x[s, terms] @ w`, in a file."""
    weights = numbers(terms, columns)
    x, y = (make_tensor_value_info(n, TensorProto.FLOAT16, ["s", k]) for n, k in (("x", terms), ("y", columns)))
    graph = make_graph([make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [from_array(weights, "w")])
    save(make_model(graph, opset_imports=[make_opsetid("", 18)], ir_version=9), folder / "product.onnx")
    return folder / "product.onnx"


def lowered(file: Path, target: str, rows: treadle.Dim, weights: Weights, to: str) -> ModuleOp:
    options = CompileOptions("f16", weights=weights)
    return lowered_module(CompileRequest(file, Target.parse(target), {"s": rows}, options=options), to)


def group_of(module: ModuleOp) -> FusedOp:
    (found,) = (
        op for op in module.walk() if isinstance(op, FusedOp) and any(isinstance(o, MatmulOp) for o in op.walk())
    )
    return found


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_calls_of_few_rows_get_their_kernel(tmp_path: Path, target: str) -> None:
    fused = group_of(lowered(written(tmp_path, 4096, 4096), target, treadle.Dim("s", 1, 512), "float", "schedule"))
    schedule = fused.schedule
    assert isinstance(schedule, DispatchAttr)
    for rows, few in ((1, True), (5, True), (8, True), (256, False), (512, False)):
        use = schedule.alternatives.data[kernel_for(schedule.tree.data, (rows,))]
        assert isinstance(use, UseAttr) and (use.template.data == ROWS) == few, rows
        if few:
            assert isinstance(use, UseAttr) and use.knobs()["rows"] in (1, 8)


def test_the_kernel_of_all_rows_is_predicted_with_all_rows(tmp_path: Path) -> None:
    """A block of 40 rows multiplies 40, of which one call needs one."""
    fused = group_of(lowered(written(tmp_path, 1024, 1024), "sm_80", treadle.Dim("s", 1, 40), "int4", "fuse"))
    target = Target.parse("sm_80")
    times = PointTimes.of(fused, module_points(fused), target)
    assert times is not None
    found = {use.knobs().get("rows", 0): times.of_use(use) for use in times.defaults() if use.template.data == ROWS}
    assert {0, 1, 8} <= found.keys()
    assert len(set(found[0])) == 1
    assert found[1][0] < found[8][0] < found[0][0]
    assert found[1][-1] > found[8][-1], "weights are read again for each row"


def test_calls_read_weights_for_their_own_rows(tmp_path: Path) -> None:
    """Blocks take 8 rows at a time, up to the last that a call has: weights are read once for as many."""
    file, terms, columns = written(tmp_path, 512, 128), 512, 128
    matrix = numbers(terms, columns)
    shapes = {"s": treadle.Dim("s", 1, 40)}
    with treadle.compile(
        file,
        "sm_80",
        shapes,
        precision="f16",
        weights="int4",
        device="emulator",
        counters=True,
        checks=("bounds", "init"),
    ) as model:
        for rows in (1, 3, 40):
            x = np.random.default_rng(rows).integers(-3, 4, (rows, terms)).astype(np.float16)
            (y,) = model(x=x)
            exact = x.astype(np.float64) @ matrix.astype(np.float64)
            np.testing.assert_allclose(y.astype(np.float64), exact, rtol=2.0**-11, atol=0)
            if rows <= 8:
                assert bytes_read(model.reports[-1], "B") == terms * columns // 2


@pytest.mark.parametrize(("rows", "few"), [(treadle.Dim("s", 1, 512), True), (treadle.Dim("s", 128, 512), False)])
def test_weights_of_few_bits_lie_by_columns_for_a_range_of_few_rows(
    tmp_path: Path, rows: treadle.Dim, few: bool
) -> None:
    """Once, for all kernels of the range: two numbers in a byte, which are neighbours in their column."""
    module = lowered(written(tmp_path, 1024, 256), "sm_80", rows, "int4", "fuse")
    found = [constant_array(op) for op in module.walk() if isinstance(op, ConstantOp)]
    (packed,) = (each for each in found if each.dtype.itemsize == 1)
    assert packed.size == 1024 * 256 // 2 and packed.shape[0] == (256 if few else 512)


def test_check_names_both_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, 4096, 4096)
    options = ["--shape", "s=1..512", "--target", "sm_80", "--precision", "f16", "--kernels"]
    assert main(["check", str(file), *options]) == 0
    said = capsys.readouterr().out
    assert ROWS in said and "matmul_mma" in said


def test_no_search_tries_other_rows(tmp_path: Path) -> None:
    """A search of the range begins with the candidates that it may try."""
    module = lowered(written(tmp_path, 1024, 256), "sm_80", treadle.Dim("s", 1, 512), "int4", "fuse")
    target = Target.parse("sm_80")
    (task,) = tasks_of(module, target)
    of_rows = {
        use.knobs().get("rows") for use in point_defaults(group_of(module), module_points(group_of(module)), target)
    }
    assert {1, 8} <= of_rows
    assert not any(seed.program == ROWS for seed in task.seeds)
