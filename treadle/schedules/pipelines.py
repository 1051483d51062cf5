"""The software pipelines of kernels for GPUs: what a step needs is brought while steps before it compute.

One for each mechanism: asynchronous copies, these with fragments that are loaded ahead, tiles that come through
registers, and operands that stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.schedules.kernel_builder import Index, KernelBuilder
from treadle.schedules.tiles import Factors, Fragment, SharedTile, TileBuilder

Step = Callable[[Index, Index], None]
"""Given a step, and the buffer of several that is its own."""


def pipelined(
    b: KernelBuilder,
    name: str,
    steps: Index | int,
    stages: int,
    start: Step,
    body: Step,
    ready: Callable[[], None] | None = None,
) -> None:
    """A loop that uses one of `stages` buffers while asynchronous copies fill the others.

    start: starts the copies of a step; body: computes it; ready: what is done before the first step, when all copies
    have come that were committed before
    """
    ahead = stages - 1
    _start_first(b, steps, ahead, start)
    if ready is not None:
        b.wait(ahead)
        b.barrier()
        ready()
    with b.loop(name, steps) as step:
        b.wait(ahead - 1)
        # Behind it every thread sees this step's tiles, and has used those that are overwritten next.
        b.barrier()
        following = step + ahead
        with b.when(following < steps):
            start(following, following % stages)
        b.commit()
        body(step, step % stages)


def multiplied(
    t: TileBuilder,
    name: str,
    steps: Index | int,
    stages: int,
    start: Step,
    tiles: tuple[SharedTile, SharedTile],
    c: Fragment,
    at_once: int | None = None,
) -> None:
    """The loop of `pipelined` around `t.gemm(a[stage], b[stage], c)`, with fragments that are loaded while those before
    them are multiplied.

    The first fragments of a step are loaded before the last products of the step before: no product waits for the
    barrier and for the loads behind it. Fragments take twice the registers.

    tiles: A and B in `stages` buffers; a step has at least two groups of terms
    at_once: steps that are unrolled, and no more, if it is given: addresses of copies in several steps take registers

    Source: NVIDIA, CUTLASS documentation, "Efficient GEMM in CUDA", software pipelining.
    """
    b, ahead, (left, right) = t.b, stages - 1, tiles
    factors = Factors(t, left, right, c, sets=2)
    layout = right.layout
    groups = (layout.columns if layout.along_k else layout.rows) // factors.terms
    assert groups % 2 == 0, "a step begins with the first set"

    def load(stage: Index, group: int) -> None:
        factors.load(left[stage], right[stage], b.index(group * factors.terms), into=[b.index(group % 2)])

    _start_first(b, steps, ahead, start)
    b.wait(ahead - 1)
    b.barrier()
    with b.when(None if isinstance(steps, int) else steps > 0):
        load(b.index(0), 0)
    with b.loop(name, steps, at_once=at_once) as step:
        stage, following, next_step = step % stages, step + ahead, step + 1
        # The last step loads fragments that nobody multiplies, of a buffer that has been filled.
        if not isinstance(steps, int) or steps < stages:
            next_step = next_step.min(steps - 1)
        for group in range(groups):
            if group + 1 < groups:
                load(stage, group + 1)
            else:
                b.wait(ahead - 1)
                # Behind it every thread sees the next step's tiles, and has loaded those that are overwritten next.
                b.barrier()
                load(next_step % stages, 0)
            if group == 0:
                with b.when(following < steps):
                    start(following, following % stages)
                b.commit()
            factors.multiply(b.index(group), of=[b.index(group % 2)])


def _start_first(b: KernelBuilder, steps: Index | int, ahead: int, start: Step) -> None:
    """Commits as many groups of copies as the loop expects before it, whether or not there are such steps."""
    with b.loop("s", min(ahead, steps) if isinstance(steps, int) else ahead) as s:
        with b.when(None if isinstance(steps, int) else s < steps):
            start(s, s)
        b.commit()
    for _ in range(ahead - steps if isinstance(steps, int) else 0):
        b.commit()


def prefetched(
    b: KernelBuilder,
    name: str,
    steps: Index | int,
    fetch: Callable[[Index], None],
    keep: Callable[[Index], None],
    body: Step,
    ready: Callable[[], None] | None = None,
) -> None:
    """A loop that uses one of two buffers while the next step's elements come to registers.

    fetch: loads a step's elements to registers; keep: stores them to a buffer; ready: what is done before the first are
    stored

    Source: Hidet (ASPLOS 2023), figure 5.
    """
    fetch(b.index(0))
    if ready is not None:
        ready()
    keep(b.index(0))
    b.barrier()
    if not isinstance(steps, int) or steps > 1:
        with b.loop(name, steps - 1) as step:
            following = step + 1
            fetch(following)
            body(step, step % 2)
            keep(following % 2)
            b.barrier()
    if isinstance(steps, int):
        half = b.index((steps - 1) % 2)
        body(b.index(steps - 1), half)
    else:
        last = steps - 1
        body(last, last % 2)


def streamed(
    b: KernelBuilder,
    name: str,
    steps: Index | int,
    ahead: int,
    load: Step,
    body: Step,
    ready: Callable[[], None],
) -> None:
    """A loop over steps whose operands come to registers `ahead` steps before they are used.

    load: to one of `ahead` sets of registers; body: uses a set, which is then loaded anew; ready: what is done between
    the first loads and the first step

    A set's number is a constant, so that its elements are registers: a turn of the loop is `ahead` steps.
    """
    for number in range(ahead if not isinstance(steps, int) else min(ahead, steps)):
        with b.when(None if isinstance(steps, int) else b.index(number) < steps):
            load(b.index(number), b.index(number))
    ready()
    whole = isinstance(steps, int) and steps % ahead == 0
    with b.loop(name, (steps + (ahead - 1)) // ahead, at_once=1) as turn:
        for number in range(ahead):
            step, set = turn * ahead + number, b.index(number)
            with b.when(None if whole else step < steps):
                body(step, set)
                following = step + ahead
                with b.when(following < steps):
                    load(following, set)


__all__ = ["Step", "multiplied", "pipelined", "prefetched", "streamed"]
