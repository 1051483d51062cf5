"""Why candidates are rejected: counted, with the closest one, and adding up."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from tests.schedules.search.anchors import anchor
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.errors import TreadleError
from treadle.schedules.rules.programs import programs
from treadle.schedules.rules.tiling import default_rules
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.programs import template_programs
from treadle.schedules.search.rejections import limit_of, survey
from treadle.schedules.template import LimitError
from treadle.target import Target

CPU = Target.parse("cpu")
NEST = """
schedule.program @nest for "cpu" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %r = schedule.sample "rows" from [1, 2, 4, 8, 16, 64]
  %c = schedule.sample "columns" from [8, 16]
  %i0, %i1 = schedule.split %i by (%r)
  %j0, %j1 = schedule.split %j by (%c)
  schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
  schedule.mark vector %j1
}
"""


def test_counts_add_up() -> None:
    task = Task(anchor("matmul"), CPU, tuple(template_programs(anchor("matmul"), CPU)))
    found = survey(task, most=200)
    assert set(found.all) == {program.sym_name.data for program in task.programs}
    for name, size in found.all.items():
        rejected = sum(each.count for each in found.rejected if each.program == name)
        assert found.ledger.accepted[name] + rejected == found.ledger.replayed_of(name) == min(size, 200)
    assert [each.count for each in found.rejected] == sorted((each.count for each in found.rejected), reverse=True)
    for each in found.rejected:
        with pytest.raises(TreadleError) as error:
            task.replay(each.closest)
        assert (limit_of(error.value), error.value.message) == (each.limit, each.reason)


def test_a_small_space_is_replayed_whole_and_a_draw_is_repeatable() -> None:
    (program,) = Parser(treadle_context(), NEST).parse_module().body.block.ops
    assert isinstance(program, ProgramOp)
    task = Task(anchor("matmul"), CPU, (program,))
    whole = survey(task)
    assert (whole.all, whole.ledger.replayed_of("nest")) == ({"nest": 12}, 12)
    assert survey(task, seed=1, most=5) == survey(task, seed=1, most=5)
    assert survey(task, most=5).ledger.replayed == 5


def test_the_closest_of_a_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = Parser(treadle_context(), NEST).parse_module().body.block.ops
    assert isinstance(program, ProgramOp)
    task = Task(anchor("matmul"), CPU, (program,))

    def replay(self: Task, candidate: Candidate) -> None:
        rows, columns = candidate.decisions["rows"], candidate.decisions["columns"]
        assert isinstance(rows, int)
        if columns == 16:
            raise TreadleError(f"{rows} rows do not suit")
        if rows > 4:
            raise LimitError("accumulators", rows, 4)

    monkeypatch.setattr(Task, "replay", replay)
    by_message, by_limit = survey(task).rejected
    assert (by_message.limit, by_message.count, by_message.margin) == ("N rows do not suit", 6, None)
    assert (by_limit.limit, by_limit.count, by_limit.margin) == ("accumulators", 3, 1.0)
    assert by_limit.closest == Candidate("nest", {"rows": 8, "columns": 8})
    assert by_limit.reason == "it takes 8 accumulators, 4 too many"


def test_every_program_has_its_part_of_the_time() -> None:
    """Each question for the time takes one of its units."""
    task = Task(anchor("matmul"), CPU, programs(anchor("matmul"), CPU, default_rules(CPU)))
    units = iter(range(60, 0, -1))
    found = survey(task, left=lambda: float(next(units, 0)))
    counts = [found.ledger.replayed_of(name) for name in task.samplers]
    assert len(counts) > 1
    assert all(counts)
    assert sum(counts) <= 60
