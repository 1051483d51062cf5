"""The software pipelines of kernels for GPUs: what a step needs is brought while steps before it compute.

One for each mechanism: asynchronous copies, and tiles that come through registers.
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.schedules.kernel_builder import Index, KernelBuilder

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

    As many groups of copies are committed before the loop as it expects, whether or not there are such steps.
    """
    ahead = stages - 1
    with b.loop("s", min(ahead, steps) if isinstance(steps, int) else ahead) as s:
        with b.when(None if isinstance(steps, int) else s < steps):
            start(s, s)
        b.commit()
    for _ in range(ahead - steps if isinstance(steps, int) else 0):
        b.commit()
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


__all__ = ["Step", "pipelined", "prefetched"]
