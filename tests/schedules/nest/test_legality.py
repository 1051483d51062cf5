"""Which stages and which sizes a nest cannot have, and what the errors say."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from tests.schedules.nest.test_box import MATMUL, TILES, TRANSPOSED, nest
from tests.schedules.nest.test_nest import CPU, program, work_of_operator
from tests.schedules.row_cases import tensor
from treadle.dialects.graph import ComputeOp, MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import Workload, workload_of
from treadle.schedules.template import LimitError

UNEVEN = """%i, %j = schedule.axes 2 spatial, 0 reduction
%p = schedule.fuse %i, %j
%p0, %p1 = schedule.split %p by (4)
schedule.arrange block(%p0) repeat(%p1)
schedule.stage 0 at %p0 in "register"
"""


@pytest.mark.parametrize(
    ("workload", "body", "says"),
    [
        (
            MATMUL,
            TILES + 'schedule.stage 2 at %k0 in "shared"',
            "stage of read 2: there is no such read; accepted: 0 to 1",
        ),
        (
            TRANSPOSED,
            UNEVEN,
            "stage of read 0: an index is not something of the outer levels plus a linear form of the inner ones",
        ),
        (
            MATMUL,
            TILES + 'schedule.stage 0 at %k0 in "register" buffers 2',
            "vectors or buffers of a stage in registers",
        ),
        (
            MATMUL,
            TILES + 'schedule.stage 0 at %i0 in "shared" buffers 2',
            "nothing is ahead of a stage that is filled once",
        ),
        (
            MATMUL,
            TILES + 'schedule.stage 0 at %k0 in "shared" buffers 3',
            "3 buffers, and registers hold what is fetched",
        ),
        (
            MATMUL,
            TILES + 'schedule.stage 0 at %k0 in "shared"\nschedule.stage 0 at %k1 in "shared"',
            "read 0 is staged twice at one level or in one memory; accepted: shared at an outer level, register at an",
        ),
        (
            MATMUL,
            TILES + 'schedule.stage 0 at %k0 in "register"\nschedule.stage 0 at %k1 in "shared"',
            "read 0 goes from registers to shared memory",
        ),
        (
            MATMUL,
            TILES + 'schedule.stage 0 at %k0 in "shared"\nschedule.stage 1 at %k0 in "shared" buffers 2',
            "reads 0 and 1 are staged at one level in 1 and 2 buffers, or one of them is async",
        ),
    ],
)
def test_stages_that_cannot_be(workload: Workload, body: str, says: str) -> None:
    with pytest.raises(TreadleError) as caught:
        nest(body, workload)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("what", "body", "error"),
    [
        (
            "threads",
            "schedule.arrange thread(%i, %j) loop(%k)",
            LimitError("threads", 4096, 1024),
        ),
        (
            "bytes of shared memory",
            'schedule.arrange block(%i, %j) loop(%k)\nschedule.stage 0 at %i in "shared"',
            LimitError("bytes of shared memory", 80000, 49152),
        ),
        (
            "registers of a thread",
            "%i0, %i1 = schedule.split %i by (4)\nschedule.arrange block(%i0) loop(%k) repeat(%i1, %j)",
            LimitError("registers of a thread", 272, 255),
        ),
        (
            "registers of a multiprocessor",
            "%i0, %i1 = schedule.split %i by (8)\n%j0, %j1 = schedule.split %j by (8)\n"
            "schedule.arrange repeat(%i0, %j0) thread(%i1, %j1) loop(%k) min_blocks_per_sm 16",
            LimitError("registers of a multiprocessor", 81920, 65536),
        ),
    ],
)
def test_limits_of_a_gpu(what: str, body: str, error: LimitError) -> None:
    axes = "%i, %j, %k = schedule.axes 2 spatial, 1 reduction\n"
    with pytest.raises(LimitError) as caught:
        nest(axes + body, work_of_operator(MatmulOp(tensor(64, 20000), tensor(20000, 64))))
    assert (caught.value.what, caught.value.used, caught.value.allowed) == (what, error.used, error.allowed)
    assert str(error).endswith(
        f"it takes {error.used} {what}, {error.used - error.allowed} too many; accepted: at most {error.allowed}"
    )


def test_stages_on_a_cpu_stay_in_its_cache() -> None:
    body = "%i, %j, %k = schedule.axes 2 spatial, 1 reduction\nschedule.arrange block(%i) loop(%k) repeat(%j)\n"
    workload = work_of_operator(MatmulOp(tensor(64, 20000), tensor(20000, 64)))
    with pytest.raises(LimitError, match=f"it takes 5120000 bytes of stages, {5120000 - CPU.l2_bytes} too many"):
        nest_of(program(body + 'schedule.stage 1 at %i in "register"'), {}, workload, CPU)


COMPUTED = """
func.func @main(%x: tensor<8x8xf32>, %y: tensor<8xf32>, %n: tensor<8xi64>) -> tensor<8xf32> {{
  %r = graph.compute (%i) {{
    %s = graph.reduce add (%k in 8) {{
      {term}
      graph.yield %t : f32
    }}
    %b = graph.at %y[%i] : tensor<8xf32>
    %o = arith.addf %s, %b : f32
    graph.yield %o : f32
  }} : tensor<8xf32>
  func.return %r : tensor<8xf32>
}}
"""
PLAIN = "%t = graph.at %x[%i, %k] : tensor<8x8xf32>"
COMPARED = """%inside = arith.cmpi slt, %k, %i : index
      %zero = arith.constant 0.0 : f32
      %t = graph.at %x[%i, %k] where %inside else %zero : tensor<8x8xf32>"""
OTHER = """%c4 = arith.constant 4 : index
      %inside = arith.cmpi slt, %k, %c4 : index
      %other = graph.at %y[%k] : tensor<8xf32>
      %t = graph.at %x[%i, %k] where %inside else %other : tensor<8x8xf32>"""
LOADED = """%at = graph.at %n[%k] : tensor<8xi64>
      %j = arith.index_cast %at : i64 to index
      %t = graph.at %x[%i, %j] : tensor<8x8xf32>"""


@pytest.mark.parametrize(
    ("term", "read", "says"),
    [
        (PLAIN, 1, "the read is outside of the reduction; accepted: a level in block"),
        (COMPARED, 0, "the read has a predicate that compares something else than its own indices"),
        (OTHER, 1, "the read gives a computed value where its predicate is false"),
        (LOADED, 1, "the read has an index that is computed from data"),
    ],
    ids=["outside", "another predicate", "another value", "data"],
)
def test_reads_that_cannot_be_staged(term: str, read: int, says: str) -> None:
    module = Parser(treadle_context(), COMPUTED.format(term=term)).parse_module()
    (compute,) = (op for op in module.walk() if isinstance(op, ComputeOp))
    body = "%i, %k = schedule.axes 1 spatial, 1 reduction\nschedule.arrange block(%i) loop(%k)\n"
    with pytest.raises(TreadleError) as caught:
        nest(body + f'schedule.stage {read} at %k in "register"', workload_of(compute))
    assert says in str(caught.value)
