"""What the compiler makes of products of few rows: instructions, registers, spills."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph
from tests.helpers.sampling import in_turn
from tests.schedules.tensor_cores import DTYPES, legal_choices, product, scheduled
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.cubin import Resources
from treadle.backends.cuda.machine_code import Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.dialects.graph import MatmulOp, TransposeOp
from treadle.dialects.schedule import Choice
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_rows_mma import MatmulRowsMma
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

NAME = MatmulRowsMma.name
ARCHS = ["sm_80", "sm_90a"]
Size = tuple[int, int, int]


def module_of(size: Size, dtype: str, *, by_rows: bool) -> ModuleOp:
    """A product of weights that lie along the terms, or across."""
    m, k, n = size
    shapes = (m, k), (n, k) if by_rows else (k, n)
    graph = Graph(*(np.broadcast_to(np.zeros((), DTYPES[dtype]), shape) for shape in shapes))
    turned = graph.add(TransposeOp(graph[1], [1, 0])) if by_rows else graph[1]
    return graph.module(graph.add(MatmulOp(graph[0], turned)))


@cache
def machine_code(size: Size, dtype: str, by_rows: bool, arch: str, **choices: Choice) -> tuple[Sass, Resources]:
    """The instructions of one product's kernel, and what it uses."""
    target = Target.parse(arch)
    (unit,) = print_kernels(scheduled(module_of(size, dtype, by_rows=by_rows), NAME, choices, target))
    cubin = compile_cubin(unit, target)
    assert not cubin.warnings
    (sass,) = disassembled(cubin).values()
    (resources,) = cubin.resources.values()
    assert not resources.spills and not sass.uses_local_memory and not resources.stack_bytes
    return sass, resources


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("by_rows", [True, False], ids=["along the terms", "across"])
@pytest.mark.parametrize("rows", [1, 8])
def test_the_default_loads_weights_by_16_bytes_and_multiplies_them_as_they_come(
    rows: int, by_rows: bool, arch: str
) -> None:
    sass, resources = machine_code((rows, 4096, 4096), "float16", by_rows, arch)
    # Two times four steps of four requests along the terms, two times two of eight across: before the loop, and in it.
    assert sass.count("LDG.E.128") == 32
    assert sass.count("HMMA.16816.F32") == 16 and not sass.has("LDSM")
    # Neighbouring terms of a column lie in two registers: four permutations join them for a product.
    assert sass.count("PRMT") in range(5) if by_rows else sass.count("PRMT") in range(64, 70)
    assert sass.has("LDGSTS") and sass.count("LDGSTS") == sass.count("LDGSTS.E.BYPASS.128")
    # Two blocks of 8 warps have registers.
    assert resources.registers <= 128


@pytest.mark.parametrize(
    ("size", "arch"), in_turn([(1, 4096, 4100), (3, 2039, 2039), (8, 200, 1000), (16, 1024, 1024)], ARCHS)
)
@pytest.mark.parametrize("by_rows", [True, False], ids=["along the terms", "across"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nothing_spills_whatever_the_size(dtype: str, by_rows: bool, size: Size, arch: str) -> None:
    sass, _ = machine_code(size, dtype, by_rows, arch)
    assert sass.has("HMMA")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("by_rows", [True, False], ids=["along the terms", "across"])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_every_choice_compiles_to_tensor_cores_without_spills(rows: int, by_rows: bool, arch: str) -> None:
    size, target = (rows, 2048, 1024), Target.parse(arch)
    m, k, n = size
    for choices in legal_choices(TEMPLATES[NAME], product(((m, k), (k, n))), target):
        if choices["split_k"] in (1, 2):
            sass, resources = machine_code(size, "float16", by_rows, arch, **choices)
            assert sass.has("HMMA") and sass.has("LDG.E.128"), choices
            assert resources.registers <= target.registers_per_thread
