"""The predicted time of a kernel on a GPU, from counts of its work: an analytic cost model, without measurements."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.dialects.loop.tiles import SECTOR_BYTES, WARP
from treadle.errors import TreadleError
from treadle.schedules.occupancy import occupancy_of
from treadle.target import Target


@dataclass(frozen=True)
class GpuWork:
    """The work of one kernel; what is not said to be of a thread or of the kernel is of a block.

    blocks: of the grid; threads: of a block
    registers: of a thread, estimated: its largest set of live arrays and `OTHER_REGISTERS`
    min_blocks: that a multiprocessor is to hold, for which the compiler saves registers; 1 if it is not told
    operations: on floats, of all threads, outside of tensor cores; a fused multiply-add counts one
    tensor_flops: on tensor cores, whose operands have `tensor_bytes`
    sectors: of 32 bytes, between L2 and the multiprocessor
    shared_loads, shared_stores: cycles of shared memory's port, those of bank conflicts included
    accesses: instructions of warps that access memory
    steps: iterations of the loop over tiles that are loaded `ahead` steps before they are used
    round_trips: waits for global memory that nothing hides
    barriers: of the block; waiting: those behind which loads from shared memory are waited for
    bytes: of the kernel's tensors, each once
    """

    blocks: int
    threads: int
    registers: int
    min_blocks: int
    shared_bytes: int
    operations: float
    tensor_flops: float
    tensor_bytes: int
    sectors: float
    shared_loads: float
    shared_stores: float
    accesses: float
    steps: float
    ahead: int
    round_trips: float
    barriers: float
    waiting: float
    bytes: int

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // WARP)


_GPU_LAUNCH_SECONDS = 2e-6
_BARRIER_CYCLES = 30.0
_ISSUED_PER_CYCLE = 4.0
"""Instructions of warps that a multiprocessor starts."""
_SHARED_PARTS = 2.0
"""Parts in which a block loads what it multiplies between two barriers: the first one is waited for.

As the two above, and the launch's time, assumed; with them a product on tensor cores of an A100 takes 76 % of its peak
with two blocks of 128 x 128 a multiprocessor, 62 % with one, where a simulation of its machine code gave 69 and 58."""


def gpu_seconds(work: GpuWork, target: Target) -> float:
    """The predicted time of a kernel on a GPU, infinite if no block of it fits on a multiprocessor.

    Blocks run in rounds, as many at once as are resident. A round takes as long as its busiest resource - f32 units,
    tensor cores, issue slots, shared memory, L2 - and what one block waits for besides: global memory where nothing is
    loaded ahead, and after each barrier the first loads from shared memory, unless what is multiplied behind it is in
    registers by then. Global memory moves each byte of the kernel's tensors once: what blocks share is taken to stay in
    L2.
    """
    resident = resident_blocks(work, target)
    if resident == 0:
        return float("inf")
    mine = -(-work.blocks // target.multiprocessors)
    rounds, rest = divmod(mine, resident)
    cycles = rounds * _round_cycles(work, target, resident) + (_round_cycles(work, target, rest) if rest else 0.0)
    return _GPU_LAUNCH_SECONDS + max(cycles / target.clock, work.bytes / target.peak_bandwidth)


def resident_blocks(work: GpuWork, target: Target) -> int:
    """Blocks on a multiprocessor at a time; 0 if there is no room for one. Registers are an estimate, so that more than
    there are count as all of them."""
    most = min(target.registers_per_thread, target.registers_per_multiprocessor // (work.min_blocks * work.threads))
    registers = min(work.registers, most // 8 * 8 if most < target.registers_per_thread else most)
    try:
        return occupancy_of(target, work.threads, registers, work.shared_bytes).blocks
    except TreadleError:
        return 0


def _round_cycles(work: GpuWork, target: Target, blocks: int) -> float:
    """The cycles in which a multiprocessor computes so many blocks at once."""
    busy = blocks * max(block_cycles(work, target).values())
    stored, loaded = work.shared_stores, work.shared_loads / _SHARED_PARTS
    waits = work.barriers * _BARRIER_CYCLES + (work.round_trips + 1) * target.memory_latency
    if work.barriers:
        part = work.waiting / work.barriers
        waits += part * (stored + loaded + work.barriers * target.shared_latency)
    hidden = busy * work.ahead / work.steps if work.steps else target.memory_latency
    return busy + waits + work.steps * max(0.0, target.memory_latency - hidden)


def block_cycles(work: GpuWork, target: Target) -> dict[str, float]:
    """The cycles for which one block keeps each resource of a multiprocessor busy."""
    each = target.multiprocessors * target.clock
    peaks = {1: target.peak_int8_tensor, 2: target.peak_f16_tensor, 4: target.peak_tf32_tensor}
    tensor = peaks.get(work.tensor_bytes, 0.0)
    return {
        "f32 units": work.operations / (target.peak_f32 / 2 / each),
        "tensor cores": work.tensor_flops / (tensor / each) if work.tensor_flops else 0.0,
        "issue slots": (work.operations / WARP + work.accesses) / _ISSUED_PER_CYCLE,
        "shared memory": work.shared_loads + work.shared_stores,
        "L2": work.sectors * SECTOR_BYTES / target.l2_bytes_per_cycle,
    }


__all__ = ["GpuWork", "block_cycles", "gpu_seconds", "resident_blocks"]
