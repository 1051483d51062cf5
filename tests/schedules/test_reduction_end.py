"""Kernels for GPUs end reductions at the call's extent: right on the emulator with all checks, in as few steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr

from tests.schedules.nest.test_nest import program
from tests.schedules.nest.test_nest_emulated import TILES, shared
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.schedule import Choice, UseAttr
from treadle.environment import Environment
from treadle.ir import lower, parse
from treadle.passes.schedule.instance import CallShape, anchor_of, instance_of, needed_terms
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.reduction_end import reduction_end
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.target import Target

GPU = Target.parse("sm_80")
K = 96
PRODUCT = """
func.func @main(%x: tensor<68x96x{type}>, %w: tensor<96x72x{type}>, %n: tensor<i64>) -> tensor<68x72x{type}>
    attributes {{input_names = ["x", "w", "n"], output_names = ["y"], extents = ["n"]}} {{
  %a = graph.mask %x below %n {{dim = 1 : i64, fill = 0.0 : {type}}}
      : (tensor<68x96x{type}>, tensor<i64>) -> tensor<68x96x{type}>
  %b = graph.mask %w below %n {{dim = 0 : i64, fill = 0.0 : {type}}}
      : (tensor<96x72x{type}>, tensor<i64>) -> tensor<96x72x{type}>
  %y = graph.matmul %a, %b : (tensor<68x96x{type}>, tensor<96x72x{type}>) -> tensor<68x72x{type}>
  func.return %y : tensor<68x72x{type}>
}}
"""
FOLD = """
func.func @main(%x: tensor<{shape}xf32>, %n: tensor<i64>) -> tensor<{kept}xf32>
    attributes {{input_names = ["x", "n"], output_names = ["y"], extents = ["n"]}} {{
  %a = graph.mask %x below %n {{dim = {dim} : i64, fill = {fill} : f32}}
      : (tensor<{shape}xf32>, tensor<i64>) -> tensor<{shape}xf32>
  %y = graph.reduction "{kind}" %a {{dims = array<i64: {dims}>, keep = 0 : i64}}
      : (tensor<{shape}xf32>) -> tensor<{kept}xf32>
  func.return %y : tensor<{kept}xf32>
}}
"""
SIMT: dict[str, Choice] = {
    "warps": (1, 2), "repeats": (1, 1), "thread": (2, 2), "min_blocks_per_sm": 1, "block_k": 8,
}  # fmt: skip
MMA: dict[str, Choice] = {"block": (32, 64), "warps": (2, 2), "stages": 3, "group": 1, "block_k": 32}
SLICED = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2 = schedule.split %i by (4, 3)
%j0, %j1 = schedule.split %j by (36)
%k0, %k1, %k2 = schedule.split %k by (4, 8)
schedule.arrange block(%k0, %i0, %j0) thread(%i1, %j1) loop(%k1) loop(%k2) repeat(%i2)
"""
"""Three slices of four steps."""


@dataclass(frozen=True)
class Product:
    """A schedule of the product: a template with some choices, or a program; tile: terms of a step."""

    schedule: tuple[str, dict[str, Choice]] | str
    tile: int
    dtype: str = "float32"

    def module(self) -> ModuleOp:
        text = PRODUCT.format(type={"float32": "f32", "float16": "f16"}[self.dtype])
        module = parse(text)
        lower(module, "sm_80", to="schedule")
        fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
        if isinstance(self.schedule, str):
            module.body.block.add_op(program(self.schedule, "cuda"))
            fused.schedule = SymbolRefAttr("p")
        else:
            name, choices = self.schedule
            default = TEMPLATES[name].default(anchor_of(fused), GPU)
            fused.schedule = UseAttr.get(name, {**default, **choices})
        return module


PRODUCTS: Mapping[str, Product] = {
    "simt": Product(("matmul_simt", SIMT | {"split_k": 1}), 8),
    "simt in slices": Product(("matmul_simt", SIMT | {"split_k": 3}), 24),
    "tf32": Product(("matmul_tf32", MMA | {"split_k": 1, "block_k": 16}), 16),
    "mma": Product(("matmul_mma", MMA | {"split_k": 1}), 32, "float16"),
    "mma in slices": Product(("matmul_mma", MMA | {"split_k": 3, "stages": 2}), 96, "float16"),
    "mma in more stages than steps": Product(("matmul_mma", MMA | {"split_k": 1, "stages": 5}), 32, "float16"),
    "mma with two sets of fragments": Product(("matmul_mma", MMA | {"split_k": 1, "fragments": 2}), 32, "float16"),
    "mma with two sets, in slices": Product(("matmul_mma", MMA | {"split_k": 3, "fragments": 2}), 96, "float16"),
    "nest": Product(TILES, 8),
    "nest, one buffer": Product(TILES + shared("%k0", "vector 4"), 8),
    "nest, fetched ahead": Product(TILES + shared("%k0", "vector 4 buffers 2"), 8),
    "nest, copied ahead": Product(TILES + shared("%k0", "vector 4 buffers 3 async"), 8),
    "nest in slices": Product(SLICED, 8),
}


def emulated(module: ModuleOp, environment: Environment, *, counters: bool = False) -> EmulatedProgram:
    lower(module, "sm_80", after="schedule", to="lower")
    return EmulatedProgram(module, () if counters else tuple(CHECKS), counters=counters, environment=environment)


def operands(n: int, dtype: str) -> list[np.ndarray]:
    """Whole numbers, whose products and sums are exact; NaN beyond n terms, which a mask lets nothing through of."""
    rng = np.random.default_rng(n)
    x, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((68, K), (K, 72)))
    x[:, n:], w[n:] = np.nan, np.nan
    return [x, w, np.array(n, np.int64)]


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_any_length(name: str, emulator_environment: Environment) -> None:
    case = PRODUCTS[name]
    emulator = emulated(case.module(), emulator_environment)
    for n in sorted({0, 1, case.tile - 1, case.tile, min(case.tile + 1, K), K - 1, K}):
        x, w, length = operands(n, case.dtype)
        (found,), reports = emulator.run([x, w, length])
        assert not [str(report) for report in reports if report.findings], n
        wanted = x[:, :n].astype(np.float64) @ w[:n].astype(np.float64)
        np.testing.assert_array_equal(found.astype(np.float64), wanted, err_msg=str(n))


@pytest.mark.parametrize("name", ["simt", "mma", "nest, one buffer", "nest, fetched ahead", "nest, copied ahead"])
def test_a_short_call_takes_fewer_steps(name: str, emulator_environment: Environment) -> None:
    """Requests of shared memory are those of as many steps as tiles cover."""
    case = PRODUCTS[name]
    emulator = emulated(case.module(), emulator_environment, counters=True)

    def requests(n: int) -> int:
        _, (*_, report) = emulator.run(operands(n, case.dtype))
        assert report.counters is not None
        return report.counters.total.shared_requests

    one, two = requests(1), requests(case.tile + 1)
    assert two > one
    for n in (case.tile, 2 * case.tile, K - 1, K):
        assert requests(n) == one + (ceil(n / case.tile) - 1) * (two - one)


FOLDS = {
    "add along rows": ("5x3x160", "5x3", 2, "2", "-0.0", "add"),
    "max along rows": ("7x160", "7", 1, "1", "0xff800000", "max"),
    "max of columns": ("160x40", "40", 0, "0", "0xff800000", "max"),
    "add of two dimensions": ("4x24x9", "4", 1, "1, 2", "-0.0", "add"),
}


@pytest.mark.parametrize("name", FOLDS)
def test_reductions_of_any_length(name: str, emulator_environment: Environment) -> None:
    shape, kept, dim, dims, fill, kind = FOLDS[name]
    module = parse(FOLD.format(shape=shape, kept=kept, dim=dim, dims=dims, fill=fill, kind=kind))
    lower(module, "sm_80", to="schedule")
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    fused.schedule = UseAttr.get("reduce_cuda", {"threads": 64, "outputs": 2})
    emulator = emulated(module, emulator_environment)
    extents = tuple(map(int, shape.split("x")))
    folded, bound = tuple(map(int, dims.split(","))), extents[dim]
    x = np.random.default_rng(3).standard_normal(extents).astype(np.float32)
    for n in (1, 2, bound // 2, bound - 1, bound):
        given = x.copy()
        given[(slice(None),) * dim + (slice(n, None),)] = np.nan
        (found,), reports = emulator.run([given, np.array(n, np.int64)])
        assert not [str(report) for report in reports if report.findings], n
        part = np.take(x, range(n), dim).astype(np.float64)
        wanted = part.sum(folded) if kind == "add" else part.max(folded)
        scale = np.abs(part).sum(folded) if kind == "add" else 0
        np.testing.assert_array_less(np.abs(found - wanted), 1e-9 + 2.0**-24 * n * 10 * scale, err_msg=str(n))


def _end(text: str) -> object:
    module = parse(text)
    lower(module, "sm_80", to="schedule")
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    return reduction_end(anchor_of(fused))


def test_what_ends() -> None:
    """Not a fold whose terms beyond the extent count, nor one that is masked by what is no extent."""
    fold = {"shape": "7x160", "kept": "7", "dim": 1, "dims": "1", "fill": "0.0", "kind": "add"}
    assert _end(FOLD.format(**fold)) is not None
    assert _end(FOLD.format(**fold | {"fill": "1.0"})) is None
    assert _end(FOLD.format(**fold | {"kind": "max"})) is None
    assert _end(FOLD.format(**fold).replace(', extents = ["n"]', "")) is None
    product = PRODUCT.format(type="f32")
    assert _end(product) is not None
    rows_and_columns = product.replace("w below %n {dim = 0", "w below %n {dim = 1")
    assert _end(rows_and_columns.replace("x below %n {dim = 1", "x below %n {dim = 0")) is None


def test_predictions_of_a_point_count_the_steps_of_its_call() -> None:
    """The kernel that is recorded for a point has as many steps as the ranged kernel takes in its calls."""
    case = PRODUCTS["mma"]
    module = case.module()
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    anchor = anchor_of(fused)
    assert isinstance(anchor, MatmulOp)
    use = fused.schedule
    assert isinstance(use, UseAttr)

    def tensor_flops(n: int) -> float:
        terms = needed_terms(anchor, (n,), fused=False)
        work = work_of(Group(instance_of(anchor, CallShape(tuple(anchor.shape), terms))), use, GPU)
        assert isinstance(work, GpuWork)
        return work.tensor_flops

    for n in (31, 32, 33, K):
        assert tensor_flops(n) == ceil(n / case.tile) * tensor_flops(1) > 0
