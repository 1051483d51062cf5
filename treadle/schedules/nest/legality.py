"""What a nest cannot be: stages of reads that have no box, and more than the hardware has."""

from __future__ import annotations

from math import prod

from treadle.errors import TreadleError
from treadle.schedules.limits import check_limit
from treadle.schedules.nest.nest import Nest, Stage
from treadle.target import Target

MOST_ACCUMULATORS = 1024
"""Of a CPU's register tile, whose code is unrolled: twice the 512 floats of 32 vectors of 16, the largest register
file."""
MOST_UNROLLED_TERMS = 8192
"""Terms that unrolling writes out, on a CPU. GCC 12 compiled a product of bytes with 384 accumulators in 10 s with
16 terms of each, with 64 not in 60 s (one core of Zen 3 beside other jobs)."""
OTHER_REGISTERS = 16
"""Of a GPU's thread, for addresses and counters beside what a nest keeps. A lower bound, since it rejects: seven
products of f32 for sm_80 took 17 to 56 more than is counted here (NVRTC 13.0; 4096 and 2039 cubed with 64 accumulators
40 and 49, 1024 cubed with 16 accumulators 18)."""


def check_nest(nest: Nest, target: Target, where: str) -> None:
    """TreadleError for a nest that cannot be built, LimitError for one that the target has too little of."""
    _check_levels(nest, target, where)
    for stage in nest.stages:
        _check_stage(nest, stage, f"{where}, stage of read {stage.read}")
    _check_pairs(nest, where)
    if target.is_cuda:
        _check_gpu(nest, target, where)
    else:
        lanes = prod(nest.levels[n].trips for n in nest.vector_reduction)
        check_limit("accumulators", nest.accumulators * lanes, MOST_ACCUMULATORS, where)
        check_limit("unrolled terms", nest.unrolled_terms, MOST_UNROLLED_TERMS, where)
        check_limit("bytes of stages", nest.staged_bytes("register"), target.l2_bytes, where)


def _check_levels(nest: Nest, target: Target, where: str) -> None:
    if nest.slices and not target.is_cuda:
        raise TreadleError("a reduction level is in block, and blocks of a CPU share no sums", where, "loop")
    if nest.vector_reduction and target.is_cuda:
        raise TreadleError("a reduction level is marked vector", where, "thread, whose lanes fold")


def _check_stage(nest: Nest, stage: Stage, where: str) -> None:
    workload = nest.workload
    if stage.read >= len(workload.reads):
        raise TreadleError("there is no such read", where, f"0 to {len(workload.reads) - 1}")
    read = workload.reads[stage.read]
    if read.obstacle is not None:
        raise TreadleError(f"the read {read.obstacle}", where, "a read of elements that its indices alone decide")
    at_block = stage.place == len(nest.blocks)
    if not read.is_term and not at_block:
        raise TreadleError("the read is outside of the reduction", where, "a level in block")
    if nest.box(stage.read, stage.place, stage.memory) is None:
        message = "an index is not something of the outer levels plus a linear form of the inner ones"
        raise TreadleError(message, where, "another level, or factors that divide the extents")
    if stage.memory == "register" and (stage.vector, stage.buffers) != (1, 1):
        raise TreadleError("vectors or buffers of a stage in registers", where, "one of each")
    if stage.buffers > 1 and at_block:
        raise TreadleError("nothing is ahead of a stage that is filled once a block", where, "one buffer")
    if stage.buffers > 2 and not stage.is_async:
        message = f"{stage.buffers} buffers, and registers hold what is fetched ahead for one"
        raise TreadleError(message, where, "2 buffers, or async")


def _check_pairs(nest: Nest, where: str) -> None:
    """Stages of one read go from slower to faster memory, and stages that are filled together have as many buffers."""
    for n, stage in enumerate(nest.stages):
        for inner in nest.stages[n + 1 :]:
            if inner.read == stage.read and (inner.place == stage.place or inner.memory == stage.memory):
                raise TreadleError(
                    f"read {stage.read} is staged twice at one level or in one memory",
                    where,
                    "shared at an outer level, register at an inner one",
                )
            if inner.read == stage.read and stage.memory == "register":
                raise TreadleError(
                    f"read {stage.read} goes from registers to shared memory", where, "shared at the outer level"
                )
            shared = stage.memory == inner.memory == "shared" and stage.place == inner.place
            if shared and (stage.buffers, stage.is_async) != (inner.buffers, inner.is_async):
                raise TreadleError(
                    f"reads {stage.read} and {inner.read} are staged at one level in {stage.buffers} and "
                    f"{inner.buffers} buffers, or one of them is async",
                    where,
                    "stages that are filled in one way",
                )


def _check_gpu(nest: Nest, target: Target, where: str) -> None:
    check_limit("threads", nest.threads, target.max_threads_per_block, where)
    shared = nest.staged_bytes("shared") + nest.scratch_bytes
    check_limit("bytes of shared memory", shared, target.shared_per_block_static, where)
    registers, least = registers_of(nest), nest.min_blocks_per_sm or 1
    check_limit("registers of a thread", registers, target.registers_per_thread, where)
    whole = registers * nest.threads * least
    check_limit("registers of a multiprocessor", whole, target.registers_per_multiprocessor, where)


def registers_of(nest: Nest) -> int:
    """An estimate of the registers of a GPU's thread: accumulators, stages, what is fetched ahead, and some more."""
    words = nest.accumulators * -(-nest.workload.accumulator_bytes // 4)
    staged = sum(-(-stage_bytes // 4) for stage_bytes in nest.stage_bytes("register"))
    ahead = [
        -(-size // (4 * nest.threads * stage.buffers))
        for stage, size in zip(nest.stages_in("shared"), nest.stage_bytes("shared"), strict=True)
        if stage.buffers > 1 and not stage.is_async
    ]
    return words + staged + sum(ahead) + OTHER_REGISTERS


__all__ = ["MOST_ACCUMULATORS", "OTHER_REGISTERS", "check_nest", "registers_of"]
