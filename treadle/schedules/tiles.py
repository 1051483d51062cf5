"""Tiles: what kernels for tensor cores are written with, above the loops and loads of `KernelBuilder`.

`TileBuilder.copy` brings a region of a tensor to shared memory, `gemm` multiplies tiles on tensor cores, sums stay in a
`Fragment`, spread over the registers of warps, `fold_row` folds its rows, `store` writes it; the loop whose copies run
some steps ahead is `pipelined` (`treadle/schedules/pipelines.py`). docs/tiles.md shows a product and attention.

Source: the words are TileLang's (Wang et al., 2025); NVIDIA, CUTLASS documentation, "Efficient GEMM in CUDA", for the
order of a pipeline's steps; Hidet (ASPLOS 2023), section 5.1, for tiles as task mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil

from xdsl.dialects.builtin import VectorType, f32
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import Space, Swizzle, swizzle_of_rows, type_of
from treadle.dialects.loop.tiles import PRODUCT_K, WARP, fragments
from treadle.dialects.task import Mapping, repeat, spatial
from treadle.schedules.kernel_builder import Index, KernelBuilder, Predicate, all_of, narrowed
from treadle.schedules.split_k import PartialSums

CHUNK_BYTES = 16
"""What one thread copies at a time: the widest asynchronous copy, and a row of the matrices that a warp loads."""
PRODUCT_M, PRODUCT_N, PAIR = 16, 8, 2
"""Rows and columns of one instruction's product; products side by side whose operand B is loaded at once."""
COLUMNS = PAIR * PRODUCT_N
HALVES, QUAD = 2, 4
"""Rows of a product that a lane holds, 8 apart, two neighbours of each; neighbouring lanes that hold a row."""
FRAGMENT: Mapping = repeat(HALVES, 1) * spatial(8, QUAD) * repeat(1, 2)
"""Which elements of C's 16 x 8 tile a lane holds."""
Extent = Index | int
Elements = Callable[[Index, Index, Index, Index, Index], Scalar]
"""Gives the element of a fragment at r, p, q, h, c."""


# Where the chunks of 16 bytes are that the lanes of a warp address to load fragments.


def place_in_a(lane: Index, row: Index, k: Index, half: int, *, along_k: bool) -> tuple[Index, Index]:
    """Row and term of the 16 bytes whose address a lane gives to load a fragment of A: matrices of the upper and the
    lower 8 rows from `row` on, first those of the lower half of the terms from `k` on.

    half: of the terms of a product; along_k: whether the 16 bytes lie along the terms, else along the rows
    """
    if along_k:
        return row + lane % 16, k + (lane // 16) * half
    matrix = (lane // 8) % 2
    term = lane % 8 + (lane // 16) * half
    term = k + term
    return row + matrix * 8, term


def place_in_b(lane: Index, column: Index, k: Index, half: int, *, along_k: bool) -> tuple[Index, Index]:
    """Column and term of the 16 bytes whose address a lane gives to load fragments of two times 8 columns of B: of
    each, matrices of the lower and the upper half of the terms. Of 8 columns the first 16 lanes give the addresses."""
    second = (lane // 16) * PRODUCT_N
    if along_k:
        term = ((lane // 8) % 2) * half
        return column + (second + lane % 8), k + term
    term = k + lane % 16
    return column + second, term


def lane_row(lane: Index, first: Extent, r: Index, h: Index, step: int = PRODUCT_M) -> Index:
    """A row, from the first of a warp's on, that a lane holds: one of two of the r-th product, `step` rows behind the
    one before."""
    return first + r * step + (h * (PRODUCT_M // HALVES) + lane // QUAD)


# Tiles of tensors, in shared memory, and in registers.


@dataclass(frozen=True)
class Region:
    """A part of a matrix in global memory, or of one of a batch: beyond the ends there are zeros to read, and nothing
    to write.

    outer: indices of the dimensions in front of rows and columns; first: the row and column that it begins with
    ends: of rows and columns; None where no tile reaches as far
    is_transposed: whether its rows are the matrix's columns
    """

    b: KernelBuilder
    buffer: SSAValue
    outer: Sequence[Index]
    first: tuple[Index, Index]
    ends: tuple[Extent | None, Extent | None]
    is_transposed: bool = False

    @staticmethod
    def of(
        b: KernelBuilder,
        buffer: SSAValue,
        first: tuple[Index, Index],
        extents: tuple[Extent, Extent],
        covered: tuple[int, int],
        outer: Sequence[Index] = (),
    ) -> Region:
        """A part of a matrix of some extents, of which tiles cover multiples of `covered` rows and columns."""
        ends = tuple(end_of(extent, each) for extent, each in zip(extents, covered, strict=True))
        return Region(b, buffer, outer, first, (ends[0], ends[1]))

    @property
    def element(self) -> Attribute:
        """The type of an element."""
        return type_of(self.buffer).get_element_type()

    @property
    def transposed(self) -> Region:
        """The same with rows and columns exchanged."""
        return replace(self, is_transposed=not self.is_transposed)

    def load(self, row: Index, column: Index) -> Scalar:
        """An element of the region, 0 beyond the ends."""
        indices, inside = self._place(row, column)
        if not inside:
            return self.b.load(self.buffer, indices)
        return self.b.load(self.buffer, indices, all_of(inside), self.b.constant(0, self.element))

    def store(self, value: Scalar, row: Index, column: Index) -> None:
        """Writes an element, unless it lies beyond the ends."""
        indices, inside = self._place(row, column)
        self.b.store(value, self.buffer, indices, all_of(inside))

    def _place(self, row: Index, column: Index) -> tuple[list[Index], list[Predicate]]:
        places = (column, row) if self.is_transposed else (row, column)
        place = [first + each for first, each in zip(self.first, places, strict=True)]
        inside = [at < end for at, end in zip(place, self.ends, strict=True) if end is not None]
        return [*self.outer, *place], inside


def end_of(extent: Extent, covered: int) -> Extent | None:
    """The end of an extent, if tiles of so many elements may reach beyond it."""
    return extent if not isinstance(extent, int) or extent % covered else None


@dataclass(frozen=True)
class TileLayout:
    """How a tile lies in shared memory: rows of consecutive elements, of whole chunks of 16 bytes, permuted so that
    neither copies nor loads of fragments meet in a bank.

    along_k: of an operand of `gemm`, whether rows run along the terms, else across them
    """

    rows: int
    columns: int
    element_bytes: int
    along_k: bool = True

    @property
    def chunk(self) -> int:
        """Elements that one thread copies at a time."""
        return CHUNK_BYTES // self.element_bytes

    @property
    def chunks(self) -> int:
        """Chunks of the tile."""
        return self.rows * self.columns // self.chunk

    @property
    def bytes(self) -> int:
        """Bytes of the tile."""
        return self.rows * self.columns * self.element_bytes

    @property
    def loads_matrices(self) -> bool:
        """Whether a warp loads whole matrices, else each lane its elements: those of 32 bits are not transposed."""
        return self.along_k or self.element_bytes == 2

    @property
    def swizzle(self) -> Swizzle:
        """The permutation of chunks under which neither copies nor loads of fragments meet in a bank."""
        # A lane by lane load reads 8 elements of 32 bits from each of 4 rows at once: these stay together.
        chunk = CHUNK_BYTES if self.loads_matrices else 2 * CHUNK_BYTES
        return swizzle_of_rows(self.columns * self.element_bytes, self.element_bytes, chunk)

    def tasks(self, threads: int) -> Mapping:
        """Rows and chunks of rows, consecutive threads on consecutive chunks. It may have fewer workers than threads,
        and reach beyond the tile."""
        wide = self.columns // self.chunk
        high = max(1, min(self.rows, threads // wide))
        return repeat(ceil(self.rows / high), ceil(wide / threads)) * spatial(high, min(wide, threads))


@dataclass(frozen=True)
class SharedTile:
    """A tile in shared memory. `tile[stage]` is one of several."""

    buffer: SSAValue
    layout: TileLayout
    stage: tuple[Index, ...] = ()

    def __getitem__(self, stage: Index) -> SharedTile:
        return replace(self, stage=(stage,))

    @property
    def element(self) -> Attribute:
        """The type of an element."""
        return type_of(self.buffer).get_element_type()

    def at(self, own: Index, term: Index) -> list[Index]:
        """The indices of an operand's element, given its row (of B, its column) and its term."""
        return [*self.stage, *((own, term) if self.layout.along_k else (term, own))]


@dataclass(frozen=True)
class Operand:
    """The operand A of a product in registers: `[rows / 16, terms / terms of a product]` fragments."""

    registers: SSAValue
    element: Attribute


@dataclass(frozen=True)
class Fragment:
    """A matrix in the registers of warps, each of which has `rows` x `columns` of it, from `first` on.

    Registers are numbered [r, p, q] by 16 rows, 16 columns, and the half of these; each is what a lane holds of 16 x 8
    elements: at [h, c] the one 8 h rows below and c columns beside the lane's first.
    row_step: rows from one 16 of a warp's to the next
    total: where the elements are after blocks added theirs; None while each block has its own
    """

    b: KernelBuilder
    lane: Index
    registers: SSAValue
    type: VectorType
    rows: int
    columns: int
    first: tuple[Extent, Extent]
    row_step: int = PRODUCT_M
    total: SSAValue | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The extents of r, p and q."""
        return self.rows // PRODUCT_M, self.columns // COLUMNS, PAIR

    @property
    def elements(self) -> int:
        """Of a thread."""
        return self.rows * self.columns // WARP

    def row(self, r: Index, h: Index) -> Index:
        """The row, in the block's tile, of a lane's element."""
        return lane_row(self.lane, self.first[0], r, h, self.row_step)

    def column(self, p: Index, q: Index, c: Index) -> Index:
        """The column of a lane's element in the warp's part."""
        return p * COLUMNS + q * PRODUCT_N + (self.lane_column + c)

    @property
    def lane_column(self) -> Index:
        """The first column of a product of which the lane holds elements."""
        return (self.lane % QUAD) * 2

    def load(self, r: Index, p: Index, q: Index, h: Index, c: Index) -> Scalar:
        """One of the lane's elements."""
        if self.total is None:
            return self.b.extract(self.b.load(self.registers, [r, p, q]), [h, c], self.type.element_type)
        product = r * (self.columns // PRODUCT_N) + (p * PAIR + q)
        return self.b.load(self.total, [product * (HALVES * 2) + (h * 2 + c)])

    def at(self, r: Index, i: Index, j: Index) -> Scalar:
        """Element (i, j) of 16 rows of the warp's part, which this lane must hold."""
        return self.load(r, j // COLUMNS, (j // PRODUCT_N) % PAIR, i // 8, j % 2)

    def clear(self) -> None:
        """Sets the lane's elements to 0."""
        with self.b.tasks(["r", "p", "q"], repeat(*self.shape), unroll=True) as where:
            self.b.store(self.b.zeros(self.type), self.registers, where)

    def set(self, value: Elements) -> None:
        """Replaces the lane's elements by those that `value` gives at [r, p, q, h, c]."""
        b, shape = self.b, self.type.get_shape()
        with b.tasks(["r", "p", "q"], repeat(*self.shape), unroll=True) as (r, p, q):
            elements = b.alloc("elements", shape, self.type.element_type)
            with b.tasks(["h", "c"], repeat(*shape), unroll=True) as (h, c):
                b.store(value(r, p, q, h, c), elements, [h, c])
            b.store(b.load_vector(elements, self.type), self.registers, [r, p, q])

    def scale_rows(self, factors: SSAValue) -> None:
        """Multiplies each element by the factor of its row, of `[rows / 16, 2]` registers."""
        b = self.b
        self.set(lambda r, p, q, h, c: b.mul(self.load(r, p, q, h, c), b.load(factors, [r, h])))


class TileBuilder:
    """Writes tiles of one kernel, by all `threads` of a block.

    lane, warp: of the calling thread
    """

    def __init__(self, b: KernelBuilder, threads: int):
        self.b, self.threads = b, threads
        self.lane, self.warp = b.thread % WARP, b.thread // WARP

    def shared(self, name: str, layout: TileLayout, element: Attribute, stages: int | None = None) -> SharedTile:
        """A tile in shared memory, or `stages` of them."""
        shape = [*([] if stages is None else [stages]), layout.rows, layout.columns]
        return SharedTile(self.b.alloc(name, shape, element, Space.SHARED, layout.swizzle), layout)

    def fragment(
        self, name: str, element: Attribute, extents: tuple[int, int], first: tuple[Extent, Extent] = (0, 0)
    ) -> Fragment:
        """Zeros in the registers of warps: multiples of 16 x 16 for each, from `first` on.

        element: f32, or i32 for sums of bytes
        """
        b, (rows, columns), type = self.b, extents, VectorType(element, [HALVES, 2])
        registers = b.alloc(name, [rows // PRODUCT_M, columns // COLUMNS, PAIR], type)
        fragment = Fragment(b, self.lane, registers, type, rows, columns, first)
        fragment.clear()
        return fragment

    # copy

    def copy(self, source: Region, tile: SharedTile) -> None:
        """Starts asynchronous copies of a region to shared memory: commit and wait, or `pipelined`, go with it."""
        with self.chunks(tile.layout, self.b.thread, self.threads) as (row, column):
            place = [*tile.stage, row, column]
            self.b.copy(tile.buffer, place, tile.layout.chunk, lambda e: source.load(row, column + e))

    def copy_back(self, tile: SharedTile, target: Region) -> None:
        """Writes a tile in shared memory, 16 bytes of a row at a time."""
        b = self.b
        with (
            self.chunks(tile.layout, b.thread, self.threads) as (row, first),
            b.tasks(["e"], repeat(tile.layout.chunk), unroll=True, vector=True) as (e,),
        ):
            column = first + e
            target.store(b.load(tile.buffer, [*tile.stage, row, column]), row, column)

    @contextmanager
    def chunks(self, layout: TileLayout, worker: Index, workers: int) -> Generator[tuple[Index, Index]]:
        """A loop over a worker's chunks of a tile: row, first column."""
        b, mapping = self.b, layout.tasks(workers)
        busy = worker < mapping.workers if mapping.workers < workers else None
        with b.when(busy), b.tasks(["i", "c"], mapping, worker, unroll=True) as (row, chunk):
            extents = (layout.rows, layout.columns // layout.chunk)
            ends = zip((row, chunk), extents, mapping.shape, strict=True)
            with b.when(all_of([at < extent for at, extent, reached in ends if reached > extent])):
                yield row, chunk * layout.chunk

    # gemm

    def gemm(
        self, a: SharedTile | Operand, b: SharedTile, c: Fragment, terms: int | None = None, first_term: Extent = 0
    ) -> None:
        """Adds the product of a warp's rows of A and its columns of B to its part of C.

        terms: of the product; as many as B has unless given; first_term: the one of B that it begins with
        """
        factors = Factors(self, a, b, c)
        if terms is None:
            terms = b.layout.columns if b.layout.along_k else b.layout.rows
        with self.b.loop("kk", terms // factors.terms, unroll=True) as kk:
            factors.load(a, b, kk * factors.terms, first_term)
            factors.multiply(kk)

    def operand(self, name: str, tile: SharedTile, rows: int, first_row: Extent = 0) -> Operand:
        """A warp's rows of an operand A, whose rows run along the terms, in registers."""
        b, depth = self.b, PRODUCT_K[tile.element]
        type, _, _ = fragments(tile.element, tile.element)
        shape = [rows // PRODUCT_M, tile.layout.columns // depth]
        registers = b.alloc(name, shape, type)
        with b.tasks(["r", "k"], repeat(*shape), unroll=True) as (r, k):
            b.store(self.fragment_of_a(tile, first_row + r * PRODUCT_M, k * depth, type), registers, [r, k])
        return Operand(registers, tile.element)

    def as_operand(self, value: Elements, of: Fragment, element: Attribute) -> Operand:
        """A fragment's elements, rounded to 16 bits: 16 columns are an operand A as they lie."""
        b, (rows, pairs, _) = self.b, of.shape
        type, _, _ = fragments(element, element)
        registers = b.alloc("left", [rows, pairs], type)
        with b.tasks(["r", "p"], repeat(rows, pairs), unroll=True) as (r, p):
            rounded = b.alloc("rounded", type.get_shape(), element)
            with b.tasks(["q", "h", "c"], repeat(PAIR, HALVES, 2), unroll=True) as (q, h, c):
                b.store(narrowed(b, value(r, p, q, h, c), element), rounded, [q * HALVES + h, c])
            b.store(b.load_vector(rounded, type), registers, [r, p])
        return Operand(registers, element)

    def fragment_of_a(self, tile: SharedTile, row: Index, k: Index, type: VectorType) -> SSAValue:
        """16 rows of A: matrices of the upper and the lower rows, first those of the lower half of K."""
        along_k, half = tile.layout.along_k, PRODUCT_K[tile.element] // 2
        if not tile.layout.loads_matrices:
            return self._rounded(self._by_lanes(tile, row, k, type, columns_first=True))
        place = place_in_a(self.lane, row, k, half, along_k=along_k)
        return self._rounded(self.b.load_matrix(tile.buffer, tile.at(*place), type, transpose=not along_k))

    def fragments_of_b(self, tile: SharedTile, column: Index, k: Index, type: VectorType) -> SSAValue:
        """Two times 8 columns of B: of each, matrices of the lower and the upper half of K."""
        along_k, half = tile.layout.along_k, PRODUCT_K[tile.element] // 2
        if not tile.layout.loads_matrices:
            return self._rounded(self._by_lanes(tile, column, k, type, columns_first=False))
        place = place_in_b(self.lane, column, k, half, along_k=along_k)
        return self._rounded(self.b.load_matrix(tile.buffer, tile.at(*place), type, transpose=not along_k))

    def _by_lanes(self, tile: SharedTile, first: Index, k: Index, type: VectorType, *, columns_first: bool) -> SSAValue:
        """What `loop.load_matrix` would give of two times two transposed matrices of 32-bit elements: each lane loads
        its element of each, of the next 8 columns before or after those of the next 4 rows."""
        b = self.b
        elements = b.alloc("elements", type.get_shape(), type.get_element_type())
        with b.tasks(["u", "v"], repeat(2, 2), unroll=True) as (u, v):
            block, half = (v, u) if columns_first else (u, v)
            term, own = k + (half * 4 + self.lane % 4), first + (block * 8 + self.lane // 4)
            indices = [u, v, 0] if len(type.get_shape()) == 3 else [u * 2 + v, 0]
            b.store(b.load(tile.buffer, tile.at(own, term)), elements, indices)
        return b.load_vector(elements, type)

    def _rounded(self, fragment: SSAValue) -> SSAValue:
        """Operands of 32 bits lose the bits that a product does not read."""
        type = fragment.type
        assert isinstance(type, VectorType)
        return self.b.round_tf32(fragment) if type.element_type == f32 else fragment

    def elements(self, buffer: SSAValue) -> Elements:
        """The elements of a register buffer `[r, p, q, h, c]`."""

        def element(r: Index, p: Index, q: Index, h: Index, c: Index) -> Scalar:
            return self.b.load(buffer, [r, p, q, h, c])

        return element

    # reduce

    def fold_row(self, kind: str, value: Elements, of: Fragment, row: Sequence[Index], initial: Scalar) -> Scalar:
        """The fold of a row of a fragment's elements, given r and h, over the columns of the warp's part."""
        b, (r, h), (_, pairs, _) = self.b, row, of.shape
        folded = b.alloc("folded", [1], initial.type)
        b.store(initial, folded, [0])
        with b.tasks(["p", "q", "c"], repeat(pairs, PAIR, 2), unroll=True) as (p, q, c):
            b.store(b.binary(kind, b.load(folded, [0]), value(r, p, q, h, c)), folded, [0])
        return b.fold_lanes(kind, b.load(folded, [0]), QUAD)

    def add_up(self, c: Fragment, part: Index, parts: int, threads: int) -> None:
        """Adds the fragments of warps that share a tile, through shared memory, to those of the first of them: each of
        `parts` has `threads` threads. The sums are those of part 0; the others keep their own."""
        b, lane, (height, width) = self.b, self.b.thread % threads, c.type.get_shape()
        partial = b.alloc("partial", [parts - 1, *c.shape, height, threads, width], c.type.element_type, Space.SHARED)
        with (
            b.when(part > 0),
            b.tasks(["r", "p", "q", "h"], repeat(*c.shape, height), unroll=True) as (r, p, q, h),
            b.loop("c", width, unroll=True, vector=True) as column,
        ):
            b.store(c.load(r, p, q, h, column), partial, [part - 1, r, p, q, h, lane, column])
        b.barrier()
        with (
            b.when(part.equals(0)),
            b.tasks(["s", "r", "p", "q"], repeat(parts - 1, *c.shape), unroll=True) as (s, r, p, q),
        ):
            added = b.alloc("sum", c.type.get_shape(), c.type.element_type)
            with b.loop("h", height, unroll=True) as h, b.loop("c", width, unroll=True, vector=True) as column:
                value = b.add(c.load(r, p, q, h, column), b.load(partial, [s, r, p, q, h, lane, column]))
                b.store(value, added, [h, column])
            b.store(b.load_vector(added, c.type), c.registers, [r, p, q])

    @contextmanager
    def summed(self, c: Fragment, tiles: int, slices: int, tile: Index, slice: Index | None) -> Generator[Fragment]:
        """Inside, where only a tile's last block comes, are the sums of all blocks that share it: split-k.

        tiles: of the result, each computed by `slices` blocks; slice: None where there is one
        """
        if slice is None:
            yield c
            return
        b, element = self.b, c.type.element_type
        sums = PartialSums(b, tiles, slices, self.threads, c.elements, element)
        assert sums.lanes == HALVES * 2, "a vector is a fragment"

        def numbered(v: Index, e: Index) -> Scalar:
            return b.extract(b.load(c.registers, v.delinearize(c.shape)), [e // 2, e % 2], element)

        with b.when(sums.keep(tile, slice, numbered)):
            total = b.alloc("total", [c.elements], element)
            sums.add_up(tile, total)
            yield replace(c, total=total)

    # store

    def store(self, c: Fragment, target: Region) -> None:
        """Writes a fragment: elements of 32 bits as they lie, those of 16 bits rounded, through shared memory."""
        if byte_width(target.element) == 2:
            self._store_staged(c, target)
            return
        with self.b.loop("r", c.shape[0], unroll=True) as r, self._lane_elements(c.columns) as (i, j):
            # Four lanes store the 32 bytes of a sector.
            target.store(c.at(r, i, j), c.first[0] + (r * c.row_step + i), c.first[1] + j)

    def _store_staged(self, c: Fragment, target: Region) -> None:
        """Lanes store 16 bytes of a row each."""
        b, slab = self.b, TileLayout(PRODUCT_M, c.columns, byte_width(target.element))
        shape = [self.threads // WARP, slab.rows, slab.columns]
        staged = b.alloc("staged", shape, target.element, Space.SHARED, slab.swizzle)
        with b.loop("r", c.shape[0], unroll=True) as r:
            b.barrier()
            with self._lane_elements(c.columns) as (i, j):
                b.store(narrowed(b, c.at(r, i, j), target.element), staged, [self.warp, i, j])
            b.barrier()
            with (
                self.chunks(slab, self.lane, WARP) as (i, first),
                b.tasks(["e"], repeat(slab.chunk), unroll=True, vector=True) as (e,),
            ):
                j = first + e
                row = c.first[0] + (r * c.row_step + i)
                target.store(b.load(staged, [self.warp, i, j]), row, c.first[1] + j)

    @contextmanager
    def _lane_elements(self, columns: int) -> Generator[tuple[Index, Index]]:
        """A loop over the lane's elements of 16 rows of so many columns of a warp's part: row, column."""
        mapping = repeat(1, columns // PRODUCT_N) * FRAGMENT
        with self.b.tasks(["i", "j"], mapping, self.lane, unroll=True, vector=True) as (i, j):
            yield i, j


class Factors:
    """What a warp multiplies at once: its fragments of A and of B, in registers.

    sets: of fragments, so that one may be loaded while another is multiplied; one, without a number, unless given
    """

    def __init__(self, t: TileBuilder, a: SharedTile | Operand, b: SharedTile, c: Fragment, sets: int | None = None):
        self._t, self._c = t, c
        rows, pairs, _ = c.shape
        self._of_a, self._of_b, _ = fragments(a.element, b.element)
        self._pair = VectorType(b.element, [PAIR, *self._of_b.get_shape()])
        self.terms = PRODUCT_K[b.element]
        """Of a set."""
        each = [] if sets is None else [sets]
        self._is_loaded = isinstance(a, SharedTile)
        self._left = a.registers if isinstance(a, Operand) else t.b.alloc("regs_a", [*each, rows], self._of_a)
        self._right = t.b.alloc("regs_b", [*each, pairs], self._pair)

    def load(
        self, a: SharedTile | Operand, b: SharedTile, term: Index, first_term: Extent = 0, into: Sequence[Index] = ()
    ) -> None:
        """Loads the fragments that begin with a term, of B counted from `first_term`; into: the number of the set."""
        k, c, (rows, pairs, _) = self._t.b, self._c, self._c.shape
        if isinstance(a, SharedTile):
            with k.tasks(["r"], repeat(rows), unroll=True) as (r,):
                loaded = self._t.fragment_of_a(a, c.first[0] + r * PRODUCT_M, term, self._of_a)
                k.store(loaded, self._left, [*into, r])
        with k.tasks(["p"], repeat(pairs), unroll=True) as (p,):
            loaded = self._t.fragments_of_b(b, c.first[1] + p * COLUMNS, first_term + term, self._pair)
            k.store(loaded, self._right, [*into, p])

    def multiply(self, number: Index, of: Sequence[Index] = ()) -> None:
        """Adds the products to the warp's part of C; number: of the operand A's terms, where it is one in registers;
        of: the number of the set."""
        k, c = self._t.b, self._c
        with k.tasks(["r", "p", "q"], repeat(*c.shape), unroll=True) as where:
            r, p, q = where
            rows_of_a = k.load(self._left, [*of, r] if self._is_loaded else [r, number])
            columns_of_b = k.extract(k.load(self._right, [*of, p]), [q], self._of_b)
            k.store(k.mma(rows_of_a, columns_of_b, k.load(c.registers, where)), c.registers, where)


def staged_bytes(threads: int, columns: int, element_bytes: int) -> int:
    """Shared memory through which `TileBuilder.store` writes fragments of so many columns a warp."""
    return threads // WARP * PRODUCT_M * columns * element_bytes if element_bytes == 2 else 0


__all__ = [
    "CHUNK_BYTES",
    "COLUMNS",
    "FRAGMENT",
    "HALVES",
    "PAIR",
    "PRODUCT_M",
    "PRODUCT_N",
    "QUAD",
    "Elements",
    "Extent",
    "Factors",
    "Fragment",
    "Operand",
    "Region",
    "SharedTile",
    "TileBuilder",
    "TileLayout",
    "end_of",
    "lane_row",
    "place_in_a",
    "place_in_b",
    "staged_bytes",
]  # fmt: skip
