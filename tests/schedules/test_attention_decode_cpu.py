"""The CPU's template of attention of few queries: compiled, beside attention of the keys that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import cycle

import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.helpers.program_batch import CompiledProgram, compile_programs, print_program
from tests.schedules.attention_cases import Array, Sizes
from tests.schedules.test_attention_cpu import TARGET, scheduled
from tests.schedules.test_attention_lengths import Case
from treadle.dialects.schedule import Choice
from treadle.schedules.templates import TEMPLATES

TEMPLATE = TEMPLATES["attention_decode_cpu"]
TILES: list[Mapping[str, Choice]] = [
    {},
    {"vectors": 1, "columns": 1},
    {"queries": 1, "vectors": 3, "columns": 2},
    {"queries": 2, "vectors": 4, "columns": 6},
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


CASES = {case.name: case for case in cases()}


@cache
def programs() -> dict[str, CompiledProgram]:
    """All of them in one library."""
    printed = [print_program(case.name, case.module(), TARGET, after="fuse") for case in CASES.values()]
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
