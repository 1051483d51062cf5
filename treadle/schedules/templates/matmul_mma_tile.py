"""The extents of a product on tensor cores: tiles of a block, of a warp and of one instruction."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import TensorType

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import Swizzle, swizzle_of_rows
from treadle.dialects.loop.tiles import PRODUCT_K, WARP
from treadle.dialects.task import Mapping, repeat, spatial
from treadle.schedules.access_analysis import has_contiguous_rows
from treadle.schedules.kernel_builder import Index
from treadle.schedules.template import Choices, number

CHUNK_BYTES = 16
"""What one thread copies at a time: the widest asynchronous copy, and a row of the matrices that a warp loads."""
PRODUCT_M, PRODUCT_N = 16, 8
FRAGMENT: Mapping = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
"""Which elements of C's 16 x 8 tile a lane holds."""


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


@dataclass(frozen=True)
class SharedTile:
    """An operand's tile in shared memory: rows of consecutive elements, mostly as they lie in global memory.

    along_k: whether a row runs along K; rows, columns: the extents; element_bytes: of one element
    """

    along_k: bool
    rows: int
    columns: int
    element_bytes: int

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
        """Rows and chunks of rows, consecutive threads on consecutive chunks; the first threads only if there are
        fewer chunks than threads."""
        wide = self.columns // self.chunk
        high = min(self.rows, threads // wide)
        return repeat(self.rows // high, 1) * spatial(high, wide)


@dataclass(frozen=True)
class MmaTile:
    """The extents that a choice of knobs implies for operands of an element type.

    m, n: of the block's tile; block_k: of the steps along K; warps: along M and N; stages: tiles in shared memory;
    group: rows of blocks that run next to one another
    """

    m: int
    n: int
    block_k: int
    warps: tuple[int, int]
    stages: int
    group: int
    a: SharedTile
    b: SharedTile
    product_k: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * prod(self.warps)

    @property
    def warp(self) -> tuple[int, int]:
        """Rows and columns of a warp's tile."""
        return self.m // self.warps[0], self.n // self.warps[1]

    @property
    def accumulators(self) -> int:
        """Elements of C that a thread holds."""
        return self.m * self.n // self.threads

    @property
    def staged_bytes(self) -> int:
        """Shared memory through which 16-bit elements of C reach threads that store 16 bytes: a row of fragments."""
        return PRODUCT_M * self.warps[0] * self.n * self.a.element_bytes if self.a.element_bytes == 2 else 0

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.stages * (self.a.bytes + self.b.bytes) + self.staged_bytes

    @property
    def registers(self) -> int:
        """Registers of a thread that hold C, and one step's fragments of A and B."""
        rows, columns = self.warp
        return self.accumulators + rows // PRODUCT_M * 4 + columns // PRODUCT_N * 2


def mma_tile(anchor: MatmulOp, choices: Choices) -> MmaTile:
    """The extents for an anchor; its operands' tiles lie as the operands do, those of bytes along K, since matrices of
    bytes are not transposed while they are loaded."""
    assert isinstance(anchor.a.type, TensorType)
    element = anchor.a.type.get_element_type()
    block, warps = choices["block"], choices["warps"]
    assert isinstance(block, tuple) and isinstance(warps, tuple)
    m, n = (int(extent) for extent in block)
    along_m, along_n = (int(extent) for extent in warps)
    block_k, size = number(choices, "block_k"), byte_width(element)
    a_along_k = size == 1 or has_contiguous_rows(anchor, anchor.a)
    b_along_k = size == 1 or not has_contiguous_rows(anchor, anchor.b)
    return MmaTile(
        m, n, block_k, (along_m, along_n), number(choices, "stages"), number(choices, "group"),
        SharedTile(a_along_k, *((m, block_k) if a_along_k else (block_k, m)), size),
        SharedTile(b_along_k, *((n, block_k) if b_along_k else (block_k, n)), size),
        PRODUCT_K[element],
    )  # fmt: skip
