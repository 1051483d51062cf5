"""Task mappings as plain values: which worker does which tasks, in which order.

Source: Hidet (ASPLOS 2023), sections 4.1 and 5.1.  A mapping has a task `shape` and a number of `workers`;
`m(w)` is worker w's ordered list of tasks.  `repeat` gives one worker all tasks in order, `spatial` gives
each of many workers one task, and `f1 * f2` composes:

    (f1 * f2)(w) = [t1 * f2.shape + t2  for t1 in f1(w // f2.workers)  for t2 in f2(w % f2.workers)]

    >>> (repeat(2, 1) * spatial(1, 2))(1)
    [(0, 1), (1, 1)]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

from treadle.dialects.task.affine import STEP, WORKER, Affine, affine
from treadle.errors import TreadleError

Task: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Repeat:
    """One worker visits the grid `shape`; `order` lists the dimensions, outermost loop first."""

    shape: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def workers(self) -> int:
        return 1

    @property
    def loops(self) -> tuple[int, ...]:
        return tuple(self.shape[d] for d in self.order)

    def task(self, worker: Any, steps: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(steps[self.order.index(d)] for d in range(len(self.shape)))

    def __str__(self) -> str:
        return _grid_text("repeat", self.shape, self.order)


@dataclass(frozen=True)
class Spatial:
    """Each worker does one task of the grid `shape`; the last dimension in `order` varies fastest."""

    shape: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def workers(self) -> int:
        return prod(self.shape)

    @property
    def loops(self) -> tuple[int, ...]:
        return ()

    def task(self, worker: Any, steps: Sequence[Any]) -> tuple[Any, ...]:
        coordinates: dict[int, Any] = {}
        for d in reversed(self.order[1:]):
            coordinates[d] = worker % self.shape[d]
            worker = worker // self.shape[d]
        coordinates[self.order[0]] = worker
        return tuple(coordinates[d] for d in range(len(self.shape)))

    def __str__(self) -> str:
        return _grid_text("spatial", self.shape, self.order)


@dataclass(frozen=True)
class Replicate:
    """Intended replication: `workers` workers do the same tasks.  Its shape is 1 in every dimension."""

    workers: int
    rank: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (1,) * self.rank

    @property
    def loops(self) -> tuple[int, ...]:
        return ()

    def task(self, worker: Any, steps: Sequence[Any]) -> tuple[Any, ...]:
        return (0,) * self.rank

    def __str__(self) -> str:
        return f"replicate({self.workers})"


@dataclass(frozen=True)
class Custom:
    """Worker w's task number s is `coordinates` at (w, s), for s in [0, steps)."""

    shape: tuple[int, ...]
    workers: int
    steps: int
    coordinates: tuple[Affine, ...]

    @property
    def loops(self) -> tuple[int, ...]:
        return (self.steps,)

    def task(self, worker: Any, steps: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(c.evaluate(worker, steps[0]) for c in self.coordinates)

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        coordinates = ", ".join(map(str, self.coordinates))
        return f"custom({sizes}, workers = {self.workers}, steps = {self.steps}, map = ({coordinates}))"


Part: TypeAlias = Repeat | Spatial | Replicate | Custom


@dataclass(frozen=True)
class Mapping:
    """A composition of parts, outermost first; build it with `repeat`, `spatial`, `custom` and `*`."""

    parts: tuple[Part, ...]

    @property
    def rank(self) -> int:
        """The number of task coordinates (0 while only replication is known)."""
        return len(self.parts[0].shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Tasks per dimension: the elementwise product of the parts' shapes."""
        return tuple(prod(sizes) for sizes in zip(*(p.shape for p in self.parts), strict=True))

    @property
    def workers(self) -> int:
        """How many workers there are, numbered from 0."""
        return prod(p.workers for p in self.parts)

    @property
    def loops(self) -> tuple[int, ...]:
        """Extents of the loops that visit one worker's tasks, outermost first."""
        return tuple(itertools.chain.from_iterable(p.loops for p in self.parts))

    def task(self, worker: Any, steps: Sequence[Any]) -> tuple[Any, ...]:
        """The task of `worker` at loop indices `steps`.

        Works on integers and on symbolic expressions alike: anything with `+ * // %`.
        """
        remaining = self.workers
        at = 0
        coordinates: tuple[Any, ...] = (0,) * self.rank
        for part in self.parts:
            remaining //= part.workers
            inner = part.task(worker // remaining, steps[at : at + len(part.loops)])
            coordinates = tuple(c * d + t for c, d, t in zip(coordinates, part.shape, inner, strict=True))
            worker = worker % remaining
            at += len(part.loops)
        return coordinates

    def __call__(self, worker: int) -> list[Task]:
        """Worker `worker`'s tasks, in order."""
        if not 0 <= worker < self.workers:
            raise TreadleError(f"worker {worker} of {self}", accepted=f"0 to {self.workers - 1}")
        return list(self._visit(worker))

    def _visit(self, worker: int) -> Iterator[Task]:
        for steps in itertools.product(*map(range, self.loops)):
            yield self.task(worker, steps)

    def __mul__(self, inner: Mapping) -> Mapping:
        """`self` composed with `inner`: each task of self is a grid of tasks of inner."""
        rank = self.rank or inner.rank
        if inner.rank not in (0, rank):
            raise TreadleError(
                f"({self}) * ({inner}) composes {self.rank} with {inner.rank} dimensions",
                accepted="mappings of one rank",
            )
        return Mapping(tuple(_with_rank(p, rank) for p in self.parts + inner.parts))

    def __str__(self) -> str:
        return " * ".join(map(str, self.parts))


@dataclass(frozen=True)
class CoverFailure:
    """The first task, in row-major order, that a mapping does not do exactly once."""

    task: Task
    workers: tuple[int, ...]
    inside: bool
    shape: tuple[int, ...]

    def __str__(self) -> str:
        names = " and ".join(map(str, self.workers[:2]))
        if not self.inside:
            return f"task {self.task} of worker {names} lies outside the shape {self.shape}"
        if not self.workers:
            return f"task {self.task} is missed"
        plural = "s" if self.workers[0] != self.workers[1] else ""
        return f"task {self.task} is done twice, by worker{plural} {names if plural else self.workers[0]}"


def repeat(*dims: int, order: Sequence[int] | None = None) -> Mapping:
    """One worker visits a grid of `dims`, row-major unless `order` names the dimensions outermost first."""
    return Mapping((Repeat(_sizes("repeat", dims), _order("repeat", len(dims), order)),))


def spatial(*dims: int, order: Sequence[int] | None = None) -> Mapping:
    """One task each for prod(dims) workers, numbered row-major unless `order` says otherwise."""
    return Mapping((Spatial(_sizes("spatial", dims), _order("spatial", len(dims), order)),))


def replicate(workers: int) -> Mapping:
    """Workers that intentionally do the same tasks; takes its rank from what it is composed with."""
    return Mapping((Replicate(*_sizes("replicate", (workers,)), rank=0),))


def custom(
    shape: Sequence[int],
    workers: int,
    coordinates: Callable[[Any, Any], Sequence[Affine | int]] | Sequence[Affine | int],
    steps: int = 1,
) -> Mapping:
    """Any assignment that is affine up to floor division and remainder.

    coordinates: worker w's task number s: a function such as `lambda w, s: (w % 8, w // 8 + s)` that uses
    only `+ - * // %`, or the expressions themselves
    """
    traced = coordinates(WORKER, STEP) if callable(coordinates) else coordinates
    sizes = _sizes("custom", shape)
    if len(traced) != len(sizes):
        raise TreadleError(
            f"custom maps to {len(traced)} coordinates of a {len(sizes)}-dimensional shape",
            accepted=f"{len(sizes)} coordinates",
        )
    workers, steps = _sizes("custom", (workers, steps))
    return Mapping((Custom(sizes, workers, steps, tuple(affine(c) for c in traced)),))


@lru_cache(maxsize=4096)
def prove_cover(mapping: Mapping) -> CoverFailure | None:
    """None when every task is done exactly once (per intended replica), else the first that is not.

    A composition of covers is a cover; grids cover by construction, so only custom parts are enumerated.
    """
    customs = [p for p in mapping.parts if isinstance(p, Custom)]
    if all(_first_failure(Mapping((part,))) is None for part in customs):
        return None
    return _first_failure(mapping)


def _first_failure(mapping: Mapping) -> CoverFailure | None:
    replicas = [p.workers for p in mapping.parts if isinstance(p, Replicate)]
    expected = prod(replicas)
    shape = mapping.shape
    doers: dict[Task, list[int]] = {}
    for worker in range(mapping.workers):
        for task in mapping(worker):
            if not all(0 <= t < d for t, d in zip(task, shape, strict=True)):
                return CoverFailure(task, (worker,), inside=False, shape=shape)
            doers.setdefault(task, []).append(worker)
    for task in itertools.product(*map(range, shape)):
        done = doers.get(task, [])
        if len(done) != expected:
            extra = tuple(done[:: max(expected, 1)][:2]) if len(done) > expected else ()
            return CoverFailure(task, extra, inside=True, shape=shape)
    return None


def _with_rank(part: Part, rank: int) -> Part:
    return Replicate(part.workers, rank) if isinstance(part, Replicate) else part


def _sizes(name: str, dims: Sequence[int]) -> tuple[int, ...]:
    if not dims or any(d < 1 for d in dims):
        raise TreadleError(f"{name}({', '.join(map(str, dims))})", accepted="one or more positive sizes")
    return tuple(dims)


def _order(name: str, rank: int, order: Sequence[int] | None) -> tuple[int, ...]:
    if order is None:
        return tuple(range(rank))
    if sorted(order) != list(range(rank)):
        raise TreadleError(
            f"{name} over {rank} dimensions has order {tuple(order)}",
            accepted=f"a permutation of 0 to {rank - 1}",
        )
    return tuple(order)


def _grid_text(name: str, shape: tuple[int, ...], order: tuple[int, ...]) -> str:
    sizes = ", ".join(map(str, shape))
    if order == tuple(range(len(shape))):
        return f"{name}({sizes})"
    return f"{name}({sizes}, order = ({', '.join(map(str, order))}))"
