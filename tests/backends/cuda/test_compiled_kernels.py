"""A kernel of every template, and one by hand, compiled for every target: resources, occupancy, instructions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import SSAValue

from tests.backends.cuda.machine_code import disassembled
from tests.helpers.emulated_batch import renamed
from tests.helpers.graphs import Graph, random
from tests.helpers.sampling import every
from tests.schedules.tensor_cores import scheduled
from treadle.backends.cuda.compiler import Cubin, Unit, compile_cubin
from treadle.backends.cuda.emulator import Emulator
from treadle.backends.cuda.machine_code import Sass, occupancy
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    ConvOp,
    MatmulOp,
    ReductionOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.registry import treadle_context
from treadle.schedules.templates import TEMPLATES
from treadle.target import TARGETS, Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

ARCHS = [name for name, target in TARGETS.items() if target.copies_asynchronously]
BY_HAND, KERNEL_BY_HAND = "by hand", "matmul_mma"
TEXT_BY_HAND = (Path(__file__).parent / "inputs" / f"{KERNEL_BY_HAND}.cu").read_text()


@dataclass(frozen=True)
class Expected:
    """What a kernel is made of, and for how much of it a multiprocessor has room."""

    opcodes: frozenset[str]
    warps: int
    """Resident warps that it must reach on every target."""


EXPECTED = {
    "matmul_simt": Expected(frozenset({"FFMA", "LDG", "STS", "LDS.128", "BAR.SYNC"}), 8),
    "reduce_cuda": Expected(frozenset({"FADD", "LDG", "STS", "LDS", "BAR.SYNC", "STG"}), 48),
    "attention_cuda": Expected(frozenset({"FFMA", "MUFU.EX2", "LDG.128", "LDS.128", "STS.128", "SHFL.BFLY"}), 8),
    "attention_mma": Expected(
        frozenset({"HMMA.16816.F32", "LDGSTS.BYPASS.128", "LDSM.16.M88.4", "LDSM.16.MT88.4", "MUFU.EX2", "SHFL.BFLY"}),
        8,
    ),
    "attention_decode_mma": Expected(
        frozenset({"HMMA.16816.F32", "LDG.E.128", "PRMT", "MUFU.EX2", "SHFL.IDX", "SHFL.BFLY", "BAR.SYNC", "STG.E.64"}),
        8,
    ),
    "row_cuda": Expected(frozenset({"MUFU.EX2", "LDG", "SHFL.BFLY", "STG"}), 16),
    "generic_cuda": Expected(frozenset({"FFMA", "LDG", "STG"}), 48),
    "transpose_cuda": Expected(frozenset({"LDG.E.128", "STS", "LDS", "BAR.SYNC", "STG.E.128"}), 48),
    "window_cuda": Expected(frozenset({"FFMA", "LDG", "STG"}), 32),
    "matmul_mma": Expected(frozenset({"HMMA.16816.F32", "LDGSTS.BYPASS.128", "LDSM.16.M88.4", "LDSM.16.MT88.4"}), 4),
    "matmul_rows_mma": Expected(frozenset({"HMMA.16816.F32", "LDG.E.128", "LDS.128", "BAR.SYNC", "PRMT"}), 16),
    "matmul_int8": Expected(frozenset({"IMMA.16832.S8.S8", "LDGSTS.BYPASS.128", "LDSM.16.M88.4"}), 4),
    "matmul_tf32": Expected(frozenset({"HMMA.1688.F32.TF32", "LDGSTS.BYPASS.128", "LDSM.16.M88.4", "LDS"}), 4),
    BY_HAND: Expected(frozenset({"HMMA.16816.F32", "LDGSTS.BYPASS.128", "LDSM.16.M88.4", "LDSM.16.MT88.2"}), 12),
}


def _product(graph: Graph) -> SSAValue:
    return graph.add(UnaryOp("relu", graph.add(MatmulOp(graph[0], graph[1]))))


def _byte_product(graph: Graph) -> SSAValue:
    return graph.add(MatmulOp(graph[0], graph.add(TransposeOp(graph[1], [1, 0])), sums=i32))


GRAPHS: dict[str, tuple[Callable[[Graph], SSAValue], tuple[tuple[int, ...], ...]]] = {
    "matmul_simt": (_product, ((2048, 64), (64, 2048))),
    "matmul_mma": (_product, ((2048, 64), (64, 2048))),
    "matmul_rows_mma": (_product, ((8, 4096), (4096, 4096))),
    "matmul_int8": (_byte_product, ((2048, 64), (2048, 64))),
    "matmul_tf32": (_product, ((2048, 64), (64, 2048))),
    "reduce_cuda": (lambda g: g.add(ReductionOp("add", g[0], [1], keep=False)), ((64, 1024),)),
    "attention_cuda": (lambda g: g.add(AttentionOp(g[0], g[1], g[2], causal=True)), ((12, 128, 64),) * 3),
    "attention_mma": (lambda g: g.add(AttentionOp(g[0], g[1], g[2], causal=True)), ((16, 2048, 64),) * 3),
    "attention_decode_mma": (
        lambda g: g.add(AttentionOp(g[0], g[1], g[2])),
        ((1, 32, 1, 128), *((1, 8, 4096, 128),) * 2),
    ),
    "row_cuda": (lambda g: g.add(SoftmaxOp(g[0], 1)), ((4096, 1024),)),
    "transpose_cuda": (lambda g: g.add(TransposeOp(g[0], [0, 2, 1])), ((8, 512, 1024),)),
    "window_cuda": (
        lambda g: g.add(ConvOp(g[0], g[1], [1, 1], [1] * 4, [1, 1], 96)),
        ((1, 96, 56, 56), (96, 1, 3, 3)),
    ),
    "generic_cuda": (lambda g: g.add(UnaryOp("exp", g.add(BinaryOp("add", g[0], g[1])))), ((64, 1000), (64, 1000))),
}
"""A graph that becomes one kernel of the template."""
OTHERS = [arch for arch in ARCHS if arch not in ARCHS[::3]]
QUICK = {arch: tuple(EXPECTED) for arch in ARCHS[::3]} | {
    arch: tuple(EXPECTED)[n :: len(OTHERS)] for n, arch in enumerate(OTHERS)
}
"""The kernels that every run compiles for an architecture. On those between others the templates take turns."""
HALVES = ("matmul_mma", "matmul_rows_mma", "attention_mma", "attention_decode_mma")
"""Templates of 16-bit floats."""
DTYPES = {**dict.fromkeys(HALVES, np.float16), "matmul_int8": np.int8}
"""Of the templates that are not of float32."""


@dataclass(frozen=True)
class Launched:
    """A kernel's text and how it is launched."""

    unit: Unit
    threads: int
    static_shared: int
    dynamic_shared: int = 0


@functools.cache
def launched(template: str, arch: str) -> Launched:
    """The kernel of a template, or the one by hand, for an architecture; it is named after its template."""
    if template == BY_HAND:
        shared = 3 * 2 * (64 * (32 + 8) + 32 * (64 + 8))
        return Launched(Unit(KERNEL_BY_HAND, TEXT_BY_HAND), 128, shared)
    kernel, unit = _lowered(template, Target.parse(arch))
    static, dynamic = (kernel.shared_bytes(dynamic=each) for each in (False, True))
    return Launched(renamed(unit, symbol(template)), math.prod(kernel.block_shape), static, dynamic)


def symbol(template: str) -> str:
    return KERNEL_BY_HAND if template == BY_HAND else f"kernel_{template}"


def beside(template: str, arch: str) -> tuple[str, ...]:
    """The kernels that are tested when this one is: in every run, or in slow tests only."""
    return tuple(each for each in EXPECTED if (each in QUICK[arch]) == (template in QUICK[arch]))


@functools.cache
def compiled(templates: tuple[str, ...], arch: str) -> Cubin:
    """Kernels in one cubin: each call of the compiler and of the disassembler has a price of its own."""
    texts = (launched(template, arch).unit.text for template in templates)
    return compile_cubin(Unit("kernels", "\n".join(texts)), Target.parse(arch))


@functools.cache
def machine_code(templates: tuple[str, ...], arch: str) -> Mapping[str, Sass]:
    return disassembled(compiled(templates, arch))


def _lowered(template: str, target: Target) -> tuple[KernelOp, Unit]:
    build, shapes = GRAPHS[template]
    graph = Graph(*(np.zeros(shape, DTYPES.get(template, np.float32)) for shape in shapes))
    module: ModuleOp = graph.module(build(graph))
    if template in HALVES and target.has_warpgroups:
        target = Target.parse("sm_90")  # which takes products of warps for those of warpgroups
    if template == "matmul_tf32":
        scheduled(module, template, {}, target)
    else:
        lower(treadle_context(), module, target, to="schedule")
        assert f'#schedule.use<"{template}"' in str(module)
        lower(treadle_context(), module, target, after="schedule")
    (kernel,) = (op for op in module.walk() if isinstance(op, KernelOp))
    (unit,) = print_kernels(module)
    return kernel, unit


def test_every_template_is_compiled_here() -> None:
    """Those of warpgroups have tests of their own, such as `test_matmul_wgmma.py`."""
    found = {name for name, each in TEMPLATES.items() if each.kind == "cuda" and each.least_capability < 90}
    assert found | {BY_HAND} == set(EXPECTED)


@pytest.mark.parametrize("arch", every(3, ARCHS))
@pytest.mark.parametrize("template", EXPECTED)
def test_registers_shared_memory_and_occupancy(template: str, arch: str) -> None:
    kernel, used, target = (
        launched(template, arch),
        compiled(beside(template, arch), arch).resources[symbol(template)],
        Target.parse(arch),
    )
    assert not used.spills and used.stack_bytes == 0
    assert 0 < used.registers <= target.registers_per_thread
    assert used.shared_bytes == kernel.static_shared
    assert occupancy(used, target, kernel.threads, kernel.dynamic_shared).warps >= EXPECTED[template].warps


@pytest.mark.parametrize(
    ("template", "arch"),
    [
        pytest.param(template, arch, marks=() if template in QUICK[arch] else pytest.mark.slow)
        for template in EXPECTED
        for arch in ARCHS
    ],
)
def test_instructions(template: str, arch: str) -> None:
    sass = machine_code(beside(template, arch), arch)[symbol(template)]
    assert not sass.uses_local_memory
    assert {opcode for opcode in EXPECTED[template].opcodes if not sass.has(opcode)} == set()
    assert sass.has_tensor_products == (template in (*DTYPES, "matmul_tf32", BY_HAND))
    assert sass.has_async_copies == (sass.has_tensor_products and template != "attention_decode_mma")


@pytest.mark.parametrize("shape", [(64, 64, 32), (128, 192, 160)])
def test_the_kernel_by_hand_is_right(shape: tuple[int, int, int], emulate: Callable[..., Emulator]) -> None:
    m, n, k = shape
    a, b = random(m, k).astype(np.float16), random(k, n, seed=1).astype(np.float16)
    c = np.zeros((m, n), np.float32)
    report = emulate(TEXT_BY_HAND).launch(KERNEL_BY_HAND, (n // 64, m // 64, 1), (128, 1, 1), [a, b, c, n, k])
    assert not report.findings, str(report)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    bound = (k + 1) * 2.0**-24 * (np.abs(wide_a) @ np.abs(wide_b))
    assert (np.abs(c - wide_a @ wide_b) <= bound).all()
