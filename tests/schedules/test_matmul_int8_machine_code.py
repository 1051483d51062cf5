"""What the compiler makes of products of bytes on tensor cores: instructions, registers, spills."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from xdsl.dialects.builtin import f32, i32

from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph
from tests.helpers.sampling import every
from tests.schedules.tensor_cores import legal_choices, scheduled
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.cubin import Resources
from treadle.backends.cuda.machine_code import Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.dialects.graph import BinaryOp, CastOp, MatmulOp, TransposeOp, UnaryOp
from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.schedule import Choice
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

ARCHS = ["sm_80", "sm_90"]
TEMPLATE = TEMPLATES["matmul_int8"]


def machine_code(
    size: int, arch: str, choices: Mapping[str, Choice] | None = None, *, requantised: bool = False
) -> tuple[Sass, Resources]:
    """The instructions of the kernel of a square product, scaled and rounded to bytes or not, and what it uses."""
    shape = (size, size)
    graph = Graph(*(np.broadcast_to(np.zeros((), dtype), shape) for dtype in (np.uint8, np.int8)))
    result = graph.add(MatmulOp(graph[0], graph.add(TransposeOp(graph[1], [1, 0])), sums=i32))
    if requantised:
        scale = graph.constant(np.full((), 2.0**-12, np.float32))
        scaled = graph.add(BinaryOp("mul", graph.add(CastOp(result, f32)), scale))
        result = graph.add(CastOp(graph.add(UnaryOp("round", graph.add(UnaryOp("relu", scaled)))), ui8))
    target = Target.parse(arch)
    (unit,) = print_kernels(scheduled(graph.module(result), "matmul_int8", choices or {}, target))
    cubin = compile_cubin(unit, target)
    (resources,) = cubin.resources.values()
    (sass,) = disassembled(cubin).values()
    return sass, resources


@pytest.mark.parametrize("arch", ARCHS)
def test_the_default_uses_tensor_cores_and_wide_asynchronous_copies(arch: str):
    sass, resources = machine_code(1024, arch)
    assert sass.has("IMMA.16832.U8.S8") and sass.has("LDSM.4") and not sass.has("HMMA")
    assert not sass.has("LDG") and sass.count("LDGSTS") == sass.count("LDGSTS.128") > 0
    assert sass.count("STG") == sass.count("STG.64") > 0
    assert not resources.spills and not sass.uses_local_memory


@pytest.mark.parametrize("arch", ARCHS)
def test_bytes_are_stored_by_twos(arch: str):
    sass, resources = machine_code(1024, arch, requantised=True)
    assert sass.count("STG") == sass.count("STG.U16") > 0
    assert not resources.spills and not sass.uses_local_memory


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("size", every(2, [4096, 2044, 2039, 200, 16]))
def test_the_default_has_registers_whatever_the_size(size: int, arch: str):
    """Single bytes take so many that ptxas spills some for the sake of one block more."""
    sass, resources = machine_code(size, arch)
    copies = size % 4 == 0
    assert sass.has("IMMA") and sass.has("LDGSTS") == copies
    assert not resources.spills if copies else resources.registers < Target.parse(arch).registers_per_thread / 1.5


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_every_choice_of_the_space_compiles_to_tensor_cores(arch: str):
    graph, target = Graph(*(np.zeros((1024, 1024), np.int8) for _ in range(2))), Target.parse(arch)
    for choices in legal_choices(TEMPLATE, MatmulOp(graph[0], graph[1], sums=i32), target):
        sass, resources = machine_code(1024, arch, choices)
        assert sass.has("IMMA") and sass.has("LDGSTS.128"), choices
        # Where there are registers left, ptxas has spilled for the sake of one block more.
        assert not resources.spills or resources.registers < target.registers_per_thread, choices
