"""Nests with checks of borders and without: both are right, and the checks cost instructions."""

from __future__ import annotations

import pytest

from benchmarks.local_padding import CHECKED, PADDED, PARTITIONED, counted, timed
from treadle.target import Target
from treadle.target.host import host_target


def test_a_processor_times_all_three() -> None:
    """Timing compares each with the definition first."""
    found = timed((19, 24, 45), host_target(), 0.1)
    assert list(found) == [CHECKED, PARTITIONED, PADDED]
    assert all(each.seconds > 0 for each in found.values())


@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
def test_checks_are_instructions_of_a_gpu(target: str) -> None:
    """A comparison or two for each multiplication, where the padded kernel has one instruction besides at most."""
    found = counted((100, 32, 100), Target.parse(target))
    checked, padded = found[CHECKED].instructions, found[PADDED].instructions
    assert checked is not None and padded is not None
    assert checked > padded + 1
