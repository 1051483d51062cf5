"""Row computations through the whole pipeline: one kernel each, right and clean on the emulator, without spills."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph, random
from tests.helpers.limits import assert_within, module_limits
from tests.helpers.sampling import every
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import (
    ArgReductionOp,
    BinaryOp,
    LayerNormOp,
    ReductionOp,
    ReshapeOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.environment import Environment
from treadle.target import Target

Build = Callable[[Graph], SSAValue]
Shape = tuple[int, ...]


def _softmax(dim: int) -> Build:
    return lambda g: g.add(SoftmaxOp(g[0], dim))


def _layer_norm(dim: int) -> Build:
    return lambda g: g.add(LayerNormOp(g[0], g[1], g[2], dim, 1e-5))


def _residual_norm_gelu(g: Graph) -> SSAValue:
    """A sum that only the normalisation reads, and an elementwise function of its result."""
    normal = g.add(LayerNormOp(g.add(BinaryOp("add", g[0], g[1])), g[2], g[3], 1, 1e-5))
    return g.add(UnaryOp("gelu", normal))


def _log_softmax(g: Graph) -> SSAValue:
    shifted = g.add(BinaryOp("sub", g[0], g.add(ReductionOp("max", g[0], [1], keep=True))))
    total = g.add(ReductionOp("add", g.add(UnaryOp("exp", shifted)), [1], keep=True))
    return g.add(BinaryOp("sub", shifted, g.add(UnaryOp("log", total))))


def _instance_norm(g: Graph) -> SSAValue:
    """As exporters write it: mean, difference, mean of squares, root, quotient."""
    centred = g.add(BinaryOp("sub", g[0], g.add(ReductionOp("mean", g[0], [2, 3], keep=True))))
    square = g.add(ReductionOp("mean", g.add(BinaryOp("mul", centred, centred)), [2, 3], keep=True))
    spread = g.add(UnaryOp("sqrt", g.add(BinaryOp("add", square, g.constant(np.float32(1e-5))))))
    return g.add(BinaryOp("div", centred, spread))


def _group_norm(g: Graph) -> SSAValue:
    """Groups of channels by reshapes, then a scale for each channel."""
    rows = g.add(ReshapeOp(g[0], [2, 3, 2 * 35]))
    centred = g.add(BinaryOp("sub", rows, g.add(ReductionOp("mean", rows, [2], keep=True))))
    square = g.add(ReductionOp("mean", g.add(BinaryOp("mul", centred, centred)), [2], keep=True))
    spread = g.add(UnaryOp("sqrt", g.add(BinaryOp("add", square, g.constant(np.float32(1e-5))))))
    normal = g.add(ReshapeOp(g.add(BinaryOp("div", centred, spread)), [2, 6, 5, 7]))
    return g.add(BinaryOp("mul", normal, g[1]))


def _transposed(g: Graph) -> SSAValue:
    """A transpose before and after, which only move data."""
    return g.add(TransposeOp(g.add(SoftmaxOp(g.add(TransposeOp(g[0], [1, 0])), 1)), [1, 0]))


def _argmax(g: Graph) -> SSAValue:
    return g.add(ArgReductionOp("max", g[0], 1, keep=False))


GRAPHS: dict[str, tuple[Build, tuple[Shape, ...]]] = {
    "softmax of short rows": (_softmax(1), ((300, 5),)),
    "softmax of a prime": (_softmax(1), ((17, 131),)),
    "softmax across rows": (_softmax(1), ((2, 81, 37),)),
    "softmax of many warps a row": (_softmax(1), ((3, 9001),)),
    "softmax of a row that is not cached": (_softmax(1), ((1, 100003),)),
    "layer norm of BERT": (_layer_norm(2), ((1, 20, 768), (768,), (768,))),
    "layer norm over two dimensions": (_layer_norm(1), ((9, 5, 13), (5, 13), (5, 13))),
    "residual, layer norm, gelu": (_residual_norm_gelu, ((33, 100), (33, 100), (100,), (100,))),
    "log softmax": (_log_softmax, ((40, 70),)),
    "instance norm": (_instance_norm, ((2, 3, 9, 11),)),
    "group norm": (_group_norm, ((2, 6, 5, 7), (6, 1, 1))),
    "position of the largest": (_argmax, ((37, 300),)),
    "transposed": (_transposed, ((45, 70),)),
}


def graph_of(name: str) -> Graph:
    return Graph(*(random(*shape, seed=seed) for seed, shape in enumerate(GRAPHS[name][1])))


@pytest.mark.parametrize("name", list(GRAPHS))
def test_a_row_computation_is_one_kernel_right_and_clean(name: str, emulator_environment: Environment) -> None:
    build, _ = GRAPHS[name]
    graph = graph_of(name)
    module = graph.module(build(graph))
    (expected,) = module_limits(module, graph.inputs)
    lower(treadle_context(), module, Target.parse("sm_80"), to="plan")
    assert sum(isinstance(op, FuncOp) for op in module.walk()) == 1
    lower(treadle_context(), module, Target.parse("sm_80"), after="plan")
    (result,), reports = EmulatedProgram(module, tuple(CHECKS), environment=emulator_environment).run(graph.inputs)
    assert_within(result, expected, result.dtype, name)
    assert reports and not [str(report) for report in reports if report.findings]


@pytest.mark.parametrize("target", every(2, ["sm_80", "sm_90"]))
@pytest.mark.parametrize("name", list(GRAPHS))
def test_default_choices_do_not_spill(name: str, target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    graph = graph_of(name)
    module = graph.module(GRAPHS[name][0](graph))
    lower(treadle_context(), module, Target.parse(target))
    (unit,) = print_kernels(module)
    cubin = compile_cubin(unit, Target.parse(target))
    found = disassembled(cubin)
    assert found and not any(kernel.uses_local_memory for kernel in found.values())
