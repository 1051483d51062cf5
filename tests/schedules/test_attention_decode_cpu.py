"""The CPU's template of attention of few queries: compiled, beside attention of the keys that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import cycle

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

import treadle
from tests.helpers.program_batch import CompiledProgram, compile_programs, print_program
from tests.schedules.attention_cases import Array, Sizes, attention
from tests.schedules.test_attention_cpu import TARGET, scheduled
from tests.schedules.test_attention_lengths import Case
from treadle.backends.c.executor import CpuProgram
from treadle.dialects.graph import AttentionOp, FusedOp
from treadle.dialects.schedule import Choice, DispatchAttr, UseAttr
from treadle.frontends.onnx import import_model
from treadle.ir import lower
from treadle.schedules.templates import TEMPLATES
from treadle.shapes.decision_tree import kernel_for
from treadle.target import Target

TEMPLATE = TEMPLATES["attention_decode_cpu"]
TILES: list[Mapping[str, Choice]] = [
    {},
    {"vectors": 1, "columns": 1},
    {"queries": 1, "vectors": 3, "columns": 2, "parts": 3},
    {"queries": 2, "vectors": 1, "columns": 6, "parts": 2},
]
"""Differences from the default."""


class DecodeCase(Case):
    """One attention, and the schedule that this template gives it."""

    def module(self) -> ModuleOp:
        graph = self.graph(1)
        return scheduled(graph.module(self.attention(graph)), self.choices, TEMPLATE)


def cases() -> Iterator[DecodeCase]:
    """Queries, groups and head sizes; every mask; causal rows behind a past."""
    tiles = cycle(TILES)
    for number, sizes in enumerate([
        Sizes((), 0, 0, 1, 1, 1, 1), Sizes((), 0, 0, 5, 7, 3, 2), Sizes((), 7, 1, 1, 150, 64, 64),
        Sizes((1,), 14, 2, 1, 40, 64, 64), Sizes((), 4, 1, 8, 300, 8, 8), Sizes((2,), 3, 3, 3, 33, 80, 80),
        Sizes((), 8, 2, 3, 24, 128, 128), Sizes((2, 1), 4, 2, 9, 20, 5, 13), Sizes((), 1, 1, 8, 16, 16, 97),
    ]):  # fmt: skip
        yield DecodeCase(sizes, next(tiles), causal=number % 3 > 0, guard=number % 4 > 1, offset=number % 3 > 1)
    ragged = Sizes((2,), 4, 2, 5, 37, 9, 11)
    for mask, tile in zip(ragged.masks, tiles, strict=False):
        causal = len(mask) % 2 > 0
        yield DecodeCase(ragged, tile, mask, causal=causal, guard=len(mask) > 1, offset=causal and len(mask) > 1)
    for sizes, tile in (
        (Sizes((), 7, 1, 1, 150, 64, 64), TILES[0]), (Sizes((2,), 4, 2, 5, 37, 9, 11), TILES[2]),
        (Sizes((), 4, 1, 8, 300, 8, 8), TILES[3]),
    ):  # fmt: skip
        yield DecodeCase(sizes, tile, causal=True, offset=True, dtype="bfloat16")
    yield DecodeCase(Sizes((), 7, 1, 1, 150, 64, 64), {}, causal=True, offset=True, dtype="float16")
    for dtype in ("bfloat16", "float16"):
        yield DecodeCase(ragged, {}, ragged.masks[0], dtype=dtype)


CASES = {case.name: case for case in cases()}
SPLIT = DecodeCase(Sizes((), 7, 1, 1, 600, 8, 8), {"parts": 5})


@cache
def programs() -> dict[str, CompiledProgram]:
    """All of them in one library."""
    everything = [*CASES.values(), SPLIT]
    printed = [print_program(case.name, case.module(), TARGET, after="fuse") for case in everything]
    return compile_programs(printed, TARGET)


def calls(case: Case) -> Iterator[list[Array]]:
    """No key, one, some, all and more; offsets at which rows see no key, some and all."""
    m, n = case.sizes.m, case.sizes.n
    for length in sorted({-5, 0, 1, n // 3, n - 1, n, 2**40}):
        for offset in sorted({-m - 1, -1, 0, length - m, n}) if case.offset else [0]:
            yield case.inputs(length, offset)


@pytest.mark.parametrize("name", CASES)
def test_lengths_offsets_and_masks(name: str) -> None:
    case = CASES[name]
    for inputs in calls(case):
        (actual,) = programs()[name].run(inputs)
        case.check(actual, inputs)


def test_parts_on_several_threads() -> None:
    """Two callers at once, of four threads each: whatever block arrives last, the result is the same."""
    inputs, compiled = SPLIT.inputs(577), programs()[SPLIT.name]

    def caller(_: int) -> list[Array]:
        program = compiled.program
        memory = ([], program.arena_bytes, 4)
        with CpuProgram(compiled.library, program.inputs, program.outputs, *memory, entry=compiled.entry) as ready:
            return [ready.run(inputs)[0].copy() for _ in range(50)]

    with ThreadPoolExecutor(2) as callers:
        found = [result for results in callers.map(caller, range(2)) for result in results]
    SPLIT.check(found[0], inputs)
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])


def default_of(sizes: Sizes, target: str) -> Mapping[str, Choice] | None:
    """The template's default; None where it has none."""
    op = attention(sizes, "float32")
    return TEMPLATE.default(op, Target.parse(target)) if TEMPLATE.has_default(op, Target.parse(target)) else None


def test_defaults() -> None:
    """A tile of keys or more, and up to eight queries, evened out; parts where there are fewer heads of keys than
    cores, or where all scores of a block exceed the cache."""
    target = "avx512{cores=8 l2_bytes=2097152}"
    for queries, keys, wanted, parts in (
        (1, 31, None, 0), (1, 32, 1, 1), (1, 1024, 1, 4), (8, 1024, 8, 4), (9, 1024, 5, 2), (1, 130, 1, 1),
        (8, 30000, 8, 7), (8, 400000, None, 0),
    ):  # fmt: skip
        found = default_of(Sizes((), 14, 2, queries, keys, 64, 64), target)
        assert (None if found is None else (found["queries"], found["parts"])) == (wanted and (wanted, parts))


def test_calls_of_a_range() -> None:
    """One query has its own kernel, many have that of `attention_cpu`."""
    heads, groups, size = 4, 2, 16
    q = make_tensor_value_info("q", TensorProto.FLOAT, [1, "s", (heads + 2 * groups) * size])
    kept = [make_tensor_value_info(name, TensorProto.FLOAT, [1, groups, "p", size]) for name in ("pk", "pv")]
    ends = [
        make_tensor_value_info("lengths", TensorProto.INT32, [1]),
        make_tensor_value_info("total", TensorProto.INT32, []),
    ]
    names = ["q", "", "", "pk", "pv", "lengths", "total"]
    node = make_node(
        "GroupQueryAttention", names, ["y", "nk", "nv"], domain="com.microsoft", num_heads=heads, kv_num_heads=groups
    )
    outputs = [ValueInfoProto(name=name) for name in ("y", "nk", "nv")]
    domains = [make_opsetid("", 18), make_opsetid("com.microsoft", 1)]
    model = make_model(make_graph([node], "g", [q, *kept, *ends], outputs), opset_imports=domains, ir_version=9)
    dims = {"s": treadle.Dim("s", 1, 128), "p": treadle.Dim("p", 0, 256)}
    module = import_model(model.SerializeToString(), dims)
    lower(module, "avx512", to="schedule")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp) and any(map(is_attention, op.walk()))]
    schedule = fused.schedule
    assert isinstance(schedule, DispatchAttr)
    kernels = [use.template.data for use in schedule.alternatives.data if isinstance(use, UseAttr)]
    taken = [kernels[kernel_for(schedule.tree.data, (rows, rows + 100))] for rows in (1, 16, 128)]
    assert taken == ["attention_decode_cpu", "attention_cpu", "attention_cpu"]


def is_attention(op: Operation) -> bool:
    return isinstance(op, AttentionOp)
