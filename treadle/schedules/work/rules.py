"""What the loop passes do to a kernel, done to its tree: copies, split loops, vector accesses, unrolled loops.

Each function says which pass it follows. They follow it as far as counts go: what passes do to predicates and clamps of
tiles at the end of an extent changes too little to be followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd

from xdsl.dialects.builtin import VectorType, bf16, f16, f32, i1, i8, i32

from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.loop import Space
from treadle.index.positions import Digit, Factor, Position, Variable
from treadle.schedules.access_analysis import LEAST_STRIDE
from treadle.schedules.work.tree import (
    Access,
    Branch,
    Buffer,
    Comparison,
    Condition,
    Loop,
    Node,
    Step,
    accesses_in,
    renew,
)

VECTOR_BYTES = 16
"""Of the longest access of a GPU's thread."""
LONGEST_LOOP = 16
"""Iterations of a loop whose accesses are combined (`loop-vectorize-accesses`)."""
MOST_UNROLLED, MOST_OF_REGISTERS = 8, 64
"""Iterations of an innermost loop that is unrolled, and of one that indexes registers (`loop-unroll`)."""
COPIED = (f16, bf16, f32, i8, ui8)
"""Elements that asynchronous copies move."""
LEAST_COPY_BYTES = 4
NARROW = (f16, bf16)
"""Floats that are vectors of a CPU in memory alone: f32 computes."""
MASKED = (f32, *NARROW, i8, ui8)
"""The elements of which a CPU loads, stores and chooses some lanes."""
IN_MEMORY = (*MASKED, i32)
"""The elements of vectors that a CPU loads and stores (`loop-vectorize`)."""


def positions_in(inside: Sequence[Node]) -> list[Position]:
    """Where everything is accessed, and what is compared."""
    found: list[Position] = []
    for node in inside:
        if isinstance(node, Access):
            found.append(node.place)
            found += compared(node.conditions)
        elif isinstance(node, Branch):
            found += compared(node.conditions)
            found += positions_in(node.inside)
        elif isinstance(node, Loop):
            found += positions_in(node.inside)
    return found


def compared(conditions: Sequence[Condition]) -> list[Position]:
    """The positions that comparisons of some conditions compare with 0."""
    found: list[Position] = []
    for each in conditions:
        if isinstance(each, Comparison):
            found.append(each.difference)
        else:
            found += compared(each.parts)
    return found


def split_loops(inside: list[Node]) -> list[Node]:
    """`loop-delinearize`: a loop whose digits move something in different ways becomes one for each.

    Loops that do not count from 0, and those that are to be vectors, stay.
    """
    found: list[Node] = []
    for node in inside:
        if isinstance(node, Branch):
            node.inside = split_loops(node.inside)
        elif isinstance(node, Loop):
            node.inside = split_loops(node.inside)
            digits = node.digits
            if len(digits) > 1 and node.counts and node.is_constant and not node.is_vector:
                node = _nest(node, _runs(digits, node))
        found.append(node)
    return found


def _runs(digits: Sequence[Digit], loop: Loop) -> list[list[Digit]]:
    """The digits of a loop, neighbours that move everything as one of them together."""
    steps = [[position.stride(digit) for digit in digits] for position in positions_in(loop.inside)]
    runs = [[digits[0]]]
    for n in range(1, len(digits)):
        is_one = all(step[n] == step[n - 1] * digits[n - 1].size for step in steps)
        if is_one or loop.variable.size % digits[n].weight:
            runs[-1].append(digits[n])
        else:
            runs.append([digits[n]])
    return runs


def _nest(loop: Loop, runs: Sequence[list[Digit]]) -> Loop:
    """A loop for each of some digits, the highest outermost."""
    if len(runs) == 1:
        return loop
    ends = [*(run[0].weight for run in runs), loop.variable.size]
    found = loop
    for run, begin, end in zip(runs, ends, ends[1:], strict=False):
        inside = loop.inside if found is loop else [found]
        found = replace(loop, trips=float(end // begin), part=list(run), inside=inside)
    return found


def lowered_copies(inside: list[Node]) -> list[Node]:
    """`loop-lower-copies`: copies of what is only loaded become asynchronous ones of up to 16 bytes, others loops."""
    found: list[Node] = []
    for node in inside:
        if isinstance(node, Branch):
            node.inside = lowered_copies(node.inside)
        elif isinstance(node, Loop) and node.is_copy:
            copies = _asynchronous(node)
            found += [node] if copies is None else copies
            continue
        elif isinstance(node, Loop):
            node.inside = lowered_copies(node.inside)
        found.append(node)
    return found


def _asynchronous(loop: Loop) -> list[Node] | None:
    """The asynchronous copies of a loop over elements; None for one that computes, or moves less than 4 bytes."""
    if len(loop.inside) != 2:
        return None
    load, store = loop.inside
    if not isinstance(load, Access) or not isinstance(store, Access) or load.is_store or load.value is not store.value:
        return None
    element, size = load.buffer.element, load.buffer.bytes
    if load.buffer.space is not None or element not in COPIED or element != store.buffer.element:
        return None
    most = VECTOR_BYTES // size
    extent = loop.variable.size
    width = 1
    while width * 2 <= most and extent % (width * 2) == 0:
        width *= 2
    while width > 1 and not is_run(load, loop, width):
        width //= 2
    if width * size < LEAST_COPY_BYTES:
        return None
    found: list[Node] = []
    for first in range(0, extent, width):
        for access in (load, store):
            found.append(replace(_at(access, loop, first, width), is_async=True))
    return found


def is_run(access: Access, loop: Loop, lanes: int) -> bool:
    """Whether so many consecutive iterations of a loop access consecutive elements under one condition, the first at a
    multiple of their number."""
    place, digits, shape = access.place, loop.digits, access.buffer.shape
    if place.is_data or (access.buffer.space is not None and len(shape) > 1 and shape[-1] % lanes):
        return False
    found = along(place, digits, lanes)
    if found is None or found[0] != 1 or gcd(place.constant, found[1]) % lanes:
        return False
    return all(agrees(each, digits, lanes) for each in access.conditions)


def along(position: Position, digits: Sequence[Digit], lanes: int, *, is_whole: bool = False) -> tuple[int, int] | None:
    """How far each of so many consecutive values of some digits moves a position, and what the other factors move it by
    multiples of; None where values do not move it equally far.

    is_whole: all digits may be taken where they are too few for the lanes, or none ends with them
    """
    terms, size, step, used = position.terms, 1, 0, list[Digit]()
    for digit in digits:
        k = terms.get(digit, 0)
        if not position.is_linear_in(digit) or (used and k != step * size):
            return None
        step = step if used else k
        used.append(digit)
        size *= digit.size
        if size >= lanes and (size % lanes == 0 or not is_whole):
            break
    if size % lanes and not (is_whole and len(used) == len(digits)):
        return None
    return step, gcd(*(k for factor, k in terms.items() if factor not in used))


def agrees(condition: Condition, digits: Sequence[Digit], lanes: int) -> bool:
    """Whether a condition holds in all of so many consecutive values of some digits or in none."""
    if not any(map(condition.moves_with, digits)):
        return True
    if not isinstance(condition, Comparison):
        return all(agrees(each, digits, lanes) for each in condition.parts)
    difference = condition.difference
    found = along(difference, digits, lanes)
    if found is None or condition.kind in ("eq", "ne"):
        return False
    first = difference.constant - (1 if condition.kind in ("sle", "sgt") else 0)
    step, others = found
    return not step or (others % lanes == 0 and first // lanes == (first + step * (lanes - 1)) // lanes)


def _at(access: Access, loop: Loop, start: int, lanes: int) -> Access:
    """The access of the vector that begins with an iteration of a loop."""
    digits = loop.digits
    place = access.place.fixed(digits, start)
    swizzled = access.swizzled and (access.swizzled[0].fixed(digits, start), access.swizzled[1].fixed(digits, start))
    conditions = tuple(
        replace(each, difference=each.difference.fixed(digits, start)) if isinstance(each, Comparison) else each
        for each in access.conditions
    )
    return replace(access, place=place, swizzled=swizzled, conditions=conditions, elements=lanes)


def combined_accesses(inside: list[Node]) -> list[Node]:
    """`loop-vectorize-accesses`: what short loops access one element after another is accessed by vectors, a copy in
    place of the loop, others in front of it or behind it."""
    found: list[Node] = []
    for node in inside:
        if isinstance(node, Loop) and 1 < node.trips <= LONGEST_LOOP and node.counts and node.is_constant:
            found += _combined(node)
            continue
        if isinstance(node, Loop | Branch):
            node.inside = combined_accesses(node.inside)
        found.append(node)
    return found


def _combined(loop: Loop) -> list[Node]:
    trips = int(loop.trips)
    copied = _copied(loop, trips)
    if copied is not None:
        return copied
    before: list[Node] = []
    after: list[Node] = []
    inner: list[Node] = []
    everything = list(accesses_in(loop.inside))
    for node in loop.inside:
        lanes = 1
        if isinstance(node, Access) and not node.buffer.is_register and _may_move(node, everything):
            lanes = max(_lanes(node, loop, trips), default=1)
        if lanes == 1 or not isinstance(node, Access):
            inner.append(node)
            continue
        held = Buffer(f"{node.buffer.name}_vector", (trips,), node.buffer.element, Space.REGISTER)
        before.append(Step(allocated=held))
        own = Access(held, Position(0, {loop.digits[0]: 1}), node.is_store, value=node.value)
        inner.append(own)
        for start in range(0, trips, lanes):
            moved = replace(_at(node, loop, start, lanes), in_branch=True, value=None)
            part = Access(held, Position(start, {}), not node.is_store, elements=lanes, value=None)
            moved.value = part.value = object()  # the vector
            if node.is_store:
                after += [part, moved]
            else:
                before += [moved, part]
    loop.inside = combined_accesses(inner)
    return [*before, loop, *after]


def _copied(loop: Loop, trips: int) -> list[Node] | None:
    """The vector accesses that take the place of a loop that only copies."""
    memory = [node for node in loop.inside if not isinstance(node, Step) or node.is_barrier or node.pending is not None]
    if len(memory) != 2 or not all(isinstance(node, Access) for node in memory):
        return None
    load, store = memory
    assert isinstance(load, Access)
    assert isinstance(store, Access)
    if load.is_store or not store.is_store or store.value is not load.value or load.buffer is store.buffer:
        return None
    if load.buffer.is_register and store.buffer.is_register:
        return None
    both = set(_lanes(load, loop, trips)) & set(_lanes(store, loop, trips))
    if not both:
        return None
    lanes = max(both)
    found: list[Node] = []
    for start in range(0, trips, lanes):
        moved = object()  # the vector
        found += [
            replace(_at(each, loop, start, lanes), in_branch=not each.buffer.is_register, value=moved)
            for each in (load, store)
        ]
    return found


def _lanes(access: Access, loop: Loop, trips: int) -> list[int]:
    """Every number of elements that one access may take."""
    if access.elements > 1 or access.is_async:
        return []
    size = access.buffer.bytes
    counts = [2**n for n in range(5, 0, -1) if 2**n * size <= VECTOR_BYTES]
    return [n for n in counts if trips % n == 0 and is_run(access, loop, n)]


def _may_move(access: Access, everything: Sequence[Access]) -> bool:
    """Whether a load may come before the loop, or a store behind it, as far as the loop's other accesses go."""
    others = [each for each in everything if each is not access and each.buffer is access.buffer]
    return not others if access.is_store else not any(each.is_store for each in others)


def hoisted(inside: list[Node]) -> list[Node]:
    """`loop-hoist-invariants`: what loops compute the same in each iteration is computed in front of them."""
    found: list[Node] = []
    for node in inside:
        if isinstance(node, Branch):
            node.inside = hoisted(node.inside)
        elif isinstance(node, Loop):
            own = hoisted(node.inside)
            inner = {id(value) for value in _values_in(own)}
            node.inside = []
            for each in own:
                if isinstance(each, Step) and each.is_pure and not any(id(value) in inner for value in each.operands):
                    inner.discard(id(each.result))
                    found.append(each)
                else:
                    node.inside.append(each)
        found.append(node)
    return found


def _values_in(inside: Sequence[Node]) -> Iterator[object]:
    """What is computed or loaded in some code."""
    for node in inside:
        if isinstance(node, Access) and not node.is_store and node.value is not None:
            yield node.value
        elif isinstance(node, Step) and node.result is not None:
            yield node.result
        elif isinstance(node, Branch):
            yield from _values_in(node.inside)
        elif isinstance(node, Loop):
            if node.carried is not None:
                yield node.carried
            yield from _values_in(node.inside)


class _Unsupported(Exception):
    """The loop has something that has no vector form."""


def vectorised(inside: Sequence[Node], lanes: int) -> None:
    """`loop-vectorize`: loops that are marked run so many iterations at once, where all they do has a vector form."""
    for node in inside:
        if isinstance(node, Loop) and node.is_vector:
            try:
                forms = _VectorForms(node, lanes)
            except _Unsupported:
                vectorised(node.inside, lanes)
                continue
            forms.take()
        elif isinstance(node, Loop | Branch):
            vectorised(node.inside, lanes)


def transposed_loads(inside: list[Node], lanes: int) -> None:
    """`loop-transpose-loads`: loops along which vectors of elements that lie apart advance by one element are tiled,
    and a tile is rows and their transposition."""
    for node in inside:
        if isinstance(node, Loop | Branch):
            transposed_loads(node.inside, lanes)
        if isinstance(node, Loop):
            _transpose(node, lanes)


def _transpose(loop: Loop, lanes: int) -> None:
    loops, block = _innermost(loop)
    if block is None or not loop.counts or not loop.is_constant or loop.lanes > 1 or loop.trips < lanes:
        return
    loads = [node for node in block if isinstance(node, Access) and _is_row(node, loop, lanes)]
    stores = [node for node in block if isinstance(node, Access) and node.is_store]
    reads = [node.buffer for node in block if isinstance(node, Access) and not node.is_store]
    if not loads or len(stores) != 1 or stores[0].stride > 1 or stores[0].buffer in reads:
        return
    if not _writes_once(stores[0], loops):
        return
    lowest = loop.digits[0]
    if lowest.size > lanes:
        if not lowest.has_part(lanes):
            return
        lowest.split(lanes)
    column = replace(loop, trips=float(lanes), part=[loop.digits[0]], inside=[])
    loop.trips, loop.part = float(-(-int(loop.trips) // lanes)), loop.digits[1:]
    rows: list[Node] = []
    for load in loads:
        row = Variable("row", lanes)
        tile = Buffer("tile", (lanes,), VectorType(load.buffer.element, [lanes]), Space.REGISTER)
        place = load.place.renewed().fixed(column.digits, 0) + row.position() * load.stride
        read = replace(load, place=place, stride=1, value=object(), masked=False)
        read.guarded = read.in_branch = bool(load.masked)
        kept = Access(tile, row.position(), True, value=read.value)
        rows.append(Loop(row, float(lanes), inside=[read, kept]))
        rows.append(Step(cost=transposition(lanes)))
        block[block.index(load)] = Access(tile, Position(0, {column.digits[0]: 1}), False, value=load.value)
    column.inside = list(block)
    block[:] = [*rows, column]
    renew([loop])


def transposition(lanes: int) -> float:
    """Operations on vectors that a square of them takes to be transposed: one a vector for each bit of a lane."""
    return lanes * (lanes.bit_length() - 1.0)


def _writes_once(store: Access, loops: Sequence[Loop]) -> bool:
    """Whether no two iterations of some loops write one element, those that a mask leaves out included."""
    reach = float(store.elements)
    steps = [step for loop in loops for step in loop.steps(store.place) or [(loop.trips, 0)]]
    for trips, step in sorted(steps, key=lambda each: (abs(each[1]), each[0])):
        if trips > 1 and abs(step) < reach:
            return False
        reach = max(reach, abs(step) * trips)
    return True


def _innermost(loop: Loop) -> tuple[list[Loop], list[Node] | None]:
    """The code inside of a loop and of those in it, each of which is alone with what is computed in front of it; and
    these loops."""
    loops = [loop]
    while True:
        nested = [node for node in loop.inside if isinstance(node, Loop | Branch)]
        if not nested:
            return loops, loop.inside
        beside = [node for node in loop.inside if node is not nested[0]]
        if len(nested) > 1 or not isinstance(nested[0], Loop) or not all(isinstance(node, Step) for node in beside):
            return loops, None
        loop = nested[0]
        loops.append(loop)


def _is_row(access: Access, loop: Loop, lanes: int) -> bool:
    """Whether each lane reads consecutive elements in consecutive iterations, under conditions that stay."""
    if access.is_store or access.elements != lanes or abs(access.stride) < LEAST_STRIDE:
        return False
    found = along(access.place, loop.digits, lanes)
    return found is not None and found[0] == 1 and all(agrees(each, loop.digits, lanes) for each in access.conditions)


def without_single_trips(inside: list[Node]) -> list[Node]:
    """The same without loops that run once."""
    found: list[Node] = []
    for node in inside:
        if isinstance(node, Loop | Branch):
            node.inside = without_single_trips(node.inside)
        if isinstance(node, Loop) and node.trips == 1 and node.is_constant:
            found += node.inside
        else:
            found.append(node)
    return found


def _split_at(loop: Loop, lanes: int) -> None:
    """Splits a loop's variable in vectors and lanes, where that makes sums of digits of more positions."""
    lowest = loop.digits[0]
    if not lowest.has_part(lanes) or all(each.is_linear_in(lowest) for each in positions_in(loop.inside)):
        return
    lowest.split(lanes)
    renew(loop.inside)


class _VectorForms:
    """The vector forms of what a loop accesses; _Unsupported where one has none."""

    def __init__(self, loop: Loop, lanes: int):
        if not loop.counts or loop.carried is not None:
            raise _Unsupported
        self._loop, self._lanes = loop, lanes
        _split_at(loop, lanes)
        self._digits = loop.digits
        self._is_partial = not loop.is_constant or loop.variable.size % lanes > 0
        self._varying: set[int] = set()
        self._selects: list[Step] = []
        self._forms: list[tuple[Access, int, bool, bool]] = []
        self._read(loop.inside)

    def take(self) -> None:
        """Turns the accesses into vectors."""
        loop, lanes = self._loop, self._lanes
        loop.trips = float(-(-loop.variable.size // lanes)) if loop.is_constant else max(1.0, loop.trips / lanes)
        loop.lanes = lanes
        for select in self._selects:
            select.cost = 0.0  # by a mask of lanes
        for access, stride, masked, guarded in self._forms:
            access.elements, access.stride, access.masked, access.guarded = lanes, stride, masked, guarded
            if masked and access.buffer.is_register:
                access.buffer.has_masks = True

    def _read(self, inside: Sequence[Node]) -> None:
        for node in inside:
            if isinstance(node, Access):
                self._access(node)
            elif isinstance(node, Step):
                self._step(node)
            elif isinstance(node, Loop):
                if node.carried is not None:
                    self._varying.add(id(node.carried))
                self._read(node.inside)
            else:
                raise _Unsupported

    def _step(self, step: Step) -> None:
        if step.result is None:
            if step.allocated is None:
                raise _Unsupported
            return
        if not any(id(operand) in self._varying for operand in step.operands):
            return
        if step.result.type not in (*IN_MEMORY, i1):
            raise _Unsupported
        self._varying.add(id(step.result))
        if step.is_select:
            self._selects.append(step)

    def _access(self, access: Access) -> None:
        if access.elements > 1:
            raise _Unsupported
        stride = self._stride(access.place)
        conditions = [each for each in access.conditions if not each.is_known]
        varying = [each for each in conditions if self._varies(each)]
        if stride == 0 and access.is_store:
            raise _Unsupported
        if stride == 0 and not varying:
            return
        buffer = access.buffer
        if len(buffer.shape) > 1 and buffer.space is not None and abs(stride) >= buffer.shape[-1]:
            raise _Unsupported
        masked = self._is_partial or bool(conditions)
        element, is_vector = access.buffer.element, abs(stride) == 1
        is_guarded = bool(conditions) and not varying and (not access.is_store or element != f32)
        if element not in IN_MEMORY or (element != f32 and not (is_vector and stride > 0)):
            raise _Unsupported
        if is_guarded:
            masked = self._is_partial
        if masked and element not in MASKED:
            raise _Unsupported
        if not access.is_store and access.value is not None:
            self._varying.add(id(access.value))
        self._forms.append((access, stride, masked, is_guarded))

    def _stride(self, position: Position) -> int:
        """How far the next lane is; _Unsupported where that differs."""
        if not self._loop.moves(position):
            return 0
        found = along(position, self._digits, self._lanes, is_whole=True)
        if found is None:
            raise _Unsupported
        return found[0]

    def _varies(self, condition: Condition) -> bool:
        if not isinstance(condition, Comparison):
            if any(condition.moves_with(digit) for digit in self._digits):
                raise _Unsupported
            return False
        if not self._loop.moves(condition.difference):
            return False
        if condition.kind in ("eq", "ne"):
            raise _Unsupported
        return self._stride(condition.difference) != 0


def unrolled_loops(inside: Sequence[Node], elements: int) -> None:
    """`loop-unroll`: loops that index register buffers of up to so many elements, and short innermost ones."""
    indexing: set[Digit] = set()
    for access in accesses_in(list(inside)):
        buffer = access.buffer
        if buffer.is_register and buffer.elements <= elements and not buffer.is_of_unit:
            for factor in access.place.terms:
                indexing |= _digits_of(factor)
    _mark(inside, indexing)


def _digits_of(factor: Factor) -> set[Digit]:
    if isinstance(factor, Digit):
        return {factor}
    return {digit for inner in factor.of.terms for digit in _digits_of(inner)}


def _mark(inside: Sequence[Node], indexing: set[Digit]) -> bool:
    """Marks loops; whether there are any."""
    found = False
    for node in inside:
        if isinstance(node, Branch):
            found = _mark(node.inside, indexing) or found
        elif isinstance(node, Loop):
            is_outer = _mark(node.inside, indexing)
            found = True
            if node.is_constant and node.at_once is None:
                indexes = any(digit in indexing for digit in node.digits)
                most = MOST_OF_REGISTERS if indexes else 0 if is_outer else MOST_UNROLLED
                node.is_unrolled = node.is_unrolled or node.trips <= most
    return found
