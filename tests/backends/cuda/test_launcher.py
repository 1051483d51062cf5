"""Captured graphs of a program's launches: how many are kept, and what is changed in them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.backends.cuda.fake_driver import FakeDriver, FakeGraph
from treadle.backends.cuda.driver import BoundLaunch
from treadle.backends.cuda.launcher import MOST_GRAPHS, Launcher
from treadle.backends.interface import BufferRef
from treadle.errors import TreadleError

INPUT, OUTPUT, ARENA = BufferRef("input", 0), BufferRef("output", 0), BufferRef("arena", 0)
OWN = {INPUT: 1024, OUTPUT: 2048}
BUFFERS = ((INPUT, ARENA), (ARENA, ARENA), (ARENA, OUTPUT))


class Recording(FakeDriver):
    """Notes what is captured, changed and closed."""

    def __init__(self, refused: int | None = None) -> None:
        super().__init__({})
        self.notes: list[object] = []
        self.refused = refused

    def capture(self, launches: Sequence[BoundLaunch]) -> FakeGraph:
        """See `Driver`."""
        driver = self
        driver.notes.append("capture")

        class Graph(FakeGraph):
            def update(self, position: int, arguments: Sequence[int]) -> None:
                """See `LaunchGraph`."""
                if position == driver.refused and 9000 in arguments:
                    raise TreadleError("no launch of this kind")
                driver.notes.append((position, *arguments))

            def close(self) -> None:
                """See `LaunchGraph`."""
                driver.notes.append("close")

        return Graph(driver, launches)


def launcher(driver: Recording) -> Launcher:
    places = {**OWN, ARENA: 4096}
    launches = [BoundLaunch(0, (1, 1, 1), (1, 1, 1), tuple(places[ref] for ref in each)) for each in BUFFERS]
    return Launcher(driver, launches, BUFFERS, OWN, by_graph=True)


def test_only_what_changes_is_updated() -> None:
    driver = Recording()
    launches, chosen, given = launcher(driver), (0, 1, 2), {INPUT: 8000, OUTPUT: 2048}
    assert launches.point(chosen, OWN) == OWN and launches.point(chosen, given) == given
    assert launches.point(chosen, given) == given and launches.point(chosen, OWN) == OWN
    assert driver.notes == ["capture", (0, 8000, 4096), (0, 1024, 4096)]


def test_a_launch_that_cannot_be_changed_keeps_all_on_the_programs_buffers() -> None:
    driver = Recording(refused=2)
    launches, chosen = launcher(driver), (0, 1, 2)
    assert launches.point(chosen, {INPUT: 8000, OUTPUT: 9000}) == OWN
    assert launches.point(chosen, {INPUT: 8000, OUTPUT: 2048}) == OWN
    assert driver.notes == ["capture", (0, 8000, 4096), (0, 1024, 4096)], "the first launch is pointed back"


@pytest.mark.parametrize("sets", [MOST_GRAPHS, MOST_GRAPHS + 2])
def test_graphs_of_the_last_sets_are_kept(sets: int) -> None:
    driver = Recording()
    launches = launcher(driver)
    for repeat in range(sets):
        launches.point((0,) * (repeat + 1), OWN)
        launches.point((0,), OWN)  # that of the first set is used again and again
    assert (driver.notes.count("capture"), driver.notes.count("close")) == (sets, sets - MOST_GRAPHS)
    launches.close()
    assert driver.notes.count("close") == sets
