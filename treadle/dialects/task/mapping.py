"""Task mappings as plain values: which worker does which tasks, in which order; and their text."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

from treadle.errors import TreadleError

# Expressions over a worker `w` and a step `s`: the coordinates of a custom task mapping.
#
# Spelled as in MLIR's affine maps: `+`, `-`, `*`, `floordiv`, `mod`, integers, `w`, `s`.  An expression is a
# tree that evaluates over anything with Python's integer operators: integers, or symbolic expressions.

_OPERATORS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "+": (1, operator.add),
    "-": (1, operator.sub),
    "*": (2, operator.mul),
    "floordiv": (2, operator.floordiv),
    "mod": (2, operator.mod),
}
"""Spelling -> (how tightly it binds, its meaning)."""


@dataclass(frozen=True)
class Affine:
    """A tree: a leaf `w`, `s` or an integer, or an operator with two sides.

    Python's `+ - * // %` build trees, so `lambda w, s: (w % 8, w // 8 + s)` traces to its coordinates.
    """

    value: str | int
    left: Affine | None = None
    right: Affine | None = None

    def evaluate(self, w: Any, s: Any) -> Any:
        """The value at worker w and step s (integers, or values with integer operators)."""
        if self.left is not None and self.right is not None:
            apply = _OPERATORS[str(self.value)][1]
            return apply(self.left.evaluate(w, s), self.right.evaluate(w, s))
        if isinstance(self.value, int):
            return self.value
        return w if self.value == "w" else s

    def __add__(self, other: Affine | int) -> Affine:
        return Affine("+", self, affine(other))

    def __radd__(self, other: int) -> Affine:
        return Affine("+", affine(other), self)

    def __sub__(self, other: Affine | int) -> Affine:
        return Affine("-", self, affine(other))

    def __rsub__(self, other: int) -> Affine:
        return Affine("-", affine(other), self)

    def __mul__(self, other: Affine | int) -> Affine:
        return Affine("*", self, affine(other))

    def __rmul__(self, other: int) -> Affine:
        return Affine("*", affine(other), self)

    def __floordiv__(self, other: int) -> Affine:
        return Affine("floordiv", self, _divisor(other))

    def __mod__(self, other: int) -> Affine:
        return Affine("mod", self, _divisor(other))

    def __str__(self) -> str:
        return self._text(0)

    def _text(self, binding: int) -> str:
        if self.left is None or self.right is None:
            return str(self.value)
        own = _OPERATORS[str(self.value)][0]
        text = f"{self.left._text(own)} {self.value} {self.right._text(own + 1)}"
        return text if own >= binding else f"({text})"


WORKER = Affine("w")
STEP = Affine("s")


def affine(value: Affine | int) -> Affine:
    """`value` as a tree; a negative integer is a subtraction from 0, as its text form is."""
    if isinstance(value, Affine):
        return value
    return Affine(value) if value >= 0 else Affine("-", Affine(0), Affine(-value))


def binding_of(spelling: str) -> int:
    """How tightly an operator binds; 0 for what is none."""
    return _OPERATORS[spelling][0] if spelling in _OPERATORS else 0


def combine(spelling: str, left: Affine, right: Affine) -> Affine:
    """The tree of a parsed operator; a divisor must be a positive integer."""
    if spelling in ("floordiv", "mod"):
        return Affine(spelling, left, _divisor(right.value if right.left is None else right))
    return Affine(spelling, left, right)


def _divisor(value: object) -> Affine:
    if not isinstance(value, int) or value <= 0:
        raise TreadleError(f"a task mapping divides by {value}", accepted="a positive integer as divisor")
    return Affine(value)


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
            worker = worker % remaining if remaining > 1 else 0
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


# Reads the text form of a task mapping, the inverse of `str(mapping)`.
#
#     mapping ::= part ("*" part)*
#     part    ::= name "(" int ("," (int | keyword "=" value))* ")"
#     name    ::= "repeat" | "spatial" | "replicate" | "custom"
#
# `order` (repeat, spatial) takes a tuple of dimensions; `workers`, `steps` (custom) an integer and `map`
# (custom) a tuple of expressions over `w` and `s`.

_TOKEN = re.compile(r"\s*(?:(\d+|[A-Za-z_]+|[-+*(),=])|(\S))")
_DIGITS = 18
"""The most digits of an integer."""
_Value: TypeAlias = "Affine | tuple[Affine, ...]"
_KEYWORDS = {
    "repeat": {"order"},
    "spatial": {"order"},
    "replicate": set[str](),
    "custom": {"workers", "steps", "map"},
}


def parse_mapping(text: str) -> Mapping:
    """The mapping that `text` spells; TreadleError names the word that does not fit."""
    reader = _Reader(text)
    mapping = _part(reader)
    while reader.take("*"):
        mapping = mapping * _part(reader)
    if reader.word:
        raise reader.error("'*' or the end")
    return mapping


@dataclass
class _Reader:
    """Words of a text, one at a time; `word` is empty at the end."""

    text: str
    at: int = 0
    word: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.advance()

    def advance(self) -> str:
        """Moves to the next word and returns the one left behind."""
        last = self.word
        match = _TOKEN.match(self.text, self.at)
        self.word = ""
        if match is not None:
            self.at = match.end()
            self.word = match[1] or match[2]
        return last

    def take(self, word: str) -> bool:
        if self.word != word:
            return False
        self.advance()
        return True

    def expect(self, word: str) -> None:
        if not self.take(word):
            raise self.error(f"'{word}'")

    def error(self, accepted: str) -> TreadleError:
        found = f"'{self.word}'" if self.word else "the end"
        return TreadleError(f"task mapping '{self.text.strip()}' has {found}", accepted=accepted)


def _part(reader: _Reader) -> Mapping:
    name = reader.word
    if name not in _KEYWORDS:
        raise reader.error(", ".join(_KEYWORDS))
    reader.advance()
    reader.expect("(")
    sizes: list[int] = []
    keywords: dict[str, _Value] = {}
    while True:
        if reader.word in _KEYWORDS[name]:
            keyword = reader.advance()
            reader.expect("=")
            keywords[keyword] = _value(reader)
        else:
            sizes.append(_integer(reader))
        if not reader.take(","):
            break
    reader.expect(")")
    return _make(reader, name, sizes, keywords)


def _make(reader: _Reader, name: str, sizes: list[int], keywords: dict[str, _Value]) -> Mapping:
    if name in ("repeat", "spatial"):
        make = repeat if name == "repeat" else spatial
        return make(*sizes, order=_integers(reader, keywords["order"]) if "order" in keywords else None)
    if name == "replicate":
        if len(sizes) != 1:
            raise TreadleError(f"replicate with {len(sizes)} sizes", accepted="one number of workers")
        return replicate(sizes[0])
    missing = {"workers", "map"} - keywords.keys()
    if missing:
        raise TreadleError(
            f"custom mapping without {' and '.join(sorted(missing))}", accepted="workers = N, map = (...)"
        )
    coordinates = keywords["map"]
    return custom(
        sizes,
        _integers(reader, keywords["workers"])[0],
        coordinates if isinstance(coordinates, tuple) else (coordinates,),
        steps=_integers(reader, keywords.get("steps", Affine(1)))[0],
    )


def _integer(reader: _Reader) -> int:
    if not (reader.word.isascii() and reader.word.isdigit() and len(reader.word) <= _DIGITS):
        raise reader.error(f"an integer of at most {_DIGITS} digits")
    return int(reader.advance())


def _integers(reader: _Reader, value: _Value) -> tuple[int, ...]:
    items = value if isinstance(value, tuple) else (value,)
    numbers = tuple(i.value for i in items if i.left is None and isinstance(i.value, int))
    if len(numbers) != len(items):
        raise TreadleError(
            f"task mapping '{reader.text.strip()}' has an expression for an integer", accepted="integers"
        )
    return numbers


def _value(reader: _Reader) -> _Value:
    """An expression, or a parenthesised list of them (one in parentheses is a list of one)."""
    if not reader.take("("):
        return _expression(reader, 1)
    items = [_expression(reader, 1)]
    while reader.take(","):
        items.append(_expression(reader, 1))
    reader.expect(")")
    return tuple(items)


def _expression(reader: _Reader, binding: int) -> Affine:
    left = _leaf(reader)
    while (own := binding_of(reader.word)) >= binding:
        spelling = reader.advance()
        left = combine(spelling, left, _expression(reader, own + 1))
    return left


def _leaf(reader: _Reader) -> Affine:
    if reader.take("("):
        inner = _expression(reader, 1)
        reader.expect(")")
        return inner
    if reader.take("w"):
        return WORKER
    if reader.take("s"):
        return STEP
    if reader.take("-"):
        return Affine(0) - _leaf(reader)
    return Affine(_integer(reader))
