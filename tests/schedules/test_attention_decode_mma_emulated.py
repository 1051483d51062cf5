"""Attention of few queries on tensor cores on the emulator, with every check: shapes, lengths, and what is read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import numpy as np
import pytest
from xdsl.dialects.builtin import MemRefType, ModuleOp

from tests.backends.cuda.emulator.mutation.kernels import SharedKernel
from tests.backends.cuda.emulator.mutation.verdict import examine
from tests.helpers.emulated_batch import EmulatedProgram, compile_programs, print_program
from tests.helpers.graphs import Graph
from tests.schedules.attention_cases import Array, Sizes
from tests.schedules.test_attention_lengths import Case, ends
from treadle.backends.cuda.emulator.build import kernels
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram as WholeProgram
from treadle.backends.cuda.emulator.reports import Counters
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.program import read_program
from treadle.compiler.pipeline import lower
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph import AttentionOp, FusedOp, TransposeOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.environment import Environment
from treadle.target import Target

NAME = "attention_decode_mma"
GPU = Target.parse("sm_80")


def _tile(rows: int, keys: int, warps: int, parts: int) -> dict[str, Choice]:
    return {"rows": rows, "keys": keys, "warps": warps, "parts": parts}


SHAPES = [
    Case(Sizes((), 0, 0, 1, 70, 8, 8), _tile(8, 16, 1, 1), dtype="float16"),
    Case(Sizes((), 1, 1, 1, 1, 64, 64), _tile(8, 16, 1, 1), dtype="bfloat16"),
    Case(Sizes((1,), 4, 1, 1, 129, 128, 128), _tile(8, 16, 4, 2), dtype="float16"),
    Case(Sizes((2,), 8, 2, 1, 200, 64, 64), _tile(8, 32, 2, 3), dtype="bfloat16"),
    Case(Sizes((1,), 7, 1, 2, 150, 96, 96), _tile(16, 16, 2, 5), dtype="float16"),
    Case(Sizes((1,), 14, 2, 1, 65, 64, 64), _tile(8, 32, 1, 4), dtype="float16"),
    Case(Sizes((), 2, 2, 8, 100, 80, 80), _tile(8, 16, 2, 2), dtype="float16", causal=True),
    Case(Sizes((3,), 3, 1, 5, 47, 40, 24), _tile(16, 16, 1, 3), dtype="bfloat16", causal=True),
    Case(Sizes((1,), 6, 2, 8, 90, 16, 72), _tile(8, 16, 4, 1), (1, 1, 8, 90), dtype="float16"),
    Case(Sizes((2,), 2, 1, 3, 33, 128, 64), _tile(8, 16, 1, 9), (2, 2, 3, 33), True, True, "bfloat16"),
    Case(Sizes((1,), 16, 1, 1, 300, 192, 128), _tile(8, 16, 4, 4), (300,), dtype="float16"),
    Case(Sizes((1,), 12, 12, 1, 64, 32, 32), _tile(8, 32, 2, 1), (1, 1, 1, 64), dtype="float16", guard=True),
    Case(Sizes((1,), 5, 5, 4, 31, 160, 8), _tile(8, 16, 2, 1), dtype="float16", causal=True, guard=True),
    Case(Sizes((), 1, 1, 8, 3, 8, 104), _tile(8, 32, 4, 1), dtype="float16", causal=True),
]  # fmt: skip
BEHIND = [
    Case(Sizes((1,), 8, 2, 1, 300, 64, 64), _tile(8, 32, 2, 3), causal=True, dtype="float16", offset=True),
    Case(Sizes((1,), 4, 1, 5, 133, 24, 40), _tile(8, 16, 1, 4), causal=True, guard=True, dtype="float16", offset=True),
]


def scheduled(case: Case) -> ModuleOp:
    """The program of a case, before loops."""
    graph = case.graph(1)
    module = graph.module(case.attention(graph))
    lower(treadle_context(), module, GPU, to="schedule")
    (group,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    group.schedule = UseAttr.get(NAME, case.choices)
    return module


@cache
def programs() -> dict[str, EmulatedProgram]:
    """All programs in one text."""
    return compile_programs([print_program(c.name, scheduled(c), after="schedule") for c in (*SHAPES, *BEHIND)])


def lengths(case: Case) -> Iterator[int]:
    """None, one key, tiles and their neighbours, all keys, beyond all."""
    n, tile = case.sizes.n, int(str(case.choices["keys"])) * int(str(case.choices["warps"]))
    yield from sorted(
        {length for length in (0, 1, 2, 15, 16, 17, tile - 1, tile, tile + 1, n - 1, n) if 0 <= length <= n}
    )
    yield from (-5, 2**40)


@pytest.mark.parametrize("case", SHAPES, ids=lambda case: case.name)
def test_every_length(case: Case) -> None:
    for length in lengths(case):
        inputs = case.inputs(length)
        (first,), (second,) = (programs()[case.name].run(inputs) for _ in range(2))
        case.check(first, inputs)
        np.testing.assert_array_equal(first, second, "the same bits in every run")


@pytest.mark.parametrize("case", BEHIND, ids=lambda case: case.name)
def test_every_offset(case: Case) -> None:
    for length, offset in ends(case):
        inputs = case.inputs(length, offset)
        (actual,) = programs()[case.name].run(inputs)
        case.check(actual, inputs)


# What is read.


def counted(case: Case, inputs: list[Array], environment: Environment) -> Counters:
    module = scheduled(case)
    lower(treadle_context(), module, GPU, after="schedule")
    (result,), (report,) = WholeProgram(module, (), counters=True, environment=environment).run(inputs)
    case.check(result, inputs)
    assert report.counters is not None
    return report.counters


def bytes_of(counters: Counters, buffer: str) -> tuple[int, int]:
    """The bytes of the sectors that are read of an argument, and the bytes that lanes ask for."""
    lines = [each for each in counters.lines if f">(&{buffer}[" in counters.text(each.line)]
    assert lines
    return 32 * sum(each.global_sectors for each in lines), sum(each.global_read for each in lines)


@pytest.mark.parametrize("parts", [1, 5])
@pytest.mark.parametrize("length", [1, 100, 333, 512])
def test_keys_and_values_are_read_once_and_none_beyond_the_length(
    length: int, parts: int, emulator_environment: Environment
) -> None:
    """By all eight query heads of two heads of keys together."""
    case = Case(Sizes((1,), 8, 2, 1, 512, 128, 64), _tile(8, 16, 4, parts), dtype="float16")
    counters = counted(case, case.inputs(length), emulator_environment)
    assert counters.grid == (2 * parts, 1, 1)
    for buffer, size in (("K", 128), ("V", 64)):
        assert bytes_of(counters, buffer) == (2 * length * size * 2,) * 2


def test_the_steps_of_keys_do_not_touch_shared_memory(emulator_environment: Environment) -> None:
    """Four times as many keys take as many accesses of it."""
    found = [
        counted(case, case.inputs(length), emulator_environment).total
        for length in (128, 512)
        for case in [Case(Sizes((1,), 4, 1, 1, 512, 64, 64), _tile(8, 32, 4, 1), dtype="float16")]
    ]
    assert found[0].shared_requests == found[1].shared_requests > 0
    assert found[0].bank_conflicts == found[1].bank_conflicts == 0


def test_causal_keys_behind_the_last_row_are_not_read(emulator_environment: Environment) -> None:
    case = Case(Sizes((1,), 4, 1, 2, 256, 64, 64), _tile(8, 16, 2, 3), causal=True, dtype="float16", offset=True)
    counters = counted(case, case.inputs(256, 90), emulator_environment)
    assert bytes_of(counters, "K") == bytes_of(counters, "V") == (92 * 64 * 2,) * 2


# What holds it together.


@pytest.mark.slow
def test_every_barrier_is_needed(emulator_environment: Environment) -> None:
    """Each of them removed or moved is found, in kernels of one part and of several."""
    for parts in (1, 3):
        case = Case(Sizes((), 4, 1, 1, 150, 64, 64), _tile(8, 16, 2, parts), dtype="float16")
        module = scheduled(case)
        lower(treadle_context(), module, GPU, after="schedule")
        (kernel,) = [op for op in module.walk() if isinstance(op, KernelOp)]
        (unit,), (launch,) = print_kernels(module), read_program(module).launches
        types = [each.type for each in kernel.body.block.args]
        buffers = tuple(
            (prod(t.get_shape()), numpy_dtype(t.element_type).name) for t in types if isinstance(t, MemRefType)
        )
        zeroed = tuple(n for n, each in enumerate(launch.buffers) if each.kind == "zeroed")
        (name,) = kernels(unit.text)
        shared = SharedKernel("here", name, unit.text, kernel.grid_shape, kernel.block_shape, 0, buffers, zeroed)
        examined = examine(shared, emulator_environment)
        assert examined.said == "" and len(buffers) == len(launch.buffers)
        barriers = [each for each in examined.verdicts if each.mutant.kind.startswith("barrier")]
        assert len(barriers) >= (1 if parts == 1 else 8)
        assert not [str(each) for each in barriers if each.outcome != "finding"]


# Neighbours.


def test_keys_of_heads_side_by_side_are_read_as_they_lie(emulator_environment: Environment) -> None:
    """`[batch, keys, heads, size]`, as importers transpose them, without a copy."""
    rng = np.random.default_rng(4)
    q, k, v = (
        rng.standard_normal(shape).astype(np.float16) for shape in ((1, 1, 8, 64), (1, 130, 2, 64), (1, 130, 2, 64))
    )
    graph = Graph(q, k, v)
    turned = [graph.add(TransposeOp(x, [0, 2, 1, 3])) for x in graph.block.args]
    y = graph.add(TransposeOp(graph.add(AttentionOp(*turned, scale=0.125)), [0, 2, 1, 3]))
    module = graph.module(y)
    lower(treadle_context(), module, GPU)
    program = WholeProgram(module, environment=emulator_environment)
    (result,), reports = program.run(graph.inputs)
    assert len(reports) == 1 and not reports[0].findings
    wide = [x.astype(np.float64)[0].transpose(1, 0, 2) for x in (q, k, v)]
    scores = wide[0] @ wide[1].repeat(4, axis=0).transpose(0, 2, 1) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ wide[2].repeat(4, axis=0)
    np.testing.assert_allclose(result[0], expected.transpose(1, 0, 2), rtol=0, atol=2e-3)
