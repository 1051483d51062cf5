"""Matrix product on a CPU: a register tile of rows by vectors, parallel over column panels and row chunks."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp
from treadle.dialects.graph.definition import widened
from treadle.dialects.graph.dtypes import accumulator, byte_width, is_float
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.errors import TreadleError
from treadle.schedules.access_analysis import panel_strides, panel_width, reduction_digits
from treadle.schedules.kernel_builder import (
    Index,
    IndexLike,
    KernelBuilder,
    Predicate,
    all_of,
    kernel_builder,
    narrowed,
)
from treadle.schedules.register_tile import (
    MOST_ROWS,
    MOST_VECTORS,
    check_tile,
    default_rows,
    default_vectors,
    panel_columns,
    tall_rows,
)
from treadle.schedules.template import (
    Anchor,
    Choices,
    Knob,
    Template,
    check_limit,
    number,
    shared_by_batch,
)
from treadle.target import KIB, Target

_LONGEST_CHUNK = 1024
_EVEN = (1.02, 1.07)
"""How many times its part of the tiles a core may have; the second where no chunks are as even as the first says."""
_MOST_PASSES = 64
_LEAST_DEPTH = 64
"""Terms of a pass, so that what it costs a tile to fetch and leave its sums is little."""
_DEPTH = 128
"""Terms of a pass that are worth trying: of a panel of 64 columns they take 32 KiB."""
_WIDEST = 4
"""Vectors of the widest panels that are worth trying."""
_LEAST_CACHE = 48 * KIB
"""Of first caches in which parts of panels were faster (docs/adr/0048); with 32 KiB, on a core that starts one product
of 64 bytes a cycle, they were not (docs/adr/0032)."""


_LEFT = Fraction(2, 5)
"""The part of the second cache that rows of A of a chunk may take (docs/adr/0049)."""


class MatmulCpu(Template):
    """`C[m, n] = sum_k A[m, k] * B[k, n]` with the accumulators of `rows` rows by `vectors` vectors in registers.

    A is read in place and broadcast, B by vectors. A block computes `chunk` rows of one panel of `vectors` vectors (of
    16 columns with AVX-512), as wide as the panels of a constant that `graph-pack-weights` laid out; blocks of one
    chunk follow one another, so that its rows of A stay in the cache. With `pack`, a block first copies its panel of B
    to a local buffer, which pays where B is strided or computed, many rows use it, and it stays in the second cache.
    With `passes`, all rows of a chunk use a part of K, of which the panel's rows then stay in the first cache, before
    the next part follows; their sums wait in a buffer. Parts have equally many terms, but for the last one, which has
    what is left. Terms are added in the same order as in a single pass.
    Sums of 16-bit floats run in float32, and are rounded once.
    """

    name: ClassVar[str] = "matmul_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", tuple(range(1, MOST_ROWS + 1)), "rows of a register tile"),
        Knob("vectors", tuple(range(1, MOST_VECTORS + 1)), "vectors of a register tile's row, and of a panel of B"),
        Knob("chunk", tuple(range(1, _LONGEST_CHUNK + 1)), "rows that a block computes"),
        Knob("pack", (True, False), "copy the panel of B before use"),
        Knob("passes", tuple(range(1, _MOST_PASSES + 1)), "parts of K, each used by all rows of a chunk in turn"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and is_float(anchor.type.get_element_type())

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        m, k, n = _extents(anchor)
        vectors = _vectors_of_panels(anchor, target) or default_vectors(target, n, k)
        columns, rows = panel_columns(target, vectors), default_rows(target, vectors, m)
        panels = ceil(n / columns)
        tiles = ceil(m / rows)
        wanted = _default_chunks(anchor, panels, rows, target, 2 * m * min(n, columns) * k)
        chunk = min(rows * ceil(tiles / wanted), _LONGEST_CHUNK // rows * rows)
        along_k, along_n = right_strides(anchor, columns)
        # Vectors of B need neighbouring columns; rows far apart cost a page each.
        far = along_k is None or (along_k >= 768 and k >= 1024) or along_k >= 2048
        stays = k * columns * _element_bytes(anchor) <= target.l2_bytes // 2
        pack = m >= 16 and (along_n != 1 or (far and m >= 64 and stays))
        passes = 1 if pack or chunk <= rows else _default_passes(anchor, target, columns, chunk)
        return {"rows": rows, "vectors": vectors, "chunk": chunk, "pack": pack, "passes": passes}

    def decided(self, anchor: Anchor, target: Target) -> Choices:
        """A tile of a constant that is laid out in panels is as wide as they are, and a short K is not divided."""
        vectors, k = _vectors_of_panels(anchor, target), _extents(anchor)[1]
        return ({} if vectors is None else {"vectors": vectors}) | ({"passes": 1} if _most_passes(k) == 1 else {})

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """A is read for every panel, one by one, which takes as long as a vector; B for every chunk, or for every tile
        of rows if it is not packed."""
        assert isinstance(anchor, MatmulOp)
        m, _, n = _extents(anchor)
        choices = self.default(anchor, target)
        rows = number(choices, "chunk" if choices["pack"] else "rows")
        panels = ceil(n / panel_columns(target, number(choices, "vectors")))
        reads = (anchor.a, panels * target.lanes), (anchor.b, ceil(m / rows))
        return sum((shared_by_batch(anchor, x) * times for x, times in reads if x is operand), start=Fraction(0))

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        rows, vectors, chunk = (number(choices, name) for name in ("rows", "vectors", "chunk"))
        laid_out = _vectors_of_panels(anchor, target)
        if laid_out not in (None, vectors):
            raise TreadleError(
                f"matmul_cpu: the right operand lies in memory as panels of {laid_out * target.lanes} columns, "
                f"not of {vectors * target.lanes}",
                accepted=f"vectors = {laid_out}",
            )
        check_tile(self.name, rows, vectors, chunk, target)
        _check_passes(_extents(anchor)[1], number(choices, "passes"))

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A tile has no more rows than the product, nor vectors unless panels decide them, and the chunks of as many
        blocks are even; a chunk of one tile has one pass, since no other rows use the panel."""
        m, _, n = _extents(anchor)
        rows = min(number(choices, "rows"), m)
        tiles = ceil(m / rows)
        blocks = ceil(m / number(choices, "chunk"))
        laid_out = _vectors_of_panels(anchor, target)
        vectors = laid_out or min(number(choices, "vectors"), ceil(n / target.lanes))
        chunk = min(rows * ceil(tiles / blocks), _LONGEST_CHUNK // rows * rows)
        passes = number(choices, "passes") if chunk > rows else 1
        return {**choices, "rows": rows, "vectors": vectors, "chunk": chunk, "passes": passes}

    def of_part(self, anchor: Anchor, part: Anchor, choices: Choices, target: Target) -> Choices:
        """Chunks are as long as by default, in whole tiles: more of them would be more blocks to look at that nobody
        needs, and blocks of few rows end early anyway."""
        del part
        rows, default = number(choices, "rows"), number(self.default(anchor, target), "chunk")
        return {**choices, "chunk": min(rows * ceil(default / rows), _LONGEST_CHUNK // rows * rows)}

    def listed(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """The tallest tiles of up to four vectors; a block of one tile, or of 4, 16, 64 or all of them; the panel of B
        in place, copied, or in parts that leave room in the first cache. Divisors of an extent do not matter: products
        of 2039 and of 2048 have as many candidates."""
        m, k, _ = _extents(anchor)
        tiles = ((rows, vectors, chunk) for rows, vectors in self._tiles(anchor, target) for chunk in _chunks(m, rows))
        panels = (False, 1), (True, 1), (False, min(_most_passes(k), ceil(k / _DEPTH)))
        names = [knob.name for knob in self.knobs]
        tried = (dict(zip(names, (*tile, *panel), strict=True)) for tile in tiles for panel in panels)
        return self.canonical_forms(anchor, target, tried)

    def _tiles(self, anchor: Anchor, target: Target) -> list[tuple[int, int]]:
        """The rows and vectors of tiles that leave few registers unused, and are no larger than the product."""
        m, _, n = _extents(anchor)
        laid_out = _vectors_of_panels(anchor, target)
        widths = range(1, min(_WIDEST, ceil(n / target.lanes)) + 1) if laid_out is None else (laid_out,)
        return [(rows, vectors) for vectors in widths for rows in tall_rows(target, vectors, m)]

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        return MatmulBody(anchor, choices, target).build(name)


def _default_chunks(anchor: Anchor, panels: int, rows: int, target: Target, operations: int) -> int:
    """How many chunks the M rows are cut into where none are chosen, for tiles of some rows; `operations` are those of
    a panel.

    As few as let what is read of A stay in the second cache, where B has more elements than A and the cores have
    equally many panels: one, if that is little, and each panel comes from memory to one core only. `treadle bench
    --against` without this rule, a Xeon with AVX-512 and FP16, two threads, everything else being equal: ResNet-50 1.02
    times as fast (quartiles 0.96 to 1.13), Inception-V3 1.03 (1.01 to 1.07), MobileNet-V2 1.05 (0.94 to 1.08); several
    chunks, where A is larger: docs/adr/0049. Else about eight blocks a core, of 2 MFLOP at least: the nearest multiple
    of the cores that makes chunks even, so that a core computes the same rows of an image in each kernel; measurements:
    docs/adr/0052.
    """
    m, _, n = _extents(anchor)
    tiles = ceil(m / rows)
    if n > m and panels % target.cores == 0:
        return min(tiles, ceil(_left_bytes(anchor) / (target.l2_bytes * _LEFT)))
    wanted = max(1, min(tiles, ceil(8 * target.cores / panels), ceil(operations / 2e6)))
    if wanted == 1:
        return 1
    fewest = ceil(tiles / (_LONGEST_CHUNK // rows) / target.cores) * target.cores
    most = min(tiles, 4 * max(fewest, wanted))
    counts = sorted(range(fewest, most + 1, target.cores), key=lambda count: abs(count - wanted))
    loads = {count: _load(count, tiles, target.cores) for count in counts}
    even = next((count for load in _EVEN for count in counts if loads[count] <= load), None)
    return min(counts, key=lambda count: loads[count], default=wanted) if even is None else even


def _load(count: int, tiles: int, cores: int) -> float:
    """The tiles of the core that has the most to those of an even part; infinite where cores share a chunk."""
    each = ceil(tiles / count)
    chunks = ceil(tiles / each)
    return each * chunks / tiles if chunks % cores == 0 else inf


def _left_bytes(anchor: Anchor) -> int:
    """What a product reads of its left operand, each element once: through a prologue, such as the windows of a
    convolution, no more than there is."""
    assert isinstance(anchor, MatmulOp)
    m, k, _ = _extents(anchor)
    producer = anchor.a.owner
    read = [t.type for t in producer.tensors()] if isinstance(producer, ComputeOp) else []
    there = sum(prod(type.get_shape()) for type in read if isinstance(type, TensorType))
    return min(m * k, there or m * k) * _element_bytes(anchor)


def _default_passes(anchor: Anchor, target: Target, columns: int, chunk: int) -> int:
    """The fewest equal parts, each of which of a constant panel takes no more than three quarters of the first cache,
    and is whole rows of terms of A; 1 where there are none.

    1 as well where the rows of A of a chunk do not stay in the second cache: they would come from farther away in short
    pieces. One thread, 2047 and 2048 cubed by a constant, on a machine whose first caches have 48 KiB: 23 and 16 passes
    take 1.24 and 1.26 times as long as one.
    """
    if _vectors_of_panels(anchor, target) is None or target.l1_bytes < _LEAST_CACHE:
        return 1
    m, k, _ = _extents(anchor)
    if _left_bytes(anchor) * min(chunk, m) / m > target.l2_bytes * _LEFT:
        return 1
    parts = ((passes, k // passes) for passes in range(1, _most_passes(k) + 1) if k % passes == 0)
    row, most = columns * _element_bytes(anchor), target.l1_bytes * 3 // 4
    return next((n for n, depth in parts if depth * row <= most and _is_whole(anchor, depth)), 1)


def _is_whole(anchor: Anchor, depth: int) -> bool:
    """Whether so many terms are whole rows of what A reads, such as channels and taps of a convolution: then the loops
    of a pass are those of the product."""
    assert isinstance(anchor, MatmulOp)
    producer = anchor.a.owner
    for extent in reduction_digits(producer) if isinstance(producer, ComputeOp) else ():
        if depth % extent:
            return extent % depth == 0
        depth //= extent
    return True


def _extents(anchor: Anchor) -> tuple[int, int, int]:
    assert isinstance(anchor, MatmulOp)
    return anchor.shape[-2], anchor.reduction_extent, anchor.shape[-1]


def _chunks(m: int, rows: int) -> list[int]:
    """The chunks worth trying of tiles of `rows` rows: of 1, 4, 16 and 64 tiles, and of as many as there may be."""
    most = min(ceil(m / rows), _LONGEST_CHUNK // rows)
    return [rows * count for count in (1, 4, 16, 64) if count < most] + [rows * most]


def _depth(k: int, passes: int) -> int:
    """The terms of a pass but the last one, which may have fewer."""
    return ceil(k / passes)


def _most_passes(k: int) -> int:
    """The most passes whose parts of K terms are not too short."""
    return max(1, min(_MOST_PASSES, k // _LEAST_DEPTH))


def _check_passes(k: int, passes: int) -> None:
    check_limit(
        "passes",
        passes,
        _most_passes(k),
        message=f"matmul_cpu: {passes} passes over K = {k} have {_depth(k, passes)} terms each, "
        f"fewer than {_LEAST_DEPTH}",
    )


def _vectors_of_panels(anchor: Anchor, target: Target) -> int | None:
    """The vectors of the panels that the right operand is laid out in; None where any width is as good."""
    assert isinstance(anchor, MatmulOp)
    producer = anchor.b.owner
    width = panel_width(producer) if isinstance(producer, ComputeOp) else None
    vectors, rest = (0, 0) if width is None else divmod(width, target.lanes)
    return vectors if 1 <= vectors <= MOST_VECTORS and not rest else None


def _element_bytes(anchor: Anchor) -> int:
    return byte_width(anchor.type.get_element_type())


def right_strides(anchor: Anchor, columns: int) -> tuple[int | None, int | None]:
    """How the right operand advances in memory along K, and along N in a panel; through a prologue if it has one."""
    assert isinstance(anchor, MatmulOp)
    producer = anchor.b.owner
    return panel_strides(producer, columns) if isinstance(producer, ComputeOp) else (anchor.shape[-1], 1)


def equal_panels(anchor: MatmulOp, choices: Choices, target: Target) -> list[Choices]:
    """The same choices with panels of two vectors or more that are all equal, and their default rows; none where the
    panels are, or lie so in memory."""
    m, _, n = _extents(anchor)
    is_equal = n % panel_columns(target, number(choices, "vectors")) == 0
    if is_equal or _vectors_of_panels(anchor, target) is not None:
        return []
    found: list[Choices] = []
    for vectors in (each for each in (2, 3, 4) if n % panel_columns(target, each) == 0):
        rows = default_rows(target, vectors, m)
        chunk = min(rows * ceil(number(choices, "chunk") / rows), _LONGEST_CHUNK // rows * rows)
        found.append({**choices, "rows": rows, "vectors": vectors, "chunk": chunk})
    return found


# The kernel of a matrix product on a CPU: blocks of rows by a panel of columns, in register tiles.


@dataclass(frozen=True)
class _Columns:
    """The columns of a panel: from `first` on `used` of them exist, and `lanes` are computed."""

    first: Index
    lanes: int
    used: int

    def inside(self, b: KernelBuilder, n: Index) -> list[Predicate]:
        """When column n of the panel exists; nothing where all do."""
        return [n < self.used] if self.used < self.lanes else []


@dataclass(frozen=True)
class _Tile:
    """Where a tile begins: its row in the matrix, and in the chunk; and the pass, with its first k, unless there
    is one."""

    row: Index
    in_chunk: Index
    number: Index | None
    first_k: Index | None


def _after(first: Index | None, k: Index) -> Index:
    return k if first is None else first + k


class MatmulBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: MatmulOp, choices: Choices, target: Target):
        self.anchor = anchor
        self.m, self.k, self.n = anchor.shape[-2], anchor.reduction_extent, anchor.shape[-1]
        self.batch = anchor.shape[:-2]
        self.element = anchor.type.get_element_type()
        self.wide = accumulator(self.element)
        self.rows, self.chunk = number(choices, "rows"), number(choices, "chunk")
        self.pack, self.passes = bool(choices["pack"]), number(choices, "passes")
        self.depth = _depth(self.k, self.passes)
        self.cores = target.cores
        self.vector, self.columns = target.lanes, panel_columns(target, number(choices, "vectors"))
        self.b = kernel_builder([anchor.a, anchor.b], anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        panels, chunks = ceil(self.n / self.columns), ceil(self.m / self.chunk)
        batches = 1
        for extent in self.batch:
            batches *= extent
        # Where B is larger than A, each core has its panels for all chunks; the panels of a chunk follow one another.
        cores = self.cores if self.n > self.m and panels % self.cores == 0 and chunks > 1 else 1
        panel, rest = b.block % (panels // cores), b.block // (panels // cores)
        first_row, rest = (rest % chunks) * self.chunk, rest // chunks
        if cores > 1:
            panel, rest = (rest % cores) * (panels // cores) + panel, rest // cores
        self.batch_index = rest.delinearize(self.batch) if self.batch else []
        whole, rest_columns = divmod(self.n, self.columns)
        # Whole panels need no predicates; the last, narrower one gets code of its own.
        if whole:
            with b.when(panel < whole if rest_columns else None):
                self._panel(first_row, _Columns(panel * self.columns, self.columns, self.columns))
        if rest_columns:
            lanes = min(self.columns, ceil(rest_columns / self.vector) * self.vector)
            with b.when(panel >= whole if whole else None):
                self._panel(first_row, _Columns(b.index(whole * self.columns), lanes, rest_columns))
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        return b.kernel(name, [self.anchor.a, self.anchor.b], self.anchor.type, panels * chunks * batches, 1, comment)

    def _panel(self, first_row: Index, columns: _Columns) -> None:
        """The block's rows of one panel. With several passes, all rows use a part of the panel before the next part
        is read, and their sums wait in a buffer meanwhile."""
        b, sums = self.b, None
        if self.passes > 1:
            sums = b.alloc("sums", [self.chunk, columns.lanes], self.wide)
        with self._pass() as number:
            first_k = None if number is None else number * self.depth
            source = self._packed(columns, first_k) if self.pack else None
            with b.loop("m", self.chunk, step=self.rows) as m:
                row = first_row + m
                covered = self.m % self.chunk == 0
                with b.when(None if covered else row < self.m):
                    acc = self._tile(_Tile(row, m, number, first_k), columns, source, sums)
                    with b.when(None if number is None else number >= self.passes - 1):
                        self._store(row, columns, acc)

    @contextmanager
    def _pass(self) -> Generator[Index | None]:
        """The number of a pass; None where there is a single one, and so no loop."""
        if self.passes == 1:
            yield None
        else:
            with self.b.loop("pass", self.passes) as number:
                yield number

    def _packed(self, columns: _Columns, first_k: Index | None) -> SSAValue:
        b = self.b
        panel = b.alloc("panel", [self.depth, columns.lanes], self.element)
        if self.k % self.depth == 0:
            with b.tasks(["k", "n"], repeat(self.depth, columns.lanes), vector=True) as (k, n):
                b.store(self._right(columns, _after(first_k, k), n), panel, [k, n])
        else:
            with (
                b.loop("k", self._terms(first_k)) as k,
                b.tasks(["n"], repeat(columns.lanes), vector=True) as (n,),
            ):
                b.store(self._right(columns, _after(first_k, k), n), panel, [k, n])
        return panel

    def _terms(self, first_k: Index | None) -> IndexLike:
        """How many terms a pass has: the last one may have fewer."""
        if first_k is None or self.k % self.depth == 0:
            return self.depth
        return (self.k - first_k).min(self.depth)

    def _tile(self, tile: _Tile, columns: _Columns, panel: SSAValue | None, sums: SSAValue | None) -> SSAValue:
        """The accumulators of a tile after a pass. `sums` has those of the passes before, and then of this one too."""
        b, each = self.b, repeat(self.rows, columns.lanes)
        acc = b.alloc("acc", [self.rows, columns.lanes], self.wide)
        first = None if tile.number is None else tile.number < 1
        with b.when(first), b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
            b.store(b.constant(0, self.wide), acc, [r, n])
        if sums is not None and tile.number is not None:
            with b.when(tile.number >= 1), b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
                b.store(b.load(sums, [tile.in_chunk + r, n]), acc, [r, n])
        with b.loop("k", self._terms(tile.first_k)) as k, b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
            at = _after(tile.first_k, k)
            left = b.load(b.inputs[0], [*self._batch_of(0), self._clamped(tile.row + r), at])
            right = self._right(columns, at, n) if panel is None else b.load(panel, [k, n])
            term = b.mul(widened(b, left), widened(b, right))
            b.store(b.add(b.load(acc, [r, n]), term), acc, [r, n])
        if sums is not None:
            with b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
                b.store(b.load(acc, [r, n]), sums, [tile.in_chunk + r, n])
        return acc

    def _store(self, row: Index, columns: _Columns, acc: SSAValue) -> None:
        """Rounds a tile's sums, and stores those of rows and columns that exist."""
        b = self.b
        with b.tasks(["r", "n"], repeat(self.rows, columns.lanes), unroll=True, vector=True) as (r, n):
            line = row + r
            inside = [line < self.m] if self.m % self.rows else []
            inside += columns.inside(b, n)
            total = narrowed(b, b.load(acc, [r, n]), self.element)
            b.store(total, b.output, [*self.batch_index, line, columns.first + n], all_of(inside))

    def _right(self, columns: _Columns, k: Index, n: Index) -> SSAValue:
        """B[k, first + n], 0 beyond the last column."""
        b = self.b
        indices = [*self._batch_of(1), k, columns.first + n]
        inside = all_of(columns.inside(b, n))
        if inside is None:
            return b.load(b.inputs[1], indices)
        return b.load(b.inputs[1], indices, inside, b.constant(0, self.element))

    def _clamped(self, row: Index) -> Index:
        """The row, or the last one: a tile that reaches beyond the matrix computes rows that are not stored."""
        return row if self.m % self.rows == 0 else row.min(self.m - 1)

    def _batch_of(self, operand: int) -> list[Index]:
        type = (self.anchor.a, self.anchor.b)[operand].type
        assert isinstance(type, TensorType)
        return self.batch_index if type.get_num_dims() > 2 else []
