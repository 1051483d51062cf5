"""The example's rule is composed with Treadle's; the search finds a schedule that is right."""

from __future__ import annotations

import pytest

from examples.own_rule import RULES, convolution, main, whole_windows
from tests.schedules.rules.scheduled import CPU, anchor, groups_of
from treadle.passes.schedule.construct import default_programs
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.rules import Draft, programs
from treadle.scheduling import register_rule


def test_the_rule_is_an_alternative() -> None:
    (group,) = groups_of(convolution(16, 2, 9), CPU)
    of = anchor_of(group)
    with_it, without = programs(of, CPU, RULES), programs(of, CPU, RULES[1:])
    own = [str(program) for program in with_it if "schedule.mark unroll" in str(program)]
    assert len(with_it) == len(without) + len(own) and len(own) == 3, "as it is, with one and with both reads staged"
    assert all('sample_tile "tile" 2 from' in text and "mark vector %l1" in text for text in own)


def test_a_registered_rule_is_one_of_every_search() -> None:
    (group,) = groups_of(convolution(16, 2, 9), CPU)
    of = anchor_of(group)
    without = set(map(str, default_programs(of, CPU)))
    with register_rule(whole_windows):
        assert len(default_programs(of, CPU)) > len(without)
    assert set(map(str, default_programs(of, CPU))) == without


def test_the_rule_does_not_apply_to_products() -> None:
    of = anchor("GMM")
    assert whole_windows(Draft(of, CPU, workload_of(of))) == ()


def test_the_example_is_one_kernel_of_the_generic_template() -> None:
    (group,) = groups_of(convolution(), CPU)
    assert default_schedule(group, CPU).template.data == "generic_cpu"
    assert len(workload_of(anchor_of(group)).extents) == 7, "which the rule is for"


@pytest.mark.slow
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trials", "3", "--seconds", "20"], convolution(16, 2, 9)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Treadle's rules", "with whole_windows"]
