"""Products of ranges in several passes over K, whose sums wait in a buffer: rows that nobody needs are computed in no
pass; beside NumPy, for every number of rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from tests.helpers.extents import Extents
from tests.helpers.program_batch import CompiledProgram, compile_programs, print_program
from treadle.backends.c import executor
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.schedule import UseAttr
from treadle.ir import lower, parse, print_text, run_passes
from treadle.passes.schedule.instance import anchor_of

Array = NDArray[Any]
TARGET = "cpu{cores=2}"
"""So that a core has whole panels where there are several chunks."""


def rows(longest: int, k: int, n: int) -> Extents:
    """A product of so many rows at most, with a bias and an exponential behind it."""
    return Extents(
        {"s": longest},
        [("s", k), (k, n), (n,)],
        [("s", n)],
        f"""
  %h = graph.matmul %x0, %x1 : (tensor<{longest}x{k}xf32>, tensor<{k}x{n}xf32>) -> tensor<{longest}x{n}xf32>
  %y0 = graph.binary "add" %h, %x2 : (tensor<{longest}x{n}xf32>, tensor<{n}xf32>) -> tensor<{longest}x{n}xf32>""",
        ["d0 < 0"],
        lambda x, w, bias, s: [x @ w + bias],
    )


def merged(batch: int, longest: int, k: int, n: int) -> Extents:
    """A product of the rows of several sequences, one behind the other."""
    total = batch * longest
    return Extents(
        {"b": batch, "s": longest},
        [("b", "s", k), (k, n)],
        [("b", "s", n)],
        f"""
  %f = graph.reshape %x0 {{shape = array<i64: {total}, {k}>}} : (tensor<{batch}x{longest}x{k}xf32>)
      -> tensor<{total}x{k}xf32>
  %h = graph.matmul %f, %x1 : (tensor<{total}x{k}xf32>, tensor<{k}x{n}xf32>) -> tensor<{total}x{n}xf32>
  %y0 = graph.reshape %h {{shape = array<i64: {batch}, {longest}, {n}>}} : (tensor<{total}x{n}xf32>)
      -> tensor<{batch}x{longest}x{n}xf32>""",
        ["d0 < 0, d1 < 1"],
        lambda x, w, b, s: [x @ w],
    )


@dataclass(frozen=True)
class Case:
    """A product of a range and its tile."""

    extents: Extents
    rows: int
    chunk: int
    passes: int
    pack: bool = False

    def scheduled(self) -> ModuleOp:
        """With the tile as its decision."""
        module = self.extents.module()
        lower(module, TARGET, to="schedule")
        (group,) = [op for op in module.walk() if isinstance(op, FusedOp) and isinstance(anchor_of(op), MatmulOp)]
        knobs = {"rows": self.rows, "vectors": 2, "chunk": self.chunk, "pack": self.pack, "passes": self.passes}
        group.schedule = UseAttr.get("matmul_cpu", knobs)
        return module

    def compiled(self) -> CompiledProgram:
        """As C."""
        return compile_programs([print_program("program", self.scheduled(), TARGET, after="schedule")], TARGET)[
            "program"
        ]


CASES: Mapping[str, Case] = {
    "one chunk": Case(rows(32, 256, 40), 4, 32, 4),
    "two chunks": Case(rows(32, 128, 33), 4, 16, 2),
    "tiles overhang": Case(rows(37, 192, 32), 6, 18, 3),
    "packed": Case(rows(20, 128, 48), 5, 20, 2, pack=True),
    "sequences of tiles": Case(merged(2, 16, 128, 32), 4, 32, 2),
    "sequences that end within tiles": Case(merged(3, 10, 128, 32), 4, 16, 2),
}


def _filled(array: Array) -> Array:
    array.fill(np.nan if array.dtype == np.float32 else 0)
    return array


@pytest.mark.parametrize("name", CASES)
def test_every_extent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies beyond the rows of a call is NaN before it, in inputs and in outputs."""
    empty = executor.aligned_empty
    monkeypatch.setattr(executor, "aligned_empty", lambda shape, dtype: _filled(empty(shape, dtype)))
    case = CASES[name]
    compiled = case.compiled()
    for values in product(*(range(1, bound + 1) for bound in case.extents.bounds.values())):
        extents = dict(zip(case.extents.bounds, values, strict=True))
        given, exact = case.extents.arguments(extents)
        case.extents.check(extents, compiled.run(given), exact)


def test_rows_beyond_the_last_tile_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles have 1 or 4 rows."""
    empty = executor.aligned_empty
    monkeypatch.setattr(executor, "aligned_empty", lambda shape, dtype: _filled(empty(shape, dtype)))
    case = CASES["one chunk"]
    compiled = case.compiled()
    for s in range(1, 33):
        (output,) = compiled.run(case.extents.arguments({"s": s}, beyond=1)[0])
        stored = int(np.isfinite(output).all(axis=1).sum())
        whole, rest = s // 4 * 4, s % 4
        assert stored == whole + next(height for height in (0, 1, 4) if height >= rest)
        assert not np.isfinite(output[stored:]).any()


def test_passes_end_where_the_required_region_does() -> None:
    """The loop over tiles in each pass, and tiles of each height."""
    module = CASES["one chunk"].scheduled()
    lower(module, TARGET, after="schedule", to="kernels")
    text = print_text(module)
    assert "%sums = loop.alloc : memref<32x" in text
    assert "scf.for %pass = " in text
    assert not re.search(r"scf\.for %m = %\S+ to %c32\S* step", text)
    assert {int(height) for height in re.findall(r"%acc\S* = loop\.alloc : memref<(\d+)x", text)} == {1, 4}


KERNEL = """
func.func @main(%x: tensor<32x16xf32>, %s: tensor<i64>) -> tensor<32x16xf32>
    attributes {input_names = ["x", "s"], output_names = ["y"], extents = ["s"]} {
  %y = loop.kernel @k ins(%A = %x : tensor<32x16xf32>) outs(%C : tensor<32x16xf32>) requires [#graph.required<d0 < 0>]
      grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c32 = arith.constant 32 : index
    %sums = loop.alloc : memref<32x16xf32, #loop.space<register>>
    scf.for %pass = %c0 to %c4 step %c1 {
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
          %first = arith.addi %m, %c1 : index
          %turned = arith.subi %first, %r : index
          %v = loop.load %acc[%r, %n] : memref<4x16xf32, #loop.space<register>>
          %w = loop.load %sums[OTHER, %n] : memref<32x16xf32, #loop.space<register>>
          %t = arith.addf %v, %w : f32
          loop.store %t, %sums[%row, %n] : memref<32x16xf32, #loop.space<register>>
          loop.store %t, %C[%row, %n] : memref<32x16xf32>
        }
      }
    }
  }
  func.return %y : tensor<32x16xf32>
}
"""


@pytest.mark.parametrize(("other", "shortened"), [("%row", True), ("%first", False), ("%turned", False), ("%n", False)])
def test_rows_of_a_buffer_that_others_read_stay(other: str, shortened: bool) -> None:
    """Tiles get shorter where each row reads its own row of the buffer only."""
    module = parse(KERNEL.replace("OTHER", other))
    before = print_text(module)
    run_passes(module, "loop-tail-tiles")
    assert (print_text(module) != before) is shortened
