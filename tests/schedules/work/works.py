"""Groups of every template, and the work that is counted on the kernels of their candidates."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import ModuleOp, bf16, i32
from xdsl.ir import SSAValue
from xdsl.parser import Parser

from tests.helpers.graphs import Graph
from tests.helpers.graphs import random as numbers
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    CastOp,
    ConvOp,
    LayerNormOp,
    MatmulOp,
    PoolOp,
    ReductionOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import group_of
from treadle.passes.schedule.schedule_select import add_program
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.programs import Replayed, taken
from treadle.schedules.work.cpu_work import Work
from treadle.schedules.work.lowered import count_gpu_work, count_work
from treadle.target import Target
from treadle.target.options import CompileOptions
from treadle.tuning.tasks import GroupTask, tasks_of

A100 = "sm_80"
Write = Callable[[Graph], SSAValue]


@dataclass(frozen=True)
class Case:
    """A model: its inputs' shapes, and what it computes."""

    shapes: Sequence[tuple[int, ...]]
    write: Write
    dtype: type = np.float32
    options: CompileOptions | None = None

    def module(self, target: Target) -> ModuleOp:
        """The model after stage `fuse`."""
        graph = Graph(*(np.zeros(shape, self.dtype) for shape in self.shapes))
        module = graph.module(self.write(graph))
        lower(treadle_context(), module, target, after="import", to="fuse", options=self.options)
        return module


def weights(*shape: int) -> np.ndarray:
    """Numbers that constants have."""
    return numbers(*shape)


def product(g: Graph) -> SSAValue:
    """Of both inputs."""
    return g.add(MatmulOp(g[0], g[1]))


def product_by_rows(g: Graph) -> SSAValue:
    """Whose right operand lies along K."""
    return g.add(MatmulOp(g[0], g.add(TransposeOp(g[1], [1, 0]))))


def layer(g: Graph) -> SSAValue:
    """A product by a constant, shifted, and a function."""
    *_, k = g.inputs[0].shape
    y = g.add(MatmulOp(g[0], g.constant(weights(k, 70))))
    return g.add(UnaryOp("tanh", g.add(BinaryOp("add", y, g.constant(weights(70))))))


def narrow_product(g: Graph) -> SSAValue:
    """Of bf16, by a constant."""
    return g.add(MatmulOp(g.add(CastOp(g[0], bf16)), g.constant(weights(64, 48).astype(ml_dtypes.bfloat16))))


def product_by_constant(g: Graph) -> SSAValue:
    """Of f32."""
    return g.add(MatmulOp(g[0], g.constant(weights(64, 48))))


def halves_by_constant(g: Graph) -> SSAValue:
    """Of f16."""
    return g.add(MatmulOp(g[0], g.constant(weights(1024, 48).astype(np.float16))))


def byte_product(g: Graph) -> SSAValue:
    """Of bytes, of which the right operand lies along K."""
    return g.add(MatmulOp(g[0], g.add(TransposeOp(g[1], [1, 0])), sums=i32))


def conv(outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Write:
    """A convolution by a constant with a border, and a function."""

    def write(g: Graph) -> SSAValue:
        w = g.constant(weights(outputs, g.inputs[0].shape[1] // groups, kernel, kernel))
        pad = kernel // 2
        y = g.add(ConvOp(g[0], w, [stride] * 2, [pad] * 4, [1, 1], groups))
        return g.add(UnaryOp("relu", y))

    return write


def depthwise_chain(g: Graph) -> SSAValue:
    """Between two others, whose blocks of channels it keeps."""
    x = g.add(ConvOp(g[0], g.constant(weights(64, 64, 1, 1)), [1, 1], [0] * 4, [1, 1], 1))
    x = g.add(ConvOp(x, g.constant(weights(64, 1, 3, 3)), [1, 1], [1] * 4, [1, 1], 64))
    return g.add(ConvOp(x, g.constant(weights(64, 64, 1, 1)), [1, 1], [0] * 4, [1, 1], 1))


def narrow_conv(g: Graph) -> SSAValue:
    """A convolution of bf16."""
    w = g.constant(weights(64, 64, 3, 3).astype(ml_dtypes.bfloat16))
    return g.add(ConvOp(g.add(CastOp(g[0], bf16)), w, [1, 1], [1] * 4, [1, 1], 1))


def attention(*, causal: bool) -> Write:
    """Of three inputs."""
    return lambda g: g.add(AttentionOp(g[0], g[1], g[2], scale=0.25, causal=causal))


def layer_norm(g: Graph) -> SSAValue:
    """Of rows."""
    return g.add(LayerNormOp(g[0], g[1], g[2], 1, 1e-5))


def softmax(g: Graph) -> SSAValue:
    """Of rows."""
    return g.add(SoftmaxOp(g[0], 1))


def sums(dim: int) -> Write:
    """Along a dimension."""
    return lambda g: g.add(ReductionOp("add", g[0], [dim], keep=False))


def pool(g: Graph) -> SSAValue:
    """The largest of windows."""
    return g.add(PoolOp("max", g[0], [3, 3], [2, 2], [1] * 4, [1, 1]))


def pointwise(g: Graph) -> SSAValue:
    """A function of a sum."""
    return g.add(UnaryOp("exp", g.add(BinaryOp("add", g[0], g[1]))))


def turned(g: Graph) -> SSAValue:
    """Channels last."""
    return g.add(TransposeOp(g[0], [0, 2, 3, 1]))


HEADS = ((1, 2, 48, 32),) * 3
DECODED = ((1, 6, 3, 64), *((1, 2, 300, 64),) * 2)
CPU_CASES: Mapping[str, tuple[str, Case]] = {
    "product": ("avx512", Case(((40, 64), (64, 96)), product)),
    "product by rows": ("avx2", Case(((40, 64), (96, 64)), product_by_rows)),
    "layer": ("avx2", Case(((31, 64),), layer)),
    "product of tiles": ("cpu{matrix_unit=amx cores=2}", Case(((48, 64),), narrow_product)),
    "product of tiles of few bits": (
        "cpu{matrix_unit=amx cores=2}",
        Case(((48, 64),), product_by_constant, options=CompileOptions(precision="bf16", weights="int8")),
    ),
    "convolution of tiles": ("cpu{matrix_unit=amx cores=2}", Case(((1, 64, 9, 9),), narrow_conv)),
    "Winograd": (
        "sse2{cores=2}",
        Case(((1, 64, 28, 28),), conv(64, 3), options=CompileOptions(convolution="winograd2")),
    ),
    "convolution": ("avx512", Case(((1, 32, 14, 14),), conv(48, 3, 2))),
    "depthwise convolution": ("avx512", Case(((1, 64, 28, 28),), depthwise_chain)),
    "attention": ("avx2", Case(HEADS, attention(causal=True))),
    "layer norm": ("avx512", Case(((20, 96), (96,), (96,)), layer_norm)),
    "softmax": ("neon", Case(((20, 50),), softmax)),
    "sum of rows": ("avx2", Case(((30, 200),), sums(1))),
    "sum of columns": ("avx512", Case(((200, 64),), sums(0))),
    "pooling": ("avx2", Case(((1, 16, 15, 15),), pool)),
    "pointwise": ("avx512", Case(((20, 100), (100,)), pointwise)),
    "transpose": ("avx512", Case(((2, 64, 12, 12),), turned)),
}
GPU_CASES: Mapping[str, tuple[str, Case]] = {
    "product": (A100, Case(((130, 208), (208, 148)), product)),
    "product in few blocks": (A100, Case(((32, 1024), (1024, 24)), product)),
    "layer": ("sm_90a", Case(((66, 64),), layer)),
    "product of halves": (A100, Case(((264, 192), (192, 136)), product, np.float16)),
    "product of few rows": (A100, Case(((3, 1064), (1064, 200)), product, np.float16)),
    "product of few rows by rows": (A100, Case(((5, 2048), (512, 2048)), product_by_rows, np.float16)),
    "product of bytes": (A100, Case(((272, 128), (144, 128)), byte_product, np.int8)),
    "tf32": (A100, Case(((260, 128), (128, 300)), product, options=CompileOptions(precision="tf32"))),
    "convolution": (A100, Case(((1, 16, 15, 15),), conv(24, 3, 2))),
    "depthwise convolution": (A100, Case(((1, 32, 14, 14),), conv(32, 3, 1, 32))),
    "attention": (A100, Case(HEADS, attention(causal=True))),
    "attention of halves": (A100, Case(((1, 2, 128, 64),) * 3, attention(causal=False), np.float16)),
    "attention of few queries": (A100, Case(DECODED, attention(causal=True), np.float16)),
    "layer norm": ("sm_90a", Case(((20, 96), (96,), (96,)), layer_norm)),
    "softmax": (A100, Case(((20, 50),), softmax)),
    "sum of rows": (A100, Case(((300, 512),), sums(1))),
    "sum of columns": ("sm_90a", Case(((200, 64),), sums(0))),
    "pooling": (A100, Case(((1, 16, 15, 15),), pool)),
    "pointwise": (A100, Case(((64, 128), (128,)), pointwise)),
    "transpose": (A100, Case(((2, 16, 12, 12),), turned)),
}
WARPGROUP_CASES: Mapping[str, tuple[str, Case]] = {
    "product of warpgroups": ("sm_90a", Case(((264, 192), (192, 136)), product, np.float16)),
    "product by clusters": ("sm_90a", Case(((128, 768), (768, 768)), product, np.float16)),
    "attention of warpgroups": ("sm_90a", Case(((1, 2, 256, 64),) * 3, attention(causal=True), np.float16)),
}
"""Of GPUs, too. What is predicted is counted before copies become those of boxes, which have other counts."""
FEW_BITS_CASES: Mapping[str, tuple[str, Case]] = {
    f"product of few rows of {bits}": (
        A100,
        Case(((2, 1024),), halves_by_constant, np.float16, options=CompileOptions(weights=bits)),
    )
    for bits in ("int4", "int8")
}
"""Of GPUs, of which templates that dequantise where they copy have other counts than is predicted."""


@cache
def tasks(name: str, *, is_gpu: bool) -> tuple[Target, tuple[GroupTask, ...]]:
    """The groups of a case."""
    text, case = ({**GPU_CASES, **WARPGROUP_CASES, **FEW_BITS_CASES} if is_gpu else CPU_CASES)[name]
    target = Target.parse(text)
    return target, tuple(tasks_of(case.module(target), target))


def candidates(task: GroupTask, each: int, seed: str) -> Iterator[tuple[Candidate, Replayed]]:
    """The default and random candidates of every template, and of two programs of nests."""
    draw, search = random.Random(seed), task.search
    nests = [name for name, program in search.by_name.items() if program.template is None]
    templates = [name for name in search.by_name if name not in nests]
    yield task.default, search.replay(task.default)
    for name in (*templates, *draw.sample(nests, min(2, len(nests)))):
        found = 0
        for _ in range(20):
            decisions = search.samplers[name].draw(draw)
            candidate = None if decisions is None else Candidate(name, decisions)
            if candidate is None or found == each:
                continue
            try:
                replayed = search.replay(candidate)
            except TreadleError:
                continue
            found += 1
            yield _canonical(task, candidate, replayed), replayed


def _canonical(task: GroupTask, candidate: Candidate, replayed: Replayed) -> Candidate:
    """The candidate whose kernel is written from what another one gives, too."""
    return task.search.candidate(replayed) if isinstance(replayed, UseAttr) else candidate


def on_kernel(task: GroupTask, candidate: Candidate, target: Target) -> Work | GpuWork:
    """The work counted on the lowered kernel of a candidate."""
    context = treadle_context()
    module = Parser(context, task.text).parse_module()
    program = task.search.by_name[candidate.program]
    group_of(module).schedule = add_program(module, taken(program, candidate.decisions))
    lower(context, module, target, after="schedule", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    return count_gpu_work(kernel) if target.is_cuda else count_work(kernel, target)
