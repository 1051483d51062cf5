"""A kernel as a tree of loops, branches and straight code, whose indices are positions.

A template or a nest that is run on a `Recorder` gives the tree of what it would write; `rules.py` does to it what the
loop passes do to a kernel. `lowered.py` reads the tree of a kernel that they have been done to. `cpu_work.py` and
`gpu_work.py` count either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

from xdsl.dialects.builtin import VectorType
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.linear import PANEL_COLUMNS
from treadle.dialects.hopper import MBARRIER_BYTES, MbarrierType
from treadle.dialects.loop import Space, Swizzle
from treadle.dialects.loop.tiles import WARP
from treadle.index.algebra import likelihood
from treadle.index.positions import Digit, Position, Variable


@dataclass(eq=False)
class Buffer:
    """A tensor in global memory, or a buffer of the kernel's own.

    space: None in global memory; bytes: of an element; is_of_unit: a matrix unit reads or writes it
    has_masks: some accesses take some lanes of a vector only
    """

    name: str
    shape: tuple[int, ...]
    element: Attribute
    space: Space | None = None
    swizzle: Swizzle | None = None
    is_of_unit: bool = False
    has_masks: bool = False

    @cached_property
    def bytes(self) -> int:
        element = self.element
        if isinstance(element, VectorType):
            return element.element_count() * byte_width(element.get_element_type())
        return MBARRIER_BYTES if isinstance(element, MbarrierType) else byte_width(element)

    @cached_property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_register(self) -> bool:
        return self.space is Space.REGISTER

    @property
    def is_shared(self) -> bool:
        return self.space is Space.SHARED

    @property
    def is_global(self) -> bool:
        return not self.is_register and not self.is_shared


@dataclass(frozen=True)
class Comparison:
    """`difference kind 0`."""

    kind: str
    difference: Position

    def likely(self, taken: Variable | None = None) -> float:
        """The probability, if each value of the difference is equally likely; comparisons of what depends on the
        variable `taken` are true."""
        if taken is not None and taken.size > 1 and taken in self.difference.variables:
            return 1.0
        return 1.0 if self.difference.is_unbounded else likelihood(self.kind, self.difference.bounds)

    @property
    def is_known(self) -> bool:
        """Whether it always holds."""
        lo, hi = self.difference.bounds
        return not self.difference.is_data and likelihood(self.kind, (lo, hi)) == 1.0

    def moves_with(self, digit: Digit) -> bool:
        """Whether it may hold for some values of a digit alone."""
        return self.difference.depends(digit)


@dataclass(frozen=True)
class AnyOf:
    """A disjunction of two conjunctions."""

    sides: tuple[tuple[Condition, ...], tuple[Condition, ...]]

    @property
    def parts(self) -> tuple[Condition, ...]:
        """The conditions of both sides."""
        return (*self.sides[0], *self.sides[1])

    def likely(self, taken: Variable | None = None) -> float:
        """The probability, if both are independent."""
        neither = 1.0
        for side in self.sides:
            neither *= 1 - all_likely(side, taken)
        return 1 - neither

    @property
    def is_known(self) -> bool:
        """Whether it always holds."""
        return any(all(each.is_known for each in side) for side in self.sides)

    def moves_with(self, digit: Digit) -> bool:
        """Whether it may hold for some values of a digit alone."""
        return any(each.moves_with(digit) for each in self.parts)


@dataclass(frozen=True)
class Otherwise:
    """What holds where a conjunction of its parts does not."""

    parts: tuple[Condition, ...]

    is_known = False

    def likely(self, taken: Variable | None = None) -> float:
        """The probability."""
        return 1 - all_likely(self.parts, taken)

    def moves_with(self, digit: Digit) -> bool:
        """Whether it may hold for some values of a digit alone."""
        return any(each.moves_with(digit) for each in self.parts)


@dataclass(frozen=True)
class Chance:
    """What is true with a probability that is known."""

    part: float

    is_known = False
    parts = ()

    def likely(self, taken: Variable | None = None) -> float:
        """The probability."""
        del taken
        return self.part

    def moves_with(self, digit: Digit) -> bool:
        """Whether it may hold for some values of a digit alone."""
        del digit
        return False


Condition: TypeAlias = Comparison | AnyOf | Otherwise | Chance


def all_likely(conditions: tuple[Condition, ...], taken: Variable | None = None) -> float:
    """The probability of a conjunction, if all are independent."""
    return prod((each.likely(taken) for each in conditions), start=1.0)


@dataclass(eq=False)
class Loop:
    """A loop over all values of a variable, or of neighbouring digits of it (`part`).

    trips: on average; at_once: iterations that are unrolled, if the loop says how many
    is_constant: it runs always as often; counts: its variable is an index that starts at 0, in steps of 1
    is_final: no digit will be split any more
    lanes: iterations that are done at once, as the lanes of vectors; carried: the value that iterations hand on
    is_copy: its iterations are the elements of a `loop.copy`
    """

    variable: Variable
    trips: float
    is_unrolled: bool = False
    is_vector: bool = False
    at_once: int | None = None
    part: list[Digit] | None = None
    is_constant: bool = True
    is_final: bool = False
    counts: bool = True
    is_copy: bool = False
    lanes: int = 1
    carried: SSAValue | None = None
    inside: list[Node] = field(default_factory=list["Node"])

    @property
    def digits(self) -> list[Digit]:
        """What it counts, the lowest digit first."""
        if self.is_final and self.part is not None:
            return self.part
        if self.part is None:
            return self.variable.digits()
        return [leaf for digit in self.part for leaf in digit.leaves()]

    def moves(self, position: Position) -> bool:
        """Whether its iterations move a position."""
        return any(position.depends(digit) for digit in self.digits)

    def steps(self, position: Position) -> list[tuple[float, int]]:
        """(number, distance) of the steps by which iterations move a position, the shortest first."""
        lanes, digits = self.lanes, self.digits
        while digits and digits[0].size <= lanes:
            lanes = -(-lanes // digits[0].size)
            digits = digits[1:]
        vectors: list[tuple[float, int]] = []
        if lanes > 1 and digits:
            first, *digits = digits
            vectors = [(float(-(-first.size // lanes)), position.stride(first) * lanes)]
        return vectors + [(float(count), step) for count, step in position.steps(digits)]


@dataclass(eq=False)
class Branch:
    """What is executed where conditions hold."""

    conditions: tuple[Condition, ...]
    inside: list[Node] = field(default_factory=list["Node"])


@dataclass(eq=False)
class Access:
    """What each thread reads or writes at a place, which is in elements.

    elements: that it takes at once, `stride` elements apart, the first of them at `place`
    conditions: where it is done at all; swizzled: the last two indices, of a swizzled buffer
    value: what is loaded, or stored; adds_up: what is stored was computed from the buffer
    lanes: of a warp, that take part; masked: some of the elements only
    guarded: all elements or none, which a branch around it decides, and nothing else
    in_branch: the conditions are those of a branch around it
    """

    buffer: Buffer
    place: Position
    is_store: bool
    conditions: tuple[Condition, ...] = ()
    elements: int = 1
    stride: int = 1
    lanes: int = WARP
    is_async: bool = False
    adds_up: bool = False
    masked: bool = False
    guarded: bool = False
    in_branch: bool = False
    swizzled: tuple[Position, Position] | None = None
    value: object = None

    def address(self, at: Callable[[Position], Any]) -> Any:
        """The first byte that is accessed, from the buffer's beginning on, where positions have some values (numbers
        or arrays)."""
        place = at(self.place)
        if self.swizzled is not None and self.buffer.swizzle is not None:
            row, column = map(at, self.swizzled)
            place = place - column + self.buffer.swizzle.column(row, column)
        return place * self.buffer.bytes


@dataclass(eq=False)
class Step:
    """An operation: its cost in simple operations of each thread, and what it does besides.

    tensor: operations on tensor cores, of each warp, of operands of `tensor_bytes`; is_select: one of two values
    tiles: rows and 64 bytes of them of a product by 32 columns on a CPU's matrix unit
    pending: groups of copies that are not waited for; brought: sectors of a copy that one thread starts
    allocated: a buffer of the kernel's own that exists from here on
    """

    cost: float = 0.0
    tensor: float = 0.0
    tensor_bytes: int = 0
    tiles: tuple[int, float] | None = None
    is_select: bool = False
    is_barrier: bool = False
    pending: int | None = None
    brought: float = 0.0
    allocated: Buffer | None = None
    operands: tuple[SSAValue, ...] = ()
    result: SSAValue | None = None

    @property
    def is_pure(self) -> bool:
        """Whether it only computes a result from operands."""
        return self.result is not None and bool(self.operands) and not self.tensor


ROUND_PAIR = 2.0
"""Instructions that round two vectors to pairs."""


def tiles_step(rows: int, steps: float, columns: int) -> Step:
    """A product of tiles on a CPU's matrix unit, of so many times 64 bytes of each row."""
    return Step(tiles=(rows, steps * columns / PANEL_COLUMNS))


Node: TypeAlias = Loop | Branch | Access | Step


@dataclass(eq=False)
class Kernel:
    """A whole kernel.

    arguments: its tensors, each once, and the buffers in device memory that it allocates
    allocs: its own buffers
    """

    grid: int
    threads: int
    min_blocks: int
    block: Variable
    thread: Variable
    arguments: list[Buffer]
    allocs: list[Buffer]
    inside: list[Node]


def renew(inside: Sequence[Node]) -> None:
    """Takes the quotients and remainders in all positions again: more is known of variables than when they were
    written."""
    for node in nodes_in(inside):
        if isinstance(node, Access):
            node.place = node.place.renewed()
            node.conditions = tuple(map(_renewed, node.conditions))
            if node.swizzled is not None:
                node.swizzled = node.swizzled[0].renewed(), node.swizzled[1].renewed()
        elif isinstance(node, Branch):
            node.conditions = tuple(map(_renewed, node.conditions))


def _renewed(condition: Condition) -> Condition:
    if isinstance(condition, AnyOf):
        first, second = (tuple(map(_renewed, side)) for side in condition.sides)
        return AnyOf((first, second))
    if isinstance(condition, Otherwise):
        return Otherwise(tuple(map(_renewed, condition.parts)))
    if isinstance(condition, Chance) or condition.difference.is_linear:
        return condition
    return Comparison(condition.kind, condition.difference.renewed())


def finish(inside: Sequence[Node]) -> None:
    """Says of all loops that no digit will be split any more."""
    for node in nodes_in(inside):
        if isinstance(node, Loop):
            node.part, node.is_final = node.digits, True


def nodes_in(inside: Sequence[Node]) -> Iterator[Node]:
    """All nodes, outer ones before those inside of them."""
    for node in inside:
        yield node
        if isinstance(node, Loop | Branch):
            yield from nodes_in(node.inside)


def accesses_in(inside: Sequence[Node]) -> Iterator[Access]:
    """All accesses, in order."""
    for node in inside:
        if isinstance(node, Access):
            yield node
        elif isinstance(node, Loop | Branch):
            yield from accesses_in(node.inside)
