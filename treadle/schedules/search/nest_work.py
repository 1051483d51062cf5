"""The work of a nest, from the value alone: what `count_work` finds in its kernel for a CPU, without the kernel."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, prod

from treadle.errors import TreadleError
from treadle.schedules.access_analysis import Digits
from treadle.schedules.nest.kernel import parts, whole_along
from treadle.schedules.nest.nest import Axis, Nest
from treadle.schedules.search.group_cost import GroupCost
from treadle.schedules.search.nest_accesses import (
    BLOCK,
    Access,
    Branch,
    BufferAccess,
    Code,
    Inside,
    Key,
    Loop,
    TensorAccess,
    moved,
    nested,
    pieces,
    staged_reads,
)
from treadle.schedules.search.work import (
    REGISTER_BYTES,
    Body,
    Node,
    Touch,
    Work,
    masked_accesses,
    reuse_of,
    strided_loads,
)
from treadle.target import Target

# The loops and the straight code of a nest's finished kernel for a CPU, from the value alone.
#
# They are those that the builder of nests writes and the loop passes leave: single trips are gone, levels are split at
# the digits of the addresses that they move, the level marked `vector` takes whole vectors, short loops are unrolled.

_MOST_UNROLLED, _MOST_OF_REGISTERS = 8, 64
"""Trips of a loop that `loop-unroll` marks, and of one whose variable indexes registers."""


def loops_of(nest: Nest, cost: GroupCost, target: Target) -> list[Inside]:
    """What each block does. TreadleError for stages that only a kernel tells of."""
    found = _Writer(nest, cost, target).block()
    unroll(found)
    return found


class _Writer:
    """Writes loops outside of the accumulators, and inside of them those that fill stages, reset, fold and store."""

    def __init__(self, nest: Nest, cost: GroupCost, target: Target, version: int = 0):
        self._nest, self._cost, self._target, self._version = nest, cost, target, version
        self._past = past_ends(nest, version) if cost.term is not None else past_ends(nest, 1)
        self._staged = staged_reads(nest, cost, target, version, self._past)
        self._last_loop = max(nest.numbers("loop"), default=len(nest.levels))
        self._result = TensorAccess(cost.result, cost, nest)
        self._reads = [TensorAccess(each, cost, nest) for each in cost.element.reads]
        places = {id(read): each.place for each in self._staged.values() for read in each.operand.step.reads}
        terms = [] if cost.term is None else [TensorAccess(each, cost, nest) for each in cost.term.reads]
        self._terms = [each for each in terms if id(each.touched) not in places]
        self._of_stages = [(each, places[id(each.touched)]) for each in terms if id(each.touched) in places]
        self._sums = self._accumulators()

    def _accumulators(self) -> BufferAccess:
        nest, size, steps = self._nest, self._cost.accumulator_bytes, dict[Key, int]()
        elements = 1
        for n in reversed(nest.tile):
            steps["level", n] = elements * size
            elements *= nest.levels[n].trips
        is_reduced, registers = self._cost.term is not None, self._target.vector_registers * self._target.lanes
        level = nest.levels[-1]
        self._is_partial = level.vector and level.trips > 1 and level.trips % self._target.lanes > 0
        # Of an array that masks access a part of, compilers keep nothing in registers.
        in_memory = elements * size > REGISTER_BYTES or (self._is_partial and len(nest.levels) - 1 in nest.tile)
        self._is_spilled = is_reduced and in_memory
        self._is_indexed = is_reduced and elements <= registers
        return BufferAccess(("sums", self._version), size, steps)

    def block(self) -> list[Inside]:
        """All of it."""
        nest, cost = self._nest, self._cost
        outer = [n for n in range(nest.first_loop) if nest.roles[n] != "block"]
        written = [*self._reads, self._result]
        if cost.term is None:
            vector = self._vector(outer, written)
            code = Code(
                cost.element.arithmetic, self._reads, [self._result], vector, masked=self._masked_written(vector)
            )
            return nested(self._levels(outer, [*self._terms, *written], vector), [code])
        loops = self._levels(outer, [*self._terms, *written], None)
        return [*self._filled(len(nest.blocks)), *nested(loops, self._versions())]

    def _versions(self) -> list[Inside]:
        """A tile of accumulators: for tiles inside of all extents, and for those that overhang."""
        whole = whole_along(self._nest)
        if not whole:
            return self.tile()
        inside, ragged = parts(whole)
        other = _Writer(self._nest, self._cost, self._target, self._version + 1)
        return [Branch(inside, self.tile()), Branch(ragged, other.tile())]

    def tile(self) -> list[Inside]:
        """A tile of accumulators."""
        return [*self._reset(), *self._fold(), *self._store([*self._reads, self._result])]

    def _reset(self) -> list[Inside]:
        tile = self._nest.tile
        vector = self._vector(tile, [])
        sums = [self._sums] if self._is_spilled else []
        code = Code(stores=sums, vector=vector, masked=self._masked(sums, vector))
        return nested(self._levels(tile, [], vector, unrolled=True), [code])

    def _store(self, written: Sequence[TensorAccess]) -> list[Inside]:
        tile, sums = self._nest.tile, [self._sums] if self._is_spilled else []
        vector = self._vector(tile, written)
        masked = [*self._masked(sums, vector), *self._masked_written(vector)]
        code = Code(self._cost.element.arithmetic, [*sums, *self._reads], [self._result], vector, masked=masked)
        return nested(self._levels(tile, written, vector, unrolled=True), [code])

    def _fold(self) -> list[Inside]:
        nest, first = self._nest, self._nest.first_loop
        inner = range(first, len(nest.levels))
        held = all(staged.allows_lanes(len(nest.levels) - 1) for staged in self._staged.values())
        vector = self._vector(inner, self._terms) if held else None
        found: list[Inside] = [self._term(vector)]
        for n in reversed(inner):
            if nest.roles[n] == "loop":
                found = [*self._filled(n + 1), *found]
            found = nested(self._levels([n], self._terms, vector), found)
        return found

    def _term(self, vector: Loop | None) -> Code:
        """One term for one accumulator."""
        cost, sums = self._cost, [self._sums] if self._is_spilled else []
        assert cost.term is not None
        # Vectors are chosen from by masks of lanes, which `op_cost` has for free.
        selects = 0.0 if vector else cost.fold
        selects = selects if is_masked(self._nest, self._staged) else -1.0 if cost.fuses else 0.0
        staged = sum(each.operand.step.arithmetic for each in self._staged.values())
        held: list[Access] = [each.held for each in self._staged.values() if each.is_in_memory]
        own = None if self._is_spilled else self._sums
        loads = [*self._terms, *held, *sums]
        masked = [*self._masked([*held, *sums, *sums], vector), *self._masked_terms(vector)]
        return Code(cost.term.arithmetic - staged + cost.fold + selects, loads, sums, vector, own, masked)

    def _masked(self, accesses: Sequence[Access], vector: Loop | None) -> list[Access]:
        """Those that lanes move, where the last level has no whole vectors."""
        if not self._is_partial or vector is None:
            return []
        return [each for each in accesses if any(step for _, step in each.moved(vector))]

    def _masked_terms(self, vector: Loop | None) -> list[Access]:
        """Reads of terms that are masked: along vectors that end beyond an axis, or where a predicate guards them."""
        ends = [axis for axis in self._past if self._nest.masks(axis)]
        return [
            each
            for each in self._terms
            if each.touched.guards or each in self._masked([each], vector) or any(map(each.is_moved, ends))
        ]

    def _masked_written(self, vector: Loop | None) -> list[Access]:
        """What is masked where results are written: all of it where a position may lie beyond an end."""
        accesses = [*self._reads, self._result]
        return [*accesses] if self._past else self._masked(accesses, vector)

    def _filled(self, place: int) -> list[Inside]:
        """The copies to stages at a place."""
        return [each for staged in self._staged.values() if staged.place == place for each in staged.filling()]

    def _levels(
        self, numbers: Sequence[int], split: Sequence[TensorAccess], vector: Loop | None, *, unrolled: bool = False
    ) -> list[Loop]:
        """The loops over some levels: split at the digits of some tensors, and of those that are copied further
        inside."""
        found: list[Loop] = []
        for n in numbers:
            level, key = self._nest.levels[n], ("level", n)
            if level.trips == 1:
                continue
            if vector is not None and key == vector.key:
                lanes = vector.trips
                loops = [Loop(key, ceil(level.trips / lanes), level.stride * lanes, lanes)]
            elif level.vector:
                loops = [Loop(key, level.trips, level.stride)]
            else:
                inside = [] if unrolled else [tensor for tensor, place in self._of_stages if n < place]
                digits = [tensor.along(level.axis) for tensor in (*split, *inside)]
                loops = pieces(key, level.trips, level.stride, digits)
            for loop in loops:
                loop.is_written = unrolled or level.unroll or (self._cost.term is not None and n > self._last_loop)
                loop.indexes = self._indexes(n)
            found += [loop for loop in loops if loop.trips > 1]
        return found

    def _indexes(self, number: int) -> bool:
        """Whether a level moves the place of accumulators or of a stage that are in registers."""
        of_sums = self._is_indexed and ("level", number) in self._sums.steps
        return of_sums or any(staged.is_indexed_by(number) for staged in self._staged.values())

    def _vector(self, numbers: Sequence[int], tensors: Sequence[TensorAccess]) -> Loop | None:
        """One iteration a lane, where vectors run along the last level."""
        last = len(self._nest.levels) - 1
        level = self._nest.levels[last]
        if last not in numbers or not level.vector or level.trips == 1:
            return None
        if not all(self._allows_lanes(tensor) for tensor in tensors):
            return None
        return Loop(("level", last), self._target.lanes, level.stride)

    def _allows_lanes(self, tensor: TensorAccess) -> bool:
        """Whether what lanes along the last level access is a vector, strided, or the same for all."""
        lanes, level = self._target.lanes, self._nest.levels[-1]
        covered = self._nest.covered(level.axis)
        # Vectors begin at multiples of `begin`; if lanes may carry into a higher digit, addresses are not affine.
        begin = lanes if level.trips == covered else gcd(level.trips, lanes) if level.trips > lanes else level.trips
        weight, digits = 1, tensor.along(level.axis)
        for size, _ in digits[:-1]:
            weight *= int(size)
            if gcd(begin, weight) < lanes and (level.trips < covered or weight < lanes):
                return False
        step = moved(digits, level.stride, lanes)
        is_moved = bool(step and step[0][1])
        return tensor.touched.is_f32 if is_moved else tensor is not self._result


def past_ends(nest: Nest, version: int) -> list[Axis]:
    """The axes beyond whose ends a version of the tile may reach: the first one lies inside of those that only some
    tiles overhang."""
    within = () if version else [each.axis for each in whole_along(nest)]
    return [axis for axis in nest.axes if nest.overhangs(axis) and axis not in within]


def is_masked(nest: Nest, staged: Container[int], without: Mapping[Axis, int] | None = None) -> bool:
    """Whether terms beyond the end of the reduction are replaced: not where all factors are 0 there, since all reads of
    terms are staged. `without`: positions at the end of axes that are not reached."""
    without = {} if without is None else without
    workload = nest.workload
    terms = [n for n, read in enumerate(workload.reads) if read.is_term]
    is_staged = workload.is_product and all(n in staged for n in terms)
    for axis in nest.axes:
        if not axis.is_reduction or nest.covered(axis) - without.get(axis, 0) <= axis.extent:
            continue
        if not is_staged or not all(workload.reads[n].ends_with(axis.first, axis.shape[0]) for n in terms):
            return True
    return False


def unroll(inside: Sequence[Inside]) -> None:
    """Which loops are unrolled."""
    for loop in inside:
        if isinstance(loop, Code):
            continue
        unroll(loop.inside)
        if isinstance(loop, Branch):
            continue
        is_innermost = not any(isinstance(each, Loop | Branch) for each in loop.inside)
        most = _MOST_OF_REGISTERS if loop.indexes else _MOST_UNROLLED if is_innermost else 0
        loop.is_unrolled = loop.is_written or loop.trips <= most


def work_of(nest: Nest, cost: GroupCost, target: Target) -> Work:
    """The work of a nest's kernel on a CPU. TreadleError for a nest with a reduction in blocks or in lanes of vectors,
    or with stages of what no reduction reads.

    Where a level ends within a digit of an address (a tile of 48 columns of panels of 32), traffic is approximated in
    another way than on the kernel: of 1593 random nests of the default rules for MobileNet-V2 and ResNet-50, 1547 had
    predicted times within a tenth of those from the kernels, and 4 more than 1.3 times as long ones, 7.3 times at most.
    """
    levels = zip(nest.levels, nest.roles, strict=True)
    if any(level.axis.is_reduction and (level.vector or role == "block") for level, role in levels):
        accepted = "levels of spatial axes, and loops of the reduction"
        raise TreadleError("shared reductions are counted on kernels only", "work of a nest", accepted)
    blocks = prod(level.trips for level in nest.blocks)
    share = max(1.0, blocks / target.cores)
    counter = _Counter()
    root = Node(BLOCK, share, counter.body(loops_of(nest, cost, target), [], 1.0))
    return Work(blocks, 1, tuple(counter.bodies), reuse_of(root), share)


@dataclass
class _Counts:
    """What one execution of a body takes."""

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    chain: float = 0.0
    masked: float = 0.0


@dataclass(frozen=True)
class _Around:
    """The loops around some code, of which those behind the `first` ones are unrolled, and how often a block executes
    it."""

    loops: list[Loop]
    first: int
    executions: float


class _Counter:
    """Counts the loops of one nest, each of which is a body unless it is unrolled."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []

    def body(self, inside: Sequence[Inside], loops: list[Loop], executions: float) -> list[Node | Touch]:
        """Counts what is executed in some loops, or in a part of their iterations, as a body of its own; its loops
        with their accesses."""
        counts = _Counts()
        nodes = self._inside(inside, _Around(loops, len(loops), executions), counts)
        if counts.arithmetic or counts.loads or counts.stores:
            self.bodies.append(Body(executions, **vars(counts)))
        return nodes

    def _inside(self, inside: Sequence[Inside], around: _Around, counts: _Counts) -> list[Node | Touch]:
        """Adds to the counts of a body."""
        found: list[Node | Touch] = []
        for each in inside:
            if isinstance(each, Code):
                found += _code(each, around.loops, around.loops[around.first :], counts)
            elif isinstance(each, Branch):
                found.append(self._branch(each, around, counts))
            elif each.is_unrolled:
                within = _Around([*around.loops, each], around.first, around.executions * each.trips)
                found.append(Node(each, float(each.trips), self._inside(each.inside, within, counts)))
            else:
                nodes = self.body(each.inside, [*around.loops, each], around.executions * each.trips)
                found.append(Node(each, float(each.trips), nodes))
        return found

    def _branch(self, branch: Branch, around: _Around, counts: _Counts) -> Node:
        inner = _Counts()
        nodes = self._inside(branch.inside, replace(around, executions=around.executions * branch.part), inner)
        counts.arithmetic += inner.arithmetic * branch.part
        counts.loads += inner.loads * branch.part
        counts.stores += inner.stores * branch.part
        counts.masked += inner.masked * branch.part
        counts.chain = max(counts.chain, inner.chain)
        return Node(branch, 1.0, nodes, weight=branch.part)


def _code(code: Code, loops: Sequence[Loop], unrolled: Sequence[Loop], counts: _Counts) -> list[Touch]:
    """Counts straight code; its accesses."""
    counts.arithmetic += code.arithmetic * prod(loop.trips for loop in unrolled)
    touches: list[Touch] = []
    for access in code.loads:
        elements, touch = _touch(access, code, loops)
        stride = touch.own[0][1] / access.bytes if touch.own else 1.0
        counts.loads += strided_loads(elements, stride) * _times(access, unrolled)
        touches.append(touch)
    for access in code.stores:
        elements, touch = _touch(access, code, loops)
        counts.stores += elements * _times(access, unrolled)
        touches.append(touch)
    for access in code.masked if code.vector is not None else ():
        elements, touch = _touch(access, code, loops)
        stride = touch.own[0][1] / access.bytes if touch.own else 1.0
        counts.masked += masked_accesses(elements, stride) * prod(loop.trips for loop in unrolled)
    sums = code.sums
    if sums is not None:
        alone = prod(loop.trips for loop in unrolled if not sums.depends(loop))
        counts.chain = max(counts.chain, float(alone))
    return touches


def _times(access: Access, unrolled: Sequence[Loop]) -> float:
    """How often unrolled loops repeat an access: what does not move is hoisted."""
    return float(prod(loop.trips for loop in unrolled if access.depends(loop)))


def _touch(access: Access, code: Code, loops: Sequence[Loop]) -> tuple[float, Touch]:
    """An access: its instructions, and its place in the traffic."""
    strides: dict[Hashable, Digits] = {loop: access.moved(loop) for loop in loops}
    strides[BLOCK] = access.blocks()
    step, width, own = 0, access.bytes, list[tuple[float, int]]()
    lanes = 1 if code.vector is None else code.vector.trips
    if code.vector is not None:
        found = access.moved(code.vector)
        step = found[0][1] if found else 0
    if step == access.bytes:
        width *= lanes
    elif step:
        own = [(float(lanes), step)]
    return float(lanes) if own else 1.0, Touch(access.buffer, width, own, strides)
