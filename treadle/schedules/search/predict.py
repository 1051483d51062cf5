"""Predicted times of candidates before there is a kernel, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import ceil
from typing import NamedTuple

from treadle.errors import TreadleError
from treadle.schedules.gpu_time import GpuWork, gpu_seconds, resident_blocks
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.programs import Replayed
from treadle.schedules.work.cpu_work import OPERATIONS_PER_CYCLE, Work
from treadle.schedules.work.gpu_work import AnyWork
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.target import Target

# An analytic cost model: a kernel's time from its work and the target's peak rates, without measurements.

_LATENCY = 4.0
"""Latency of a vector addition in cycles, on Skylake and later, and on Zen and later."""
_L1_BYTES = 32 * 1024
_BYTES_PER_CYCLE_L2 = 32.0
_BYTES_PER_CYCLE_L3 = 8.0
_BLOCK_CYCLES = 100.0
_LAUNCH_SECONDS = 3e-6
"""As the four above assumed, not measured: they order candidates, whose times are measured afterwards."""


class Seen(NamedTuple):
    """The parts of the traffic from L2 and from L3 that prefetching does not hide."""

    l2: float
    l3: float


PREFETCHED = Seen(0.2, 0.02)
"""Ranks the kernels of a group. Median and mean rank correlation with measured times of 94 groups on Zen 4 and of 11 on
a Xeon of Ice Lake (`python -m benchmarks.rank_correlation benchmarks/records/random/*`): 0.75, 0.70 and 0.76, 0.75;
with all traffic 0.70, 0.64 and 0.78, 0.74; with none 0.76, 0.69 and 0.74, 0.74."""
UNHIDDEN = Seen(1.0, 1.0)
"""Compares kernels of a range where a call has a few rows, whose loops are too short to prefetch in. A product of
192 x T x 64 by 192 x 64 x T whose kernels were chosen with `PREFETCHED` had one for all T, and took 1.6 to 1.7 times as
long for T of 1 to 4, 1.1 to 1.3 for 7 to 11, and as long for 12 to 128 (two cores of Zen 4, 2026-11-26)."""


def cpu_seconds(work: Work, target: Target, seen: Seen = PREFETCHED) -> float:
    """The predicted time of a kernel on all of a CPU's cores: the sum of its terms."""
    return sum(cpu_terms(work, target, seen).values())


def cpu_terms(work: Work, target: Target, seen: Seen = PREFETCHED) -> dict[str, float]:
    """What the predicted time is made of, in seconds.

    A body takes as long as its slowest resource, whose term it is part of: two arithmetic and two load ports, one store
    port, and the latency of dependent additions. Masks take arithmetic ports. The part of the cache misses that
    prefetching does not hide is added to this.
    """
    cycle = 4 * target.lanes / target.peak_f32
    rounds = ceil(work.blocks / min(target.cores, work.blocks))
    resources = ("arithmetic", "loads and stores", "stores", "sums in sequence", "at least a cycle")
    terms: dict[str, float] = dict.fromkeys(resources, 0.0)
    for b in work.bodies:
        cycles = (b.operations / OPERATIONS_PER_CYCLE, (b.loads + b.stores) / 2, b.stores, b.chain * _LATENCY, 1.0)
        slowest, most = max(zip(resources, cycles, strict=True), key=lambda pair: pair[1])
        terms[slowest] += rounds * b.executions * most * cycle
    terms["blocks"] = rounds * _BLOCK_CYCLES * cycle
    terms["from L2"] = seen.l2 * work.traffic(_L1_BYTES) / _BYTES_PER_CYCLE_L2 * cycle
    terms["from L3"] = seen.l3 * work.traffic(0.75 * target.l2_bytes) / _BYTES_PER_CYCLE_L3 * cycle
    terms["launch"] = _LAUNCH_SECONDS
    return terms


def places_of(work: AnyWork, target: Target) -> int:
    """Blocks that run at once on the whole device; 0 if no block of a GPU's kernel fits."""
    return target.multiprocessors * resident_blocks(work, target) if isinstance(work, GpuWork) else target.cores


def predicted_seconds(work: AnyWork, target: Target) -> float:
    """The predicted time of a kernel for either kind of target."""
    return gpu_seconds(work, target) if isinstance(work, GpuWork) else cpu_seconds(work, target)


def predicted_terms(work: AnyWork, target: Target) -> dict[str, float]:
    """What the predicted time is made of, in seconds; a GPU's is no sum, and stands as a whole."""
    return {"predicted": gpu_seconds(work, target)} if isinstance(work, GpuWork) else cpu_terms(work, target)


_KEPT = 8192
"""Times that are kept; predicting one again takes milliseconds."""


class Forecast:
    """Predicts the times of one task's candidates from what their kernels would do, which are not written."""

    def __init__(self, task: Task):
        self._task = task
        self._seconds: dict[Replayed, float] = {}

    @cached_property
    def _group(self) -> Group:
        return Group(self._task.anchor)

    def seconds(self, candidate: Candidate) -> float:
        """The predicted seconds. TreadleError for a candidate that is not legal."""
        return self.seconds_of(self._task.replay(candidate))

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """The predicted seconds of candidates; None for those that are not legal."""
        found: list[float | None] = []
        for candidate in candidates:
            try:
                found.append(self.seconds(candidate))
            except TreadleError:
                found.append(None)
        return found

    def seconds_of(self, replayed: Replayed) -> float:
        """The same for what a kernel is written from."""
        found = self._seconds.get(replayed)
        if found is None:
            if len(self._seconds) >= _KEPT:
                self._seconds.clear()
            work, target = self.work(replayed), self._task.target
            found = self._seconds[replayed] = predicted_seconds(work, target)
        return found

    def work(self, replayed: Replayed) -> AnyWork:
        """The work of a kernel."""
        return work_of(self._group, replayed, self._task.target)
