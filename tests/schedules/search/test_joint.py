"""One search for several lengths: the kernels of all of them from the candidates of one program."""

from __future__ import annotations

from xdsl.parser import Parser

from tests.schedules.search.anchors import anchor
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.schedules.joint import kernel_for
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.joint import Instance, Joint, joint_choice
from treadle.schedules.search.predict import Forecast
from treadle.target import Target

CPU = Target.parse("cpu")
PROGRAM = """
schedule.program @rows for "cpu" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %r = schedule.sample "rows" from [1, 2, 3, 4, 6, 8, 10]
  %c = schedule.sample "columns" from [8, 16, 32]
  %i0, %i1 = schedule.split %i by (%r)
  %j0, %j1 = schedule.split %j by (%c)
  schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
  schedule.mark vector %j1
}
"""
LENGTHS = (5, 24, 49, 50, 64, 81, 100, 128)


def program() -> ProgramOp:
    (found,) = Parser(treadle_context(), PROGRAM).parse_module().body.block.ops
    assert isinstance(found, ProgramOp)
    return found


def instances() -> list[Instance]:
    """x w of `T` rows for eight lengths."""
    return [Instance((t,), Task(anchor("matmul", t, 40), CPU, (program(),))) for t in LENGTHS]


def candidates() -> list[Candidate]:
    return [Candidate("rows", each) for each in instances()[0].task.samplers["rows"].enumerate()]


def chosen() -> Joint:
    return joint_choice(instances(), candidates())


def test_figure_3_lengths_share_the_tiles() -> None:
    """A tile of 10 is one for 49 as for 50, although it is no divisor of 49."""
    tile = Candidate("rows", {"rows": 10, "columns": 16})
    for instance in instances():
        instance.task.replay(tile)
    assert tile in candidates()


def test_the_joint_choice_is_as_good_as_searches_by_themselves() -> None:
    """Within the gain below which a kernel, and the loss below which a leaf, is left out; with each candidate predicted
    once for each length, and far fewer kernels than lengths."""
    joint = chosen()
    assert len(joint.kernels) < len(LENGTHS)
    for instance in instances():
        forecast = Forecast(instance.task)
        times = [forecast.seconds(each) for each in candidates()]
        dispatched = forecast.seconds(kernel_for(joint.tree, instance.symbols))
        assert dispatched <= 1.1 * min(times)


def test_the_choice_is_the_same_each_time() -> None:
    assert chosen() == chosen()


def test_a_candidate_that_is_not_legal_is_not_used() -> None:
    broken = Candidate("rows", {"rows": 7, "columns": 8})
    joint = joint_choice(instances(), [broken, *candidates()[:2]])
    assert broken not in joint.kernels
