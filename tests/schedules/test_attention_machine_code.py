"""What the compiler makes of attention on tensor cores: instructions, registers, spills."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.schedule_cases import Case, Shape
from tests.backends.cuda.machine_code import machine_code_of
from tests.helpers.sampling import in_turn
from treadle.dialects.graph import AttentionOp
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

ARCHS = ["sm_80", "sm_90"]
TEMPLATE = TEMPLATES["attention_mma"]


def heads(size: int, dtype: str, mask: Shape | None = None, m: int = 1024, **properties: Any) -> Case:
    """Attention of many heads of a size."""
    shapes = ((1, 16, m, size),) * 3 + (() if mask is None else (mask,))
    return Case("heads", shapes, lambda x: [AttentionOp(*x[:3], *x[3:], scale=size**-0.5, **properties)], dtype)


@pytest.mark.parametrize(
    ("kind", "arch"),
    in_turn([(64, "float16"), (64, "bfloat16"), (128, "bfloat16"), (128, "float16")], ARCHS),
    ids=str,
)
def test_the_default_uses_tensor_cores_and_wide_asynchronous_copies(kind: tuple[int, str], arch: str):
    sass, resources = machine_code_of(heads(*kind, causal=True), TEMPLATE.name, arch)
    assert sass.has("HMMA") and sass.has("LDGSTS.128") and sass.has("LDSM.4")
    assert not sass.has("LDG") and sass.count("LDGSTS") == sass.count("LDGSTS.128")
    assert sass.count("LDSM") == sass.count("LDSM.4")
    assert sass.count("STG") == sass.count("STG.128") > 0
    assert not resources.spills and not sass.uses_local_memory


@pytest.mark.parametrize("arch", ARCHS)
def test_a_weight_is_a_multiplication_and_an_exponential(arch: str):
    """Of 64 scores a thread, and four rows' factors: no scale by itself, and no case of subnormal numbers."""
    sass, _ = machine_code_of(
        heads(64, "float16", causal=True), TEMPLATE.name, arch, rows=128, columns=64, warps=4, parts=1
    )
    tile, rows = 64, 4
    assert sass.count("MUFU.EX2") == tile + rows and tile <= sass.count("FFMA") < 2 * tile
    # Of a tile's 64 elements of the result, by rows' factors in the loop, and by the sums' inverses behind it.
    assert sass.count("FMUL") <= 2 * tile + 4 * rows and sass.count("FSETP") <= 4 * rows


@pytest.mark.parametrize(("causal", "arch"), in_turn([False, True], ARCHS))
@pytest.mark.parametrize("size", [80, *(pytest.param(size, marks=pytest.mark.slow) for size in (8, 13, 40, 160))])
def test_the_default_spills_nothing_whatever_the_size(size: int, causal: bool, arch: str):
    masked = heads(size, "float16", (1, 16, 999, 999), m=999)
    sass, resources = machine_code_of(
        heads(size, "bfloat16", m=1000, causal=True) if causal else masked, TEMPLATE.name, arch
    )
    assert sass.has("HMMA") and not resources.spills and not sass.uses_local_memory
    # Lines of an odd number of halves begin at no multiple of 4 bytes, which is the least that can be copied so.
    assert sass.has("LDGSTS") == (size % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_every_choice_of_the_space_compiles_to_tensor_cores(arch: str):
    case = heads(64, "float16", causal=True)
    for choices in case.space(Target.parse(arch)):
        sass, resources = machine_code_of(case, TEMPLATE.name, arch, **choices)
        assert sass.has("HMMA") and sass.has("LDGSTS.128"), choices
        # A few spare words at the compiler's own limit of registers, never part of a tile.
        assert resources.spill_store_bytes + resources.spill_load_bytes <= 64, choices
