"""Where work of a kernel may be skipped: its blocks, and loops and branches that only store its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import Rewriter
from xdsl.traits import MemoryEffectKind

from treadle.dialects.effects import Convergent, accesses, is_pure
from treadle.dialects.graph import RequiredAttr
from treadle.dialects.graph.extents import Extents
from treadle.dialects.graph.fused import Constraint, dimension
from treadle.dialects.loop import (
    AllocOp,
    ArriveOp,
    KernelOp,
    LoadOp,
    MultiplyTilesOp,
    Space,
    SpaceAttr,
    StoreOp,
    type_of,
)
from treadle.index.algebra import always_less, span_of
from treadle.index.expr import Div, Expr, Monomial, Var, floordiv, mod, sum_of, var
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import constant_index
from treadle.passes.loop.loop_iterations import Iterations, value_of
from treadle.passes.loop.private_buffers import is_of_launch, is_private

# Extents as values in a kernel.


def read_extent(buffer: SSAValue, bound: int, least: int = 0) -> tuple[Expr, list[Operation]]:
    """An extent that a buffer of one i64 holds, clamped to least..bound, and the operations that read it."""
    load = LoadOp(buffer, [])
    limit = arith.ConstantOp(IntegerAttr(bound, i64))
    lower = arith.MinSIOp(load.result, limit.result)
    first = arith.ConstantOp(IntegerAttr(least, i64))
    clamped = arith.MaxSIOp(lower.result, first.result)
    cast = arith.IndexCastOp(clamped.result, IndexType())
    cast.result.name_hint = buffer.name_hint
    return var(cast.result, least, bound), [load, limit, lower, first, clamped, cast]


# Tests of indices against extents: which compare with the same, and what is left once they always hold.


def computation(value: SSAValue) -> list[Operation]:
    """The operations that a value is computed by, operands first, up to arguments."""
    found: dict[Operation, None] = {}

    def add(each: SSAValue) -> None:
        if isinstance(each.owner, Operation) and each.owner not in found:
            for operand in each.owner.operands:
                add(operand)
            found[each.owner] = None

    add(value)
    return list(found)


def text_of(value: SSAValue) -> str:
    """Equal for values that are computed from the same arguments in the same way."""
    texts: dict[SSAValue, str] = {}

    def name(each: SSAValue) -> str:
        return texts.get(each, f"argument {id(each)}")

    for op in computation(value):
        attributes: Mapping[str, object] = {**op.attributes, **op.properties}
        operands = ", ".join(map(name, op.operands))
        text = f"{op.name}({operands}) {sorted((key, str(each)) for key, each in attributes.items())}"
        texts |= dict.fromkeys(op.results, text)
    return name(value)


def drop_test(test: arith.CmpiOp) -> None:
    """Loads that were tested by it alone are always inside now."""
    for use in list(test.result.uses):
        load = use.operation
        if isinstance(load, LoadOp):
            plain = LoadOp(load.buffer, list(load.indices))
            plain.attributes |= load.attributes
            plain.location = load.location
            plain.result.name_hint = load.result.name_hint
            Rewriter.replace_op(load, plain)


# Blocks that work together: those that arrive at one counter.

_MOST_BLOCKS = 1 << 16
"""Blocks of a grid that are compared one by one."""


def agree(kernel: KernelOp, reader: IndexReader, e: Expr) -> bool:
    """Whether an expression of the block's number has one value for all blocks that arrive at the same counters.

    Blocks see what others store only there, so that either all of these may be left out, or none.
    """
    counters = [reader.read(op.index) for op in kernel.body.walk() if isinstance(op, ArriveOp)]
    grid, block = kernel.grid.value.data, kernel.block_id
    if not counters or grid > _MOST_BLOCKS or any(v.key is not block for each in (e, *counters) for v in each.vars()):
        return False
    values: dict[tuple[int, ...], int] = {}
    for number in range(grid):
        at = {block: number}
        value = e.evaluate(at)
        if values.setdefault(tuple(counter.evaluate(at) for counter in counters), value) != value:
            return False
    return True


# Which elements of a kernel's own buffer are read where something is needed, in terms of the buffer's indices.


def is_accessed_by_element(alloc: AllocOp) -> bool:
    """Whether nobody but one thread's loads and stores accesses a buffer."""
    return _is_of_thread(alloc) and all(isinstance(use.operation, LoadOp | StoreOp) for use in alloc.buffer.uses)


def _is_accessed_in_parts(alloc: AllocOp) -> bool:
    """The same, but for products of tiles that read what lies under one first index."""
    uses = ((use.operation, use.index) for use in alloc.buffer.uses)
    return _is_of_thread(alloc) and all(isinstance(op, LoadOp | StoreOp) or _reads_part(op, n) for op, n in uses)


def _is_of_thread(alloc: AllocOp) -> bool:
    space = type_of(alloc.buffer).memory_space
    return isinstance(space, SpaceAttr) and space.data is Space.REGISTER


def _reads_part(op: Operation, operand: int) -> bool:
    """Whether an operation is a product of which an operand is the left one, in one part of the buffer."""
    if not isinstance(op, MultiplyTilesOp) or op.operands[operand] is not op.a:
        return False
    at_start = all(constant_index(index) == 0 for index in op.a_indices[1:])
    return op.acc is not op.a and at_start and op.reach <= prod(type_of(op.a).get_shape()[1:])


def _read_at(op: LoadOp | MultiplyTilesOp) -> Sequence[SSAValue]:
    """The index of what an operation reads of such a buffer; of a part, that of its first element."""
    return op.a_indices if isinstance(op, MultiplyTilesOp) else op.indices


def constraint_on(alloc: AllocOp, index: Sequence[Expr], least: Expr, extent: int) -> Constraint | None:
    """`least < extent`, where an element of a buffer is read at `index`, as a constraint on the element.

    With a buffer of 64 rows that a loop over tiles reads at `8 * tile + row`, for row up to 7, `first + 8 * tile <
    extent` is `first + 8 * (d0 floordiv 8) < extent`. None where what is compared depends on more than the buffer's
    index, and what does not change as long as the buffer exists.
    """
    home = alloc.parent
    if home is None:
        return None
    digits: dict[object, Expr] = {}
    for d, position in enumerate(index):
        digits |= _digits(position, dimension(d), home)
    compared = least.substitute(digits)
    return None if any(_changes(v, home) for v in compared.vars()) else Constraint(compared, extent)


def _digits(position: Expr, index: Expr, home: Block) -> dict[object, Expr]:
    """The variables of loops around an access in terms of its index: `tile` and `row` of `8 * tile + row`; not those
    that overlap with smaller ones."""
    moving = {monomial: k for monomial, k in position.terms if any(_changes(v, home) for v in _variables(monomial))}
    below, found, terms = sum_of(moving, 0), dict[object, Expr](), sorted(moving.items(), key=lambda term: -term[1])
    rest = index - (position - below)
    for monomial, k in terms:
        below = below - Expr(((monomial, k),), 0)
        least, most = below.range()
        atom = monomial[0] if len(monomial) == 1 else None
        if not isinstance(atom, Var) or least is None or most is None or least < 0 or most >= k:
            break
        found[atom.key] = floordiv(rest, k)
        rest = mod(rest, k)
    return found


def _variables(monomial: Monomial) -> Sequence[Var]:
    return Expr(((monomial, 1),), 0).vars()


def _changes(v: Var, home: Block) -> bool:
    """Whether a variable may have several values while a buffer of a block exists; dimensions are its own index."""
    value = value_of(v)
    if not isinstance(value, SSAValue):
        return not isinstance(value, str)
    owner = value.owner if isinstance(value.owner, Block) else value.owner.parent
    return owner is None or (owner is not home and home.is_ancestor(owner))


@dataclass(frozen=True)
class Condition:
    """`least < extent`: necessary for an element that is stored to be required.

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
class RequiredLevel:
    """A block whose work may be skipped, that of a kernel, of a loop or of a branch, and under which conditions it is
    needed; `loop` is None but for loops."""

    block: Block
    loop: scf.ForOp | None
    conditions: Sequence[Condition]


class Levels:
    """The levels of a kernel with required regions. Iterations count as variables of `loop_iterations.py`.

    A loop may also store to a buffer that others read, as sums that wait there for the next pass over K: of the buffer,
    some elements are required then, those that fulfil constraints like the required regions on results. It is so if
    every load of the buffer is in a level that runs only where what it reads is required: then at any time all required
    elements are what they would be if nothing were skipped, as those that are read are, and no store to one is skipped.
    """

    def __init__(self, kernel: KernelOp, extents: Extents):
        self._kernel = kernel
        self._known_extents = set(extents.values())
        self._iterations = Iterations(kernel)
        self._reader = IndexReader(self._iterations.known)
        self._outputs = set[SSAValue](kernel.output_buffers)
        self._waiting: dict[SSAValue, Sequence[Constraint]] = {}
        """What is required of buffers of the kernel that a loop leaves something in."""
        self._stores: dict[Operation, Sequence[Condition]] = {}

    def levels(self) -> Sequence[RequiredLevel]:
        """Outer levels before those inside them; none where a result is used otherwise than by a store."""
        for buffer, required in zip(self._kernel.output_buffers, self._kernel.required_regions or (), strict=True):
            assert isinstance(required, RequiredAttr)
            for use in buffer.uses:
                if not isinstance(use.operation, StoreOp):
                    return []
                self._stores[use.operation] = self._conditions(use.operation, required.data)
        found = list(self._levels())
        allocs = [op for op in self._kernel.body.walk() if isinstance(op, AllocOp) and _is_accessed_in_parts(op)]
        # Backwards, since a buffer may be read only for what is stored to a later one.
        for alloc in reversed(allocs):
            found = self._with_waiting(alloc) or found
        return found

    def _with_waiting(self, alloc: AllocOp) -> Sequence[RequiredLevel] | None:
        """The levels if only some elements of a buffer are required; None where that is not known."""
        loads = _readers(alloc.buffer)
        stores = [use.operation for use in alloc.buffer.uses if isinstance(use.operation, StoreOp)]
        for constraints in dict.fromkeys(each for load in loads for each in self._possible(alloc, load)):
            self._waiting[alloc.buffer] = constraints
            self._stores |= {store: self._conditions(store, constraints) for store in stores}
            found = list(self._levels())
            if all(self._reads_required(buffer, found) for buffer in self._waiting):
                return found
            del self._waiting[alloc.buffer]
            self._stores = {store: own for store, own in self._stores.items() if store not in stores}
        return None

    def _possible(self, alloc: AllocOp, load: LoadOp | MultiplyTilesOp) -> Iterator[tuple[Constraint, ...]]:
        """Constraints on a buffer that the loops around a load would have if they skipped what stores to it, inwards
        ones first; a loop that a buffer carries nothing through may skip anyway."""
        index = [self._reader.read(i) for i in _read_at(load)]
        for loop in _loops_between(load, alloc):
            if is_private(alloc.buffer, loop):
                continue
            self._waiting[alloc.buffer] = ()
            conditions = self._needed(loop.body.block, loop) if self._may_skip(loop) else []
            del self._waiting[alloc.buffer]
            found = [constraint_on(alloc, index, each.least, each.extent) for each in conditions]
            if any(found):
                yield tuple(each for each in found if each is not None)

    def _reads_required(self, buffer: SSAValue, levels: Sequence[RequiredLevel]) -> bool:
        """Whether every load of a buffer is in levels that run only where what it reads is required."""
        loads = _readers(buffer)
        return all(self._is_tested(load, constraint, levels) for load in loads for constraint in self._waiting[buffer])

    def _is_tested(
        self, load: LoadOp | MultiplyTilesOp, constraint: Constraint, levels: Sequence[RequiredLevel]
    ) -> bool:
        read = constraint.at([self._reader.read(i) for i in _read_at(load)])
        if _always_holds(Condition(read, constraint.extent, 0)):
            return True
        around = (level for level in levels if level.block.is_ancestor(load))
        tested = (c.least for level in around for c in level.conditions if c.extent == constraint.extent)
        return any(always_less(read - 1, least) for least in tested)

    def _levels(self) -> Iterator[RequiredLevel]:
        block = self._kernel.body.block
        whole = self._needed(block, None)
        if any(isinstance(op, AllocOp) and is_of_launch(op) for op in block.walk()):
            whole = [c for c in whole if agree(self._kernel, self._reader, c.least)]
        thin = _only_loop(block)
        if thin is not None and self._may_skip(thin):
            inside = self._of_iterations(thin)
            whole = [c for c in whole if not any(self._ends(thin, other, c) for other in inside)]
        yield RequiredLevel(block, None, whole)
        yield from self._loops(block, whole)

    def _conditions(self, store: StoreOp, required: Iterable[Constraint]) -> Sequence[Condition]:
        """What an element that is stored has to fulfil, by itself."""
        index = [self._reader.read(i) for i in store.indices]
        found: list[Condition] = []
        for constraint in required:
            if constraint.extent in self._known_extents:
                e = constraint.at(index)
                _, most = e.range()
                found += [] if most is None else [Condition(e, constraint.extent, most + 1)]
        return found

    def _loops(self, block: Block, applied: Sequence[Condition]) -> Iterator[RequiredLevel]:
        """The loops and branches in a block, where conditions that were tested around it are not tested again."""
        for op in block.ops:
            if isinstance(op, scf.IfOp):
                yield from self._branches(op, applied)
            if not isinstance(op, scf.ForOp) or "loop.vector" in op.attributes:
                continue
            if "loop.unroll" in op.attributes and not self._is_around_all(op):
                continue
            tested = applied
            if self._may_skip(op):
                new = [c for c in self._of_iterations(op) if c not in applied]
                yield RequiredLevel(op.body.block, op, new)
                tested = [*applied, *new]
            yield from self._loops(op.body.block, tested)

    def _branches(self, op: scf.IfOp, applied: Sequence[Condition]) -> Iterator[RequiredLevel]:
        """The regions of a branch, of which each may store other elements, and the loops in them."""
        for inner in (block for region in op.regions for block in region.blocks):
            tested = applied
            if self._only_stores(op, inner):
                new = [c for c in self._needed(inner, None) if c not in applied]
                yield RequiredLevel(inner, None, new)
                tested = [*applied, *new]
            yield from self._loops(inner, tested)

    def _may_skip(self, loop: scf.ForOp) -> bool:
        """Whether iterations of a loop do nothing but store results; innermost loops are left as they are, but for
        those over sums of a matrix unit."""
        return self._only_stores(loop, loop.body.block) or self._is_around_all(loop)

    def _is_around_all(self, loop: scf.ForOp) -> bool:
        """Whether all that threads of a block do together is in a loop, with all buffers: its iterations carry nothing
        to one another, as blocks do not. Which of them are skipped is the same for all threads."""
        body, kernel = loop.body.block, self._kernel
        if kernel.threads.value.data == 1 or loop.results or _only_loop(kernel.body.block) is not loop:
            return False
        if not any(op.has_trait(Convergent) for op in body.walk()):
            return False
        return all(body.is_ancestor(op) for op in kernel.body.walk() if isinstance(op, AllocOp))

    def _of_iterations(self, loop: scf.ForOp) -> list[Condition]:
        """The conditions of a loop's iterations; where blocks work together in one, those that are the same for all
        blocks."""
        found, block = self._needed(loop.body.block, loop), self._kernel.block_id
        if not any(isinstance(op, AllocOp) and is_of_launch(op) for op in loop.body.walk()):
            return found
        return [c for c in found if all(value_of(v) is not block for v in c.least.vars())]

    def _only_stores(self, op: scf.ForOp | scf.IfOp, block: Block) -> bool:
        """Whether a block of an operation has a loop or a product of tiles inside, or reads such a product, and only
        stores results."""
        if op.results or not any(map(_is_of_tiles, block.walk())):
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
        """Whether nobody sees what a loop or a branch writes, but as what is required."""
        if buffer is None or buffer in self._outputs or buffer in self._waiting:
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

        seen = [op for op in block.walk() if isinstance(op, StoreOp) and not _is_made_in(op.buffer, block)]
        stores = [self._stores[op] for op in seen if op in self._stores]
        each = [[least for c in conditions for least in _least(c, is_inner)] for conditions in stores]
        common = reduce(_common, each) if each else []
        return [c for c in common if not _always_holds(c)]


def _is_of_tiles(op: Operation) -> bool:
    """Whether an operation is a loop, a product of tiles, or a load of such a product's sums, which lie in memory."""
    if isinstance(op, LoadOp):
        return any(isinstance(use.operation, MultiplyTilesOp) and use.index == 0 for use in op.buffer.uses)
    return isinstance(op, scf.ForOp | MultiplyTilesOp)


def _readers(buffer: SSAValue) -> list[LoadOp | MultiplyTilesOp]:
    return [use.operation for use in buffer.uses if isinstance(use.operation, LoadOp | MultiplyTilesOp)]


def _is_made_in(buffer: SSAValue, block: Block) -> bool:
    """Whether a buffer exists inside a block only, so that nobody outside sees it."""
    return isinstance(buffer.owner, AllocOp) and block.is_ancestor(buffer.owner)


def _loops_between(op: Operation, alloc: AllocOp) -> Iterator[scf.ForOp]:
    """The loops around an operation in which a buffer exists, inner ones first."""
    parent = op.parent_op()
    while parent is not None and parent is not alloc.parent_op():
        if isinstance(parent, scf.ForOp):
            yield parent
        parent = parent.parent_op()


def _least(condition: Condition, is_inner: Callable[[Var], bool]) -> list[Condition]:
    found = span_of(condition.least, is_inner)
    return [] if found is None else [replace(condition, least=found.lower)]


def _common(a: Sequence[Condition], b: Sequence[Condition]) -> list[Condition]:
    """Conditions that are necessary for one of two stores to be required."""
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
