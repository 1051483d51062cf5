"""Nests on tensor cores as values: what they cannot be, how operands lie, and which lane has which element."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from tests.schedules.nest.test_box import nest
from tests.schedules.nest.test_nest import program, work_of_operator
from tests.schedules.row_cases import tensor
from treadle.dialects.graph import ComputeOp, ConvOp, MatmulOp
from treadle.dialects.loop.attributes import swizzle_of_rows
from treadle.dialects.registry import treadle_context
from treadle.dialects.task import prove_cover
from treadle.errors import TreadleError
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import TF32, Workload, workload_of
from treadle.schedules.template import LimitError
from treadle.target import Target

HALF = "float16"
PRODUCT = work_of_operator(MatmulOp(tensor(128, 96, dtype=HALF), tensor(96, 160, dtype=HALF)))
FLOATS = work_of_operator(MatmulOp(tensor(128, 96), tensor(96, 160)))
IMAGES = work_of_operator(
    ConvOp(tensor(1, 32, 10, 18, dtype=HALF), tensor(16, 32, 3, 3, dtype=HALF), [1, 1], [0] * 4, [1, 1], 1)
)
AXES = "%i, %j, %k = schedule.axes 2 spatial, 1 reduction\n"
TILES = (
    AXES
    + """%i0, %i1, %i2, %i3 = schedule.split %i by (2, 2, 16)
%j0, %j1, %j2, %j3 = schedule.split %j by (2, 1, 16)
%k0, %k1, %k2 = schedule.split %k by (2, 16)
schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2) mma(%i3, %j3, %k2)
"""
)
STAGES = 'schedule.stage 0 at %k0 in "shared" vector 8\nschedule.stage 1 at %k0 in "shared" vector 8\n'


def test_a_warp_has_the_fragments_of_its_products() -> None:
    whole = nest(TILES + STAGES, PRODUCT)
    # Of 64 x 32 elements by 4 warps a thread has 16, in two products of 16 x 16.
    assert (whole.threads, whole.grid, whole.accumulators) == (128, 10, 16)
    assert (whole.factors, [whole.fragments(read) for read in (0, 1)]) == ((0, 1), [(6,), ()])
    assert whole.fragment_registers == 2 * 4 + 4


def test_lanes_do_the_tasks_of_the_mapping() -> None:
    whole = nest(TILES + STAGES, PRODUCT)
    assert whole.mapping.workers == whole.threads
    assert whole.mapping.shape == (64, 32, 96)
    rows_and_columns = {w: {task[:2] for task in whole.mapping(w)} for w in range(whole.threads)}
    assert sorted(task for tasks in rows_and_columns.values() for task in tasks) == [
        (i, j) for i in range(64) for j in range(32)
    ]
    # PTX ISA, mma.m16n8k16: lane 5 has rows 1 and 9, columns 2 and 3, and of the next product 10 and 11.
    first = {(i, j) for i, j in rows_and_columns[5] if i < 16}
    assert first == {(i, j) for i in (1, 9) for j in (2, 3, 10, 11)}
    assert prove_cover(whole.mapping) is None


def test_operands_lie_in_swizzled_rows_as_in_their_tensors() -> None:
    whole = nest(TILES + STAGES, PRODUCT)
    a, b = (whole.layout(stage) for stage in whole.stages)
    assert (a.shape, a.order, a.swizzle) == ((64, 32), (0, 1), swizzle_of_rows(64, 2))
    assert (b.shape, b.order, b.swizzle) == ((32, 32), (0, 1), swizzle_of_rows(64, 2))


def test_a_batch_and_a_window_stand_outside_of_the_rows() -> None:
    body = """%n, %o, %h, %w, %c, %y, %x = schedule.axes 4 spatial, 3 reduction
%w0, %w1 = schedule.split %w by (16)
%o0, %o1 = schedule.split %o by (16)
%c0, %c1 = schedule.split %c by (16)
schedule.arrange block(%n, %o0, %h, %w0) loop(%c0) loop(%y, %x) mma(%w1, %o1, %c1)
"""
    whole = nest(body + STAGES.replace("k0", "c0"), IMAGES)
    images, weights = (whole.layout(stage) for stage in whole.stages)
    # Columns of the image move with the window by one element, hence rows run along the channels.
    assert (images.order[-1], images.shape) == (1, (1, 3, 18, 16))
    assert (weights.order[-2:], weights.shape[-2:]) == ((0, 1), (16, 16))


SIZES = "schedule.arrange block(%i0, %j0) loop(%k0) mma(%i1, %j1, %k1)\n"


def sizes(rows: int, columns: int, terms: int) -> str:
    """Products of some size, one for each warp."""
    splits = f"%i0, %i1 = schedule.split %i by ({rows})\n%j0, %j1 = schedule.split %j by ({columns})\n"
    return AXES + splits + f"%k0, %k1 = schedule.split %k by ({terms})\n" + SIZES


@pytest.mark.parametrize(
    ("workload", "body", "says"),
    [
        (PRODUCT, sizes(8, 16, 16) + STAGES, "an mma of 8 x 16 x 16; accepted: 16 x 8 x 16, or 16 x 16 x 16"),
        (PRODUCT, sizes(16, 32, 16) + STAGES, "an mma of 16 x 32 x 16; accepted"),
        (PRODUCT, sizes(16, 8, 8) + STAGES, "an mma of 16 x 8 x 8; accepted"),
        (FLOATS, TILES + STAGES, "accepted: a sum of products of f16 or of bf16, or of f32 that allows tf32"),
        (PRODUCT, TILES, 'read 0 of mma is staged in no faster memory; accepted: schedule.stage 0 in "shared"'),
        (
            PRODUCT,
            TILES + STAGES + 'schedule.stage 1 at %k1 in "register"\n',
            "read 1 of mma is staged in shared and register",
        ),
        (
            PRODUCT,
            sizes(16, 16, 16).replace("loop(%k0)", "thread(%k0)") + STAGES.replace("%k0", "%i0"),
            "a reduction level is in thread beside mma; accepted: block or loop",
        ),
        (
            IMAGES,
            """%n, %o, %h, %w, %c, %y, %x = schedule.axes 4 spatial, 3 reduction
%w0, %w1 = schedule.split %w by (16)
%o0, %o1 = schedule.split %o by (16)
%x0, %x1 = schedule.split %x by (16)
schedule.arrange block(%n, %o0, %h, %w0) loop(%c) loop(%y, %x0) mma(%w1, %o1, %x1)
"""
            + STAGES.replace("k0", "c"),
            "levels of 16 terms, of which those beyond 3 are not 0; accepted: factors that divide 3",
        ),
    ],
)
def test_what_tensor_cores_cannot_multiply(workload: Workload, body: str, says: str) -> None:
    with pytest.raises(TreadleError) as caught:
        nest(body, workload)
    assert says in str(caught.value)


def test_rows_and_columns_may_change_places() -> None:
    """The product of the transposed operands, in the other order."""
    assert nest(TILES.replace("mma(%i3, %j3, %k2)", "mma(%j3, %i3, %k2)") + STAGES, PRODUCT).factors == (1, 0)


def test_rows_of_a_stage_are_whole_chunks() -> None:
    """Terms two elements apart, as rows that neighbours do not lie along, leave no rows to load."""
    body = """%n, %o, %h, %w, %c, %y, %x = schedule.axes 4 spatial, 3 reduction
%w0, %w1 = schedule.split %w by (16)
%o0, %o1 = schedule.split %o by (16)
%x0, %x1 = schedule.split %x by (16)
schedule.arrange block(%n, %o0, %h, %w0) loop(%c) loop(%y, %x0) mma(%w1, %o1, %x1)
"""
    row = work_of_operator(
        ConvOp(tensor(1, 8, 10, 46, dtype=HALF), tensor(16, 8, 3, 16, dtype=HALF), [1, 1], [0] * 4, [1, 2], 1)
    )
    with pytest.raises(TreadleError, match="no rows of whole 16 bytes for the matrices of mma in the stage of read 0"):
        nest(body + STAGES.replace("k0", "c"), row)


def test_which_gpus_have_them() -> None:
    body = program(TILES + STAGES, "cuda")
    for name in ("sm_80", "sm_86", "sm_90a"):
        assert nest_of(body, {}, PRODUCT, Target.parse(name)).product is not None
    with pytest.raises(TreadleError, match="sm_75 has no tensor cores with the products of mma; accepted: sm_80"):
        nest_of(body, {}, PRODUCT, Target.parse("sm_75"))


def test_limits_count_warps_and_fragments() -> None:
    wide = TILES.replace("(2, 2, 16)", "(64, 1, 16)")
    with pytest.raises(LimitError) as caught:
        nest(wide + STAGES, work_of_operator(MatmulOp(tensor(4096, 96, dtype=HALF), tensor(96, 160, dtype=HALF))))
    assert (caught.value.what, caught.value.used) == ("threads", 32 * 64 * 2)
    tall = TILES.replace("(2, 2, 16)", "(1, 16, 16)").replace("(2, 1, 16)", "(1, 4, 16)")
    with pytest.raises(LimitError) as caught:
        nest(tall + STAGES, PRODUCT)
    # 16 x 4 products of 8 sums a thread, 16 fragments of 4 and 4 of 4, and what addresses take.
    assert (caught.value.what, caught.value.used) == ("registers of a thread", 16 * 4 * 8 + 16 * 4 + 4 * 4 + 16)


ROUNDED = """
func.func @main(%x: tensor<32x48xf16>, %y: tensor<48x64xf16>) -> tensor<32x64xf32> {{
  %r = graph.compute (%i, %j) {{
    %s = graph.reduce add (%k in 48) {{
      %a = graph.at %x[%i, %k] : tensor<32x48xf16>
      %b = graph.at %y[%k, %j] : tensor<48x64xf16>
      {term}
      graph.yield %t : f32
    }}
    graph.yield %s : f32
  }} : tensor<32x64xf32>
  func.return %r : tensor<32x64xf32>
}}
"""
WIDENED = """%c = arith.extf %a : f16 to f32
      %d = arith.extf %b : f16 to f32
      %t = arith.mulf %c, %d : f32"""
PRODUCTS_OF_HALVES = "%c = arith.mulf %a, %b : f16\n%t = arith.extf %c : f16 to f32"
SQUARES = WIDENED.replace("%t", "%e") + "\n%t = arith.mulf %e, %d : f32"


@pytest.mark.parametrize(
    ("term", "expected"),
    [(WIDENED, (0, 1)), (PRODUCTS_OF_HALVES, None), (SQUARES, None)],
    ids=["widened", "rounded to halves", "squares"],
)
def test_which_terms_tensor_cores_add(term: str, expected: tuple[int, int] | None) -> None:
    module = Parser(treadle_context(), ROUNDED.format(term=term)).parse_module()
    (compute,) = (op for op in module.walk() if isinstance(op, ComputeOp))
    assert workload_of(compute).factors == expected


def test_precision_is_asked_for() -> None:
    product = MatmulOp(tensor(64, 64), tensor(64, 64))
    assert workload_of(product).factors is None
    product.precision = TF32
    assert workload_of(product).factors == (0, 1)
