"""loop-clamp-reductions: products whose terms end at an extent, beside NumPy, for every extent; and what they cost."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.compiled import RUNNERS
from tests.helpers.extents import Extents
from tests.helpers.program_batch import compile_programs, print_program
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.schedule import UseAttr
from treadle.ir import lower, print_text
from treadle.passes.schedule.instance import anchor_of

TARGET = "avx512"
PRODUCT = Extents(
    {"t": 64},
    [(3, "t", "t"), (3, "t", 48)],
    [(3, "t", 48)],
    """
  %a = graph.mask %x0 below %t {dim = 2 : i64, fill = 0.0 : f32}
      : (tensor<3x64x64xf32>, tensor<i64>) -> tensor<3x64x64xf32>
  %b = graph.mask %x1 below %t {dim = 1 : i64, fill = 0.0 : f32}
      : (tensor<3x64x48xf32>, tensor<i64>) -> tensor<3x64x48xf32>
  %y0 = graph.matmul %a, %b : (tensor<3x64x64xf32>, tensor<3x64x48xf32>) -> tensor<3x64x48xf32>""",
    ["d1 < 0"],
    lambda x, w, t: [x @ w],
)
"""Elements beyond the extents are NaN, which no term may be."""


@pytest.mark.parametrize("pack", [False, True])
def test_every_extent(pack: bool) -> None:
    module = PRODUCT.module()
    lower(module, "cpu", to="schedule")
    (group,) = [op for op in module.walk() if isinstance(op, FusedOp) and isinstance(anchor_of(op), MatmulOp)]
    group.schedule = UseAttr.get("matmul_cpu", {"rows": 4, "vectors": 1, "chunk": 32, "pack": pack, "passes": 1})
    compiled = compile_programs([print_program("program", module, after="schedule")])["program"]
    for t in range(1, 65):
        given, exact = PRODUCT.arguments({"t": t})
        PRODUCT.check({"t": t}, compiled.run(given), exact)


@pytest.mark.parametrize("runner", RUNNERS)
def test_defaults(runner: str) -> None:
    for t in (1, 7, 64):
        given, exact = PRODUCT.arguments({"t": t})
        PRODUCT.check({"t": t}, RUNNERS[runner](PRODUCT.module(), given), exact)


def test_no_term_beyond_is_computed() -> None:
    """Of every height of tiles, the loop over terms ends at the extent."""
    module = PRODUCT.module()
    lower(module, TARGET, to="kernels")
    loops = [line.strip() for line in print_text(module).splitlines() if "scf.for %k" in line]
    ends = {line.split(" to ")[1].split(" ")[0] for line in loops}
    text = print_text(module)
    assert len(loops) > 1 and all(f"{end} = arith.minsi" in text for end in ends)


def test_a_not_a_number_of_the_model_stays() -> None:
    """Terms that count are not left out."""
    given, _ = PRODUCT.arguments({"t": 5})
    given[0][1, 2, 4] = np.nan
    (output,) = RUNNERS["c"](PRODUCT.module(), given)
    found = np.isnan(output[:, :5])
    assert found[1, 2].all() and not np.delete(found.reshape(15, 48), 7, axis=0).any()
