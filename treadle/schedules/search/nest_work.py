"""The work of a nest, from the value alone: what `count_work` finds in its kernel for a CPU, without the kernel.

The loops are those that the builder of nests writes and the loop passes leave: single trips are gone, levels are split
at the digits of the addresses that they move, the level marked `vector` takes whole vectors, short loops are unrolled.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod

from treadle.errors import TreadleError
from treadle.schedules.digits import Digits
from treadle.schedules.nest.nest import Level, Nest
from treadle.schedules.search.cache_traffic import Node, Touch, reuse_of
from treadle.schedules.search.group_cost import GroupCost, Step, Touched
from treadle.schedules.search.work import REGISTER_BYTES, Body, Work
from treadle.target import Target

_MOST_UNROLLED, _MOST_OF_REGISTERS = 8, 64
"""Trips of a loop that `loop-unroll` marks, and of one whose variable indexes registers."""
_BLOCK = "block"
"""The variable that numbers blocks."""


def work_of(nest: Nest, cost: GroupCost, target: Target) -> Work:
    """The work of a nest's kernel on a CPU. TreadleError for a nest with stages, or with a reduction in blocks or in
    lanes of vectors."""
    levels = zip(nest.levels, nest.roles, strict=True)
    if nest.stages or any(level.axis.is_reduction and (level.vector or role == "block") for level, role in levels):
        accepted = "levels of spatial axes, and loops of the reduction"
        raise TreadleError("stages and shared reductions are counted on kernels only", "work of a nest", accepted)
    return _Counter(nest, cost, target).work()


@dataclass(eq=False)
class _Loop:
    """A loop of the finished kernel.

    stride: positions of the axis from one iteration to the next; is_written: unrolled, as the builder says
    """

    level: Level
    trips: int
    stride: int
    is_written: bool
    is_unrolled: bool = False


@dataclass(frozen=True)
class _Chain:
    """Loops inside one another around one step, and the level that vectors of `lanes` elements run along."""

    loops: tuple[_Loop, ...]
    vector: Level | None
    lanes: int


@dataclass
class _Counts:
    """What one execution of a body takes."""

    executions: float
    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    chain: float = 0.0


class _Counter:
    """Counts one nest: loops outside of the accumulators, and inside of them those that reset, fold and store them."""

    def __init__(self, nest: Nest, cost: GroupCost, target: Target):
        self._nest, self._load, self._target = nest, cost, target
        self._counts: dict[_Loop | None, _Counts] = {}
        self._steps = [step for step in (cost.term, cost.element) if step is not None]
        tile = [nest.levels[n] for n in nest.tile]
        self._sums = prod(level.trips for level in tile)
        spilled = self._sums * cost.accumulator_bytes > REGISTER_BYTES
        self._of_sums = {level: prod(each.trips for each in tile[n + 1 :]) for n, level in enumerate(tile)}
        self._spilled = spilled and cost.term is not None

    def work(self) -> Work:
        """The whole kernel's."""
        nest, load = self._nest, self._load
        blocks = prod(level.trips for level in nest.blocks)
        share = max(1.0, blocks / self._target.cores)
        first = nest.first_loop
        outer = [level for level, role in zip(nest.levels[:first], nest.roles, strict=False) if role != "block"]
        written = [*load.element.reads, load.result]
        reads: Sequence[Touched] = () if load.term is None else load.term.reads
        chains = [self._chain(outer, [*reads, *written], written)]
        if load.term is not None:
            inner, tile = nest.levels[first:], [nest.levels[n] for n in nest.tile]
            chains = [
                self._chain(outer, [*reads, *written], []),
                self._chain(tile, [], [], unrolled=True),
                self._chain(inner, reads, reads),
                self._chain(tile, written, written, unrolled=True),
            ]
        root = Node(_BLOCK, share, self._nodes(chains))
        bodies = [Body(**vars(each)) for each in self._counts.values() if each.arithmetic or each.loads or each.stores]
        return Work(blocks, 1, tuple(bodies), reuse_of(root), share)

    def _nodes(self, chains: Sequence[_Chain]) -> list[Node | Touch]:
        """Counts the steps of all chains, the first of which is around the others; their loops with their accesses."""
        around, *inside = chains
        load, is_alone = self._load, not any(each.loops for each in inside)
        self._unroll(around.loops, is_alone)
        if not inside:
            return _nested(around.loops, self._step(around, around, load.element, load.result))
        reset, fold, store = inside
        for each in inside:
            self._unroll(each.loops, innermost=True)
        children = [
            *_nested(reset.loops, self._access_sums(around, reset, stores=1)),
            *_nested(fold.loops, self._fold(around, fold)),
            *_nested(
                store.loops,
                [*self._access_sums(around, store, loads=1), *self._step(around, store, load.element, load.result)],
            ),
        ]
        return _nested(around.loops, children)

    def _chain(
        self, levels: Sequence[Level], split: Sequence[Touched], moved: Sequence[Touched], *, unrolled: bool = False
    ) -> _Chain:
        """The loops over some levels: `split` at the digits of some tensors, as vectors if those that are `moved`
        allow it."""
        loops: list[_Loop] = []
        vector, lanes = None, self._target.lanes
        last = self._nest.levels[-1]
        for level in levels:
            trips, stride = level.trips, level.stride
            written = unrolled or level.unroll or (self._load.term is not None and self._is_register_tile(level))
            if level.vector and trips > 1 and level is last and self._is_vector(level, moved):
                vector, trips, stride = level, ceil(trips / lanes), stride * lanes
                pieces = [(trips, stride)]
            else:
                pieces = [(trips, stride)] if level.vector or trips == 1 else self._pieces(level, split)
            loops += [_Loop(level, trips, stride, written) for trips, stride in pieces if trips > 1]
        return _Chain(tuple(loops), vector, lanes if vector is not None else 1)

    def _is_register_tile(self, level: Level) -> bool:
        """Whether a level is in the groups of the tile that no loop follows, which are unrolled."""
        last = max(self._nest.numbers("loop"))
        return level in self._nest.levels[last + 1 :]

    def _pieces(self, level: Level, tensors: Sequence[Touched]) -> list[tuple[int, int]]:
        """The trips and strides of the loops that a level becomes, outermost first."""
        ends: set[int] = set()
        for tensor in tensors:
            weight = 1
            for size, _ in self._load.along(tensor, level.axis)[:-1]:
                weight *= int(size)
                if weight % level.stride == 0:
                    ends.add(weight // level.stride)
        pieces: list[tuple[int, int]] = []
        inner = 1
        for end in sorted(end for end in ends if 1 < end < level.trips and level.trips % end == 0):
            if end % inner == 0:
                pieces.insert(0, (end // inner, level.stride * inner))
                inner = end
        return [(level.trips // inner, level.stride * inner), *pieces]

    def _is_vector(self, level: Level, tensors: Sequence[Touched]) -> bool:
        """Whether all accesses along a level are vectors, strided, or the same for all lanes."""
        lanes, load = self._target.lanes, self._load
        covered = self._nest.covered(level.axis)
        # Vectors begin at multiples of `begin`; if lanes may carry into a higher digit, addresses are not affine.
        begin = lanes if level.trips == covered else gcd(level.trips, lanes) if level.trips > lanes else level.trips
        for tensor in tensors:
            weight, digits = 1, load.along(tensor, level.axis)
            for size, _ in digits[:-1]:
                weight *= int(size)
                if gcd(begin, weight) < lanes and (level.trips < covered or weight < lanes):
                    return False
            step = _moved(digits, level.stride, lanes)
            if (step and step[0][1] and not tensor.is_f32) or (tensor is load.result and not (step and step[0][1])):
                return False
        return True

    def _unroll(self, loops: Sequence[_Loop], innermost: bool) -> None:
        """Which loops are unrolled; `innermost`: no loop follows the last one."""
        in_registers = self._sums <= self._target.vector_registers * self._target.lanes
        for n, loop in enumerate(loops):
            plain = innermost and n == len(loops) - 1 and loop.trips <= _MOST_UNROLLED
            indexes = in_registers and loop.level in self._of_sums and loop.trips <= _MOST_OF_REGISTERS
            loop.is_unrolled = loop.is_written or plain or (indexes and self._load.term is not None)

    def _fold(self, around: _Chain, fold: _Chain) -> list[Touch]:
        load = self._load
        assert load.term is not None
        masked = any(self._nest.overhangs(level.axis) for level in self._nest.levels if level.axis.is_reduction)
        selects = load.fold if masked else -1.0 if load.fuses else 0.0
        touches = self._step(around, fold, Step(load.term.reads, load.term.arithmetic + load.fold + selects), None)
        counts, inner = self._body(around, fold)
        if not self._spilled:
            alone = prod(loop.trips for loop in inner if loop.level not in self._of_sums)
            counts.chain = max(counts.chain, float(alone))
        return [*touches, *self._access_sums(around, fold, loads=1, stores=1)]

    def _body(self, around: _Chain, chain: _Chain) -> tuple[_Counts, Sequence[_Loop]]:
        """The counts of the straight code that a step is a part of, and the unrolled loops between the two."""
        loops = around.loops if chain is around else (*around.loops, *chain.loops)
        first = max((n for n, loop in enumerate(loops) if not loop.is_unrolled), default=-1) + 1
        key = loops[first - 1] if first else None
        if key not in self._counts:
            self._counts[key] = _Counts(float(prod(loop.trips for loop in loops[:first])))
        return self._counts[key], loops[first:]

    def _step(self, around: _Chain, chain: _Chain, step: Step, result: Touched | None) -> list[Touch]:
        """Counts one step, executed in all loops of a chain."""
        counts, inner = self._body(around, chain)
        counts.arithmetic += step.arithmetic * prod(loop.trips for loop in inner)
        touches: list[Touch] = []
        for tensor in step.reads if result is None else (*step.reads, result):
            elements, touch, moving = self._touch(around, chain, tensor, inner)
            if tensor is result:
                counts.stores += elements * moving
            else:
                counts.loads += elements * moving
            touches.append(touch)
        return touches

    def _touch(
        self, around: _Chain, chain: _Chain, tensor: Touched, inner: Sequence[_Loop]
    ) -> tuple[float, Touch, float]:
        """An access: its instructions, its place in the traffic, and how often unrolled loops repeat it."""
        load, strides, moving = self._load, dict[Hashable, Digits](), 1.0
        loops = around.loops if chain is around else (*around.loops, *chain.loops)
        for loop in loops:
            every = load.along(tensor, loop.level.axis)
            strides[loop] = _moved(every, loop.stride, loop.trips)
            if loop in inner and _depends(every, loop.stride, loop.trips):
                moving *= loop.trips
        blocks: list[tuple[float, int]] = []
        for level in reversed(self._nest.blocks):
            blocks += _moved(load.along(tensor, level.axis), level.stride, level.trips) or [(level.trips, 0)]
        strides[_BLOCK] = blocks
        step, width, own = 0, tensor.bytes, list[tuple[float, int]]()
        if chain.vector is not None:
            found = _moved(load.along(tensor, chain.vector.axis), chain.vector.stride, chain.lanes)
            step = found[0][1] if found else 0
        if step == tensor.bytes:
            width *= chain.lanes
        elif step:
            own = [(float(chain.lanes), step)]
        return float(chain.lanes) if own else 1.0, Touch(tensor.buffer, width, own, strides), moving

    def _access_sums(self, around: _Chain, chain: _Chain, loads: int = 0, stores: int = 0) -> list[Touch]:
        """Accumulators that do not fit in registers are accessed like memory."""
        if not self._spilled:
            return []
        counts, inner = self._body(around, chain)
        size, times = self._load.accumulator_bytes, 1.0
        strides: dict[Hashable, Digits] = {}
        for loop in chain.loops:
            if loop.level in self._of_sums:
                step = self._of_sums[loop.level] * size * (loop.stride // loop.level.stride)
                strides[loop] = [(float(loop.trips), step)]
                times *= loop.trips if loop in inner else 1
        counts.loads += loads * times
        counts.stores += stores * times
        return [Touch("sums", size * chain.lanes, [], strides)] * (loads + stores)


def _nested(loops: Sequence[_Loop], inside: Sequence[Node | Touch]) -> list[Node | Touch]:
    """Loops inside one another as nodes."""
    found: list[Node | Touch] = [*inside]
    for loop in reversed(loops):
        found = [Node(loop, float(loop.trips), found)]
    return found


def _moved(digits: Digits, stride: int, trips: int) -> list[tuple[float, int]]:
    """How far `trips` iterations of `stride` positions each move a place, given an axis's digits."""
    found: list[tuple[float, int]] = []
    weight, start = 1, stride
    for n, (size, step) in enumerate(digits):
        end = weight * int(size)
        if start < end or n == len(digits) - 1:
            most = trips if n == len(digits) - 1 else -(-end // start)
            taken = min(trips, most)
            found.append((float(taken), step * max(1, start // weight)))
            trips, start = -(-trips // taken), max(start, end)
            if trips == 1:
                break
        weight = end
    return found


def _depends(digits: Digits, stride: int, trips: int) -> bool:
    """Whether a loop moves a place: directly, or where what its iterations add is carried into a higher digit."""
    if any(step for _, step in _moved(digits, stride, trips)):
        return True
    weight = 1
    for n, (size, _) in enumerate(digits[:-1]):
        weight *= int(size)
        if weight % (stride * trips) and any(step for _, step in digits[n + 1 :]):
            return True
    return False


__all__ = ["work_of"]
