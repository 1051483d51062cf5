"""Candidates of a task: they replay to what a kernel is written from, once for each kernel."""

from __future__ import annotations

import pickle

import pytest
from xdsl.parser import Parser

from tests.schedules.search.anchors import anchor
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.schedules.nest.nest import Nest
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.programs import template_programs
from treadle.target import Target

CPU = Target.parse("cpu")
NEST = """
schedule.program @tiled for "cpu" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %t = schedule.sample "rows" from [2, 4]
  %u = schedule.sample "unused" from [1, 2]
  %i0, %i1 = schedule.split %i by (%t)
  schedule.arrange block(%i0) loop(%k) repeat(%i1) repeat(%j)
}
"""


def programs(text: str) -> list[ProgramOp]:
    return [op for op in Parser(treadle_context(), text).parse_module().body.block.ops if isinstance(op, ProgramOp)]


def test_candidates_travel_and_are_compared_by_value() -> None:
    one = Candidate("tiled", {"rows": 4, "block": (8, 16), "pack": True, "order": "n"})
    other = Candidate("tiled", dict(reversed(list(one.decisions.items()))))
    there = pickle.loads(pickle.dumps(one))  # noqa: S301
    assert there == one == other
    assert len({one, other, Candidate("tiled", {"rows": 2})}) == 2
    # Another process has other hashes of texts.
    assert vars(pickle.loads(pickle.dumps(one))).keys() == {"program", "decisions"}  # noqa: S301
    assert str(one) == '@tiled {rows = 4, block = [8, 16], pack = true, order = "n"}'


def test_templates_and_nests_are_candidates_of_one_task() -> None:
    of = anchor("matmul")
    task = Task(of, CPU, (*programs(NEST), *template_programs(of, CPU)))
    assert isinstance(task.replay(Candidate("tiled", {"rows": 4, "unused": 1})), Nest)
    use = UseAttr.get("matmul_cpu", {"rows": 2, "vectors": 2, "chunk": 6, "pack": True, "passes": 1})
    assert task.replay(task.candidate(use)) == use
    with pytest.raises(
        TreadleError, match="template 'matmul_cpu' is used without chunk, pack, passes; accepted: rows, vectors, "
    ):
        task.candidate(UseAttr.get("matmul_cpu", {"rows": 2, "vectors": 2}))


def test_a_record_of_other_knobs_is_none_of_the_task() -> None:
    of = anchor("matmul")
    task = Task(of, CPU, (*programs(NEST), *template_programs(of, CPU)))
    old = {"rows": 2, "chunk": 6, "pack": True}
    assert not task.has_samples_of(Candidate("matmul_cpu", old))
    assert task.has_samples_of(Candidate("matmul_cpu", {**old, "vectors": 1}))
    assert not task.has_samples_of(Candidate("gone", old))


def test_one_candidate_stands_for_all_of_one_kernel() -> None:
    task = Task(anchor("matmul"), CPU, tuple(programs(NEST)))
    found = task.distinct()
    assert found == [Candidate("tiled", {"rows": rows, "unused": 1}) for rows in (2, 4)]
    assert task.distinct(known=[Candidate("tiled", {"rows": 2, "unused": 2})]) == found[1:]


def test_what_is_not_legal_is_named() -> None:
    task = Task(anchor("matmul"), CPU, tuple(programs(NEST)))
    with pytest.raises(TreadleError, match="there is no schedule program @gone; accepted: tiled"):
        task.replay(Candidate("gone", {}))
    with pytest.raises(TreadleError, match="no schedule program is called @matmul_cpu; accepted: tiled"):
        task.candidate(UseAttr.get("matmul_cpu", {}))
    with pytest.raises(TreadleError, match="two schedule programs are called @tiled; accepted: a name for each"):
        Task(task.anchor, CPU, (*task.programs, *task.programs))
