"""What the compiler makes of attention of few queries on tensor cores: instructions, registers, spills."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.schedule_cases import Case
from tests.backends.cuda.machine_code import machine_code_of
from tests.helpers.sampling import in_turn
from treadle.dialects.graph import AttentionOp
from treadle.schedules.template import number
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

ARCHS = ["sm_80", "sm_90", "sm_90a"]
NAME = "attention_decode_mma"


def few(heads: int, groups: int, m: int, size: int, dtype: str = "float16", **properties: Any) -> Case:
    """Attention of few queries and 4096 keys."""
    shapes = (1, heads, m, size), (1, groups, 4096, size), (1, groups, 4096, size)
    return Case("few", shapes, lambda x: [AttentionOp(*x, scale=size**-0.5, **properties)], dtype)


@pytest.mark.parametrize(
    ("kind", "arch"),
    in_turn(
        [(32, 8, 1, 128), (32, 8, 4, 128), (56, 14, 1, 64), (32, 32, 1, 96), (12, 12, 8, 64), (8, 8, 1, 112)], ARCHS
    ),
    ids=str,
)
def test_a_step_is_wide_loads_and_products(kind: tuple[int, int, int, int], arch: str) -> None:
    """Of a warp's keys: products of queries and keys, whose terms come 16 at a time, and, of eight rows each, of the
    values; all that is read ahead in 16 bytes a lane, and nothing in shared memory."""
    size = kind[-1]
    case = few(*kind, dtype="bfloat16" if size == 96 else "float16", causal=kind[2] > 1)
    knobs = case.default(Target.parse(arch)).knobs()
    keys, rows = number(knobs, "keys"), number(knobs, "rows")
    sass, resources = machine_code_of(case, NAME, arch)
    assert not resources.spills and resources.stack_bytes == 0 and not sass.uses_local_memory
    (loop,) = [each for each in sass.loops() if any(i.opcode.startswith("HMMA") for i in each)]
    opcodes = [each.opcode for each in loop]
    terms, parts = -(-size // 32) * 2, -(-size // 64) * 4
    assert (
        sum(code.startswith("HMMA.16816.F32") for code in opcodes) == keys // 8 * terms + keys // 16 * parts * rows // 8
    )
    loads = [code for code in opcodes if code.startswith("LDG")]
    assert len(loads) == keys // 8 * (terms // 2) + keys // 4 * (parts // 4)
    assert all(code.startswith("LDG.E.128") for code in loads)
    assert not [code for code in opcodes if code.startswith(("LDS", "STS", "BAR", "LDL", "STL"))]
    # A weight is a multiplication and an exponential, and each row has a factor.
    assert opcodes.count("MUFU.EX2") == rows // 8 * (keys // 4 + 1)
    assert opcodes.count("SHFL.IDX") == opcodes.count("SHFL.BFLY") == rows // 4
    assert sass.count("STG.64") > 0


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100"])
@pytest.mark.parametrize("size", [8, 40, 80, 104, 128])
def test_the_default_spills_nothing_whatever_the_size(size: int, arch: str) -> None:
    _, resources = machine_code_of(few(8, 2, 3, size, causal=True), NAME, arch)
    assert not resources.spills and resources.stack_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_every_tile_compiles_without_local_memory(arch: str) -> None:
    case = few(32, 8, 4, 64)
    for choices in case.space(Target.parse(arch)):
        sass, resources = machine_code_of(case, NAME, arch, **choices)
        assert sass.has("HMMA") and sass.has("LDG.128"), choices
        assert not resources.spills and resources.stack_bytes == 0, choices
