"""How likely a walk takes each action: Gensor's formulas as printed, and the ratio of modelled throughputs.

Source: Gensor (2025), sections IV-B and IV-C; docs/adr/0029 says which of them ship.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, exp, inf, log

from treadle.schedules.search.etir import Etir
from treadle.target import Target

BANKS = 32
"""Formula (3)'s W: elements of 4 bytes that shared memory gives at once."""


def tiling_benefit(traffic: float, next_traffic: float, footprint: float, next_footprint: float) -> float:
    """Formula (1) as printed: `Q(T) F(T') / (Q(T') F(T))`. More footprint counts as a gain."""
    return traffic * next_footprint / (next_traffic * footprint)


def tiling_balance(traffic: float, next_traffic: float, footprint: float, next_footprint: float) -> float:
    """Formula (1) as the paper's text describes it: the fall in traffic over the growth of the footprint."""
    return traffic / next_traffic / (next_footprint / footprint)


def caching_benefit(low: Memory, high: Memory, bytes: float) -> float:
    """Formula (2): the time to move data at one level over that at the next one, which is nearer."""
    return low.cycles(bytes) / high.cycles(bytes)


def virtual_thread_benefit(width: int, virtual: int, banks: int = BANKS) -> float:
    """Formula (3): the bank conflicts of a tile of so many columns over those with virtual threads."""
    return ceil(width / banks) / ceil(width / (virtual * banks))


def cache_weight(step: int) -> float:
    """The factor of the caching action at a step: 0.5 at first, 1.5 at step 10, at most 3."""
    return 3 / (1 + exp(-log(5) / 10 * (step - 10)))


def keep_probability(temperature: float) -> float:
    """The probability that a state is kept in the list of results."""
    return 1 - 1 / (1 + exp(-0.5 * (-log(temperature) - 10)))


@dataclass(frozen=True)
class Memory:
    """A level of memory as one core or multiprocessor sees it: cycles, bytes a cycle, bytes."""

    latency: float
    bandwidth: float
    capacity: float = inf

    def cycles(self, bytes: float) -> float:
        """The time to move data."""
        return self.latency + bytes / self.bandwidth


def memories_of(target: Target) -> tuple[Memory, ...]:
    """The levels of a target's memory, the farthest first, registers last."""
    far = Memory(target.memory_latency, target.peak_bandwidth / target.multiprocessors / target.clock)
    if target.is_cuda:
        shared = Memory(target.shared_latency, BANKS * 4, target.shared_per_block)
        return far, shared, Memory(1.0, BANKS * 4 * 4, 4 * target.registers_per_multiprocessor)
    registers = target.vector_bytes * target.vector_registers
    near = Memory(_L2_LATENCY, target.l2_bytes_per_cycle, target.l2_bytes)
    return far, near, Memory(1.0, 2 * target.vector_bytes, registers)


_L2_LATENCY = 14.0
"""Cycles, of a CPU's second cache; Intel's optimization manual says 14 for Skylake and later server cores."""


@dataclass(frozen=True)
class PaperBenefits:
    """Formulas (1) to (3) as printed; 0 for a tile that does not fit in its memory."""

    memories: tuple[Memory, ...]

    def memory(self, number: int, levels: int) -> int:
        """The memory that a level of tiles lies in: the last one in registers, those before it in the one before."""
        return len(self.memories) - 1 if number == levels - 1 else max(1, len(self.memories) - 2)

    def tile(self, before: Etir, after: Etir, number: int) -> float:
        """Of another tile at a level."""
        if after.footprints[number] > self.memories[self.memory(number, len(after.tiles))].capacity:
            return 0.0
        q, f = (before.traffic[number], after.traffic[number]), (before.footprints[number], after.footprints[number])
        return tiling_benefit(*q, *f)

    def cache(self, state: Etir, number: int) -> float:
        """Of going on to the next level."""
        high = self.memory(number + 1, len(state.tiles))
        return caching_benefit(self.memories[high - 1], self.memories[high], state.footprints[number])

    def virtual(self, after: Etir, number: int) -> float:
        """Of another number of virtual threads along the last axis that has some."""
        columns = max(range(len(after.virtual)), key=lambda n: (after.virtual[n] > 1, n))
        return virtual_thread_benefit(after.tiles[number][columns], after.virtual[columns])


def roulette(weights: Mapping[int, float], drawn: float) -> int:
    """The number whose share of the weights' sum a random number in [0, 1) falls into."""
    left = drawn * sum(weights.values())
    for number, weight in weights.items():
        left -= weight
        if left < 0:
            return number
    return max(weights)


__all__ = [
    "BANKS", "Memory", "PaperBenefits", "cache_weight", "caching_benefit", "keep_probability", "memories_of",
    "roulette", "tiling_balance", "tiling_benefit", "virtual_thread_benefit",
]  # fmt: skip
