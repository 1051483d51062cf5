"""loop-tail-tiles: tiles of fewer rows where the required region ends, with the same values."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.compiled import RUNNERS
from tests.helpers.extents import CASES, Extents
from tests.helpers.program_batch import compile_programs, print_program
from treadle.backends.c import executor
from treadle.dialects.graph import FusedOp
from treadle.dialects.schedule import UseAttr
from treadle.ir import lower, parse, print_text, run_passes
from treadle.target.host import host_target

ROWS = Extents(
    {"s": 37},
    [("s", 16), (16, 48), (48,)],
    [("s", 48)],
    """
  %h = graph.matmul %x0, %x1 : (tensor<37x16xf32>, tensor<16x48xf32>) -> tensor<37x48xf32>
  %y0 = graph.binary "add" %h, %x2 : (tensor<37x48xf32>, tensor<48xf32>) -> tensor<37x48xf32>""",
    ["d0 < 0"],
    lambda x, w, bias, s: [x @ w + bias],
)
"""The last of its tiles overhangs the largest shape, too."""


def _filled(array: NDArray[Any]) -> NDArray[Any]:
    array.fill(np.nan if array.dtype == np.float32 else 0)
    return array


def test_every_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right as far as they are needed; of the last tile, as many rows are stored as the next larger height has."""
    empty = executor.aligned_empty
    monkeypatch.setattr(executor, "aligned_empty", lambda shape, dtype: _filled(empty(shape, dtype)))
    compiled = compile_programs([print_program("program", ROWS.module())])["program"]
    for s in range(1, 38):
        given, exact = ROWS.arguments({"s": s}, beyond=1)
        outputs = compiled.run(given)
        ROWS.check({"s": s}, outputs, exact)
        stored = int(np.isfinite(outputs[0]).all(axis=1).sum())
        whole, rest = s // 8 * 8, s % 8
        assert stored == min(37, whole + next(height for height in (0, 1, 4, 6, 8) if height >= rest))
        assert not np.isfinite(outputs[0][stored:]).any()


def _columns(bound: int) -> Extents:
    """Of a product by rows."""
    return Extents(
        {"s": bound},
        [(5, 16), ("s", 16)],
        [(5, "s")],
        f"""
  %w = graph.transpose %x1 {{perm = array<i64: 1, 0>}} : (tensor<{bound}x16xf32>) -> tensor<16x{bound}xf32>
  %y0 = graph.matmul %x0, %w : (tensor<5x16xf32>, tensor<16x{bound}xf32>) -> tensor<5x{bound}xf32>""",
        ["d1 < 0"],
        lambda x, w, s: [x @ w.T],
    )


def test_every_number_of_columns() -> None:
    """Of panels of three vectors, the last of which overhangs the largest shape, on this machine."""
    lanes = host_target().lanes
    case = _columns(5 * lanes - 3)
    module = case.module()
    lower(module, "cpu", to="schedule")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    fused.schedule = UseAttr.get("matmul_cpu", {"rows": 5, "vectors": 3, "chunk": 5, "pack": True, "passes": 1})
    scheduled = print_text(module)
    lower(module, "cpu", after="schedule", to="kernels")
    widths = {int(columns) for columns in re.findall(r"#task\.map<repeat\(5, (\d+)\)>", print_text(module))}
    assert widths == {lanes, 2 * lanes, 3 * lanes}
    compiled = compile_programs([print_program("program", parse(scheduled), after="schedule")])["program"]
    for s in range(1, 5 * lanes - 2):
        given, exact = case.arguments({"s": s}, beyond=1)
        case.check({"s": s}, compiled.run(given), exact)


@pytest.mark.parametrize("name", ["linear", "merged", "half", "attention"])
def test_rows_of_several_dimensions(name: str) -> None:
    case = CASES[name]
    compiled = compile_programs([print_program("program", case.module())])["program"]
    for rows in (1, 2, 3, 5, 6, 7, 15, 39, 40):
        extents = {extent: min(rows, bound) for extent, bound in case.bounds.items()}
        given, exact = case.arguments(extents)
        case.check(extents, compiled.run(given), exact)


def test_the_text_has_a_tile_of_each_height() -> None:
    module = ROWS.module()
    lower(module, "avx512", to="kernels")
    text = print_text(module)
    heights = sorted({int(rows) for rows in re.findall(r"#task\.map<repeat\((\d+), 48\)>", text)})
    assert heights[:3] == [1, 4, 6] and heights[3] > 6
    for rows in heights:
        assert f"memref<{rows}x48xf32, #loop.space<register>>" in text
        assert text.count(f"repeat({rows}, 48)") == 3, "zeros, sums and stores"


def test_tiles_of_gpus_are_left() -> None:
    module = ROWS.module()
    lower(module, "sm_80", to="kernels")
    before = print_text(module)
    run_passes(module, "loop-tail-tiles")
    assert print_text(module) == before and " requires [" in before
    given, exact = ROWS.arguments({"s": 5})
    ROWS.check({"s": 5}, RUNNERS["emulator"](ROWS.module(), given), exact)


KERNEL = """
func.func @main(%x: tensor<32x16xf32>, %s: tensor<i64>) -> tensor<32x16xf32>
    attributes {input_names = ["x", "s"], output_names = ["y"], extents = ["s"],
                output_required = [#graph.required<d0 < 0>]} {
  %y = loop.kernel @k ins(%A = %x : tensor<32x16xf32>) outs(%C : tensor<32x16xf32>) requires [#graph.required<d0 < 0>]
      grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c32 = arith.constant 32 : index
    scf.for %m = %c0 to %c32 step %c4 {
      %acc = loop.alloc : memref<4x16xf32, #loop.space<register>>
      scf.for %k = %c0 to %c4 step %c1 {
        task.for (%r, %n) in #task.map<repeat(4, 16)> {
          %row = arith.addi %m, %r : index
          %v = loop.load %A[%row, %n] : memref<32x16xf32>
          loop.store %v, %acc[%r, %n] : memref<4x16xf32, #loop.space<register>>
        }
      }
      task.for (%r, %n) in #task.map<repeat(4, 16)> {
        %row = arith.addi %m, %r : index
        %v = loop.load %acc[OTHER, %n] : memref<4x16xf32, #loop.space<register>>
        loop.store %v, %C[%row, %n] : memref<32x16xf32>
      }
    }
  }
  func.return %y : tensor<32x16xf32>
}
"""


def test_rows_that_use_each_other_stay_together() -> None:
    alone, mixed = parse(KERNEL.replace("OTHER", "%r")), parse(KERNEL.replace("OTHER", "%c1"))
    before = print_text(mixed)
    for module in (alone, mixed):
        run_passes(module, "loop-tail-tiles")
    text = print_text(alone)
    assert text.count("repeat(1, 16)") == 2 and text.count("repeat(4, 16)") == 2 and "scf.if" in text
    assert print_text(mixed) == before
