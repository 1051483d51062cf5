"""Code for processors of several vector widths: its values by definition in f64, and the registers that it uses."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.backends.c.toolchains import COMMANDS, private_environment
from tests.helpers.graphs import Graph, random
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from treadle.backends.c.compiler import Unit, compile_objects
from treadle.dialects.graph import BinaryOp, ConvOp, LayerNormOp, MatmulOp, ReductionOp, SoftmaxOp, UnaryOp
from treadle.target import TARGETS, Target
from treadle.target.host import lacks, needs_of

Array = NDArray[Any]
TARGET_TEXTS = ("avx512", "avx2", "sse2", "cpu{vector_bytes=32 vector_registers=16}")


@dataclass(frozen=True)
class Model:
    """Inputs, the graph's operators on them, and what comes out by definition in f64."""

    inputs: tuple[Array, ...]
    build: Callable[[Graph], SSAValue]
    expected: Callable[..., Array]
    tolerance: float = 1e-5

    def module(self) -> ModuleOp:
        """A new module of the operators."""
        graph = Graph(*self.inputs)
        return graph.module(self.build(graph))


def softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def convolution(x: Array, w: Array) -> Array:
    """Windows of 3 x 3 with a border of 1."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w)


def layer_norm(x: Array) -> Array:
    centered = x - x.mean(axis=1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5)


WIDE = random(130, 64)
WEIGHT, FILTER, HALF = random(19, 45), random(7, 3, 3, 3), random(21, 35).astype(np.float16)
ONES, ZEROS = np.ones(45, np.float32), np.zeros(45, np.float32)
MODELS: Mapping[str, Model] = {
    "product with packed weights": Model(
        (random(37, 19),), lambda g: g.add(MatmulOp(g[0], g.constant(WEIGHT))), lambda x: x @ WEIGHT.astype(np.float64)
    ),
    "product of tiles by halves": Model(
        (random(49, 130),), lambda g: g.add(MatmulOp(g[0], g.constant(WIDE))), lambda x: x @ WIDE.astype(np.float64)
    ),
    "product": Model((random(13, 17), random(17, 37)), lambda g: g.add(MatmulOp(g[0], g[1])), np.matmul),
    "product of rows": Model((random(7, 150), random(150, 9)), lambda g: g.add(MatmulOp(g[0], g[1])), np.matmul),
    "product of f16": Model(
        (random(9, 21).astype(np.float16),),
        lambda g: g.add(MatmulOp(g[0], g.constant(HALF))),
        lambda x: x @ HALF.astype(np.float64),
        tolerance=2e-3,
    ),
    "convolution": Model(
        (random(1, 3, 9, 11),),
        lambda g: g.add(ConvOp(g[0], g.constant(FILTER), (1, 1), (1, 1, 1, 1), (1, 1), 1)),
        lambda x: convolution(x, FILTER.astype(np.float64)),
    ),
    "softmax": Model((random(5, 77),), lambda g: g.add(SoftmaxOp(g[0], 1)), lambda x: softmax(x, 1)),
    "softmax of columns": Model((random(3, 7, 33),), lambda g: g.add(SoftmaxOp(g[0], 1)), lambda x: softmax(x, 1)),
    "layer norm": Model(
        (random(6, 45),),
        lambda g: g.add(LayerNormOp(g[0], g.constant(ONES), g.constant(ZEROS), 1, 1e-5)),
        layer_norm,
    ),
    "long sum": Model(
        (random(7, 301),), lambda g: g.add(ReductionOp("add", g[0], [1], False)), lambda x: x.sum(axis=1)
    ),
    "maximum": Model((random(7, 37),), lambda g: g.add(ReductionOp("max", g[0], [1], False)), lambda x: x.max(axis=1)),
    "chain": Model(
        (random(7, 111),),
        lambda g: g.add(BinaryOp("mul", g.add(UnaryOp("tanh", g.add(UnaryOp("exp", g[0])))), g[0])),
        lambda x: np.tanh(np.exp(x)) * x,
    ),
    "chain of f16": Model(
        (random(5, 51).astype(np.float16),),
        lambda g: g.add(BinaryOp("mul", g.add(UnaryOp("sigmoid", g[0])), g[0])),
        lambda x: x / (1 + np.exp(-x)),
        tolerance=2e-3,
    ),
}


@cache
def printed(text: str) -> list[PrintedProgram]:
    """The models for a target."""
    return [print_program(name, model.module(), text) for name, model in MODELS.items()]


def kernels_of(text: str) -> list[Unit]:
    """All kernels of the models for a target."""
    return [unit for program in printed(text) for unit in program.kernels]


@cache
def programs(text: str) -> dict[str, CompiledProgram]:
    """The models for a target, compiled in one call of the compiler."""
    return compile_programs(printed(text), text)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", TARGET_TEXTS)
def test_values_are_those_of_the_definition(name: str, text: str) -> None:
    missing = lacks(needs_of(Target.parse(text)))
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    model = MODELS[name]
    (actual,) = programs(text)[name].run(model.inputs)
    expected = model.expected(*(x.astype(np.float64) for x in model.inputs))
    assert (actual.shape, actual.dtype) == (expected.shape, model.inputs[0].dtype)
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=model.tolerance, atol=model.tolerance)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.skipif(bool(lacks("x86_64")), reason="registers of x86-64")
@pytest.mark.parametrize("text", TARGET_TEXTS)
def test_code_uses_the_registers_of_its_target_and_no_wider_ones(text: str) -> None:
    library = programs(text)["product"].library
    code = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    used = {size for size, register in ((16, "%xmm"), (32, "%ymm"), (64, "%zmm")) if register in code}
    assert max(used) == Target.parse(text).vector_bytes


@pytest.mark.parametrize("text", (*TARGET_TEXTS, "neon"))
def test_vector_types_are_as_wide_as_the_target(text: str) -> None:
    kernels = "\n".join(unit.text for unit in kernels_of(text))
    assert set(re.findall(r"\bv(\d+)[fi]\b", kernels)) == {str(Target.parse(text).lanes)}


# Accumulators of rows x vectors, a row of the panel, and a broadcast element of the left operand.
TILES = {"cpu": (6, 64), "avx512": (6, 64), "avx2": (6, 16), "sse2": (6, 8), "neon": (8, 8)}


@pytest.mark.parametrize(("text", "tile"), TILES.items())
def test_a_products_tile_fits_the_registers(text: str, tile: tuple[int, int]) -> None:
    rows, columns = tile
    target, graph = Target.parse(text), Graph(random(48, 16), random(16, 64))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    kernel = "".join(unit.text for unit in print_program("tile", module, text).kernels)
    assert f"v{target.lanes}f acc[{rows}][{columns // target.lanes}]" in kernel
    assert (rows + 1) * (columns // target.lanes) + 1 <= target.vector_registers


def test_tiles_by_halves_are_those_that_leave_no_register() -> None:
    """7 rows by 4 vectors with AVX-512: `loop-split-register-tiles`."""
    for text in TARGET_TEXTS:
        (program,) = (each for each in printed(text) if each.name == "product of tiles by halves")
        halves = any("TREADLE_AGAIN" in unit.text for unit in program.kernels)
        assert halves == any("acc[7][4]" in unit.text for unit in program.kernels) == (text == "avx512")


@pytest.mark.skipif("zig" not in COMMANDS, reason="no cross compiler")
def test_code_for_neon_compiles(tmp_path: Path) -> None:
    target = TARGETS["neon"]
    command = (*COMMANDS["zig"], "-target", "aarch64-linux-gnu")
    for path in compile_objects(
        [Unit("all", _one_text(kernels_of("neon")))], private_environment(tmp_path, command), target=target
    ):
        assert path.read_bytes()[18] == 183, "the machine of an ELF file: EM_AARCH64"


def _one_text(units: list[Unit]) -> str:
    """Kernels in one translation unit, renamed so that none has the name of another."""
    parts = ['#include "treadle.h"']
    for n, unit in enumerate(units):
        parts += [f"#define {unit.name} {unit.name}_{n}", unit.text, f"#undef {unit.name}"]
    return "\n".join(parts)
