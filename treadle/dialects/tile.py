"""The tile dialect: kernels for tensor cores in the words of `treadle/schedules/tiles.py`, as text.

Tiles in shared memory are buffers of `loop.alloc`; sums are fragments, spread over the registers of a block's warps,
which operations read and overwrite. `tile-lower` writes loops and loads for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, StringAttr, UnitAttr, bf16, f16, f32, i32
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_prop_def,
    param_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, NoTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import Space, SpaceAttr, type_of
from treadle.dialects.loop.access import checked_buffer
from treadle.dialects.loop.tiles import MULTIPLIED, PRODUCT_K, fragments, lanes_fold
from treadle.dialects.syntax import COUNT, MEMREF, Kind, Word

_SIDE = 16
"""Rows and columns of what a warp multiplies at once."""


class _Shaped(ParametrizedAttribute, TypeAttribute):
    """A type of rows, columns and elements: `<16x64xf32>`."""

    rows: IntegerAttr = param_def()
    columns: IntegerAttr = param_def()
    element: Attribute = param_def()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.value.data, self.columns.value.data

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            start = parser.pos
            shape, element = parser.parse_ranked_shape()
            if len(shape) != 2:
                parser.raise_error("expected rows, columns and a type, as in 16x64xf32", start)
        return [*(IntegerAttr(extent, IndexType()) for extent in shape), element]

    def print_parameters(self, printer: Printer) -> None:
        rows, columns = self.shape
        with printer.in_angle_brackets():
            printer.print_string(f"{rows}x{columns}x")
            printer.print_attribute(self.element)


@irdl_attr_definition
class FragmentType(_Shaped):
    """A matrix in the registers of warps: of a block's tile, each warp has rows and columns of its own.

    ```mlir
    !tile.fragment<32x64xf32>
    !tile.fragment<16x1xf32>
    ```
    One of a single column holds a number for each row, which all lanes that hold the row share. Rejected: rows and
    columns that are no multiples of 16, elements other than f32 and i32.
    """

    name = "tile.fragment"

    def verify(self) -> None:
        rows, columns = self.shape
        if rows < 1 or rows % _SIDE or (columns != 1 and (columns < 1 or columns % _SIDE)):
            raise VerifyException(f"a fragment of {rows} x {columns}: expected multiples of {_SIDE}, or one column")
        if self.element not in (f32, i32):
            raise VerifyException(f"a fragment of {self.element}: expected f32, or i32")


@irdl_attr_definition
class OperandType(_Shaped):
    """The left operand of products in the registers of warps, each of which has rows of its own.

    ```mlir
    !tile.operand<16x64xf16>
    ```
    Rejected: rows that are no multiple of 16, terms that are none of what tensor cores multiply at once.
    """

    name = "tile.operand"

    def verify(self) -> None:
        rows, terms = self.shape
        depth = PRODUCT_K.get(self.element)
        if depth is None or rows < 1 or rows % _SIDE or terms < 1 or terms % depth:
            raise VerifyException(f"an operand of {rows} x {terms} of {self.element}: expected 16-fold rows and terms")


_FRAGMENT = Kind("a fragment", FragmentType)
index = IndexType()


def extents_of(buffer: SSAValue, indices: Sequence[SSAValue]) -> tuple[int, int]:
    """Rows and columns of a tile in shared memory; VerifyException for another buffer, or a wrong number of indices."""
    type = buffer.type
    if not isinstance(type, MemRefType) or type.memory_space != SpaceAttr(Space.SHARED):
        raise VerifyException(f"a tile in {type}: expected a buffer in #loop.space<shared>")
    *stages, rows, columns = type.get_shape()
    if len(stages) != len(indices):
        raise VerifyException(f"{len(indices)} indices of a tile in {type}: expected {len(stages)}")
    size = byte_width(type.get_element_type())
    if columns * size % _SIDE:
        raise VerifyException(f"rows of {columns * size} bytes in {type}: expected whole chunks of 16 bytes")
    return rows, columns


@irdl_op_definition
class FragmentOp(IRDLOperation):
    """A fragment of zeros.

    ```mlir
    %c = tile.fragment at [%row, %column] : !tile.fragment<32x64xf32>
    ```
    The warp's part of the block's tile begins at the row and the column. Rejected: another number of indices than two.
    """

    name = "tile.fragment"
    first = var_operand_def(IndexType)
    fragment = result_def(_FRAGMENT)
    assembly_format = "`at` `[` $first `]` attr-dict `:` type($fragment)"

    def verify_(self) -> None:
        if len(self.first) != 2:
            raise VerifyException(f"a fragment at {len(self.first)} indices: expected its row and its column")


@irdl_op_definition
class CopyOp(IRDLOperation):
    """All threads of the block start asynchronous copies of a region of a tensor to a tile in shared memory.

    ```mlir
    tile.copy %A[%row, %k] to %tile[%stage] : memref<100x200xf16>, memref<3x64x32xf16, #loop.space<shared>>
    tile.copy %K[%head, %key, %zero] to %keys[] transpose : memref<2x90x64xf16>, memref<64x64xf16, #loop.space<shared>>
    ```
    The region begins at the indices, and is as large as the tile; beyond the tensor's ends it is 0. With `transpose`
    its rows become the tile's columns. In `tile.pipelined` the copies of a step are waited for; elsewhere `loop.commit`
    and `loop.wait` go with them. Rejected: a destination that is not shared, other element types, other numbers of
    indices.
    """

    name = "tile.copy"
    source = operand_def(MEMREF)
    source_indices = var_operand_def(IndexType)
    tile = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    transpose = opt_prop_def(UnitAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$source `[` $source_indices `]` `to` $tile `[` $indices `]` (`transpose` $transpose^)? attr-dict "
        "`:` type($source) `,` type($tile)"
    )

    def verify_(self) -> None:
        type = checked_buffer(self.source, len(self.source_indices))
        extents_of(self.tile, self.indices)
        if type.get_num_dims() < 2 or type.get_element_type() != type_of(self.tile).get_element_type():
            raise VerifyException(f"a copy from {type} to {self.tile.type}: expected a matrix of the same elements")


@irdl_op_definition
class OperandOp(IRDLOperation):
    """A warp's rows of a left operand, in registers: from a tile in shared memory whose rows run along the terms.

    ```mlir
    %q = tile.operand %queries[] at %row : memref<64x64xf16, #loop.space<shared>> -> !tile.operand<16x64xf16>
    ```
    Rejected: other element types, rows that are longer or shorter than the operand's.
    """

    name = "tile.operand"
    tile = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    row = operand_def(index)
    operand = result_def(Kind("an operand", OperandType))
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = "$tile `[` $indices `]` `at` $row attr-dict `:` type($tile) `->` type($operand)"

    def verify_(self) -> None:
        rows, terms = extents_of(self.tile, self.indices)
        type = self.operand.type
        if type.element != type_of(self.tile).get_element_type() or type.shape[1] != terms or type.shape[0] > rows:
            raise VerifyException(f"{type} of rows of {self.tile.type}: expected {terms} terms of its elements")


@irdl_op_definition
class RoundOp(IRDLOperation):
    """A fragment's elements, rounded to 16 bits, as the left operand of the next product.

    ```mlir
    %w = tile.round %weights : !tile.fragment<16x64xf32> -> !tile.operand<16x64xf16>
    ```
    Rejected: another shape, sums other than f32, elements other than f16 and bf16.
    """

    name = "tile.round"
    fragment = operand_def(_FRAGMENT)
    operand = result_def(Kind("an operand", OperandType))
    assembly_format = "$fragment attr-dict `:` type($fragment) `->` type($operand)"

    def verify_(self) -> None:
        source, type = self.fragment.type, self.operand.type
        assert isinstance(source, FragmentType)
        if source.shape != type.shape or source.element != f32 or type.element not in (f16, bf16):
            raise VerifyException(f"{source} as {type}: expected the same shape, of f32 as f16 or bf16")


@irdl_op_definition
class GemmOp(IRDLOperation):
    """Adds the product of a warp's rows of A and columns of B to a fragment, on tensor cores.

    ```mlir
    tile.gemm %a[%stage] * %b[%stage] to %c
        : memref<3x64x32xf16, #loop.space<shared>>, memref<3x32x64xf16, #loop.space<shared>>, !tile.fragment<32x32xf32>
    tile.gemm %q[] * %keys[%stage] to %scores transpose_b
        : !tile.operand<16x64xf16>, memref<2x64x64xf16, #loop.space<shared>>, !tile.fragment<16x64xf32>
    ```
    A is a tile of rows along the terms, or, with `transpose_a`, across them, or an operand in registers; B is one of
    rows across the terms, or, with `transpose_b`, along them. Which rows and columns are a warp's, the fragment says.
    Rejected: different numbers of terms, or one that is no multiple of what tensor cores multiply at once; element
    types that they do not multiply; bytes whose rows run across the terms; a fragment that is larger than the tiles.
    """

    name = "tile.gemm"
    a = operand_def(Kind("a tile or an operand", MemRefType, OperandType))
    a_indices = var_operand_def(IndexType)
    b = operand_def(MEMREF)
    b_indices = var_operand_def(IndexType)
    c = operand_def(_FRAGMENT)
    transpose_a = opt_prop_def(UnitAttr)
    transpose_b = opt_prop_def(UnitAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$a `[` $a_indices `]` `*` $b `[` $b_indices `]` `to` $c (`transpose_a` $transpose_a^)? "
        "(`transpose_b` $transpose_b^)? attr-dict `:` type($a) `,` type($b) `,` type($c)"
    )

    def verify_(self) -> None:
        of_c = self.c.type
        assert isinstance(of_c, FragmentType) and isinstance(self.b.type, MemRefType)
        (rows, terms), left = self._left()
        others, columns = extents_of(self.b, self.b_indices)[:: -1 if self.transpose_b is not None else 1]
        right, said = self.b.type.get_element_type(), f"{self.a.type} times {self.b.type}"
        if (left, right) not in MULTIPLIED:
            accepted = ", ".join(f"{a} x {b}" for a, b in MULTIPLIED)
            raise VerifyException(f"{said}: expected elements that tensor cores multiply: {accepted}")
        if terms != others or terms % PRODUCT_K[left]:
            message = f"{said}: {terms} and {others} terms: expected equal ones, a multiple of {PRODUCT_K[left]}"
            raise VerifyException(message)
        if byte_width(left) == 1 and (self.transpose_a is not None or self.transpose_b is None):
            raise VerifyException(f"{said}: expected bytes in rows along the terms")
        if of_c.element != fragments(left, right)[2].element_type or of_c.shape[1] == 1:
            raise VerifyException(f"{said} to {of_c}: expected sums of {fragments(left, right)[2].element_type}")
        if of_c.shape[0] > rows or of_c.shape[1] > columns:
            raise VerifyException(f"{said} to {of_c}: expected at most {rows} x {columns}")

    def _left(self) -> tuple[tuple[int, int], Attribute]:
        """Rows and terms of A, and its elements."""
        if isinstance(self.a.type, OperandType):
            if self.a_indices or self.transpose_a is not None:
                raise VerifyException("indices or transpose_a of an operand in registers: expected neither")
            return self.a.type.shape, self.a.type.element
        assert isinstance(self.a.type, MemRefType)
        shape = extents_of(self.a, self.a_indices)
        return shape if self.transpose_a is None else (shape[1], shape[0]), self.a.type.get_element_type()


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """Gives an element of `tile.map`.

    ```mlir
    tile.yield %x : f32
    ```
    Rejected: a parent other than `tile.map`.
    """

    name = "tile.yield"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(MapOp), Pure()))


@irdl_op_definition
class MapOp(IRDLOperation):
    """Each element of a fragment becomes what the region yields for the elements of others, its row and its column.

    ```mlir
    tile.map %gate, %value to %gate {
    ^bb0(%g : f32, %v : f32, %row : index, %column : index):
      %product = arith.mulf %g, %v : f32
      tile.yield %product : f32
    } : !tile.fragment<32x32xf32>, !tile.fragment<32x32xf32> -> !tile.fragment<32x32xf32>
    ```
    Rows and columns are those of the block's tile. A fragment of one column gives its number of the row. Rejected:
    other arguments, fragments of other shapes, another type than the fragment's.
    """

    name = "tile.map"
    sources = var_operand_def(_FRAGMENT)
    target = operand_def(_FRAGMENT)
    body = region_def("single_block")
    assembly_format = "$sources `to` $target $body attr-dict `:` type($sources) `->` type($target)"

    def verify_(self) -> None:
        target = self.target.type
        assert isinstance(target, FragmentType)
        for source in self.sources:
            assert isinstance(source.type, FragmentType)
            rows, columns = source.type.shape
            if rows != target.shape[0] or columns not in (1, target.shape[1]):
                raise VerifyException(f"{source.type} to {target}: expected its shape, or its rows and one column")
        elements = [source.type.element for source in self.sources if isinstance(source.type, FragmentType)]
        types = [*elements, index, index]
        if [argument.type for argument in self.body.block.args] != types:
            raise VerifyException(f"the region's arguments: expected {', '.join(map(str, types))}")
        end = self.body.block.last_op
        given = [value.type for value in end.arguments] if isinstance(end, YieldOp) else []
        if given != [target.element]:
            said = ", ".join(map(str, given)) or "nothing"
            raise VerifyException(f"the region yields {said}: expected {target.element}")


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """The fold of each row of a fragment over the columns that the warp has of it.

    ```mlir
    tile.reduce max %scores to %peak : !tile.fragment<16x64xf32>, !tile.fragment<16x1xf32>
    ```
    Rejected: a kind that lanes do not fold, another number of rows, more than one column, another type.
    """

    name = "tile.reduce"
    kind = prop_def(StringAttr)
    source = operand_def(_FRAGMENT)
    target = operand_def(_FRAGMENT)
    custom_directives = (Word,)
    assembly_format = "custom<Word>($kind) $source `to` $target attr-dict `:` type($source) `,` type($target)"

    def verify_(self) -> None:
        source, target = self.source.type, self.target.type
        assert isinstance(source, FragmentType) and isinstance(target, FragmentType)
        if not lanes_fold(self.kind.data, source.element):
            raise VerifyException(f"a fold {self.kind.data!r} of {source}: expected add, mul, max or min")
        if target.shape != (source.shape[0], 1) or target.element != source.element or source.shape[1] == 1:
            raise VerifyException(f"a fold of {source} to {target}: expected its rows and one column")


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Writes a fragment to a tensor, rounded to its elements' type; what lies beyond its ends is left out.

    ```mlir
    tile.store %c to %C[%row, %column] : !tile.fragment<32x32xf32>, memref<100x72xf16>
    ```
    The block's tile begins at the indices. Rejected: a buffer that is no matrix of f16, bf16 or the fragment's
    elements, another number of indices, a fragment of one column.
    """

    name = "tile.store"
    fragment = operand_def(_FRAGMENT)
    target = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    assembly_format = "$fragment `to` $target `[` $indices `]` attr-dict `:` type($fragment) `,` type($target)"

    def verify_(self) -> None:
        source, type = self.fragment.type, checked_buffer(self.target, len(self.indices))
        assert isinstance(source, FragmentType)
        element = type.get_element_type()
        rounds = source.element == f32 and element in (f16, bf16)
        if type.get_num_dims() < 2 or source.shape[1] == 1 or (element != source.element and not rounds):
            raise VerifyException(f"{source} to {type}: expected a matrix of f16, bf16 or {source.element}")


@irdl_op_definition
class PipelinedOp(IRDLOperation):
    """A loop whose copies run `stages` - 1 steps ahead: `start` starts those of a step, `do` computes it.

    ```mlir
    tile.pipelined %steps stages 3 start {
    ^bb0(%step : index, %stage : index):
      ...
    } do {
    ^bb0(%step : index, %stage : index):
      ...
    }
    ```
    Both are given a step, from 0 up to the number of steps, and which of the tiles is its own. Source: CUTLASS'
    multistage pipelines. Rejected: fewer than two stages, other arguments.
    """

    name = "tile.pipelined"
    steps = operand_def(index)
    stages = prop_def(COUNT)
    start = region_def("single_block")
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "$steps `stages` $stages `start` $start `do` $body attr-dict"

    def verify_(self) -> None:
        if self.stages.value.data < 2:
            raise VerifyException(f"a pipeline of {self.stages.value.data} stages: expected at least 2")
        for region in (self.start, self.body):
            if [argument.type for argument in region.block.args] != [index, index]:
                raise VerifyException("the regions' arguments: expected a step and a stage, of type index")


TILE = Dialect(
    "tile",
    [FragmentOp, CopyOp, OperandOp, RoundOp, GemmOp, MapOp, YieldOp, ReduceOp, StoreOp, PipelinedOp],
    [FragmentType, OperandType],
)
