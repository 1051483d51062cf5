"""Schedule programs: what the verifier rejects, a diagnostic each, and the supports of samples."""

from __future__ import annotations

from itertools import product
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, strategies
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.xdsl_opt_main import xDSLOptMain

from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp, SampleTileOp
from treadle.errors import TreadleError

HEAD = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1 = schedule.split %i by (4)
"""
PRODUCT = HEAD.replace("%k = schedule.axes 2 spatial, 1", "%k, %l = schedule.axes 2 spatial, 2")
ARRANGE = "schedule.arrange block(%i0, %j) loop(%k) repeat(%i1)\n"


def program(body: str, kind: str = "cuda") -> ProgramOp:
    """The program of some instructions, verified."""
    module = Parser(treadle_context(), f'schedule.program @p for "{kind}" {{\n{body}\n}}').parse_module()
    module.verify()
    (op,) = module.body.block.ops
    assert isinstance(op, ProgramOp)
    return op


def test_a_whole_program_is_valid() -> None:
    assert [op.name.split(".")[1] for op in program(HEAD + ARRANGE).instructions] == ["axes", "split", "arrange"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "expected one schedule.arrange or one schedule.template, got neither"),
        (HEAD + ARRANGE + 'schedule.template "t" {}', "got schedule.arrange and schedule.template"),
        ('schedule.template "t" {}\nschedule.template "u" {}', "got schedule.template and schedule.template"),
        ('%c = arith.constant 0 : index\nschedule.template "t" {}', "'arith.constant' is no instruction of a schedule"),
        (
            '%a = schedule.sample "x" from [1]\n%b = schedule.sample "x" from [2]\nschedule.template "t" {}',
            "two samples are called 'x'",
        ),
        ('%a = schedule.sample "x" from [1]\n' + HEAD + ARRANGE, "schedule.axes comes once, as the first instruction"),
        (HEAD + "%l = schedule.axes 1 spatial, 0 reduction\n" + ARRANGE, "schedule.axes comes once"),
        ("schedule.axes 0 spatial, 0 reduction", "0 spatial and 0 reduction axes, 0 results"),
        ("%a, %b = schedule.axes 1 spatial, 0 reduction", "parse"),
        # axes and levels
        (HEAD + "schedule.arrange block(%i0) loop(%k) repeat(%i1)", "level %j has no role in schedule.arrange"),
        (HEAD + "schedule.arrange block(%i0, %j, %i) loop(%k) repeat(%i1)", "axis %i is used up twice"),
        (HEAD + "schedule.arrange block(%i0, %j, %j) loop(%k) repeat(%i1)", "axis %j is used up twice"),
        (HEAD + "%x, %y = schedule.split %i by (2)\n" + ARRANGE, "axis %i is used up twice"),
        (
            HEAD + "%x, %y = schedule.split %i1 by (2)\n" + ARRANGE,
            "axis %i1 is a level of a split: expected a whole axis",
        ),
        (HEAD + "%p = schedule.fuse %i1, %j\n" + ARRANGE, "axis %i1 is a level of a split: expected a whole axis"),
        (
            "%i, %j, %k = schedule.axes 2 spatial, 1 reduction\n%p = schedule.fuse %j, %k\n"
            "schedule.arrange block(%i) loop(%p)",
            "schedule.fuse takes neighbouring axes of one kind",
        ),
        (
            "%h, %i, %j = schedule.axes 3 spatial, 0 reduction\n%p = schedule.fuse %h, %j\n"
            "schedule.arrange block(%i, %p)",
            "schedule.fuse takes neighbouring axes of one kind",
        ),
        ("%i = schedule.axes 1 spatial, 0 reduction\n%p = schedule.fuse %i\n", "1 axes: expected at least 2"),
        (HEAD.replace("(4)", "(0)") + ARRANGE, "a factor is 0: expected at least 1"),
        ("%i = schedule.axes 1 spatial, 0 reduction\n%a = schedule.split %i by ()", "0 factors give 1 levels, not 1"),
        # roles
        (HEAD + "schedule.arrange repeat(%i1) block(%i0, %j) loop(%k)", "the role block comes once, first"),
        (HEAD + "schedule.arrange block(%i1, %j) loop(%k) repeat(%i0)", "stands inside of an inner level of its axis"),
        (
            HEAD + "schedule.arrange block(%i0) loop(%j) loop(%k) repeat(%i1)",
            "spatial level %j is in loop",
        ),
        (HEAD + "schedule.arrange block(%i0, %j) repeat(%i1, %k)", "reduction level %k is in repeat: expected loop"),
        (
            "%i, %k, %l = schedule.axes 1 spatial, 2 reduction\nschedule.arrange block(%k, %l) repeat(%i)",
            "two reduction levels are in block",
        ),
        (HEAD + "schedule.arrange", "each role needs levels, and each level a role"),
        (HEAD + "schedule.arrange block() loop(%k)", "each role needs levels, and each level a role"),
        (HEAD + ARRANGE.rstrip() + " min_blocks_per_sm 0", "min_blocks_per_sm is below 1"),
        # tensor cores
        (PRODUCT + "schedule.arrange block(%i0) mma(%i1, %j, %k) loop(%l)", "the role mma comes once, last"),
        (
            PRODUCT + "schedule.arrange block(%i0) loop(%l) mma(%i1, %j)",
            "mma takes a level of each of two spatial axes, then one of a reduction axis",
        ),
        (PRODUCT + "schedule.arrange block(%i0) mma(%i1, %k, %j) loop(%l)", "the role mma comes once, last"),
        (PRODUCT + "schedule.arrange block(%j) loop(%l) mma(%i0, %i1, %k)", "mma takes a level of each of two spatial"),
        (PRODUCT + "schedule.arrange block(%i0) loop(%l) mma(%i1, %k, %j)", "mma takes a level of each of two spatial"),
        # stages and marks
        (
            HEAD + ARRANGE + 'schedule.stage 0 at %i1 in "shared"',
            "in repeat: expected a level in block or loop",
        ),
        (HEAD + ARRANGE + 'schedule.stage 0 at %i in "shared"', "schedule.stage at %i, which has no role"),
        (HEAD + ARRANGE + 'schedule.stage 0 at %k in "texture"', "unknown memory 'texture': expected shared, register"),
        (HEAD + ARRANGE + 'schedule.stage 0 at %k in "shared" vector 0', "the vector or the buffers below 1"),
        (HEAD + ARRANGE + 'schedule.stage 0 at %k in "register" buffers 2 async', "asynchronous copies go to shared"),
        (HEAD + ARRANGE + 'schedule.stage 0 at %k in "shared" async', "with at least 2 buffers"),
        (
            HEAD + ARRANGE + 'schedule.stage 0 at 1 of (%k, %i1) in "shared"',
            "%i1, which is in repeat: expected a level",
        ),
        (HEAD + ARRANGE + 'schedule.stage 0 at 2 of (%k) in "shared"', "place 2 of 1 levels: expected a level, or 0"),
        (HEAD + ARRANGE + 'schedule.stage 0 at 0 of () in "shared"', "place 0 of 0 levels: expected a level, or 0"),
        (HEAD + ARRANGE + "schedule.mark vector %k", "level %k is marked vector, and is not innermost"),
        (HEAD + ARRANGE + "schedule.mark unroll %i", "schedule.mark at %i, which has no role"),
        (HEAD + ARRANGE + "schedule.unroll 4\nschedule.unroll 16", "schedule.unroll comes once"),
        (
            'schedule.unroll 4\nschedule.template "t" {}',
            "schedule.unroll beside schedule.template, which schedules all",
        ),
        (HEAD + ARRANGE + "schedule.mark hot %k", "unknown mark 'hot': expected unroll, vector"),
        (
            '%i = schedule.axes 1 spatial, 0 reduction\n%a, %b = schedule.split %i by (2)\nschedule.template "t" {}',
            "schedule.split beside schedule.template, which schedules all",
        ),
        (HEAD + ARRANGE + "schedule.swizzle %i0, %j by 0", "a group has 0 rows: expected 1 or more"),
        (HEAD + ARRANGE + "schedule.swizzle %i0, %j by 4\nschedule.swizzle %i0, %j by 8", "swizzle comes once"),
        (
            HEAD + ARRANGE + "schedule.swizzle %j, %i0 by 4",
            "schedule.swizzle of %j and %i0: expected neighbours in block",
        ),
        (HEAD + ARRANGE + "schedule.swizzle %i1, %j by 4", "schedule.swizzle of %i1 and %j: expected neighbours"),
        (HEAD + ARRANGE + "schedule.swizzle %i, %j by 4", "schedule.swizzle at %i, which has no role"),
        # samples
        ('%a = schedule.sample "x" from []', "sample 'x' has values of 0 kinds: expected one"),
        ('%a = schedule.sample "x" from [1, true]', "sample 'x' has values of 2 kinds: expected one"),
        ('%a = schedule.sample "x" from [1, 2, 1]', "sample 'x' has a value twice"),
        ('%a = schedule.sample "x" from [1, 2] taken 3', "sample 'x' takes 3: expected one of 1, 2"),
        ('%a = schedule.sample "x" from [1, 2] taken true', "sample 'x' takes true: expected one of 1, 2"),
        ('%a = schedule.sample "x" from [1, 2] weights [1.0]', "sample 'x' needs 2 weights from 0 upwards, not all 0"),
        ('%a = schedule.sample "x" from [1, 2] weights [0.0, 0.0]', "sample 'x' needs 2 weights"),
        ('%a = schedule.sample_tile "x" 1 from [2] product 4 to 2', "sample 'x': no product lies from 4 to 2"),
        (
            '%a = schedule.sample_tile "x" 1 from [3] product 4 to 8',
            "sample 'x' has no factors whose product is",
        ),
        (
            '%a = schedule.sample_tile "x" 1 from [0] product 1 to 8',
            "has no factor, or a size or step below 1",
        ),
        (
            '%a = schedule.sample_tile "x" 1 from [1, 2] product 1 to 8 taken [3]',
            "takes [3], which is out of",
        ),
        ('%a = schedule.sample_tile "x" 1 from [1, 2] product 1 to 8 taken [1, 2]', "takes 2 factors of 1"),
        (
            '%a, %b = schedule.sample_tile "x" 2 from ([1], [2], [3]) product 1 to 8',
            "sample 'x' has 3 lists: expected one, or 2",
        ),
        (
            '%a, %b = schedule.sample_tile "x" 2 from ([1], []) product 1 to 8',
            "sample 'x' has an empty list of sizes",
        ),
        (
            '%a, %b = schedule.sample_tile "x" 2 from ([1], [2]) product 1 to 8 taken [2, 1]',
            "takes [2, 1], which is out of its support",
        ),
        (
            f'{", ".join(f"%a{n}" for n in range(64))} = schedule.sample_tile "x" 64 from [1, 2] product 1 to {2**62}',
            "sample 'x': 131072 lists of factors or more are within the bound, 65536 too many; accepted: at most 65536",
        ),
        ('schedule.template "t" {stages = 4, stages = 5}', "knob 'stages' is given twice"),
    ],
)
def test_what_is_rejected(body: str, says: str) -> None:
    if says == "parse":
        with pytest.raises(ParseError):
            program(body)
        return
    with pytest.raises(VerifyException) as caught:
        program(body)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (HEAD + "schedule.arrange block(%i0, %j) thread(%i1) loop(%k)", "a CPU has no threads in a block"),
        (HEAD + "schedule.arrange block(%i0) mma(%i1, %j, %k)", "a CPU has no threads in a block and no warps"),
        (HEAD + ARRANGE + 'schedule.stage 0 at %k in "shared"', "a CPU has no shared memory: expected register"),
        (HEAD + ARRANGE + "schedule.swizzle %i0, %j by 4", "schedule.swizzle of a CPU"),
    ],
)
def test_what_a_cpu_rejects(body: str, says: str) -> None:
    with pytest.raises(VerifyException, match=says):
        program(body, "cpu")
    program(body, "cuda")


@pytest.mark.parametrize(
    "body",
    [
        "%a = schedule.axes 99999999999 spatial, 0 reduction",
        "%a = schedule.axes 1 spatial, 65 reduction",
        '%a = schedule.sample_tile "x" 99999999999 from [1] product 1 to 8',
    ],
)
def test_a_number_of_results_is_limited(body: str) -> None:
    with pytest.raises(ParseError, match="results, at most 64 are accepted"):
        program(body)


def test_an_unknown_kind_of_target() -> None:
    with pytest.raises(VerifyException, match="unknown kind of target 'tpu': expected cpu, cuda"):
        program(HEAD + ARRANGE, "tpu")


@given(
    strategies.integers(1, 3),
    strategies.lists(strategies.integers(1, 9), min_size=1, max_size=4),
    strategies.integers(1, 12),
    strategies.integers(0, 40),
    strategies.integers(1, 4),
    strategies.integers(1, 5),
)
def test_the_support_is_what_brute_force_finds(
    count: int, sizes: list[int], least: int, more: int, step: int, beside: int
) -> None:
    sample = SampleTileOp("x", count, sizes, (least, least + more), step=step)
    found = list(sample.support(beside=beside))
    every = product(sorted(set(sizes)), repeat=count)
    wanted = [f for f in every if least <= prod(f) * beside <= least + more and prod(f) * beside % step == 0]
    assert found == wanted
    own = SampleTileOp("x", 2, [sizes, [*sizes, 5]], (least, least + more), step=step)
    every = product(sorted(set(sizes)), sorted({*sizes, 5}))
    wanted = [f for f in every if least <= prod(f) * beside <= least + more and prod(f) * beside % step == 0]
    assert list(own.support(beside=beside)) == wanted


def test_divisors_join_the_sizes() -> None:
    axes = "%i, %k = schedule.axes 1 spatial, 1 reduction\n"
    body = axes + '%t = schedule.sample_tile "x" 1 from [4] divisors of %i product 1 to 99'
    op = program(body + "\nschedule.arrange block(%i) loop(%k)")
    (sample,) = op.samples
    assert isinstance(sample, SampleTileOp)
    assert list(sample.support(extent=6)) == [(1,), (2,), (3,), (4,), (6,)]
    assert len(sample.support(extent=2**40)) == 7  # 1 to 64


def test_factors_that_are_too_many_once_the_extent_is_known() -> None:
    axes = "%i, %k = schedule.axes 1 spatial, 1 reduction\n"
    results = ", ".join(f"%t{n}" for n in range(9))
    body = axes + f'{results} = schedule.sample_tile "x" 9 from [1] divisors of %i product 1 to 720720'
    (sample,) = program(body + "\nschedule.arrange block(%i) loop(%k)").samples
    assert isinstance(sample, SampleTileOp)
    assert len(sample.support(extent=4)) == 3**9
    with pytest.raises(TreadleError) as caught:
        sample.support(extent=720720)
    assert str(caught.value).startswith("sample 'x': ")
    assert str(caught.value).endswith("accepted: at most 65536: fewer factors, fewer sizes or a lower bound")


def test_a_stock_xdsl_opt_reads_verifies_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It finds the dialect through the entry point, and a second run prints the same."""
    source, again = Path(__file__).with_name("program.mlir"), tmp_path / "again.mlir"
    xDSLOptMain(args=[str(source)]).run()
    printed = capsys.readouterr().out
    assert 'schedule.program @dense for "cuda" {' in printed
    again.write_text(printed)
    xDSLOptMain(args=[str(again)]).run()
    assert capsys.readouterr().out == printed
