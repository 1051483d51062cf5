"""What the compiler makes of products on tensor cores: instructions, registers, spills."""

from __future__ import annotations

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


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_choice_of_the_space_compiles_to_tensor_cores(dtype: str, arch: str):
    for choices in legal_choices(TEMPLATES[TEMPLATE[dtype]], product(ALIGNED, dtype), Target.parse(arch)):
        sass, resources = machine_code(ALIGNED, dtype, arch, **choices)
        assert sass.has("HMMA") and sass.has("LDGSTS.128"), choices
        # Where there are registers left, ptxas has spilled for the sake of one block more.
        assert not resources.spills or resources.registers < Target.parse(arch).registers_per_thread, choices
