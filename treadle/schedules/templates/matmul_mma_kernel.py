"""Writes the kernel of a product on tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import TensorType, VectorType, f32
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop import KernelOp, MmaOp, RoundTf32Op, Space
from treadle.dialects.loop.tiles import WARP, fragments
from treadle.dialects.task import Mapping as TaskMapping
from treadle.dialects.task import repeat, spatial
from treadle.schedules.index_value import Index, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.partial_sums import PartialSums
from treadle.schedules.split_k import shared_out
from treadle.schedules.templates.matmul_mma_tile import FRAGMENT, PRODUCT_M, PRODUCT_N, MmaTile, SharedTile

ELEMENTS_PER_LANE = 4
"""Elements of C's fragment per lane."""
PAIR = 2
"""Columns of tile products whose operand B is loaded at once."""


class MmaKernel:
    """Writes the kernel of one product: a pipeline of copies, tile products between them, and the stores of C."""

    def __init__(self, anchor: MatmulOp, tile: MmaTile, split_k: int):
        self.anchor, self.tile = anchor, tile
        self.slices = shared_out(anchor, split_k, tile.block_k)
        self.m, self.n = anchor.shape[-2:]
        self.k = anchor.reduction_extent
        types = [t for t in (anchor.a.type, anchor.b.type) if isinstance(t, TensorType)]
        self.elements = [type.get_element_type() for type in types]
        self.fragments = fragments(*self.elements)
        self.sums = self.fragments[2].get_element_type()
        self.total: SSAValue | None = None
        self.b = KernelBuilder(types, anchor.type)

    def build(self, name: str) -> KernelOp:
        """The kernel; to be called once."""
        b, tile = self.b, self.tile
        rows, columns = ceil(self.m / tile.m), ceil(self.n / tile.n)
        batch = self.anchor.shape[:-2]
        tiles = rows * columns * prod(batch)
        tile_index, slice = b.block, None
        if self.slices.number > 1:
            tile_index, slice = b.block % tiles, b.block // tiles
        row, column = self._block_coordinates(tile_index % (rows * columns) if batch else tile_index, rows, columns)
        self.row, self.column = row * tile.m, column * tile.n
        self.batch_index = (tile_index // (rows * columns)).delinearize(batch) if batch else []
        self.lane, warp = b.thread % WARP, b.thread // WARP
        self.warp = warp
        self.warp_row = (warp // tile.warps[1]) * tile.warp[0]
        self.warp_column = (warp % tile.warps[1]) * tile.warp[1]
        self.shared_a, self.shared_b = (
            self._shared(x, shape, element)
            for x, shape, element in zip("ab", (tile.a, tile.b), self.elements, strict=True)
        )
        products = [tile.warp[0] // PRODUCT_M, tile.warp[1] // PRODUCT_N // PAIR, PAIR]
        self.acc = b.alloc("acc", products, self.fragments[2])
        with b.tasks(["r", "p", "h"], repeat(*products), unroll=True) as where:
            b.store(b.zeros(self.fragments[2]), self.acc, where)
        self.first = None if slice is None else slice * self.slices.each
        self._pipeline(self.slices.each)
        if slice is None:
            self._store()
        else:
            self._add_up(tiles, tile_index, slice, products)
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        operands = [self.anchor.a, self.anchor.b]
        return b.kernel(name, operands, self.anchor.type, tiles * self.slices.number, tile.threads, comment)

    def _shared(self, name: str, shape: SharedTile, element: Attribute) -> SSAValue:
        extents = [self.tile.stages, shape.rows, shape.columns]
        return self.b.alloc(f"shared_{name}", extents, element, Space.SHARED, shape.swizzle)

    def _block_coordinates(self, block: Index, rows: int, columns: int) -> tuple[Index, Index]:
        """The block's row and column in the grid. Consecutive blocks go down `group` rows before they go right, so
        that those that run together share the tiles that they read; the last group may have fewer rows."""
        group = min(self.tile.group, rows)
        if group == 1:
            return block // columns, block % columns

        def inside(position: Index, height: int, first: Index | int) -> tuple[Index, Index]:
            return position % height + first, position // height

        width, last = group * columns, rows % group
        inner = block % width
        row, column = inside(inner, group, (block // width) * group)
        if not last:
            return row, column
        full = block < (rows - last) * columns
        last_row, last_column = inside(inner, last, rows - last)
        return full.select(row, last_row), full.select(column, last_column)

    def _pipeline(self, steps: int) -> None:
        """`stages` tiles in shared memory: one is multiplied while the others are being copied."""
        b, ahead = self.b, self.tile.stages - 1
        with b.loop("s", min(ahead, steps)) as s:
            self._fetch(s, s)
            b.commit()
        for _ in range(ahead - steps):
            b.commit()
        with b.loop("step", steps) as step:
            b.wait(ahead - 1)
            # Behind it every thread sees this step's tile, and has multiplied the one that is overwritten next.
            b.barrier()
            following = step + ahead
            with b.when(following < steps):
                self._fetch(following, following % self.tile.stages)
            b.commit()
            self._multiply(step % self.tile.stages)

    def _fetch(self, step: Index, stage: Index) -> None:
        """Starts the copies of step's tiles of A and B, 0 beyond the matrices."""
        first = (step if self.first is None else self.first + step) * self.tile.block_k

        def element_of_a(m: Index, k: Index) -> Scalar:
            row, term = self.row + m, first + k
            return self._guarded(0, row, self.m, self.tile.m, term, self.k, self.slices.covered)

        def element_of_b(n: Index, k: Index) -> Scalar:
            term, column = first + k, self.column + n
            return self._guarded(1, term, self.k, self.slices.covered, column, self.n, self.tile.n)

        self._copy(self.tile.a, self.shared_a, stage, element_of_a)
        self._copy(self.tile.b, self.shared_b, stage, element_of_b)

    def _copy(
        self, tile: SharedTile, buffer: SSAValue, stage: Index, element: Callable[[Index, Index], Scalar]
    ) -> None:
        """Copies one operand's tile; `element` takes the position across K, then along it."""
        b, mapping = self.b, tile.tasks(self.tile.threads)
        idle = mapping.workers < self.tile.threads
        with (
            b.when(b.thread < mapping.workers if idle else None),
            b.tasks(["i", "c"], mapping, b.thread, unroll=True) as (i, c),
        ):
            column = c * tile.chunk

            def value(e: Index) -> Scalar:
                at = column + e
                return element(i, at) if tile.along_k else element(at, i)

            b.copy(buffer, [stage, i, column], tile.chunk, value)

    def _guarded(self, operand: int, i: Index, i_end: int, i_tile: int, j: Index, j_end: int, j_tile: int) -> Scalar:
        b = self.b
        inside = [i < i_end] if i_end % i_tile else []
        inside += [j < j_end] if j_end % j_tile else []
        type = (self.anchor.a, self.anchor.b)[operand].type
        assert isinstance(type, TensorType)
        indices = [*(self.batch_index if type.get_num_dims() > 2 else []), i, j]
        if not inside:
            return b.load(b.inputs[operand], indices)
        return b.load(b.inputs[operand], indices, all_of(inside), b.constant(0, self.elements[operand]))

    def _multiply(self, stage: Index) -> None:
        """One tile of A times one of B, added to the accumulators."""
        b, tile = self.b, self.tile
        rows, pairs = tile.warp[0] // PRODUCT_M, tile.warp[1] // PRODUCT_N // PAIR
        a_type, b_type, _ = self.fragments
        pair_type = VectorType(self.elements[1], [PAIR, *b_type.get_shape()])
        regs_a = b.alloc("regs_a", [rows], a_type)
        regs_b = b.alloc("regs_b", [pairs], pair_type)
        with b.loop("kk", tile.block_k // tile.product_k, unroll=True) as kk:
            k = kk * tile.product_k
            with b.tasks(["r"], repeat(rows), unroll=True) as (r,):
                b.store(self._rounded(self._fragment_of_a(stage, r, k, a_type)), regs_a, [r])
            with b.tasks(["p"], repeat(pairs), unroll=True) as (p,):
                b.store(self._rounded(self._fragments_of_b(stage, p, k, pair_type)), regs_b, [p])
            with b.tasks(["r", "p", "h"], repeat(rows, pairs, PAIR), unroll=True) as (r, p, h):
                right = b.extract(b.load(regs_b, [p]), [h], b_type)
                product = b.insert(MmaOp(b.load(regs_a, [r]), right, b.load(self.acc, [r, p, h])))
                b.store(product, self.acc, [r, p, h])

    def _fragment_of_a(self, stage: Index, r: Index, k: Index, type: VectorType) -> SSAValue:
        """16 rows of A: matrices of the upper and the lower rows, first those of the lower half of K."""
        b, half = self.b, self.tile.product_k // 2
        row = self.warp_row + r * PRODUCT_M
        if not self.tile.a.loads_matrices:
            return self._by_lanes(self.shared_a, stage, row, k, type, columns_first=True)
        if self.tile.a.along_k:
            indices = [row + self.lane % 16, k + (self.lane // 16) * half]
        else:
            matrix = (self.lane // 8) % 2
            term = self.lane % 8 + (self.lane // 16) * half
            indices = [k + term, row + matrix * 8]
        return b.load_matrix(self.shared_a, [stage, *indices], type, transpose=not self.tile.a.along_k)

    def _fragments_of_b(self, stage: Index, p: Index, k: Index, type: VectorType) -> SSAValue:
        """Two times 8 columns of B: of each, matrices of the lower and the upper half of K."""
        b, half = self.b, self.tile.product_k // 2
        column = self.warp_column + p * (PAIR * PRODUCT_N)
        second = (self.lane // 16) * PRODUCT_N
        if not self.tile.b.loads_matrices:
            return self._by_lanes(self.shared_b, stage, column, k, type, columns_first=False)
        if self.tile.b.along_k:
            term = ((self.lane // 8) % 2) * half
            indices = [column + (second + self.lane % 8), k + term]
        else:
            indices = [k + self.lane % 16, column + second]
        return b.load_matrix(self.shared_b, [stage, *indices], type, transpose=not self.tile.b.along_k)

    def _by_lanes(
        self, buffer: SSAValue, stage: Index, first: Index, k: Index, type: VectorType, *, columns_first: bool
    ) -> SSAValue:
        """What `loop.load_matrix` would give of two times two transposed matrices of 32-bit elements: each lane loads
        its element of each, of the next 8 columns before or after those of the next 4 rows."""
        b = self.b
        elements = b.alloc("elements", type.get_shape(), type.get_element_type())
        with b.tasks(["u", "v"], repeat(2, 2), unroll=True) as (u, v):
            block, half = (v, u) if columns_first else (u, v)
            row = k + (half * 4 + self.lane % 4)
            column = first + (block * 8 + self.lane // 4)
            indices = [u, v, 0] if len(type.get_shape()) == 3 else [u * 2 + v, 0]
            b.store(b.load(buffer, [stage, row, column]), elements, indices)
        return b.load_vector(elements, type)

    def _rounded(self, fragment: SSAValue) -> SSAValue:
        """Operands of 32 bits lose the bits that a tile product does not read."""
        return self.b.insert(RoundTf32Op(fragment)) if self.elements[0] == f32 else fragment

    def _add_up(self, tiles: int, tile_index: Index, slice: Index, products: Sequence[int]) -> None:
        """The tile's last block adds up the slices, and stores."""
        b, tile = self.b, self.tile
        sums = PartialSums(b, tiles, self.slices.number, tile.threads, tile.accumulators, self.sums)
        assert sums.lanes == ELEMENTS_PER_LANE, "a vector is a fragment"

        def element(v: Index, e: Index) -> Scalar:
            fragment = b.load(self.acc, v.delinearize(products))
            return b.extract(fragment, [e // 2, e % 2], self.sums)

        last = sums.keep(tile_index, slice, element)
        with b.when(last):
            self.total = b.alloc("total", [tile.accumulators], self.sums)
            sums.add_up(tile_index, self.total)
            self._store()

    def _accumulated(self, r: Index, i: Index, j: Index) -> Scalar:
        """Element (i, j) of the r-th 16 rows of the warp's tile, which this lane must hold."""
        b = self.b
        where = [r, j // (PAIR * PRODUCT_N), (j // PRODUCT_N) % PAIR]
        upper, odd = i // 8, j % 2
        if self.total is None:
            return b.extract(b.load(self.acc, where), [upper, odd], self.sums)
        fragment = r * (self.tile.warp[1] // PRODUCT_N) + j // PRODUCT_N
        return b.load(self.total, [fragment * ELEMENTS_PER_LANE + (upper * 2 + odd)])

    def _store(self) -> None:
        if self.tile.staged_bytes:
            self._store_staged()
        else:
            self._store_directly()

    def _store_directly(self) -> None:
        """32-bit elements: four lanes store the 32 bytes of a sector."""
        b, (height, width) = self.b, self.tile.warp
        with (
            b.loop("r", height // PRODUCT_M, unroll=True) as r,
            b.tasks(["i", "j"], repeat(1, width // PRODUCT_N) * FRAGMENT, self.lane, unroll=True, vector=True) as (
                i,
                j,
            ),
        ):
            self._store_element(self._accumulated(r, i, j), r, i, j)

    def _store_staged(self) -> None:
        """16-bit elements: rounded, and handed through shared memory to lanes that store 16 bytes of a row each."""
        b, (height, width) = self.b, self.tile.warp
        chunk = self.tile.a.chunk
        slab = SharedTile(True, PRODUCT_M, width, 2)
        shape = [prod(self.tile.warps), PRODUCT_M, width]
        element = self.elements[0]
        staged = b.alloc("staged", shape, element, Space.SHARED, slab.swizzle)
        with b.loop("r", height // PRODUCT_M, unroll=True) as r:
            b.barrier()
            with b.tasks(["i", "j"], repeat(1, width // PRODUCT_N) * FRAGMENT, self.lane, unroll=True, vector=True) as (
                i,
                j,
            ):
                rounded = b.insert(arith.TruncFOp(self._accumulated(r, i, j), element))
                b.store(rounded, staged, [self.warp, i, j])
            b.barrier()
            with (
                b.tasks(["i", "c"], _slab_tasks(slab), self.lane, unroll=True) as (i, c),
                b.tasks(["e"], repeat(chunk), unroll=True, vector=True) as (e,),
            ):
                j = c * chunk + e
                self._store_element(b.load(staged, [self.warp, i, j]), r, i, j)

    def _store_element(self, value: Scalar, r: Index, i: Index, j: Index) -> None:
        """Stores element (i, j) of the r-th 16 rows of the warp's tile, if C has it."""
        b, tile = self.b, self.tile
        row = self.row + (self.warp_row + (r * PRODUCT_M + i))
        column = self.column + (self.warp_column + j)
        inside = [row < self.m] if self.m % tile.m else []
        inside += [column < self.n] if self.n % tile.n else []
        b.store(value, b.output, [*self.batch_index, row, column], all_of(inside))


def _slab_tasks(slab: SharedTile) -> TaskMapping:
    """Rows and chunks of a warp's slab for its 32 lanes."""
    wide = slab.columns // slab.chunk
    high = WARP // wide
    return repeat(slab.rows // high, 1) * spatial(high, wide)
