"""Tiles, warps and stages of attention on tensor cores on the emulator, with every check."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.graphs import Graph
from tests.helpers.limits import assert_within, module_limits, with_rounded_weights
from tests.schedules.attention_cases import Sizes, arrays
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, FusedOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.environment import Environment
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

TEMPLATE = TEMPLATES["attention_mma"]
SIZES = Sizes((), 2, 1, 150, 170, 40, 24)
CHOICES: list[dict[str, Choice]] = [
    {"rows": 128, "columns": 32, "warps": 8, "parts": 1, "stages": 3},
    {"rows": 64, "columns": 64, "warps": 2, "parts": 4, "stages": 3},
    {"rows": 32, "columns": 16, "warps": 1, "parts": 1, "stages": 2},
    {"rows": 16, "columns": 128, "warps": 1, "parts": 2, "stages": 2},
]


def test_causal_blocks_of_all_heads_follow_one_another() -> None:
    """Of 12 heads in 16 blocks each: those that run at once are equally long, and the shortest come last."""
    graph = Graph(*(np.broadcast_to(np.zeros((), np.float16), (12, 2048, 64)) for _ in range(3)))
    module = graph.module(graph.add(AttentionOp(graph[0], graph[1], graph[2], scale=0.125, causal=True)))
    lower(treadle_context(), module, Target.parse("sm_80"))
    (unit,) = print_kernels(module)
    assert "block % 12" in unit.text and "block / 12" in unit.text
    assert "min_integer<int>((16 - block / 12) * 2, 32)" in unit.text, "tiles of keys"


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("choices", CHOICES, ids=lambda c: "-".join(map(str, c.values())))
def test_choices(choices: dict[str, Choice], causal: bool, emulator_environment: Environment) -> None:
    graph = Graph(*arrays(SIZES.shapes, "float16"))
    module = graph.module(graph.add(AttentionOp(graph[0], graph[1], graph[2], scale=0.15, causal=causal)))
    (exact,) = module_limits(module, graph.inputs)
    expected = with_rounded_weights(exact, graph.inputs[2], SIZES.n)
    lower(treadle_context(), module, Target.parse("sm_80"), to="schedule")
    (group,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    group.schedule = UseAttr.get(TEMPLATE.name, choices)
    lower(treadle_context(), module, Target.parse("sm_80"), after="schedule")
    (result,), reports = EmulatedProgram(module, tuple(CHECKS), environment=emulator_environment).run(graph.inputs)
    assert_within(result, expected, "float16", SIZES)
    assert reports and not [str(report) for report in reports if report.findings]
