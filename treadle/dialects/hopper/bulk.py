"""Copies of boxes between tensors in global memory and tiles in shared memory, each started by one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import prod

from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerAttr, UnitAttr, i64
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    base,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import (
    EffectInstance,
    HasParent,
    IsTerminator,
    MemoryEffectKind,
    NoTerminator,
    Pure,
    RecursiveMemoryEffect,
)
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import Convergent, OrdersMemory
from treadle.dialects.hopper.attributes import (
    TensorMapType,
    check_mbarrier,
    check_shared,
    element_of,
    is_private,
    is_shared,
    memref_type,
)
from treadle.dialects.hopper.barrier import number_of
from treadle.dialects.syntax import MEMREF
from treadle.errors import TreadleError
from treadle.index.expr import Range
from treadle.index.reader import HasIndexRanges
from treadle.target.tensor_map import PixelBox, TensorMap

index = IndexType()


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """Gives the value of one element of a `hopper.bulk_copy`.

    ```mlir
    hopper.yield %v : f16
    ```
    Rejected: a parent other than `hopper.bulk_copy`.
    """

    name = "hopper.yield"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(BulkCopyOp), Pure()))


@irdl_op_definition
class BulkCopyOp(IRDLOperation, HasIndexRanges):
    """One thread starts a copy of the region's values to the last dimensions of a tile in shared memory, as many as
    the region has arguments; it completes at a barrier by its bytes.

    ```mlir
    hopper.bulk_copy to %tile[%stage, %zero, %zero] at %full[%stage] {
    ^bb0(%r : index, %c : index):
      %row = arith.addi %first, %r : index
      %v = loop.load %A[%row, %c] where %inside else %zero : memref<128x768xf16>
      hopper.yield %v : f16
    } : memref<4x128x64xf16, #loop.space<shared>>, memref<4x!hopper.mbarrier, #loop.space<shared>>
    ```
    The region loads like any other code of a kernel, so that a prologue that only moves data is fused into it.
    `hopper-form-boxes` makes it a `hopper.tensor_load`, or rejects it where the values are no box of one tensor.

    `from [%row, %channel] of [392, 96]` in front of the region says of which part of a matrix the values are: where the
    sum of an index and its argument is not below the extent, the value is 0 whatever the region says.
    Rejected: a destination that is not shared, more arguments than it has dimensions, a value of another type; of a
    part, another number of indices or extents than the region has arguments, an extent below 1.
    """

    name = "hopper.bulk_copy"
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    barrier = operand_def(MEMREF)
    place = operand_def(IndexType)
    origin = var_operand_def(IndexType)
    matrix = opt_prop_def(DenseArrayBase.constr(i64))
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect(), OrdersMemory())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "`to` $buffer `[` $indices `]` `at` $barrier `[` $place `]` (`from` ` ` `[` $origin^ `]`)? (`of` $matrix^)? "
        "$body attr-dict `:` type($buffer) `,` type($barrier)"
    )

    def __init__(
        self,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        barrier: SSAValue,
        place: SSAValue,
        body: Region | int,
        part: tuple[Sequence[SSAValue], Sequence[int]] | None = None,
    ):
        """body: or the number of its arguments, of an empty block that is to be filled; part: of a matrix, the indices
        that it begins at and the extents"""
        region = Region(Block(arg_types=[index] * body)) if isinstance(body, int) else body
        matrix = None if part is None else DenseArrayBase.from_list(i64, part[1])
        origin: Sequence[SSAValue] = () if part is None else part[0]
        properties = {"matrix": matrix}
        super().__init__(operands=[buffer, indices, barrier, place, origin], properties=properties, regions=[region])

    @property
    def part(self) -> list[tuple[SSAValue, int]]:
        """Of a part of a matrix, the index that it begins at and the extent, for each argument; empty for others."""
        return [] if self.matrix is None else [*zip(self.origin, self.matrix.get_values(), strict=True)]

    @property
    def extents(self) -> tuple[int, ...]:
        """Of the box."""
        rank = len(self.body.block.args)
        return memref_type(self.buffer).get_shape()[-rank:]

    def index_range(self, value: SSAValue) -> Range | None:
        for argument, extent in zip(self.body.block.args, self.extents, strict=True):
            if value is argument:
                return 0, extent - 1
        return None

    @property
    def value(self) -> SSAValue:
        """What the region yields."""
        end = self.body.block.last_op
        assert isinstance(end, YieldOp), "verified"
        return end.arguments[0]

    def verify_(self) -> None:
        type = check_shared(self.buffer, len(self.indices))
        check_mbarrier(self.barrier)
        if not 1 <= len(self.body.block.args) <= type.get_num_dims():
            raise VerifyException(f"{len(self.body.block.args)} arguments of the region for a tile '{type}'")
        matrix = () if self.matrix is None else self.matrix.get_values()
        if len(matrix) != len(self.origin) or (matrix and len(matrix) != len(self.body.block.args)):
            raise VerifyException(f"a part from {len(self.origin)} indices of {len(matrix)} extents")
        if any(extent < 1 for extent in matrix):
            raise VerifyException(f"a part of {list(matrix)}, expected extents of 1 or more")
        end = self.body.block.last_op
        given = [value.type for value in end.arguments] if isinstance(end, YieldOp) else []
        if given != [element_of(type)]:
            said = ", ".join(map(str, given)) or "nothing"
            raise VerifyException(f"the region yields {said}: expected {element_of(type)}")


@irdl_op_definition
class BulkStoreOp(IRDLOperation):
    """A warp's stores to a rectangle of a tensor, which may go through shared memory: the loop of the region is one
    over the rectangle's elements, given by their row and column.

    ```mlir
    hopper.bulk_store %warp of 8, %piece of 2 {
      task.for (%i, %j) in #task.map<repeat(2, 1) * spatial(8, 4) * repeat(1, 2)>(%lane) {
        ...
        loop.store %v, %C[%row, %column] where %inside : memref<128x768xf16>
      }
    }
    ```
    `%warp` is the number of the warp among so many that store at the same time, `%piece` that of the rectangle among so
    many that may be under way. An epilogue is fused into the region like into any other code of a kernel.
    `hopper-form-boxes` makes of it stores to shared memory and a `hopper.tensor_store`, where one tensor is stored and
    the rectangle is a box of it; else it leaves the loop as it is. Threads that executed it wait by `hopper.bulk_wait`
    before they end. Rejected: a region that is anything but a loop over two dimensions, numbers below 1.
    """

    name = "hopper.bulk_store"
    warp = operand_def(IndexType)
    warps = prop_def(IntegerAttr.constr(i64))
    piece = operand_def(IndexType)
    pieces = prop_def(IntegerAttr.constr(i64))
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect(), OrdersMemory(), Convergent(), NoTerminator())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$warp `of` $warps `,` $piece `of` $pieces $body attr-dict"

    def __init__(self, warp: SSAValue, warps: int, piece: SSAValue, pieces: int):
        properties = {"warps": IntegerAttr(warps, i64), "pieces": IntegerAttr(pieces, i64)}
        super().__init__(operands=[warp, piece], properties=properties, regions=[Region(Block())])

    @property
    def loop(self) -> Operation:
        """The loop over the rectangle."""
        only = self.body.block.first_op
        assert only is not None, "verified"
        return only

    def verify_(self) -> None:
        if number_of(self.warps) < 1 or number_of(self.pieces) < 1:
            raise VerifyException(
                f"{number_of(self.warps)} warps and {number_of(self.pieces)} pieces, expected 1 or more"
            )
        found = [op.name for op in self.body.block.ops]
        if found != ["task.for"] or len(self.loop.regions[0].block.args) != 2:
            raise VerifyException(
                f"the region has {', '.join(found) or 'nothing'}: expected one task.for over two dimensions"
            )


@irdl_op_definition
class TensorMapOp(IRDLOperation):
    """
    How copies see a buffer in global memory: a tensor of some extents and strides, from its beginning on, of which each
    copy moves a box. Extents, strides (in bytes, without the innermost, whose elements are neighbours) and the box
    begin with the outermost dimension.

    ```mlir
    %map = hopper.tensor_map %A extents [4096, 4096] strides [8192] box [128, 64] swizzle 128 : memref<4096x4096xf16>
    ```

    `swizzle` is the span in bytes, 0 for none, by which `loop.swizzle` permutes rows of so many bytes. The host makes
    the map for each launch, and the kernel has it as an argument.

    A map of pixels sees images, `[N, spatial..., C]`, and its box is pixels and channels of each: copies walk along the
    innermost spatial dimension first, from `lower` to the image's end moved by `upper`, not included, in `steps`, and
    on to the next image. Those of a convolution of 3 x 3 with stride 2 and padding 1:
    ```mlir
    %map = hopper.tensor_map %x extents [8, 56, 56, 128] strides [802816, 14336, 256] box [128, 64]
      pixels [-1, -1] to [-2, -2] by [2, 2] swizzle 128 : memref<8x56x56x128xf16>
    ```
    Rejected: what a tensor map cannot say
    (`treadle.target.tensor_map`), one that reaches beyond the buffer, and a buffer that is not in global memory.
    """

    name = "hopper.tensor_map"

    buffer = operand_def(MEMREF)
    extents = prop_def(DenseArrayBase.constr(i64))
    strides = prop_def(DenseArrayBase.constr(i64))
    box = prop_def(DenseArrayBase.constr(i64))
    lower = opt_prop_def(DenseArrayBase.constr(i64))
    upper = opt_prop_def(DenseArrayBase.constr(i64))
    steps = opt_prop_def(DenseArrayBase.constr(i64))
    swizzle = prop_def(IntegerAttr.constr(i64))
    result = result_def(base(TensorMapType))

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = (
        "$buffer `extents` $extents `strides` $strides `box` $box (`pixels` $lower^)? (`to` $upper^)? (`by` $steps^)? "
        "`swizzle` $swizzle attr-dict `:` type($buffer)"
    )

    def __init__(self, buffer: SSAValue, map: TensorMap):
        properties = {
            "extents": DenseArrayBase.from_list(i64, map.extents),
            "strides": DenseArrayBase.from_list(i64, map.strides),
            "box": DenseArrayBase.from_list(i64, map.box),
            "swizzle": IntegerAttr(map.swizzle, i64),
        }
        if map.pixels is not None:
            for name, values in asdict(map.pixels).items():
                properties[name] = DenseArrayBase.from_list(i64, values)
        super().__init__(operands=[buffer], properties=properties, result_types=[TensorMapType()])

    @property
    def map(self) -> TensorMap:
        """The same as a value."""
        return TensorMap(
            str(element_of(memref_type(self.buffer))),
            tuple(self.extents.get_values()),
            tuple(self.strides.get_values()),
            tuple(self.box.get_values()),
            number_of(self.swizzle),
            self._pixels,
        )

    @property
    def _pixels(self) -> PixelBox | None:
        given = [() if each is None else tuple(each.get_values()) for each in (self.lower, self.upper, self.steps)]
        return PixelBox(*given) if any(given) else None

    def verify_(self) -> None:
        type = memref_type(self.buffer)
        if is_shared(type) or is_private(type):
            raise VerifyException(f"'{type}' is not in global memory")
        try:
            map = self.map
        except TreadleError as error:
            raise VerifyException(f"{error.message}; accepted: {error.accepted}") from error
        has = prod(type.get_shape()) * map.element_bytes
        if type.has_static_shape() and map.span > has:
            raise VerifyException(f"a map of {map.span} bytes of '{type}', which has {has}")


def _elements(map: SSAValue) -> int:
    """Of the box that a copy moves."""
    made = map.owner
    assert isinstance(made, TensorMapOp), "a map is made in its kernel"
    return prod(made.map.box)


def _check_box(map: SSAValue, coordinates: int, buffer: SSAValue, indices: int, offsets: int = 0) -> None:
    """VerifyException unless a tile has room for the map's box, where it is known."""
    type = check_shared(buffer, indices)
    made = map.owner
    if not isinstance(made, TensorMapOp):
        return
    known = made.map
    if len(known.extents) != coordinates:
        raise VerifyException(f"a map of {len(known.extents)} dimensions with {coordinates} coordinates")
    expected = 0 if known.pixels is None else len(known.pixels.steps)
    if offsets != expected:
        raise VerifyException(f"a map of {'a box' if known.pixels is None else 'pixels'} with {offsets} offsets")
    if str(element_of(type)) != known.element:
        raise VerifyException(f"a copy between elements of {known.element} and '{type}'")
    if prod(known.box) > prod(type.get_shape()):
        raise VerifyException(f"a box {list(known.box)} does not fit into '{type}'")


class TensorEffect(OrdersMemory):
    """Reads or writes the buffer that is behind a map, and the tile."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        assert isinstance(op, TensorLoadOp | TensorStoreOp)
        from_tensor = isinstance(op, TensorLoadOp)
        made, found = op.map.owner, {*super().get_effects(op)}
        kinds = (MemoryEffectKind.READ, MemoryEffectKind.WRITE)
        of_tensor, of_tile = kinds if from_tensor else kinds[::-1]
        if isinstance(made, TensorMapOp):
            found.add(EffectInstance(of_tensor, made.buffer))
        return found | {EffectInstance(of_tile, op.buffer)}


@irdl_op_definition
class TensorLoadOp(IRDLOperation):
    """
    One thread starts a copy of the map's box at some coordinates to a tile, from an element on; it completes at a
    barrier by the bytes of the whole box. Elements outside of the tensor become 0.

    ```mlir
    hopper.tensor_load %map[%row, %column] to %tile[%stage, %c0, %c0] at %full[%stage]
      : memref<4x128x64xf16, #loop.space<shared>>, memref<4x!hopper.mbarrier, #loop.space<shared>>
    ```

    By a map of pixels it copies pixels in the order of the map's walk, from the one at some coordinates on, each moved
    by offsets along the spatial dimensions, from 0 on; pixels moved out of their image, and those behind the last
    image, become 0:
    ```mlir
    hopper.tensor_load %map[%n, %h, %w, %channel] offset [%r, %s] to %tile[%stage, %c0, %c0] at %full[%stage] : ...
    ```

    Rejected: a tile that is not shared, of other elements than the tensor, or smaller than the box; another number of
    coordinates than the map has dimensions, or of offsets than it has steps.
    """

    name = "hopper.tensor_load"

    map = operand_def(base(TensorMapType))
    coordinates = var_operand_def(IndexType)
    offsets = var_operand_def(IndexType)
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    barrier = operand_def(MEMREF)
    place = operand_def(IndexType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(TensorEffect())
    assembly_format = (
        "$map `[` $coordinates `]` (`offset` ` ` `[` $offsets^ `]`)? `to` $buffer `[` $indices `]` `at` $barrier "
        "`[` $place `]` attr-dict `:` "
        "type($buffer) `,` type($barrier)"
    )

    def __init__(
        self,
        map: SSAValue,
        coordinates: Sequence[SSAValue],
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        barrier: SSAValue,
        place: SSAValue,
        offsets: Sequence[SSAValue] = (),
    ):
        super().__init__(operands=[map, coordinates, offsets, buffer, indices, barrier, place])

    @property
    def elements(self) -> int:
        """That are copied."""
        return _elements(self.map)

    def verify_(self) -> None:
        _check_box(self.map, len(self.coordinates), self.buffer, len(self.indices), len(self.offsets))
        check_mbarrier(self.barrier)


@irdl_op_definition
class TensorStoreOp(IRDLOperation):
    """
    One thread starts a copy of a tile, from an element on, to the map's box at some coordinates; what lies outside of
    the tensor is left out. It belongs to the thread's next group of bulk copies.

    ```mlir
    hopper.tensor_store %tile[%c0, %c0] to %map[%row, %column] : memref<64x64xf16, #loop.space<shared>>
    ```

    Threads that wrote the tile have executed `hopper.fence_async` before a barrier. Rejected: as for
    `hopper.tensor_load`.
    """

    name = "hopper.tensor_store"

    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    map = operand_def(base(TensorMapType))
    coordinates = var_operand_def(IndexType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(TensorEffect())
    assembly_format = "$buffer `[` $indices `]` `to` $map `[` $coordinates `]` attr-dict `:` type($buffer)"

    def __init__(self, buffer: SSAValue, indices: Sequence[SSAValue], map: SSAValue, coordinates: Sequence[SSAValue]):
        super().__init__(operands=[buffer, indices, map, coordinates])

    @property
    def elements(self) -> int:
        """That are copied."""
        return _elements(self.map)

    def verify_(self) -> None:
        _check_box(self.map, len(self.coordinates), self.buffer, len(self.indices))


@irdl_op_definition
class BulkCommitOp(IRDLOperation):
    """
    Ends a group: the stores of tiles that this thread started since the last commit belong to it.

    ```mlir
    hopper.bulk_commit
    ```
    """

    name = "hopper.bulk_commit"

    traits = traits_def(OrdersMemory())
    assembly_format = "attr-dict"


@irdl_op_definition
class BulkWaitOp(IRDLOperation):
    """
    Waits until at most `pending` of this thread's newest groups are under way, or with `read` still read shared memory.

    ```mlir
    hopper.bulk_wait 0
    hopper.bulk_wait read 1
    ```

    Rejected: a negative number.
    """

    name = "hopper.bulk_wait"

    read = opt_prop_def(UnitAttr)
    pending = prop_def(IntegerAttr.constr(i64))

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(OrdersMemory())
    assembly_format = "(`read` $read^)? $pending attr-dict"

    def __init__(self, pending: int, *, read: bool = False):
        properties = {"pending": IntegerAttr(pending, i64), "read": UnitAttr() if read else None}
        super().__init__(properties=properties)

    def verify_(self) -> None:
        if number_of(self.pending) < 0:
            raise VerifyException(f"cannot leave {number_of(self.pending)} groups under way, expected 0 or more")


@irdl_op_definition
class FenceAsyncOp(IRDLOperation):
    """
    What the thread wrote to shared memory may be read by copies of tiles, and by products of a warpgroup, that begin
    after a barrier that follows.

    ```mlir
    hopper.fence_async
    ```
    """

    name = "hopper.fence_async"

    traits = traits_def(OrdersMemory())
    assembly_format = "attr-dict"
