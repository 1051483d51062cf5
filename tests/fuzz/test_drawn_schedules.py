"""Drawn models with schedule decisions drawn at random, as compiled C and on the emulator, beside their definition."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.fuzz.check import Checker
from tests.fuzz.generate import case_of_seed
from tests.fuzz.schedules import draw_schedules
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp
from treadle.dialects.registry import treadle_context
from treadle.frontends.onnx import import_model
from treadle.target import Target

SEEDS = range(40, 46)
EMULATED = {"44"}


@pytest.fixture(scope="module")
def drawn() -> Checker:
    names = [str(seed) for seed in SEEDS]
    return Checker({name: case_of_seed(int(name)) for name in names}, EMULATED, names)


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_schedules(seed: int, drawn: Checker) -> None:
    report = drawn.check(str(seed))
    assert not report.findings, "\n".join(map(str, report.findings)) + "\n" + drawn.cases[str(seed)].text()
    assert report.scheduled == (2 if str(seed) in EMULATED else 1), report.skipped


def _decisions(module: ModuleOp) -> list[str]:
    return [str(op.schedule) for op in module.walk() if isinstance(op, FusedOp)]


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_most_groups_have_another_decision_than_the_default_and_a_seed_repeats_them(target: str) -> None:
    default, first, second = list[str](), list[str](), list[str]()
    for seed in range(12):
        content = case_of_seed(seed).content()
        for found, draws in ((default, False), (first, True), (second, True)):
            module = import_model(content)
            if draws:
                draw_schedules(module, Target.parse(target), str(seed))
            else:
                lower(treadle_context(), module, Target.parse(target), to="schedule")
            found += _decisions(module)
    assert first == second and len(first) == len(default)
    assert sum(a != b for a, b in zip(default, first, strict=True)) > len(default) / 2
