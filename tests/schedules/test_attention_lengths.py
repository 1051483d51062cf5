"""Attention of keys whose number is data: the kernels of every template, and what is written out, beside attention of
those keys alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.compiled import RUNNERS
from tests.helpers.emulated_batch import CUDA
from tests.helpers.graphs import Graph
from tests.helpers.limits import assert_within, limits, with_rounded_weights
from tests.helpers.program_batch import Backend, C, CompiledProgram, ProgramBatch, compile_programs, print_program
from tests.schedules.attention_cases import Array, Shape, Sizes, arrays
from tests.schedules.row_cases import tensor
from tests.schedules.test_attention_cpu import TARGET, TILES, scheduled
from treadle.backends.reference.kernels import Kernel
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, BinaryOp, MaskOp, MatmulOp, SoftmaxOp, TransposeOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

GPU = Target.parse("sm_80")
BEYOND = (np.nan, np.inf, -np.inf)


@dataclass(frozen=True)
class Case:
    """Attention with a length, which a program is compiled once for, and its schedule."""

    sizes: Sizes
    choices: Mapping[str, Choice]
    mask: Shape | None = None
    causal: bool = False
    guard: bool = False
    dtype: str = "float32"
    offset: bool = False
    """Whether the offset of causal rows is data, too."""

    @property
    def name(self) -> str:
        flags = [word for word in ("causal", "guard", "offset") if getattr(self, word)]
        flags += [self.dtype] if self.dtype == "bfloat16" else []
        tile = [f"{name}={value}" for name, value in self.choices.items()]
        return " ".join([str(self.sizes), *flags, f"mask {self.mask}", *tile])

    @property
    def scale(self) -> float:
        return self.sizes.d**-0.5

    @property
    def lengths(self) -> list[int]:
        """One key, primes, multiples of a tile's keys and their neighbours, all keys."""
        n, keys = self.sizes.n, int(str(self.choices.get("keys", 8)))
        near = [times * keys + off for times in (1, 2) for off in (-1, 0, 1)]
        return sorted({x for x in (1, 2, 3, 7, 17, *near, n - 1, n) if 1 <= x <= n})

    def inputs(self, length: int, offset: int = 0) -> list[Array]:
        """Queries, keys, values and the mask if there is one, no numbers beyond the length, the length, and the offset
        if there is one."""
        shapes = [*self.sizes.shapes, *([] if self.mask is None else [self.mask])]
        found = arrays(shapes, self.dtype)
        for n, x in enumerate(found[1:3]):
            x[..., max(length, 0) :, :] = BEYOND[n]
        if self.mask and self.mask[-1] == self.sizes.n:
            found[3][..., max(length, 0) :] = BEYOND[1]
        return [*found, np.array(length), *([np.array(offset)] if self.offset else [])]

    def graph(self, length: int) -> Graph:
        return Graph(*self.inputs(length))

    def attention(self, graph: Graph) -> SSAValue:
        return graph.add(self._of(graph.block.args))

    def _of(self, operands: Sequence[SSAValue]) -> AttentionOp:
        q, k, v, *rest = operands
        mask = None if self.mask is None else rest.pop(0)
        flags = {"causal": self.causal, "guard": self.guard}
        return AttentionOp(q, k, v, mask, *rest, scale=self.scale, **flags)

    def module(self) -> ModuleOp:
        """The scheduled program."""
        graph = self.graph(1)
        return scheduled(graph.module(self.attention(graph)), self.choices)

    def op(self) -> AttentionOp:
        """The operator, whose operands belong to no program."""
        return self._of([tensor(*x.shape, dtype=x.dtype.name) for x in self.inputs(1)])

    def check(self, actual: Array, inputs: list[Array]) -> None:
        """Compares a result with attention of the keys that exist, causality an added mask."""
        m, n = self.sizes.m, self.sizes.n
        q, k, v, *masks, given = inputs[: len(inputs) - self.offset]
        offset = min(max(int(inputs[-1]), -m), n) if self.offset else n - m
        length = min(max(int(given), 0), n)
        if not length:
            np.testing.assert_array_equal(actual, np.zeros_like(actual))
            return
        added = np.zeros((m, length), self.dtype)
        for mask in masks:
            added = added + (mask[..., :length] if mask.shape and mask.shape[-1] == n else mask)
        if self.causal:
            added = np.where(np.tri(m, length, offset, dtype=np.bool_), added, -np.inf).astype(self.dtype)
        values = (q, k[..., :length, :], v[..., :length, :], added)
        operands = [tensor(*x.shape, dtype=self.dtype) for x in values]
        op = AttentionOp(*operands, scale=self.scale, guard=self.guard)
        with np.errstate(all="ignore"):
            expected = limits(op, dict(zip(operands, values, strict=True)))
        expected = with_rounded_weights(expected, values[2], length) if self.dtype == "float16" else expected
        assert_within(actual, expected, np.dtype(self.dtype), f"{self.name}: {length} keys")


def cases() -> Iterator[Case]:
    """Tiles that divide the bound and that do not, self-attention and other; every mask, with heads that share keys."""
    tiles = cycle(TILES)
    for sizes in (
        Sizes((), 2, 2, 24, 24, 8, 8), Sizes((1,), 4, 2, 16, 40, 5, 7), Sizes((), 0, 0, 9, 1, 3, 3),
        Sizes((), 1, 1, 40, 13, 4, 12), Sizes((), 1, 1, 9, 600, 8, 8),
    ):  # fmt: skip
        for flags in range(4):
            yield Case(sizes, next(tiles), causal=flags % 2 > 0, guard=flags > 1)
    ragged = Sizes((2,), 4, 2, 21, 37, 19, 27)
    for mask, tile in zip(ragged.masks, tiles, strict=False):
        yield Case(ragged, tile, mask, causal=len(mask) % 2 > 0, guard=len(mask) > 1)
    yield Case(Sizes((1,), 4, 2, 16, 40, 16, 8), {}, causal=True, dtype="bfloat16")


CASES = {case.name: case for case in cases()}
SLOW = {
    case.name
    for n, case in enumerate(case for case in CASES.values() if case.mask is None)
    if (case.causal == case.guard) == (n // 4 % 2 > 0)
}
"""Without a mask, each size is causal, guarded, or both or neither, in turn; all of it takes slow tests."""


@cache
def programs(slow: bool) -> dict[str, CompiledProgram]:
    """Those of slow tests or the others, in one library."""
    chosen = [case for name, case in CASES.items() if (name in SLOW) == slow]
    return compile_programs([print_program(c.name, c.module(), TARGET, after="fuse") for c in chosen], TARGET)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES])
def test_every_length_of_the_cpus_kernel(name: str) -> None:
    case = CASES[name]
    for length in (-5, 0, *case.lengths, case.sizes.n + 1, 2**40):
        inputs = case.inputs(length)
        (actual,) = programs(name in SLOW)[name].run(inputs)
        case.check(actual, inputs)


def gpu_cases() -> Iterator[tuple[str, Case]]:
    """Several tiles of keys, one, self-attention, more queries than keys, no heads."""
    sizes = [
        Sizes((1,), 2, 1, 7, 37, 5, 9), Sizes((), 1, 1, 16, 48, 8, 8), Sizes((), 1, 1, 33, 33, 4, 4),
        Sizes((), 1, 1, 23, 3, 3, 3), Sizes((), 0, 0, 5, 1, 3, 2),
    ]  # fmt: skip
    tiles: Mapping[str, list[dict[str, Choice]]] = {
        "attention_cuda": [{"rows": 4, "columns": 16, "threads": 64, "lanes": 16}, {}],
        "attention_mma": [
            {"rows": 16, "columns": 16, "warps": 1, "parts": 1, "stages": 2},
            {"columns": 32, "parts": 2},
        ],
    }
    for template, choices in tiles.items():
        for number, (each, tile) in enumerate(zip(sizes, cycle(choices), strict=False)):
            dtype = "float32" if template == "attention_cuda" and number % 2 == 0 else "float16"
            mask = each.masks[number] if number % 2 else None
            for causal in (False, True):
                yield template, Case(each, tile, mask, causal=causal, guard=number > 1 and causal, dtype=dtype)


GPU_CASES = {f"{template} {case.name} {case.dtype}": (template, case) for template, case in gpu_cases()}


@pytest.mark.parametrize("name", GPU_CASES)
def test_every_length_of_a_gpus_kernel(name: str) -> None:
    template, case = TEMPLATES[GPU_CASES[name][0]], GPU_CASES[name][1]
    op = case.op()
    knobs = template.default(op, GPU) | dict(case.choices)
    template.check(op, knobs, GPU, "here")
    kernel = template.build(op, knobs, GPU, "kernel")
    kernel.verify()
    runner = Kernel(kernel)
    for number, length in enumerate((-5, 0, 1, 2, 16, 17, 32, case.sizes.n - 1, case.sizes.n, 2**40)):
        inputs = case.inputs(length)
        case.check(runner.run(inputs, reverse=number % 2 > 0), inputs)


HEADS = Sizes((1,), 4, 2, 11, 29, 8, 6)
WRITTEN: dict[str, tuple[str, Case]] = {
    "few queries on a CPU": ("c", Case(Sizes((1,), 4, 2, 2, 29, 8, 6), {}, (1, 1, 1, 29))),
    "half precision on a CPU": ("c", Case(HEADS, {}, dtype="float16")),
    "double precision on a GPU": ("emulator", Case(HEADS, {}, (1, 1, 1, 29), dtype="float64", guard=True)),
    "causal double precision on a GPU": (
        "emulator", Case(Sizes((), 2, 2, 19, 19, 8, 8), {}, causal=True, dtype="float64")
    ),
}  # fmt: skip


def written_out(case: Case) -> ModuleOp:
    """The program, which is the same for every length."""
    graph = case.graph(1)
    return graph.module(case.attention(graph))


@pytest.fixture(scope="module")
def written() -> dict[str, ProgramBatch[Any, Any]]:
    """The programs by runner."""
    backends: Mapping[str, Backend[Any, Any]] = {"c": C, "emulator": CUDA}
    return {
        runner: ProgramBatch({n: partial(written_out, case) for n, (on, case) in WRITTEN.items() if on == runner}, each)
        for runner, each in backends.items()
    }


@pytest.mark.parametrize("length", [0, 1, 13, 29])
@pytest.mark.parametrize("name", WRITTEN)
def test_attention_that_is_written_out(name: str, length: int, written: dict[str, ProgramBatch[Any, Any]]) -> None:
    runner, case = WRITTEN[name]
    inputs = case.inputs(min(length, case.sizes.n))
    (actual,) = written[runner][name].run(inputs)
    case.check(actual, inputs)


# Causal rows behind a past, whose length is data.

BEHIND = [
    Case(Sizes((1,), 4, 2, 16, 40, 5, 7), TILES[0], causal=True, offset=True),
    Case(Sizes((), 1, 1, 9, 600, 8, 8), TILES[1], causal=True, guard=True, offset=True),
    Case(Sizes((2,), 4, 2, 21, 37, 19, 27), TILES[2], (1, 1, 21, 37), causal=True, offset=True),
    Case(Sizes((), 1, 1, 40, 13, 4, 12), TILES[0], causal=True, guard=True, offset=True),
]


def ends(case: Case) -> Iterator[tuple[int, int]]:
    """Lengths and offsets: no past, one row, the last row at the last key, beyond all."""
    m, n = case.sizes.m, case.sizes.n
    for length in (0, 1, 17, n):
        for offset in sorted({-m - 3, -1, 0, 1, length - 1, length - m, n - m, 2**40}):
            yield length, offset


@cache
def behind() -> dict[str, CompiledProgram]:
    """Programs of the CPU's kernel in one library."""
    return compile_programs([print_program(c.name, c.module(), TARGET, after="fuse") for c in BEHIND], TARGET)


@pytest.mark.parametrize("case", BEHIND, ids=lambda case: case.name)
def test_every_offset_of_the_cpus_kernel(case: Case) -> None:
    for length, offset in ends(case):
        inputs = case.inputs(length, offset)
        (actual,) = behind()[case.name].run(inputs)
        case.check(actual, inputs)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("attention_cuda", Case(Sizes((1,), 2, 1, 7, 37, 5, 9), {}, causal=True, offset=True)),
        (
            "attention_cuda",
            Case(
                Sizes((), 1, 1, 23, 3, 3, 3), {"rows": 4, "columns": 16, "threads": 64, "lanes": 16},
                causal=True, guard=True, offset=True,
            ),
        ),
        ("attention_mma", Case(Sizes((), 1, 1, 33, 33, 4, 4), {}, causal=True, dtype="float16", offset=True)),
        (
            "attention_mma",
            Case(
                Sizes((1,), 2, 1, 7, 37, 5, 9), {"columns": 32, "parts": 2}, (1, 1, 7, 37),
                causal=True, guard=True, dtype="float16", offset=True,
            ),
        ),
    ],
)  # fmt: skip
def test_every_offset_of_a_gpus_kernel(name: str, case: Case) -> None:
    op, template = case.op(), TEMPLATES[name]
    kernel = template.build(op, template.default(op, GPU) | dict(case.choices), GPU, "kernel")
    kernel.verify()
    runner = Kernel(kernel)
    for length, offset in ends(case):
        inputs = case.inputs(length, offset)
        case.check(runner.run(inputs), inputs)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_offsets_through_the_whole_pipeline(dtype: str, runner: str) -> None:
    """Of f64 it is written out on both targets."""
    case = Case(Sizes((1,), 4, 2, 16, 29, 8, 6), {}, (1, 1, 1, 29), causal=True, guard=True, dtype=dtype, offset=True)
    for length, offset in ((29, 13), (20, 4), (5, -3)):
        graph = Graph(*case.inputs(length, offset))
        (actual,) = RUNNERS[runner](graph.module(case.attention(graph)), graph.inputs)
        case.check(actual, list(graph.inputs))


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_length_that_is_computed(runner: str) -> None:
    case = Case(Sizes((1,), 2, 1, 24, 40, 8, 8), {}, (1, 1, 24, 40))
    inputs = case.inputs(17)
    graph = Graph(*inputs[:-1], np.array(16))
    length = graph.add(BinaryOp("add", graph[4], graph.constant(np.int64(1))))
    y = graph.add(AttentionOp(graph[0], graph[1], graph[2], graph[3], length, scale=case.scale))
    (actual,) = RUNNERS[runner](graph.module(y), graph.inputs)
    case.check(actual, inputs)


def test_masks_around_a_softmax_become_one_kernel() -> None:
    """What an importer writes of dynamic keys: the mask of the scores, of the probabilities and of the values."""

    def build(length: int) -> tuple[Graph, SSAValue]:
        graph = Case(Sizes((), 2, 2, 24, 24, 8, 8), {}, (24, 24)).graph(length)
        q, k, v, mask, n = graph.block.args
        scores = graph.add(MatmulOp(q, graph.add(TransposeOp(k, [0, 2, 1]))))
        scores = graph.add(BinaryOp("mul", scores, graph.constant(np.float32(8**-0.5))))
        scores = graph.add(MaskOp(graph.add(BinaryOp("add", scores, mask)), n, 2, -np.inf))
        shares = graph.add(MaskOp(graph.add(SoftmaxOp(scores, 2)), n, 2, 0.0))
        return graph, graph.add(MatmulOp(shares, graph.add(MaskOp(v, n, 1, 0.0))))

    graph, y = build(17)
    module = graph.module(y)
    lower(treadle_context(), module, Target.parse(TARGET), to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    assert "attention" in kernel.sym_name.data
    graph, y = build(17)
    (actual,) = RUNNERS["c"](graph.module(y), graph.inputs)
    Case(Sizes((), 2, 2, 24, 24, 8, 8), {}, (24, 24)).check(actual, list(graph.inputs))
