"""What this machine can do at most: multiply-adds from registers, and reads from memory, measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import CpuProgram
from treadle.host import host_target

_ACCUMULATORS = 12
"""Independent sums of a thread: with a latency of four or five cycles and two units, ten keep these busy."""
_STEPS = 2_000_000
_READ_BYTES = 256 << 20
"""More than any last-level cache of a few cores holds."""
_TRIES = 5

_TEXT = """#include "pool.h"
#include "treadle.h"
typedef v{lanes}f vector;
enum {{ SUMS = {sums}, STEPS = {steps}, VECTORS = {vectors}, BLOCKS = {blocks} }};
static void multiply(void *const *args, long worker, long workers) {{
    const float *x = args[0];
    float *sink = args[1];
    for (long block = BLOCKS * worker / workers; block < BLOCKS * (worker + 1) / workers; block++) {{
        vector sum[SUMS], a = treadle_splat_v{lanes}f(x[0]), b = treadle_splat_v{lanes}f(x[1]);
        for (int n = 0; n < SUMS; n++) sum[n] = treadle_splat_v{lanes}f((float)n);
        for (long step = 0; step < STEPS / BLOCKS; step++)
            TREADLE_UNROLL({sums})
            for (int n = 0; n < SUMS; n++) sum[n] = sum[n] * a + b;
        for (int n = 1; n < SUMS; n++) sum[0] += sum[n];
        sink[block] = sum[0][0];
    }}
}}
static void read(void *const *args, long worker, long workers) {{
    const float *x = args[0];
    float *sink = args[1];
    for (long block = BLOCKS * worker / workers; block < BLOCKS * (worker + 1) / workers; block++) {{
        vector sum[8] = {{0}};
        const float *part = x + block * (VECTORS / BLOCKS) * {lanes};
        for (long at = 0; at < VECTORS / BLOCKS; at += 8)
            TREADLE_UNROLL(8)
            for (int n = 0; n < 8; n++) sum[n] += treadle_load_v{lanes}f(part + (at + n) * {lanes});
        for (int n = 1; n < 8; n++) sum[0] += sum[n];
        sink[block] = sum[0][0];
    }}
}}
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs,
                 void *const *constants, char *arena) {{
    treadle_pool_run(pool, multiply, (void *const[]){{constants[0], arena}}, BLOCKS);
    treadle_pool_run(pool, read, (void *const[]){{constants[0], arena}}, BLOCKS);
}}
"""


@dataclass(frozen=True)
class Peaks:
    """operations: additions and multiplications of float32 a second, two a multiply-add; bandwidth: bytes read from
    memory a second. Both with all threads that a call has."""

    operations: float
    bandwidth: float


def measure_peaks(threads: int) -> Peaks:
    """The best of five tries of each, in about half a second; TreadleError without a C compiler."""
    lanes, blocks = host_target().lanes, 16 * threads
    vectors = _READ_BYTES // (4 * lanes) // (8 * blocks) * (8 * blocks)
    steps = _STEPS // blocks * blocks
    text = _TEXT.format(lanes=lanes, sums=_ACCUMULATORS, steps=steps, vectors=vectors, blocks=blocks)
    memory = np.full(vectors * lanes, 0.5, np.float32)  # written, so that every page is there
    library = build_library([Unit("treadle_run", text)])
    with CpuProgram(library, [], [], [memory], 4 * blocks, threads) as program:
        tries = [program.launch_seconds([], 2) for _ in range(_TRIES)]
    multiplied, read = (min(seconds) for seconds in zip(*tries, strict=True))
    return Peaks(2 * lanes * _ACCUMULATORS * steps / multiplied, 4 * lanes * vectors / read)


__all__ = ["Peaks", "measure_peaks"]
