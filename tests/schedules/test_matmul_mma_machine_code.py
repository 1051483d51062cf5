"""What the compiler makes of products on tensor cores: instructions, registers, spills."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph
from tests.helpers.sampling import in_turn
from tests.schedules.tensor_cores import DTYPES, TEMPLATE, Shape, legal_choices, product, scheduled
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.cubin import Resources
from treadle.backends.cuda.machine_code import Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.dialects.graph import MatmulOp
from treadle.dialects.schedule import Choice
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

ARCHS = ["sm_80", "sm_90"]
ALIGNED: tuple[Shape, Shape] = ((1024, 1024), (1024, 1024))


def machine_code(shapes: tuple[Shape, Shape], dtype: str, arch: str, **choices: Choice) -> tuple[Sass, Resources]:
    """The instructions of one product's kernel, and what it uses."""
    graph = Graph(*(np.broadcast_to(np.zeros((), DTYPES[dtype]), shape) for shape in shapes))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    target = Target.parse(arch)
    (unit,) = print_kernels(scheduled(module, TEMPLATE[dtype], choices, target))
    cubin = compile_cubin(unit, target)
    (sass,) = disassembled(cubin).values()
    (resources,) = cubin.resources.values()
    return sass, resources


@pytest.mark.parametrize(("dtype", "arch"), in_turn(list(TEMPLATE), ARCHS))
def test_the_default_uses_tensor_cores_and_wide_asynchronous_copies(dtype: str, arch: str):
    sass, resources = machine_code(ALIGNED, dtype, arch)
    assert sass.has("HMMA") and sass.has("LDGSTS.128") and sass.has("LDSM.4")
    assert not sass.has("LDG") and sass.count("LDGSTS") == sass.count("LDGSTS.128")
    # 16-bit elements leave 8 at a time; of 32 bits 4 lanes fill a sector with 2 each.
    assert sass.count("STG") == sass.count("STG.64" if dtype == "float32" else "STG.128") > 0
    assert not resources.spills and not sass.uses_local_memory


@pytest.mark.parametrize(("size", "arch"), in_turn([4096, 2046, 2039, 200, 16], ARCHS, step=2))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_default_spills_nothing_whatever_the_size(dtype: str, size: int, arch: str):
    sass, resources = machine_code(((size, size), (size, size)), dtype, arch)
    assert sass.has("HMMA") and not resources.spills and not sass.uses_local_memory
    # Rows of an odd number of halves begin at no multiple of 4 bytes, which is the least that can be copied so.
    assert sass.has("LDGSTS") == (dtype == "float32" or size % 2 == 0)


def products_behind_barriers(sass: Sass) -> list[int]:
    """For each barrier with loads of fragments behind it, how many products stand there before the first one that
    multiplies what was loaded there, up to the next barrier."""
    opcodes = [each.opcode.split(".")[0] for each in sass.instructions]
    barriers = [n for n, opcode in enumerate(opcodes) if opcode == "BAR"]
    counts: list[int] = []
    for begin, end in pairwise([*barriers, len(opcodes)]):
        loaded, count = set[int](), 0
        for opcode, instruction in zip(opcodes[begin:end], sass.instructions[begin:end], strict=True):
            numbers = register_numbers(instruction.operands)
            if opcode == "LDSM":
                loaded.update(range(numbers[0], numbers[0] + 4))
            elif opcode == "HMMA":
                if loaded & {*range(numbers[1], numbers[1] + 4), *range(numbers[2], numbers[2] + 2)}:
                    break
                count += 1
        if loaded:
            counts.append(count)
    return counts


def register_numbers(operands: str) -> list[int]:
    """The numbers of the registers in an instruction's operands."""
    return [int(number) for number in re.findall(r"\bR(\d+)", operands)]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("block_k", "stages"), [(32, 4), (64, 3)])
def test_fragments_are_loaded_before_the_last_products_of_the_group_before(block_k: int, stages: int, arch: str):
    """Of 32 products a group; only the first set of fragments, before the loop, is waited for."""
    tile: dict[str, Choice] = {"block": (128, 128), "warps": (2, 2), "block_k": block_k, "stages": stages}
    sass, resources = machine_code(ALIGNED, "float16", arch, **tile, split_k=1, fragments=2)
    first, *others = products_behind_barriers(sass)
    assert first == 0 and others and min(others) >= 16, others
    assert not resources.spills
    sass, _ = machine_code(ALIGNED, "float16", arch, **tile, split_k=1, fragments=1)
    assert set(products_behind_barriers(sass)) == {0}


SHAPES_OF_REGISTERS: list[tuple[Shape, Shape]] = [
    ALIGNED,
    ((2046, 2046), (2046, 2046)),
    ((200, 200), (200, 200)),
    ((4096, 4090), (4090, 4096)),
    ((4, 130, 96), (4, 96, 264)),
    ((3000, 520), (520, 1992)),
    ((2040, 512), (512, 2040)),
]
"""Whole tiles, copies of 4 bytes and of 16, tiles that overhang, terms that do and do not, a batch."""


@pytest.mark.parametrize(("shapes", "arch"), in_turn(SHAPES_OF_REGISTERS, ARCHS), ids=str)
@pytest.mark.parametrize("n", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 16))])
def test_schedules_with_two_sets_of_fragments_spill_nothing(shapes: tuple[Shape, Shape], arch: str, n: int):
    """Every 16th of those of large warps' tiles, from the n-th on."""
    template, target = TEMPLATES["matmul_mma"], Target.parse(arch)
    space = [each for each in template.space(product(shapes, "float16"), target) if each["fragments"] == 2]
    assert len(space) >= 16
    for choices in space[n::16]:
        sass, resources = machine_code(shapes, "float16", arch, **choices)
        assert sass.has("HMMA") and not resources.spills and not sass.uses_local_memory, choices
        assert resources.registers <= target.registers_per_thread


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_choice_of_the_space_compiles_to_tensor_cores(dtype: str, arch: str):
    for choices in legal_choices(TEMPLATES[TEMPLATE[dtype]], product(ALIGNED, dtype), Target.parse(arch)):
        sass, resources = machine_code(ALIGNED, dtype, arch, **choices)
        assert sass.has("HMMA") and sass.has("LDGSTS.128"), choices
        # Where there are registers left, ptxas has spilled for the sake of one block more.
        assert not resources.spills or resources.registers < Target.parse(arch).registers_per_thread, choices
