"""hopper-form-boxes: copies of parts of a tensor, to and from shared memory, become copies of boxes by tensor maps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp, UnknownLoc
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import is_pure
from treadle.dialects.graph.definition import DefinitionBuilder
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.hopper import (
    BulkCommitOp,
    BulkCopyOp,
    BulkStoreOp,
    BulkWaitOp,
    FenceAsyncOp,
    TensorLoadOp,
    TensorMap,
    TensorMapOp,
    TensorStoreOp,
    WarpBarrierOp,
    YieldOp,
)
from treadle.dialects.location import location_of
from treadle.dialects.loop import (
    AllocOp,
    FuncOp,
    KernelOp,
    LoadOp,
    Space,
    SpaceAttr,
    StoreOp,
    buffer_type,
    swizzle_of,
    swizzle_of_rows,
    type_of,
)
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.scalar import is_zero
from treadle.dialects.task import ForOp
from treadle.errors import TreadleError
from treadle.index.algebra import alignment, depends_on
from treadle.index.contiguity import merged_dimensions
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, floordiv, var
from treadle.index.pixels import pixel_walk
from treadle.index.reader import IndexReader, comparisons_in
from treadle.passes.loop.kernels import kernels_of
from treadle.schedules.boxes import compares_indices, leaves_out_what_is_outside
from treadle.target.tensor_map import SPANS

ACCEPTED = "elements of one tensor, along its dimensions, and 0 beyond its ends"


@dataclass(frozen=True)
class HopperFormBoxesPass(ModulePass):
    """Turns each `hopper.bulk_copy` into a `hopper.tensor_load` by a map of the tensor that it reads.

    ```mlir
    hopper.bulk_copy to %tile[%stage, %c0, %c0] at %full[%stage] {
    ^bb0(%r : index, %c : index):
      %row = arith.addi %first, %r : index
      %inside = arith.cmpi slt, %row, %c100 : index
      %v = loop.load %A[%row, %c] where %inside else %zero : memref<100x64xf16>
      hopper.yield %v : f16
    } : memref<4x128x64xf16, ..., #loop.space<shared>>, memref<4x!hopper.mbarrier, #loop.space<shared>>
    ```
    becomes
    ```mlir
    %map = hopper.tensor_map %A extents [100, 64] strides [128] box [128, 64] swizzle 128 : memref<100x64xf16>
    hopper.tensor_load %map[%first, %c0] to %tile[%stage, %c0, %c0] at %full[%stage] : ...
    ```
    Dimensions along which the copy does not move become outer ones of a box of one element. What the region's predicate
    leaves out must be what lies beyond the tensor's ends, where a copy of a box writes 0, and so must be what lies
    beyond the ends of the matrix of which a copy brings a part. TreadleError for a region that computes, or whose
    elements are no box.

    A part of a matrix whose rows are the pixels of images in order, some steps apart, each moved by the position in a
    window, becomes a copy of pixels:
    ```mlir
    %map = hopper.tensor_map %x extents [8, 28, 28, 64] strides [100352, 3584, 128] box [128, 64]
      pixels [-1, -1] to [-1, -1] by [1, 1] swizzle 128 : memref<8x28x28x64xf16>
    hopper.tensor_load %map[%n, %h, %w, %channel] offset [%r, %s] to ...
    ```

    A `hopper.bulk_store` whose only store is to a box becomes stores to shared memory and a `hopper.tensor_store`,
    which leaves out what lies beyond the tensor; of others the loop stays as it is.
    """

    name = "hopper-form-boxes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            former = _Former(kernel)
            for inner in list(kernel.body.walk()):
                if isinstance(inner, BulkCopyOp):
                    former.replace_copy(inner)
                elif isinstance(inner, BulkStoreOp):
                    former.replace_store(inner)


class _NoBox(Exception):
    """Why elements are no box of a tensor, and what would be accepted."""

    def __init__(self, why: str, accepted: str = ACCEPTED):
        super().__init__(why)
        self.why, self.accepted = why, accepted


@dataclass(frozen=True)
class _Copied:
    """A copy by a map: where it begins, and by how much pixels are moved."""

    map: TensorMap
    coordinates: Sequence[Expr]
    offsets: Sequence[Expr] = ()


@dataclass(frozen=True)
class _Part:
    """What an access runs over: for each argument a variable, where it begins, and how many values it has; of a part of
    a matrix, the variable is the index in it, which is below `ends`.

    reader: reads indices in these variables
    """

    keys: Sequence[Hashable]
    firsts: Sequence[Expr]
    extents: tuple[int, ...]
    ends: Sequence[int | None]
    reader: IndexReader

    @staticmethod
    def whole(arguments: Sequence[SSAValue], extents: Sequence[int], reader: IndexReader) -> _Part:
        """All that some arguments run over."""
        count = len(arguments)
        return _Part(arguments, [const(0)] * count, tuple(extents), [None] * count, reader)

    @staticmethod
    def of(copy: BulkCopyOp, reader: IndexReader) -> _Part:
        """What a copy brings."""
        arguments = list(copy.body.block.args)
        if not copy.part:
            return _Part.whole(arguments, copy.extents, reader)
        keys = [f"index {n} of the matrix" for n in range(len(arguments))]
        known: dict[SSAValue, Expr] = {}
        for argument, key, (origin, end) in zip(arguments, keys, copy.part, strict=True):
            first = reader.read(origin)
            if first.as_int() is None:
                # Before anything is read, so that where the part begins cancels out inside of quotients.
                first = known.setdefault(origin, var(f"start of {key}", None, None))
            known[argument] = var(key, 0, end - 1) - first
        firsts, ends = [reader.read(origin) for origin, _ in copy.part], [end for _, end in copy.part]
        return _Part(keys, firsts, copy.extents, ends, IndexReader(known))

    def variable(self, number: int) -> Expr:
        """That of an argument, of a part of a matrix."""
        end = self.ends[number]
        assert end is not None
        return var(self.keys[number], 0, end - 1)

    def split(self, shape: Sequence[int], places: Sequence[Expr]) -> tuple[list[int], list[Expr]]:
        """Dimensions of which each `end` elements are an index of the matrix as two."""
        extents, found = list[int](), list[Expr]()
        for extent, place in zip(shape, places, strict=True):
            for key, end in zip(self.keys, self.ends, strict=True):
                if end is None or extent % end or not depends_on(place, key):
                    continue
                rest = place - var(key, 0, end - 1)
                if rest != 0 and alignment(rest) % end == 0 and not depends_on(rest, key):
                    extents.append(extent // end)
                    found.append(floordiv(rest, end))
                    extent, place = end, place - rest
                    break
            extents.append(extent)
            found.append(place)
        return extents, found


class _Former:
    """Makes the maps of one kernel, each once."""

    def __init__(self, kernel: KernelOp | FuncOp):
        self._kernel = kernel
        self._reader = IndexReader()
        self._maps: dict[tuple[SSAValue, TensorMap], SSAValue] = {}
        self._staged: dict[MemRefType, SSAValue] = {}

    # To shared memory.

    def replace_copy(self, copy: BulkCopyOp) -> None:
        """Replaces a copy to shared memory."""
        type = type_of(copy.buffer)
        swizzle = swizzle_of(type)
        span = 0 if swizzle is None else type.get_shape()[-1] * byte_width(type.get_element_type())
        try:
            load = self._load(copy)
            found = self._copied(load, _Part.of(copy, self._reader), span)
        except _NoBox as reason:
            message = f"a copy to %{copy.buffer.name_hint} is no box: {reason.why}"
            where = location_of(copy) or f"@{self._kernel.sym_name.data}"
            raise TreadleError(message, where, reason.accepted) from reason
        emitter = IndexEmitter(InsertPoint.before(copy), location=copy.location)
        coordinates, offsets = ([emitter.emit(each) for each in place] for place in (found.coordinates, found.offsets))
        map, place = self._map(load.buffer, found.map), (copy.barrier, copy.place)
        made = TensorLoadOp(map, coordinates, copy.buffer, copy.indices, *place, offsets)
        made.location = copy.location
        Rewriter.replace_op(copy, made)

    def _load(self, copy: BulkCopyOp) -> LoadOp:
        load = copy.value.owner
        if not isinstance(load, LoadOp) or load.parent is not copy.body.block:
            raise _NoBox(f"its elements are computed by {load.name if isinstance(load, Operation) else 'a block'}")
        if isinstance(type_of(load.buffer).memory_space, SpaceAttr) or not is_zero(load.otherwise):
            raise _NoBox("its elements are not those of a tensor, or not 0 beyond it")
        others = [op for op in copy.body.block.ops if op is not load and not isinstance(op, YieldOp)]
        if not all(map(is_pure, others)):
            raise _NoBox("its elements have side effects")
        return load

    # From shared memory.

    def replace_store(self, rectangle: BulkStoreOp) -> None:
        """Replaces a warp's stores, if they go to a box, by stores to shared memory and a copy of the box."""
        loop = rectangle.loop
        assert isinstance(loop, ForOp), "verified"
        extents = loop.mapping.data.shape
        stores = [op for op in loop.walk() if isinstance(op, StoreOp)]
        place = [*loop.body.block.args]
        try:
            if len(stores) != 1:
                raise _NoBox(f"{len(stores)} tensors are stored")
            (store,) = stores
            row = extents[-1] * byte_width(store.value.type)
            if row not in SPANS:
                raise _NoBox(f"rows of {row} bytes, whose columns would meet in a bank")
            box = self._box(store, _Part.whole(place, extents, self._reader), row)
        except _NoBox:
            Rewriter.inline_block(rectangle.body.block, InsertPoint.before(rectangle), [])
            Rewriter.erase_op(rectangle)
            return
        staged = self._stage(rectangle, extents, store.value.type)
        where = [rectangle.piece, rectangle.warp, *place]
        inside = StoreOp(store.value, staged, where)
        inside.location = store.location
        Rewriter.replace_op(store, inside)
        self._surround(rectangle, staged, self._map(store.buffer, box.map), box.coordinates)

    def _stage(self, rectangle: BulkStoreOp, extents: Sequence[int], element: Attribute) -> SSAValue:
        """Shared memory for what all warps store, which the rectangles of a kernel share."""
        shape = (rectangle.pieces.value.data, rectangle.warps.value.data, *extents)
        swizzle = swizzle_of_rows(extents[-1] * byte_width(element), byte_width(element))
        type = buffer_type(shape, element, Space.SHARED, swizzle)
        if type not in self._staged:
            alloc = AllocOp(type)
            alloc.buffer.name_hint = "staged"
            alloc.location = self._kernel.location
            Rewriter.insert_op(alloc, InsertPoint.at_start(self._kernel.body.block))
            self._staged[type] = alloc.buffer
        return self._staged[type]

    def _surround(self, rectangle: BulkStoreOp, staged: SSAValue, map: SSAValue, starts: Sequence[Expr]) -> None:
        """The loop, between a wait for the copy that read the memory before, and the copy of the box by one lane."""
        block = Block(arg_types=[IndexType()])
        b = DefinitionBuilder(block)
        is_first = b.binary("eq", b.mod(block.args[0], WARP), 0)

        def by_first(*ops: Operation) -> Operation:
            return scf.IfOp(is_first, [], Region(Block([*ops, scf.YieldOp()])))

        zero = b.constant(0)
        emitter = IndexEmitter(InsertPoint.at_end(block), location=rectangle.location)
        coordinates = [emitter.emit(start) for start in starts]
        loop = rectangle.loop
        loop.detach()
        origin = [rectangle.piece, rectangle.warp, zero, zero]
        copy = TensorStoreOp(staged, origin, map, coordinates)
        block.add_ops(
            [
                by_first(BulkWaitOp(rectangle.pieces.value.data - 1, read=True)),
                WarpBarrierOp(),
                loop,
                FenceAsyncOp(),
                WarpBarrierOp(),
                by_first(copy, BulkCommitOp()),
            ]
        )
        for op in block.walk():
            if op.location == UnknownLoc():
                op.location = rectangle.location
        Rewriter.inline_block(block, InsertPoint.before(rectangle), [self._kernel.thread_id])
        Rewriter.erase_op(rectangle)

    # Boxes and pixels of tensors.

    def _copied(self, load: LoadOp, part: _Part, span: int) -> _Copied:
        """A box, or else pixels. Raises _NoBox."""
        try:
            return self._box(load, part, span)
        except _NoBox:
            pixels = self._pixels(load, part, span)
            if pixels is None:
                raise
            return pixels

    def _box(self, access: LoadOp | StoreOp, part: _Part, span: int) -> _Copied:
        """The box that is accessed. Raises _NoBox."""
        type = type_of(access.buffer)
        indices = [part.reader.read(index) for index in access.indices]
        shape, places = part.split(*merged_dimensions(type.get_shape(), indices, part.keys))
        starts, moved = _dimensions(places, part.keys)
        self._check_predicate(
            access, part, [*zip(type.get_shape(), indices, strict=True), *zip(shape, places, strict=True)]
        )
        for dimension, end in zip(moved, part.ends, strict=True):
            if end is not None and (shape[dimension] != end or starts[dimension] != 0):
                raise _NoBox(f"a matrix ends at {end}, and dimension {dimension} of the tensor elsewhere")
        size = byte_width(type.get_element_type())
        strides = [prod(shape[n + 1 :]) * size for n in range(len(shape))]
        # Where nothing moves and there is one element, no coordinate is needed but for one outside.
        order = [*(n for n in range(len(shape)) if n not in moved and (shape[n] > 1 or starts[n] != 0)), *moved]
        if strides[order[-1]] != size:
            raise _NoBox(f"neighbours lie {strides[order[-1]]} bytes apart")
        box = (*(1 for _ in order[: -len(moved)]), *part.extents)
        sizes = tuple(shape[n] for n in order), tuple(strides[n] for n in order[:-1])
        try:
            map = TensorMap(str(type.get_element_type()), *sizes, box, span)
        except TreadleError as error:
            raise _NoBox(error.message, str(error.accepted)) from error
        firsts = {dimension: first for dimension, first in zip(moved, part.firsts, strict=True)}
        return _Copied(map, [starts[n] + firsts.get(n, 0) for n in order])

    def _pixels(self, load: LoadOp, part: _Part, span: int) -> _Copied | None:
        """The pixels that are loaded. Raises _NoBox for those of which there is no map; None for no pixels."""
        type = type_of(load.buffer)
        shape, size = type.get_shape(), byte_width(type.get_element_type())
        places = [part.reader.read(index) for index in load.indices]
        if len(part.keys) != 2 or None in part.ends or places[-1] != part.variable(1) or part.ends[1] != shape[-1]:
            return None
        walk = pixel_walk(places[:-1], part.variable(0))
        rows = part.ends[0]
        if walk is None or rows is None or any(depends_on(start, part.keys[1]) for start in walk.starts):
            return None
        pixels = walk.box(shape, rows)
        if pixels is None:
            return None
        self._check_predicate(load, part, [*zip(shape, places, strict=True)])
        strides = tuple(prod(shape[n + 1 :]) * size for n in range(len(shape) - 1))
        try:
            map = TensorMap(str(type.get_element_type()), tuple(shape), strides, part.extents, span, pixels)
        except TreadleError as error:
            raise _NoBox(error.message, str(error.accepted)) from error
        image, *digits = (digit.substitute({part.keys[0]: part.firsts[0]}) for digit in walk.digits)
        each = zip(pixels.lower, pixels.steps, digits, strict=True)
        coordinates = [image, *(digit * step + lower for lower, step, digit in each), part.firsts[1]]
        offsets = [start - lower for start, lower in zip(walk.starts[1:], pixels.lower, strict=True)]
        return _Copied(map, coordinates, offsets)

    def _check_predicate(self, access: LoadOp | StoreOp, part: _Part, dimensions: Sequence[tuple[int, Expr]]) -> None:
        """Raises _NoBox for a predicate that is false inside of the tensor, of these extents at these places."""
        if access.predicate is None:
            return
        if not compares_indices(access.predicate):
            raise _NoBox("elements are left out by more than comparisons of indices")
        for each in comparisons_in(part.reader, access.predicate):
            if not leaves_out_what_is_outside(each, dimensions):
                raise _NoBox(f"elements are left out where {each.difference} {each.kind} 0 is false")

    def _map(self, buffer: SSAValue, map: TensorMap) -> SSAValue:
        known = (buffer, map)
        if known not in self._maps:
            made = TensorMapOp(buffer, map)
            made.location = self._kernel.location
            made.result.name_hint = f"map_{buffer.name_hint}" if buffer.name_hint else "map"
            Rewriter.insert_op(made, InsertPoint.at_start(self._kernel.body.block))
            self._maps[known] = made.result
        return self._maps[known]


def _dimensions(places: Sequence[Expr], keys: Sequence[Hashable]) -> tuple[list[Expr], list[int]]:
    """Where a box begins along each dimension of the tensor; along which dimension each variable moves."""
    moved: dict[Hashable, int] = {}
    starts: list[Expr] = []
    for dimension, place in enumerate(places):
        inner = [each for each in keys if depends_on(place, each)]
        start = place.substitute({each: const(0) for each in inner})
        if len(inner) > 1 or (inner and (inner[0] in moved or place - start != _variable(place, inner[0]))):
            raise _NoBox(f"dimension {dimension} of the tensor is indexed by {place}")
        if inner:
            moved[inner[0]] = dimension
        starts.append(start)
    missing = [n for n, each in enumerate(keys) if each not in moved]
    if missing:
        raise _NoBox(f"argument {missing[0]} moves along no dimension")
    return starts, [moved[each] for each in keys]


def _variable(place: Expr, key: Hashable) -> Expr:
    """The variable of an expression that has a key."""
    return next(var(v.key, *v.range) for v in place.vars() if v.key == key)
