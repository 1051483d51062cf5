"""Products on tensor cores inside of nests, on the emulator with all its checks, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.emulated_batch import TARGET, EmulatedProgram, PrintedKernels, compile_programs, print_program
from tests.helpers.graphs import Graph
from tests.helpers.program_batch import Backend, ProgramBatch
from tests.schedules.nest.random_nests import scheduled_module
from tests.schedules.nest.test_nest import program
from tests.schedules.tensor_cores import DTYPES, Array, in_one_group, sample
from treadle.dialects.graph import BinaryOp, MatmulOp, TransposeOp, UnaryOp
from treadle.target import Target
from treadle.target.options import CompileOptions

GPU = Target.parse(TARGET)

TILES = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2, %i3 = schedule.split %i by (2, 2, 16)
%j0, %j1, %j2, %j3 = schedule.split %j by (2, 1, 16)
%k0, %k1, %k2 = schedule.split %k by (2, {depth})
schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2) mma(%i3, %j3, %k2)
"""
"""Tiles of 64 x 32 by 4 warps, two products along K in each stage."""
NARROW = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2 = schedule.split %i by (2, 16)
%j0, %j1, %j2 = schedule.split %j by (3, 8)
%k0, %k1 = schedule.split %k by (16)
schedule.arrange block(%i0, %j0) thread(%j1) repeat(%i1) loop(%k0) mma(%i2, %j2, %k1)
"""
"""Products of 8 columns by three warps, which compute one tile after the other."""
LEVELS = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2, %i3, %i4, %i5 = schedule.split %i by (1, 1, 2, 1, 16)
%j0, %j1, %j2, %j3, %j4, %j5 = schedule.split %j by (2, 2, 1, 2, 8)
%k0, %k1, %k2, %k3 = schedule.split %k by (1, 2, 16)
schedule.arrange block(%i0, %j0) repeat(%i1, %j1) thread(%i2, %j2) loop(%k0) loop(%k1)
    repeat(%i3, %j3) loop(%k2) repeat(%i4, %j4) mma(%i5, %j5, %k3)
schedule.mark unroll %k2
"""
"""MetaSchedule's word SSSRRSRS: virtual threads, and a loop between two tiles of registers."""
SLICES = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2 = schedule.split %i by (2, 16)
%j0, %j1, %j2 = schedule.split %j by (2, 8)
%k0, %k1, %k2 = schedule.split %k by (2, 16)
schedule.arrange block(%i0, %j0, %k0) thread(%i1) loop(%k1) repeat(%j1) mma(%i2, %j2, %k2)
"""
BATCHED = """%n, %i, %j, %k = schedule.axes 3 spatial, 1 reduction
%n0, %n1 = schedule.split %n by (2)
%i0, %i1 = schedule.split %i by (16)
%j0, %j1, %j2 = schedule.split %j by (2, 16)
%k0, %k1 = schedule.split %k by (16)
schedule.arrange block(%n0, %i0, %j0) thread(%j1) loop(%k0) repeat(%n1) mma(%i1, %j2, %k1)
"""
"""Two matrices of the batch in the registers of a warp."""


def shared(at: str, how: str, reads: str = "01") -> str:
    """Operands in shared memory."""
    return "".join(f'schedule.stage {n} at {at} in "shared" {how}\n' for n in reads)


def turned(graph: Graph, n: int) -> SSAValue:
    """A matrix that lies transposed in memory."""
    return graph.add(TransposeOp(graph[n], [1, 0]))


@dataclass(frozen=True)
class Product:
    """A product of matrices, its operands perhaps transposed, or computed by relu before; a row may be added to it
    before relu."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    text: str
    dtype: str = "float16"
    transposed: str = ""
    layer: bool = False
    computed: bool = False

    def inputs(self) -> list[Array]:
        shapes = [shape[::-1] if name in self.transposed else shape for name, shape in (("a", self.a), ("b", self.b))]
        return [sample(shape, self.dtype, n) for n, shape in enumerate((*shapes, *([self.b[-1:]] * self.layer)))]

    def module(self) -> ModuleOp:
        graph = Graph(*self.inputs())
        options = CompileOptions("tf32" if self.dtype == "float32" else "f32")
        module = in_one_group(graph, self._write)[0] if self.computed else graph.module(self._write(graph))
        return scheduled_module(module, GPU, lambda _: program(self.text, "cuda"), options)

    def _write(self, graph: Graph) -> SSAValue:
        operands = [turned(graph, n) if name in self.transposed else graph[n] for n, name in enumerate("ab")]
        if self.computed:
            operands = [graph.add(UnaryOp("relu", each)) for each in operands]
        value = graph.add(MatmulOp(*operands))
        if not self.layer:
            return value
        return graph.add(UnaryOp("relu", graph.add(BinaryOp("add", value, graph[2]))))

    def expected(self) -> tuple[Array, Array]:
        """The exact result, and the sums of its terms' magnitudes."""
        a, b, *rows = (each.astype(np.float64) for each in self.inputs())
        a, b = (m.T if name in self.transposed else m for name, m in (("a", a), ("b", b)))
        a, b = (np.maximum(m, 0) if self.computed else m for m in (a, b))
        exact, magnitude = a @ b, np.abs(a) @ np.abs(b)
        for row in rows:
            exact, magnitude = np.maximum(exact + row, 0), magnitude + np.abs(row)
        return exact, magnitude


AHEAD, FETCHED = "vector 8 buffers 3 async", "vector 8 buffers 2"
LARGE = TILES.format(depth=16).replace("(2, 2, 16)", "(2, 4, 16)").replace("(2, 1, 16)", "(2, 4, 16)")
HALVES, SINGLES = TILES.format(depth=16), TILES.format(depth=8)
CASES: Mapping[str, Product] = {
    "whole": Product((64, 64), (64, 64), HALVES + shared("%k0", AHEAD)),
    "one element": Product((1, 1), (1, 1), HALVES + shared("%k0", AHEAD)),
    "odd": Product((67, 71), (71, 73), HALVES + shared("%k0", AHEAD)),
    "odd, bf16": Product((67, 71), (71, 73), HALVES + shared("%k0", AHEAD), "bfloat16"),
    "few rows": Product((3, 40), (40, 130), HALVES + shared("%k0", FETCHED), layer=True),
    "few columns, bf16": Product((130, 24), (24, 5), HALVES + shared("%k0", FETCHED), "bfloat16", layer=True),
    "one term": Product((33, 1), (1, 47), HALVES + shared("%k0", "")),
    "one buffer": Product((65, 100), (100, 48), HALVES + shared("%k0", "vector 4")),
    "filled once a block": Product((70, 56), (56, 72), HALVES + shared("%i0", "vector 2")),
    "at two places": Product((40, 56), (56, 44), HALVES + shared("%i0", "vector 8", "0") + shared("%k0", AHEAD, "1")),
    "64 KiB of stages": Product((130, 70), (70, 140), LARGE + shared("%k0", "vector 8 buffers 4 async")),
    "transposed": Product((66, 50), (50, 68), HALVES + shared("%k0", AHEAD), transposed="ab"),
    "transposed, bf16": Product((66, 50), (50, 68), HALVES + shared("%k0", FETCHED), "bfloat16", transposed="a"),
    "computed": Product((66, 50), (50, 68), HALVES + shared("%k0", AHEAD), computed=True),
    "computed, fetched": Product((34, 72), (72, 40), HALVES + shared("%k0", FETCHED), "bfloat16", computed=True),
    "8 columns": Product((37, 53), (53, 61), NARROW + shared("%k0", AHEAD)),
    "8 columns, transposed": Product((16, 48), (48, 24), NARROW + shared("%k0", FETCHED), transposed="b"),
    "levels": Product((97, 72), (72, 101), LEVELS + shared("%k0", AHEAD), layer=True),
    "levels, bf16": Product((31, 130), (130, 64), LEVELS + shared("%k1", FETCHED), "bfloat16"),
    "slices": Product((47, 100), (100, 24), SLICES + shared("%k1", AHEAD), layer=True),
    "batched": Product((3, 20, 40), (3, 40, 36), BATCHED + shared("%k0", AHEAD)),
    "batched by one": Product((3, 20, 40), (40, 36), BATCHED + shared("%k0", FETCHED)),
    "tf32": Product((35, 33), (33, 42), SINGLES + shared("%k0", AHEAD), "float32", layer=True),
    "tf32, transposed": Product((64, 32), (32, 64), SINGLES + shared("%k0", FETCHED), "float32", transposed="b"),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled() -> ProgramBatch[PrintedKernels, EmulatedProgram]:
    makers: dict[str, Callable[[], ModuleOp]] = {name: case.module for name, case in CASES.items()}
    return ProgramBatch(makers, Backend(partial(print_program, after="schedule"), compile_programs), len(CASES))


@pytest.mark.parametrize("name", CASES)
def test_products_on_tensor_cores(compiled: ProgramBatch[PrintedKernels, EmulatedProgram], name: str) -> None:
    """Of halves products are exact, and K of them are added in f32; tf32 has 10 bits of mantissa. What is stored, and
    what is added to, is rounded to its type."""
    case = CASES[name]
    assert any("treadle_mma_" in unit.text for unit in compiled[name].printed.units)
    (actual,) = compiled[name].run(case.inputs())
    exact, magnitude = case.expected()
    narrow = case.dtype != "float32"
    unit = 2.0 ** {"float16": -11, "bfloat16": -8, "float32": -24}[case.dtype]
    allowed = (case.a[-1] * 2.0**-24 + (0 if narrow else 2.0**-10)) * magnitude
    allowed += (1 + case.layer) * unit * (magnitude + allowed)
    assert actual.dtype == DTYPES[case.dtype]
    assert (np.abs(actual.astype(np.float64) - exact) <= allowed).all()
