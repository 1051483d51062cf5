"""Matrix products on tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, TensorType, VectorType, f32
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.loop.tiles import WARP, fragments
from treadle.dialects.schedule import Choice
from treadle.dialects.task import Mapping as TaskMapping
from treadle.dialects.task import repeat, spatial
from treadle.schedules.access_analysis import has_contiguous_rows
from treadle.schedules.kernel_builder import Index, all_of, kernel_builder
from treadle.schedules.reduction_end import reduction_end, with_end
from treadle.schedules.split_k import (
    SPLIT_K,
    PartialSums,
    Slices,
    block_coordinates,
    first_that_fills,
    number_of_slices,
    shared_out,
    tiles_of,
)
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_divides, check_limit, check_limits, number
from treadle.schedules.templates.matmul_mma_tile import (
    FRAGMENT,
    PRODUCT_M,
    PRODUCT_N,
    MmaTile,
    SharedTile,
    mma_tile,
    place_in_a,
    place_in_b,
)
from treadle.target import Target

_TERMS = 256
"""Terms of a slice, at least: fewer are multiplied faster than their sum is written and read."""
_BLOCKS = (
    (16, 128), (32, 64), (64, 32), (64, 64), (64, 128), (128, 32), (128, 64), (128, 128), (128, 256), (256, 128),
)  # fmt: skip
_NARROW = 32
"""Columns of the narrowest tiles: those of products that have no more, such as convolutions to few channels."""
_MOST_SPLIT = 64
"""Accumulators of a thread up to which there are registers for them and for what adds slices up."""
_SMALLEST_WARP_TILE = 16 * 32
_MOST_GATHERING = 64
"""The same of a thread that loads single bytes, each by a load of its own, all of which are under way at once."""
_LEAST_COPY = 4
"""Bytes of the smallest asynchronous copy."""
_LARGEST_AHEAD = 384
"""Bytes along K of all stages: copies that start earlier take shared memory from other blocks, and win nothing."""
_OTHER_REGISTERS = 64
"""What addresses, predicates and the loop take beside matrices; generous, since a spill costs more than it saves."""


class MatmulMma(Template):
    """The tensor-core product: `stages` tiles of A and B in swizzled shared memory, filled by asynchronous copies of
    16 bytes a thread, loaded as fragments and multiplied by warps, C accumulated in f32 and rounded once.

    Every size is covered: copies beyond the matrices write 0, stores beyond C are left out.
    Source: Hidet (ASPLOS 2023), sections 4.2 and 5.1.2; CUTLASS' multistage pipelines for the order of its steps.
    """

    name: ClassVar[str] = "matmul_mma"
    kind: ClassVar[str] = "cuda"
    copies_ahead: ClassVar[bool] = True
    least_capability: ClassVar[int] = 80
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("block", _BLOCKS, "rows and columns of a block's tile of C"),
        Knob("warps", ((1, 4), (2, 2), (2, 4), (4, 2)), "warps of a block along M and N"),
        Knob("block_k", (32, 64), "extent of the tiles along K"),
        Knob("stages", (2, 3, 4, 5), "tiles of A and of B in shared memory"),
        Knob("group", (1, 8), "rows of blocks that run next to one another, so that they share B's columns in L2"),
        SPLIT_K,
    )
    default_block_k: ClassVar[int] = 32

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and isinstance(anchor.type.get_element_type(), Float16Type | BFloat16Type)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, MatmulOp)
        m, block_k, warps = anchor.shape[-2], self.default_block_k, self._preferred(anchor)

        def split_k(rows: int, columns: int) -> int:
            return _slices(anchor, rows, columns, block_k, target)

        block = first_that_fills(anchor, list(warps), split_k, target.multiprocessors)
        return {
            "block": block,
            "warps": warps[block],
            "block_k": block_k,
            "stages": 4,
            "group": 8 if ceil(m / block[0]) >= 8 else 1,
            "split_k": split_k(*block),
        }

    def _preferred(self, anchor: MatmulOp) -> dict[tuple[int, int], tuple[int, int]]:
        """Tiles in the order of preference, and their warps."""
        m, n = anchor.shape[-2:]
        if n <= _NARROW:
            return {(128, _NARROW): (4, 2), (64, _NARROW): (2, 2)}
        if m <= 16:
            return {(16, 128): (1, 4)}
        return {(128, 128): (2, 2), (64, 128): (2, 2), (64, 64): (2, 2), (32, 64): (2, 2)}

    def dependent(self, anchor: Anchor, target: Target) -> Mapping[str, Callable[[Choices], Choice]]:
        def split_k(choices: Choices) -> Choice:
            assert isinstance(anchor, MatmulOp)
            tile = mma_tile(anchor, choices)
            splits = tile.accumulators <= _MOST_SPLIT
            return _slices(anchor, tile.m, tile.n, tile.block_k, target) if splits else 1

        return {"split_k": split_k}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, MatmulOp)
        tile = mma_tile(anchor, choices)
        self._check_warps(tile)
        self._check_slices(tile, shared_out(anchor, number(choices, "split_k"), tile.block_k))
        self._check_columns(tile, anchor.shape[-1])
        used = (
            ("threads", tile.threads, target.max_threads_per_block),
            ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
            ("registers a thread", tile.registers + _OTHER_REGISTERS, target.registers_per_thread),
            ("bytes along K in all stages", tile.stages * tile.block_k * tile.a.element_bytes, _LARGEST_AHEAD),
        )
        who = f"{self.name} with {tile.m} x {tile.n} x {tile.block_k} tiles in {tile.stages} stages"
        check_limits(who, used, target)
        for operand, shared in (("A", tile.a), ("B", tile.b)):
            check_divides(
                f"chunks of {operand}'s tile that all threads copy",
                min(tile.threads, shared.chunks),
                shared.chunks,
                f"{self.name}: {operand}'s tile of {shared.chunks} chunks is not shared out evenly by "
                f"{tile.threads} threads, {shared.chunks % tile.threads} remain",
                accepted="a tile whose chunks of 16 bytes are a multiple of the threads",
            )

    def _check_warps(self, tile: MmaTile) -> None:
        """TreadleError for warps' tiles that are too small or too narrow to reuse what they load."""
        rows, columns = tile.warp
        message = (
            f"{self.name}: {tile.warps[0]} x {tile.warps[1]} warps share {tile.m} x {tile.n} tiles as {rows} x "
            f"{columns}, {max(0, _SMALLEST_WARP_TILE - rows * columns)} elements too few for a warp"
        )
        accepted = f"multiples of 16, at least {_SMALLEST_WARP_TILE} elements, one side at most twice the other"
        for what, used, limit in (
            ("elements that a warp needs", _SMALLEST_WARP_TILE, rows * columns),
            ("elements along the longer side of a warp's tile", max(rows, columns), 2 * min(rows, columns)),
            ("rows of a warp's products", rows + -rows % 16, rows),
            ("columns of a warp's products", columns + -columns % 16, columns),
        ):
            check_limit(what, used, limit, message=message, accepted=accepted)

    def _check_slices(self, tile: MmaTile, slices: Slices) -> None:
        """TreadleError for slices without terms, and for more accumulators than can be added up in registers."""
        slices.check(self.name)
        if slices.number > 1:
            check_limit(
                "accumulators a thread that are added up",
                tile.accumulators,
                _MOST_SPLIT,
                message=f"{self.name} with {slices.number} slices and {tile.accumulators} accumulators a thread has "
                f"{tile.accumulators - _MOST_SPLIT} too many to add them up in registers",
                accepted=f"at most {_MOST_SPLIT} accumulators a thread, or split_k = 1",
            )

    def _check_columns(self, tile: MmaTile, columns: int) -> None:
        """TreadleError for narrow tiles of wide products, which would load A too often, and the other way round."""
        narrow = columns <= _NARROW
        if narrow == (tile.n <= _NARROW) or (narrow and tile.n <= 2 * _NARROW):
            return
        what, used, allowed = (
            ("columns of a narrow product's tile", tile.n, 2 * _NARROW)
            if narrow
            else ("columns that a wide product's tile needs", _NARROW + 1, tile.n)
        )
        check_limit(
            what,
            used,
            allowed,
            message=f"{self.name}: tiles of {tile.n} columns for a product of {columns} columns are too "
            f"{'wide' if narrow else 'narrow'} by {used - allowed}",
            accepted=f"at most {2 * _NARROW} columns for products of at most {_NARROW}, else more than {_NARROW}",
        )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        tile = mma_tile(anchor, choices)
        return MmaKernel(anchor, tile, number(choices, "split_k")).build(name)


class MatmulTf32(MatmulMma):
    """The same of f32 matrices, whose elements are rounded to tf32, 10 bits of mantissa, before they are multiplied.

    It computes another result than f32, hence it is a default only for a product that allows it: `precision = "tf32"`.
    """

    name: ClassVar[str] = "matmul_tf32"
    precision: ClassVar[str] = "tf32"
    knobs: ClassVar[tuple[Knob, ...]] = (
        *(knob for knob in MatmulMma.knobs if knob.name != "block_k"),
        Knob("block_k", (16, 32), "extent of the tiles along K"),
    )
    default_block_k: ClassVar[int] = 16

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and isinstance(anchor.type.get_element_type(), Float32Type)

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        super().limits(anchor, choices, target)
        assert isinstance(anchor, MatmulOp)
        tile = mma_tile(anchor, choices)
        overhang = anchor.shape[-2] % tile.m or anchor.shape[-1] % tile.n
        # Found by compiling: copies of twice as many bytes as f16 take an address and a predicate each.
        if overhang and tile.accumulators > _MOST_SPLIT:
            check_limit(
                "terms of tiles that overhang",
                tile.block_k,
                self.default_block_k,
                message=f"{self.name}: {tile.accumulators} accumulators a thread leave no registers for the predicates "
                f"of copies with block_k = {tile.block_k}, {tile.block_k - self.default_block_k} too many, in tiles "
                f"that overhang by {overhang}",
                accepted=f"block_k = {self.default_block_k}, or at most {_MOST_SPLIT} accumulators a thread",
            )


class MatmulInt8(MatmulMma):
    """The same of bytes, each operand's signed or not, with sums in i32, which are exact.

    Both tiles in shared memory have rows along K, since no instruction transposes bytes: constants lie so
    (`graph-multiply-bytes`), and of other operands that do not each byte is loaded by itself, without asynchronous
    copies.
    """

    name: ClassVar[str] = "matmul_int8"
    knobs: ClassVar[tuple[Knob, ...]] = (
        *(knob for knob in MatmulMma.knobs if knob.name != "block_k"),
        Knob("block_k", (64, 128), "extent of the tiles along K"),
    )
    default_block_k: ClassVar[int] = 64

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and anchor.sums is not None

    def _preferred(self, anchor: MatmulOp) -> dict[tuple[int, int], tuple[int, int]]:
        tiles = super()._preferred(anchor)
        if not _gathers_bytes(anchor):
            return tiles
        return {(m, n): warps for (m, n), warps in tiles.items() if m * n <= _MOST_GATHERING * WARP * prod(warps)}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        super().limits(anchor, choices, target)
        assert isinstance(anchor, MatmulOp)
        accumulators = mma_tile(anchor, choices).accumulators
        # Found by compiling.
        if _gathers_bytes(anchor):
            check_limit(
                "accumulators a thread beside single bytes",
                accumulators,
                _MOST_GATHERING,
                message=f"{self.name}: {accumulators} accumulators a thread, {accumulators - _MOST_GATHERING} too "
                "many, leave no registers for copies of single bytes",
                accepted=f"at most {_MOST_GATHERING} accumulators a thread, or operands along K in groups of "
                f"{_LEAST_COPY} bytes",
            )


def _gathers_bytes(anchor: MatmulOp) -> bool:
    """Whether an operand's bytes do not lie together along K as the smallest asynchronous copy moves them."""
    along_k = has_contiguous_rows(anchor, anchor.a, together=_LEAST_COPY)
    along_k = along_k and has_contiguous_rows(anchor, anchor.b, across=True, together=_LEAST_COPY)
    return not along_k or anchor.reduction_extent % _LEAST_COPY > 0


def _slices(anchor: MatmulOp, rows: int, columns: int, block_k: int, target: Target) -> int:
    """Into how many slices the terms of tiles of `rows` x `columns` are split."""
    terms, blocks = anchor.reduction_extent, tiles_of(anchor, rows, columns)
    return number_of_slices(blocks, terms, block_k, _TERMS, target.multiprocessors)


# Writes the kernel of a product on tensor cores.

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
        self.end = reduction_end(anchor)
        self.operands = with_end([anchor.a, anchor.b], self.end)
        self.b = kernel_builder(self.operands, anchor.type)

    def build(self, name: str) -> KernelOp:
        """The kernel; to be called once."""
        b, tile = self.b, self.tile
        rows, columns = ceil(self.m / tile.m), ceil(self.n / tile.n)
        batch = self.anchor.shape[:-2]
        tiles = rows * columns * prod(batch)
        tile_index, slice = b.block, None
        if self.slices.number > 1:
            tile_index, slice = b.block % tiles, b.block // tiles
        of_matrix = tile_index % (rows * columns) if batch else tile_index
        row, column = block_coordinates(of_matrix, rows, columns, tile.group)
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
        each = self.slices.length(b, self.end, self.operands)
        self.first = None if slice is None else slice * each
        self._pipeline(each)
        if slice is None:
            self._store()
        else:
            self._add_up(tiles, tile_index, slice, products)
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        return b.kernel(name, self.operands, self.anchor.type, tiles * self.slices.number, tile.threads, comment)

    def _shared(self, name: str, shape: SharedTile, element: Attribute) -> SSAValue:
        extents = [self.tile.stages, shape.rows, shape.columns]
        return self.b.alloc(f"shared_{name}", extents, element, Space.SHARED, shape.swizzle)

    def _pipeline(self, steps: Index | int) -> None:
        """`stages` tiles in shared memory: one is multiplied while the others are being copied.

        As many groups of copies are committed before the loop as it expects, whether or not there are such steps.
        """
        b, ahead = self.b, self.tile.stages - 1
        with b.loop("s", min(ahead, steps) if isinstance(steps, int) else ahead) as s:
            with b.when(None if isinstance(steps, int) else s < steps):
                self._fetch(s, s)
            b.commit()
        for _ in range(ahead - steps if isinstance(steps, int) else 0):
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
                product = b.mma(b.load(regs_a, [r]), right, b.load(self.acc, [r, p, h]))
                b.store(product, self.acc, [r, p, h])

    def _fragment_of_a(self, stage: Index, r: Index, k: Index, type: VectorType) -> SSAValue:
        """16 rows of A: matrices of the upper and the lower rows, first those of the lower half of K."""
        b, half = self.b, self.tile.product_k // 2
        row = self.warp_row + r * PRODUCT_M
        if not self.tile.a.loads_matrices:
            return self._by_lanes(self.shared_a, stage, row, k, type, columns_first=True)
        row, term = place_in_a(self.lane, row, k, half, along_k=self.tile.a.along_k)
        indices = [row, term] if self.tile.a.along_k else [term, row]
        return b.load_matrix(self.shared_a, [stage, *indices], type, transpose=not self.tile.a.along_k)

    def _fragments_of_b(self, stage: Index, p: Index, k: Index, type: VectorType) -> SSAValue:
        """Two times 8 columns of B: of each, matrices of the lower and the upper half of K."""
        b, half = self.b, self.tile.product_k // 2
        column = self.warp_column + p * (PAIR * PRODUCT_N)
        if not self.tile.b.loads_matrices:
            return self._by_lanes(self.shared_b, stage, column, k, type, columns_first=False)
        column, term = place_in_b(self.lane, column, k, half, along_k=self.tile.b.along_k)
        indices = [column, term] if self.tile.b.along_k else [term, column]
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
        return self.b.round_tf32(fragment) if self.elements[0] == f32 else fragment

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
                rounded = b.truncated(self._accumulated(r, i, j), element)
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
