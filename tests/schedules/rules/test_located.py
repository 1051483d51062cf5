"""The place of a stage is sampled: MetaSchedule's Sample-Compute-Location."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from benchmarks.paper_operators import OPERATORS
from tests.helpers import emulated_batch, program_batch
from tests.schedules.rules.scheduled import CPU, GPU, anchor, groups_of, take
from treadle.backends.reference import evaluate_module
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.nest.nest import Nest
from treadle.schedules.rules import Draft, Rule, default_rules, located, tiled
from treadle.schedules.rules.programs import drafts
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.template import Anchor
from treadle.target import Target

OPERATOR = OPERATORS["GMM"]
RULES: Mapping[Target, Sequence[Rule]] = {
    CPU: (tiled("SSRSRS"), located("register")),
    GPU: (tiled("SSSRRSRS"), located("shared")),
}
PLACES = (0, 1, 2)
"""None, and each of the two loops."""


def draft_at(of: Anchor, target: Target, place: int) -> Draft:
    """A draft of which the place was drawn so."""
    every = (draft for seed in range(200) for draft in drafts(of, target, RULES[target], str(seed)))
    return next(draft for draft in every if draft.decisions.get("place") == place)


def scheduled(target: Target, place: int) -> ModuleOp:
    module = OPERATOR.module(small=True)
    (fused,) = groups_of(module, target)
    take(module, fused, draft_at(anchor_of(fused), target, place), "located")
    module.verify()
    return module


def compiled(modules: Mapping[str, ModuleOp]) -> Mapping[str, Callable[..., Any]]:
    printed = [program_batch.print_program(name, module, after="schedule") for name, module in modules.items()]
    return {name: each.run for name, each in program_batch.compile_programs(printed).items()}


def emulated(modules: Mapping[str, ModuleOp]) -> Mapping[str, Callable[..., Any]]:
    printed = [emulated_batch.print_program(name, module, after="schedule") for name, module in modules.items()]
    return {name: each.run for name, each in emulated_batch.compile_programs(printed).items()}


@pytest.mark.parametrize(("target", "compile"), [(CPU, compiled), (GPU, emulated)], ids=["cpu", "gpu"])
def test_every_place_computes_the_product(target: Target, compile: Callable[..., Any]) -> None:
    exact: Sequence[NDArray[Any]] = OPERATOR.arrays(small=True, dtype=np.float64)[: OPERATOR.inputs]
    (expected,) = evaluate_module(OPERATOR.module(small=True, dtype=np.float64), exact)
    for run in compile({f"place {place}": scheduled(target, place) for place in PLACES}).values():
        (actual,) = run(OPERATOR.arrays(small=True)[: OPERATOR.inputs])
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_search_meets_every_place_in_one_program(target: Target) -> None:
    of = anchor("GMM", target)
    program = draft_at(of, target, 1).program("located")
    task, random, found = Task(of, target, (program,)), Random(0), dict[object, set[tuple[int, ...]]]()
    drawn = task.samplers["located"].draw(random)
    assert drawn is not None
    for _ in range(300):
        drawn = task.samplers["located"].draw(random) or drawn
        try:
            nest = task.replay(Candidate("located", drawn))
        except TreadleError:
            continue
        assert isinstance(nest, Nest)
        found.setdefault(drawn["place"], set()).add(tuple(stage.compute_at for stage in nest.stages))
    assert found.keys() == set(task.samplers["located"].support("place", drawn).values)
    assert found[0] == {()}
    assert found[1].isdisjoint(found[2])


def test_the_rule_does_not_apply_without_reuse() -> None:
    """A norm reads each element once."""
    found = [draft for draft in drafts(anchor("NRM"), CPU, default_rules(CPU)[1:], "0") if draft.groups]
    assert found
    assert [located("register")(draft) for draft in found] == [()] * len(found)
