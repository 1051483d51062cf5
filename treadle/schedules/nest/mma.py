"""Products on tensor cores inside of a nest: fragments of both operands and of the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from xdsl.dialects.builtin import VectorType, f32
from xdsl.ir import SSAValue

from treadle.dialects.graph import ReduceOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop.tiles import WARP, fragments
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, KernelBuilder
from treadle.schedules.nest.accumulators import Accumulators, Unrolled, linear
from treadle.schedules.nest.box import StagedBuffer
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.scope import At, Body
from treadle.schedules.tiles import FRAGMENT, PRODUCT_N, place_in_a, place_in_b


class FragmentAccumulators(Accumulators):
    """The sums of a thread as a lane's fragments of its warp's products: of each position of the tile one for every 8
    columns.

    Source: MetaSchedule (NeurIPS 2022), appendix A.3, whose tensorised block is the innermost part of the nest.
    """

    def __init__(self, b: KernelBuilder, reduce: ReduceOp, nest: Nest, unrolled: Unrolled, body: Body):
        self._body, self._lane = body, b.thread % WARP
        self._rows, self._columns, self._terms = nest.product_levels
        self._halves = nest.levels[self._columns].trips // PRODUCT_N
        assert nest.factors is not None, "checked when the program was replayed"
        self._factors = nest.factors
        element = nest.workload.reads[nest.factors[0]].element
        self._of_a, self._of_b, self._of_c = fragments(element, element)
        super().__init__(b, reduce, nest, unrolled)

    def _alloc(self) -> SSAValue:
        return self._b.alloc("acc", [*self._shape, self._halves], self._of_c)

    def reset(self, at: At) -> None:
        def zero(inner: At) -> None:
            with self._each_half() as (h,):
                self._b.store(self._b.zeros(self._of_c), self._buffer, [*self._in_tile(inner), h])

        self._unrolled(self._tile, at, zero)

    def multiply(self, numbers: Sequence[int], at: At) -> None:
        """Adds the products of a tile's innermost levels: its fragments of both operands are loaded, and multiplied."""
        b = self._b
        left, right = self._factors
        of_b = VectorType(self._of_b.element_type, [self._halves, *self._of_b.get_shape()])
        a = self._loaded("regs_a", left, numbers, at, self._of_a, self._fragment_of_a)
        c = self._loaded("regs_b", right, numbers, at, of_b if self._halves > 1 else self._of_b, self._fragments_of_b)

        def product(inner: At) -> None:
            with self._each_half() as (h,):
                rows, columns = (b.load(regs, [inner[n] for n in levels] or [0]) for regs, levels in (a, c))
                columns = b.extract(columns, [h], self._of_b) if self._halves > 1 else columns
                where = [*self._in_tile(inner), h]
                b.store(b.mma(rows, columns, b.load(self._buffer, where)), self._buffer, where)

        self._unrolled(numbers, at, product)

    def each(self, at: At, body: Callable[[At, Scalar], None]) -> None:
        mapping = repeat(1, self._halves) * FRAGMENT

        def elements(inner: At) -> None:
            with self._b.tasks(["r", "c"], mapping, self._lane, unroll=True, vector=True) as (r, c):
                body({**inner, self._rows: r, self._columns: c}, self._element(inner, r, c))

        self._unrolled(self._tile, at, elements)

    def _loaded(
        self,
        name: str,
        read: int,
        numbers: Sequence[int],
        at: At,
        type: VectorType,
        fragment: Callable[[StagedBuffer, At, VectorType], SSAValue],
    ) -> tuple[SSAValue, list[int]]:
        """The fragments of an operand in registers, and the levels that they are numbered by."""
        b, held = self._b, self._body.held[read]
        levels = [n for n in self._nest.fragments(read) if n in numbers]
        regs = b.alloc(name, [self._nest.levels[n].trips for n in levels] or [1], type)

        def load(inner: At) -> None:
            loaded = fragment(held, inner, type)
            b.store(
                b.round_tf32(loaded) if type.element_type == f32 else loaded, regs, [inner[n] for n in levels] or [0]
            )

        self._unrolled(levels, at, load)
        return regs, levels

    def _fragment_of_a(self, held: StagedBuffer, at: At, type: VectorType) -> SSAValue:
        along_k, zero = self._runs_along_k(held), self._b.index(0)
        row, term = place_in_a(self._lane, zero, zero, self._half, along_k=along_k)
        indices = held.indices(self._b, {**at, self._rows: row, self._terms: term})
        return self._b.load_matrix(held.buffer, indices, type, transpose=not along_k)

    def _fragments_of_b(self, held: StagedBuffer, at: At, type: VectorType) -> SSAValue:
        along_k, zero = self._runs_along_k(held), self._b.index(0)
        lane = self._lane if self._halves > 1 else self._lane % (WARP // 2)
        column, term = place_in_b(lane, zero, zero, self._half, along_k=along_k)
        indices = held.indices(self._b, {**at, self._columns: column, self._terms: term})
        return self._b.load_matrix(held.buffer, indices, type, transpose=not along_k)

    def _runs_along_k(self, held: StagedBuffer) -> bool:
        """Whether the rows of a stage run along the terms."""
        return held.layout.box.place_steps(self._terms)[held.layout.order[-1]] == 1

    @property
    def _half(self) -> int:
        """Of a product's terms."""
        return self._nest.levels[self._terms].trips // 2

    def _element(self, at: At, r: Index, c: Index) -> Scalar:
        """The sum at row r and column c of a product, which this lane must hold."""
        b, half, upper, odd = self._b, c // PRODUCT_N, r // 8, c % 2
        if self._total is None:
            return b.extract(b.load(self._buffer, [*self._in_tile(at), half]), [upper, odd], self._type)
        fragment = linear(b, [*self._in_tile(at), half], [*self._shape, self._halves])
        return b.load(self._total, [fragment * 4 + (upper * 2 + odd)])

    def _numbered(self, v: Index, e: Index, lanes: int) -> Scalar:
        assert lanes == self._of_c.element_count(), "a vector is a fragment"
        fragment = self._b.load(self._buffer, v.delinearize([*self._shape, self._halves]))
        return self._b.extract(fragment, [e // 2, e % 2], self._type)

    def _in_tile(self, at: At) -> list[Index]:
        return [at[n] for n in self._tile]

    def _each_half(self) -> AbstractContextManager[Sequence[Index]]:
        """A loop over the products of 8 columns that share a load of the right operand."""
        return self._b.tasks(["h"], repeat(self._halves), unroll=True)
