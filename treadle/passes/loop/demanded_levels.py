"""Where work of a kernel may be skipped: its blocks, and loops and branches that only store its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import MemoryEffectKind

from treadle.dialects.effects import Convergent, accesses, is_pure
from treadle.dialects.graph import DemandedAttr
from treadle.dialects.loop import AllocOp, KernelOp, StoreOp
from treadle.index.atom import Div, Var
from treadle.index.expr import Expr, var
from treadle.index.reader import IndexReader
from treadle.index.span import span_of
from treadle.passes.graph.demand.facts import Extents
from treadle.passes.loop.arrivals import agree
from treadle.passes.loop.loop_iterations import Iterations, value_of
from treadle.passes.loop.private_buffers import is_of_launch, is_private


@dataclass(frozen=True)
class Condition:
    """`least < extent`: necessary for an element that is stored to be demanded.

    bound: the extent may count as this where it is larger, which it is not: no index that is compared reaches it
    """

    least: Expr
    extent: int
    bound: int

    def sides(self, value: Expr) -> tuple[Expr, Expr]:
        """Two expressions of which the first is less just where the condition holds for a value of the extent.

        A quotient is below a number where its dividend is below that number of divisors.
        """
        side, limit = self.least, value
        while isinstance(atom := (side - side.constant).as_atom(), Div):
            side, limit = atom.arg, (limit - side.constant) * atom.divisor
        return side, limit


@dataclass(frozen=True)
class Level:
    """A block whose work may be skipped, that of a kernel, of a loop or of a branch, and under which conditions it is
    needed; `loop` is None but for loops."""

    block: Block
    loop: scf.ForOp | None
    conditions: Sequence[Condition]


class Levels:
    """The levels of a kernel with demands. Iterations count as variables of `loop_iterations.py`."""

    def __init__(self, kernel: KernelOp, extents: Extents):
        self._kernel = kernel
        self._known_extents = set(extents.values())
        self._iterations = Iterations(kernel)
        self._reader = IndexReader(self._iterations.known)
        self._outputs = set[SSAValue](kernel.output_buffers)
        self._stores: dict[Operation, Sequence[Condition]] = {}

    def levels(self) -> Iterator[Level]:
        """Outer levels before those inside them; none where a result is used otherwise than by a store."""
        for buffer, demanded in zip(self._kernel.output_buffers, self._kernel.demands or (), strict=True):
            assert isinstance(demanded, DemandedAttr)
            for use in buffer.uses:
                if not isinstance(use.operation, StoreOp):
                    return
                self._stores[use.operation] = self._conditions(use.operation, demanded)
        block = self._kernel.body.block
        whole = self._needed(block, None)
        if any(isinstance(op, AllocOp) and is_of_launch(op) for op in block.walk()):
            whole = [c for c in whole if agree(self._kernel, self._reader, c.least)]
        thin = _only_loop(block)
        if thin is not None and self._may_skip(thin):
            inside = self._needed(thin.body.block, thin)
            whole = [c for c in whole if not any(self._ends(thin, other, c) for other in inside)]
        yield Level(block, None, whole)
        yield from self._loops(block, whole)

    def _conditions(self, store: StoreOp, demanded: DemandedAttr) -> Sequence[Condition]:
        """What an element that is stored has to fulfil, by itself."""
        index = [self._reader.read(i) for i in store.indices]
        found: list[Condition] = []
        for constraint in demanded.data:
            if constraint.extent in self._known_extents:
                e = constraint.at(index)
                _, most = e.range()
                found += [] if most is None else [Condition(e, constraint.extent, most + 1)]
        return found

    def _loops(self, block: Block, applied: Sequence[Condition]) -> Iterator[Level]:
        """The loops and branches in a block, where conditions that were tested around it are not tested again."""
        for op in block.ops:
            if isinstance(op, scf.IfOp):
                yield from self._branches(op, applied)
            if not isinstance(op, scf.ForOp) or "loop.vector" in op.attributes or "loop.unroll" in op.attributes:
                continue
            tested = applied
            if self._may_skip(op):
                new = [c for c in self._needed(op.body.block, op) if c not in applied]
                yield Level(op.body.block, op, new)
                tested = [*applied, *new]
            yield from self._loops(op.body.block, tested)

    def _branches(self, op: scf.IfOp, applied: Sequence[Condition]) -> Iterator[Level]:
        """The regions of a branch, of which each may store other elements, and the loops in them."""
        for inner in (block for region in op.regions for block in region.blocks):
            tested = applied
            if self._only_stores(op, inner):
                new = [c for c in self._needed(inner, None) if c not in applied]
                yield Level(inner, None, new)
                tested = [*applied, *new]
            yield from self._loops(inner, tested)

    def _may_skip(self, loop: scf.ForOp) -> bool:
        """Whether iterations of a loop do nothing but store results; innermost loops are left as they are."""
        return self._only_stores(loop, loop.body.block)

    def _only_stores(self, op: scf.ForOp | scf.IfOp, block: Block) -> bool:
        """Whether a block of an operation has a loop in it, and does nothing but store results."""
        if op.results or not any(isinstance(inner, scf.ForOp) for inner in block.walk()):
            return False
        if self._kernel.threads.value.data > 1 and any(op.has_trait(Convergent) for op in block.walk()):
            return False
        found = [accesses(op) for op in block.ops]
        return all(
            effects is not None
            and all(kind is not MemoryEffectKind.WRITE or self._is_own(on, op) for kind, on in effects)
            for effects in found
        )

    def _ends(self, loop: scf.ForOp, condition: Condition, whole: Condition) -> bool:
        """Whether a condition makes a loop end earlier, at once where another one, of the whole loop, does not hold."""
        counter = loop.body.block.args[0]
        least = span_of(condition.least, lambda v: value_of(v) is counter)
        if condition.extent != whole.extent or least is None or least.lower != whole.least:
            return False
        return self._iterations.end(loop, *condition.sides(var("n", 0, None))) is not None

    def _is_own(self, buffer: SSAValue | None, op: scf.ForOp | scf.IfOp) -> bool:
        """Whether nobody sees what a loop or a branch writes, but as a result."""
        if buffer is None or buffer in self._outputs:
            return buffer is not None
        if isinstance(op, scf.ForOp):
            return is_private(buffer, op)
        return isinstance(buffer.owner, AllocOp) and not is_of_launch(buffer.owner) and op.is_ancestor(buffer.owner)

    def _needed(self, block: Block, loop: scf.ForOp | None) -> list[Condition]:
        """The conditions, before anything inside a block runs, that every store in it needs."""
        own = None if loop is None else loop.body.block.args[0]

        def is_inner(v: Var) -> bool:
            value = value_of(v)
            if value is own or value is self._kernel.block_id or not isinstance(value, SSAValue):
                return False
            owner = value.owner
            return value is self._kernel.thread_id or owner is block or block.is_ancestor(owner)

        stores = [self._stores[op] for op in block.walk() if op in self._stores]
        each = [[least for c in conditions for least in _least(c, is_inner)] for conditions in stores]
        common = reduce(_common, each) if each else []
        return [c for c in common if not _always_holds(c)]


def _least(condition: Condition, is_inner: Callable[[Var], bool]) -> list[Condition]:
    found = span_of(condition.least, is_inner)
    return [] if found is None else [replace(condition, least=found.lower)]


def _common(a: Sequence[Condition], b: Sequence[Condition]) -> list[Condition]:
    """Conditions that are necessary for one of two stores to be demanded."""
    found: list[Condition] = []
    for one in a:
        for other in b:
            apart = (other.least - one.least).as_int() if one.extent == other.extent else None
            if apart is not None:
                least = one.least + min(apart, 0)
                found.append(Condition(least, one.extent, max(one.bound, other.bound)))
                break
    return list(dict.fromkeys(found))


def _always_holds(condition: Condition) -> bool:
    """Whether a condition holds for every extent, which is at least 1."""
    _, most = condition.least.range()
    return most is not None and most <= 0


def _only_loop(block: Block) -> scf.ForOp | None:
    """The loop that a block consists of, but for arithmetic and buffers."""
    rest = [op for op in block.ops if not isinstance(op, AllocOp) and not is_pure(op)]
    return rest[0] if len(rest) == 1 and isinstance(rest[0], scf.ForOp) else None


__all__ = ["Condition", "Level", "Levels"]
