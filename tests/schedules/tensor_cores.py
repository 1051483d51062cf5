"""What the tests of products on tensor cores share: anchors, groups by hand, error bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product as combinations
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from tests.helpers.graphs import Graph, random
from treadle.backends.reference import evaluate_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, YieldOp
from treadle.dialects.graph.dtypes import element_type
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.template import Template
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

Array = NDArray[Any]
Shape = tuple[int, ...]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "float32": np.dtype(np.float32),
}
TEMPLATE = {"float16": "matmul_mma", "bfloat16": "matmul_mma", "float32": "matmul_tf32"}
"""The template that multiplies a type on tensor cores."""
GPU = Target.parse("sm_80")

SHAPES: list[tuple[Shape, Shape]] = [
    ((1, 1), (1, 1)),
    ((1, 7), (7, 1)),
    ((1, 64), (64, 128)),
    ((2, 3), (3, 5)),
    ((3, 1), (1, 200)),
    ((5, 32), (32, 9)),
    ((7, 11), (11, 13)),
    ((8, 8), (8, 8)),
    ((13, 64), (64, 8)),
    ((16, 16), (16, 16)),
    ((16, 96), (96, 130)),
    ((17, 17), (17, 17)),
    ((17, 40), (40, 64)),
    ((31, 33), (33, 29)),
    ((32, 32), (32, 64)),
    ((32, 130), (130, 64)),
    ((33, 64), (64, 65)),
    ((37, 53), (53, 61)),
    ((40, 36), (36, 44)),
    ((47, 100), (100, 48)),
    ((64, 24), (24, 72)),
    ((64, 128), (128, 64)),
    ((65, 31), (31, 63)),
    ((66, 66), (66, 66)),
    ((67, 71), (71, 73)),
    ((96, 32), (32, 1)),
    ((97, 8), (8, 101)),
    ((1, 200), (200, 3)),
    ((3, 20, 16), (3, 16, 24)),
    ((2, 35, 33), (33, 10)),
    ((9, 48), (3, 48, 16)),
    ((2, 2, 17, 9), (2, 2, 9, 40)),
]
"""Primes, ones, sizes below a tile, whole tiles, batches that both operands have or one."""


def tensor(*shape: int, dtype: str = "float16") -> SSAValue:
    """A value of a tensor type, which belongs to no program."""
    return Block(arg_types=[TensorType(element_type(DTYPES[dtype]), shape)]).args[0]


def product(shapes: tuple[Shape, Shape], dtype: str = "float16") -> MatmulOp:
    """A product of matrices that belong to no program."""
    return MatmulOp(tensor(*shapes[0], dtype=dtype), tensor(*shapes[1], dtype=dtype))


def sample(shape: Shape, dtype: str, seed: int) -> Array:
    """Normally distributed numbers of a type."""
    return random(*shape, seed=seed).astype(DTYPES[dtype])


def assert_product(actual: Array, a: Array, b: Array) -> None:
    """That `actual` is a @ b up to what its type and the number of terms allow.

    Operands of f32 are rounded to tf32, 11 bits; a sum of K terms in f32 is off by at most K units of 2^-24 of the
    sum of the terms' magnitudes; the result is rounded to its type. (Higham, Accuracy and Stability, section 3.1.)
    """
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact, magnitude = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    operands = 2.0**-10 if actual.dtype == np.float32 else 0.0
    rounding = float(ml_dtypes.finfo(actual.dtype).eps) / 2 if actual.dtype != np.float32 else 0.0
    allowed = (operands + a.shape[-1] * 2.0**-24) * magnitude
    allowed += rounding * (np.abs(exact) + allowed) + float(ml_dtypes.finfo(actual.dtype).smallest_subnormal)
    assert actual.shape == exact.shape
    excess = np.abs(actual.astype(np.float64) - exact) - allowed
    assert excess.max() <= 0, f"off by {excess.max():.3g} more than allowed"


def scheduled(module: ModuleOp, template: str, choices: Mapping[str, Choice], target: Target) -> ModuleOp:
    """A module lowered for a GPU, every product scheduled by the template: its default with some choices replaced."""
    context = treadle_context()
    grouped = any(isinstance(op, FusedOp) for op in module.walk())
    lower(context, module, target, after="fuse" if grouped else None, to="schedule")
    for fused in [op for op in module.walk() if isinstance(op, FusedOp)]:
        anchor = anchor_of(fused)
        if isinstance(anchor, MatmulOp):
            fused.schedule = UseAttr.get(template, TEMPLATES[template].default(anchor, target) | dict(choices))
    lower(context, module, target, after="schedule")
    return module


def in_one_group(graph: Graph, build: Callable[[Graph], SSAValue], target: Target = GPU) -> tuple[ModuleOp, Array]:
    """A module in which everything that `build` adds is one group, whatever the fusion plan would think of it; and
    what it computes."""
    module = graph.module(build(graph))
    (expected,) = evaluate_module(module, graph.inputs)
    if not any(op.name == "graph.compute" for op in module.walk()):
        lower(treadle_context(), module, target, to="graph")
    lower(treadle_context(), module, target, after="graph", to="define")
    main = next(op for op in module.walk() if isinstance(op, FuncOp))
    block = main.body.block
    *members, end = block.ops
    assert isinstance(end, ReturnOp)
    for op in (*members, end):
        op.detach()
    result = end.operands[0]
    constants = [op for op in members if op.name == "graph.constant"]
    inside = [op for op in members if op not in constants]
    fused = FusedOp("group", Region(Block([*inside, YieldOp(result)])))
    end.erase()
    block.add_ops([*constants, fused, ReturnOp(fused.results[0])])
    module.verify()
    return module, expected


def legal_choices(template: Template, anchor: MatmulOp, target: Target) -> Iterator[dict[str, Choice]]:
    """Every combination of the knobs' values that the template takes, whatever a search would leave out."""
    names = [knob.name for knob in template.knobs]
    for values in combinations(*(knob.values for knob in template.knobs)):
        choices = dict(zip(names, values, strict=True))
        try:
            template.check(anchor, choices, target, "here")
        except TreadleError:
            continue
        yield choices
