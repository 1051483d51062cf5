"""How the launches of a call are queued: as one captured graph, or one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from treadle.backends.cuda.driver import BoundLaunch, Driver, LaunchGraph
from treadle.backends.interface import BufferRef
from treadle.errors import TreadleError

MOST_GRAPHS = 8
"""Sets of launches whose graphs are kept, those of the last calls: a dispatch has one for each of its leaves."""

_UNKNOWN = -1
Addresses = Mapping[BufferRef, int]
"""Where the buffers lie that may be a caller's."""


@dataclass
class _Graph:
    """A captured graph, and what its launches are pointed at."""

    graph: LaunchGraph
    addresses: dict[BufferRef, int]
    fixed: bool = False
    """Whether the driver refused to change an argument."""
    arguments: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])


class Launcher:
    """Queues some of a program's launches on buffers of the program, or of a caller.

    buffers: the buffers of each launch, in the order of its arguments
    own:     where the program has the buffers that may be a caller's
    """

    def __init__(
        self, driver: Driver, launches: Sequence[BoundLaunch], buffers: Sequence[Sequence[BufferRef]], own: Addresses,
        *, by_graph: bool,
    ) -> None:  # fmt: skip
        self._driver, self._launches, self._buffers = driver, launches, buffers
        self._own, self._by_graph = own, by_graph
        self._graphs = OrderedDict[tuple[int, ...], _Graph]()

    def point(self, chosen: tuple[int, ...], addresses: Addresses) -> Addresses:
        """Makes the launches of these numbers use buffers at these addresses; where they are then: the program's own
        where an argument of a captured launch cannot be changed."""
        if not self._by_graph:
            return addresses
        graph = self._graph(chosen)
        if not graph.fixed:
            try:
                self._update(graph, chosen, addresses)
            except TreadleError:
                graph.fixed = True
        if not graph.fixed:
            return addresses
        self._update(graph, chosen, self._own)
        return self._own

    def launch(self, chosen: tuple[int, ...], addresses: Addresses) -> None:
        """Queues the launches of these numbers, after `point`."""
        if self._by_graph:
            self._graphs[chosen].graph.launch()
        else:
            self._driver.launch([self.bound(number, addresses) for number in chosen])

    def bound(self, number: int, addresses: Addresses) -> BoundLaunch:
        """A launch on buffers at these addresses."""
        launch, buffers = self._launches[number], self._buffers[number]
        found = tuple(addresses.get(ref, own) for ref, own in zip(buffers, launch.arguments, strict=True))
        return replace(launch, arguments=found)

    def _graph(self, chosen: tuple[int, ...]) -> _Graph:
        """The graph of these launches, captured at first."""
        if chosen in self._graphs:
            self._graphs.move_to_end(chosen)
            return self._graphs[chosen]
        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.popitem(last=False)[1].graph.close()
        launches = [self._launches[number] for number in chosen]
        graph = _Graph(self._driver.capture(launches), dict(self._own))
        graph.arguments += [each.arguments for each in launches]
        self._graphs[chosen] = graph
        return graph

    def _update(self, graph: _Graph, chosen: tuple[int, ...], addresses: Addresses) -> None:
        changed = {ref for ref, place in addresses.items() if graph.addresses[ref] != place}
        if not changed:
            return
        graph.addresses.update(dict.fromkeys(changed, _UNKNOWN))  # an update may fail between two launches
        for position, number in enumerate(chosen):
            if changed.isdisjoint(self._buffers[number]):
                continue
            arguments = self.bound(number, addresses).arguments
            if arguments != graph.arguments[position]:
                graph.graph.update(position, arguments)
                graph.arguments[position] = arguments
        graph.addresses.update(addresses)

    def close(self) -> None:
        """Gives the graphs back."""
        while self._graphs:
            self._graphs.popitem()[1].graph.close()
