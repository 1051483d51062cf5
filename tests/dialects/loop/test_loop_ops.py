"""Every operation of the loop dialect: its text reads back, and each diagnostic of its verifier."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects import arith, func, test
from xdsl.dialects.builtin import Builtin, IndexType, MemRefType, ModuleOp, TensorType, VectorType, f16, f32, i1
from xdsl.ir import Block, Region
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.dialects.graph import GRAPH
from treadle.dialects.loop import (
    LOOP,
    AllocOp,
    KernelOp,
    LaneMaskOp,
    LoadOp,
    StoreOp,
    StridedLoadOp,
    StridedStoreOp,
    memref_of,
)
from treadle.dialects.schedule import SCHEDULE

CONTEXT = Context()
for dialect in (Builtin, arith.Arith, func.Func, test.Test, GRAPH, LOOP, SCHEDULE):
    CONTEXT.load_dialect(dialect)

DISPATCH = """
%n = "test.op"() : () -> tensor<i64>
%y = loop.dispatch #schedule.tree<TREE> (%n : tensor<i64>) {
  %a = "test.op"() : () -> tensor<4xf32>
  %b = "test.op"() : () -> tensor<4xf32>
}ATTRIBUTES : tensor<4xf32>"""


def dispatch(tree: str, attributes: str = "") -> str:
    return DISPATCH.replace("TREE", tree).replace("ATTRIBUTES", attributes and f" attributes {{{attributes}}}")


PREDICTED = "predicted = #schedule.predicted<[1] 0.25 [0.5, 0.125, 0.125], [64] 0.75 [2.0, 4.0, 1.5]>"

VALUES = """
%A, %B, %s = "test.op"() : () -> (memref<64x8xf32>, memref<64xf32>, memref<f32>)
%i, %j, %p = "test.op"() : () -> (index, index, i1)
%v, %h, %m = "test.op"() : () -> (f32, f16, vector<16xi1>)
%w, %z, %short = "test.op"() : () -> (vector<16xf32>, vector<16xf32>, vector<8xi1>)
"""

NUMBERS = '%n = "test.op"() : () -> vector<16xi32>\n'


def table(entries: int) -> str:
    return f"[{', '.join(f'{entry}.5' for entry in range(entries))}]"


TILES = """
%G, %S = "test.op"() : () -> (memref<64x64xf16>, memref<2x64x32xf16, #loop.space<shared>>)
%W = "test.op"() : () -> memref<64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
%R = "test.op"() : () -> memref<64x32xf32, #loop.space<shared>>
%i, %p, %z = "test.op"() : () -> (index, i1, f16)
%a, %b, %c = "test.op"() : () -> (vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>)
%x, %y = "test.op"() : () -> (vector<4x1xf32>, vector<2x1xf32>)
"""
BYTES = """
%S, %i = "test.op"() : () -> (memref<64x32xui8, #loop.space<shared>>, index)
%a, %b = "test.op"() : () -> (vector<4x4xui8>, vector<2x4xi8>)
%c, %d = "test.op"() : () -> (vector<2x2xi32>, vector<2x2xf32>)
"""
TILE = '%T, %i, %j = "test.op"() : () -> (memref<2x16xvector<16xf32>, #loop.space<register>>, index, index)\n'
UNIT = """
%acc = "test.op"() : () -> memref<16x32xf32, #loop.space<register>>
%rows, %bytes = "test.op"() : () -> (memref<16x64xbf16, #loop.space<register>>, memref<16x64xui8>)
%panels, %words, %i = "test.op"() : () -> (memref<2x32x32x2xbf16>, memref<32x32xi32>, index)
"""
PRODUCT_TYPES = "memref<16x32xf32, #loop.space<register>>, memref<16x64xbf16, #loop.space<register>>, "
PRODUCT = f"""loop.multiply_tiles %acc[%i, %i] = %rows[%i, %i] * %panels[%i, %i, %i, %i]
    rows 16 depth 64 stride 64 taps [0] apart 32AHEAD
    : {PRODUCT_TYPES}memref<2x32x32x2xbf16>"""
SHARED = "memref<2x64x32xf16, #loop.space<shared>>"
COPY = """loop.copy async (%e in 8) to %S[%i, %i, %i] {
  %k = arith.addi %i, %e : index
  %v = loop.load %G[%i, %k] where %p else %z : memref<64x64xf16>
  loop.yield %v : f16
} : memref<2x64x32xf16, #loop.space<shared>>"""

KERNEL = """func.func @main(%x: tensor<4x8xf32>) -> tensor<8xf32> {{
  %y = loop.kernel @k ins(%X = %x : tensor<4x8xf32>) outs(%Y : tensor<8xf32>)
      grid(%b in {grid}) threads(%t in {threads}) {{
    %v = loop.load %X[%b, %t] : memref<4x8xf32>
    loop.store %v, %Y[%t] : memref<8xf32>
  }}
  func.return %y : tensor<8xf32>
}}"""
JOIN = """func.func @main(%x: tensor<4x8xf32>, %z: tensor<2x8xf32>) -> tensor<48xf32> {
  %y = loop.kernel @k ins(%X = %x : tensor<4x8xf32>, %Z = %z : tensor<2x8xf32>) outs(%Y : tensor<48xf32>)
      joins [16, 0] grid(%b in 4) threads(%t in 8) {
  }
  func.return %y : tensor<48xf32>
}"""
FUNC = """loop.func @k(%A: memref<98304xf32>, %C: memref<12xf32>)
    grid(%b in {grid}) threads(%t in {threads}) comment "sum" {{
  %v = loop.load %A[%b] : memref<98304xf32>
  loop.store %v, %C[%t] : memref<12xf32>
}}"""
ZEROS = "sha256:" + "0" * 64


COUNTERS = '%n, %i = "test.op"() : () -> (memref<16xi32, #loop.space<zeroed>>, index)\n'


def parse(text: str) -> ModuleOp:
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    return module


GOOD = [
    VALUES + "%r = loop.load %A[%i, %j] : memref<64x8xf32>",
    VALUES + "%r = loop.load %A[%i, %j] where %p else %v : memref<64x8xf32>",
    VALUES + "%r = loop.load %s[] : memref<f32>",
    VALUES + "loop.store %v, %A[%i, %j] : memref<64x8xf32>",
    VALUES + "loop.store %v, %B[%i] where %p : memref<64xf32>",
    "%r = loop.alloc : memref<8x32xf32, #loop.space<register>>",
    "%r = loop.alloc : memref<8x32xf16, #loop.space<shared>>",
    "%r = loop.alloc : memref<2x4x128x4xf32, #loop.space<device>>",
    "%r = loop.alloc : memref<16xi32, #loop.space<zeroed>>",
    "loop.barrier",
    VALUES + "loop.prefetch %A at %i : memref<64x8xf32>",
    VALUES + "%r = loop.opaque %i",
    VALUES + "%r = loop.opaque_buffer %A : memref<64x8xf32> -> memref<512xf32>",
    "%t = loop.alloc : memref<2x4xf32, #loop.space<register>>\n"
    "%r = loop.opaque_buffer %t : memref<2x4xf32, #loop.space<register>> -> memref<8xf32, #loop.space<register>>",
    COUNTERS + "%r = loop.arrive %n[%i] of 4 : memref<16xi32, #loop.space<zeroed>>",
    VALUES + "%r = loop.warp_reduce add %v over 32 : f32",
    VALUES + "%r = loop.warp_reduce max %v over 2 : f32",
    VALUES + "%r = loop.shuffle %v from %i : f32",
    VALUES + "%r = loop.lane_mask %i, %j : vector<16xi1>",
    VALUES + "%r = loop.lane_compare ogt, %w, %z : vector<16xf32>",
    VALUES + "%r = loop.lane_select %m, %w, %z : vector<16xf32>",
    VALUES + "%r = loop.lane_convert %w : vector<16xf32> to vector<16xui8>",
    NUMBERS + f"%r = loop.lane_lookup %n in {table(16)} : vector<16xi32> to vector<16xf32>",
    VALUES + "%r = loop.strided_load %A[%i, %j] by 2 : memref<64x8xf32>, vector<16xf32>",
    VALUES + "%r = loop.strided_load %B[%i] by -196 where %m else %z : memref<64xf32>, vector<16xf32>",
    VALUES + "loop.strided_store %w, %A[%i, %j] by 2 : memref<64x8xf32>, vector<16xf32>",
    VALUES + "loop.strided_store %w, %B[%i] by 196 where %m : memref<64xf32>, vector<16xf32>",
    TILE + "loop.transpose %T[%i, %j] : memref<2x16xvector<16xf32>, #loop.space<register>>",
    TILES + COPY,
    TILES + COPY.replace(" async", ""),
    TILES
    + COPY.replace("S[%i, %i, %i]", "W[%i, %i]").replace(
        "memref<2x64x32xf16, ", "memref<64x32xf16, #loop.swizzle<8, 2, 4>, "
    ),
    TILES + f"loop.async_copy 8 %G[%i, %i], %S[%i, %i, %i] where %p : memref<64x64xf16>, {SHARED}",
    TILES
    + "loop.async_copy 2 %G[%i, %i], %S[%i, %i, %i] : memref<64x64xf16>, memref<2x64x32xf16, #loop.space<shared>>",
    "loop.commit",
    "loop.wait 2",
    "%r = loop.alloc : memref<3x64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>",
    TILES + "%r = loop.load_matrix %S[%i, %i, %i] : memref<2x64x32xf16, #loop.space<shared>> -> vector<4x2xf16>",
    TILES + f"%r = loop.load_matrix transpose %S[%i, %i, %i] : {SHARED} -> vector<2x2x2xf16>",
    TILES + "%r = loop.load_matrix %R[%i, %i] : memref<64x32xf32, #loop.space<shared>> -> vector<2x1xf32>",
    TILES + "%r = loop.mma %a, %b, %c : vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>",
    TILES + "%r = loop.mma %x, %y, %c : vector<4x1xf32>, vector<2x1xf32>, vector<2x2xf32>",
    BYTES + "%r = loop.load_matrix %S[%i, %i] : memref<64x32xui8, #loop.space<shared>> -> vector<4x4xui8>",
    BYTES + "%r = loop.mma %a, %b, %c : vector<4x4xui8>, vector<2x4xi8>, vector<2x2xi32>",
    UNIT + PRODUCT.replace("AHEAD", ""),
    UNIT + PRODUCT.replace("AHEAD", " ahead %i lines 8"),
    UNIT + PRODUCT.replace("AHEAD", "").replace("[0] apart 32", "[0, 96] apart 4096"),
    UNIT
    + PRODUCT.replace("AHEAD", "")
    .replace("panels[%i, %i, %i, %i]", "words[%i, %i]")
    .replace("2x32x32x2xbf16", "32x32xi32"),
    VALUES + "%r = loop.round_pair %v, %v : f32 -> i32",
    VALUES + "%r = loop.round_pair %w, %z : vector<16xf32> -> vector<16xi32>",
    TILES + "%r = loop.round_tf32 %x : vector<4x1xf32>",
    dispatch("e0 <= 8 ? 0 : 1"),
    dispatch("e0 <= 8 ? 0 : (e0 <= 16 ? 1 : 0)", PREDICTED),
    KERNEL.format(grid=4, threads=8),
    JOIN,
    KERNEL.format(grid=4, threads=8).replace("in 8) {", 'in 8) comment "copy" {'),
    KERNEL.format(grid=4, threads=8).replace("in 8)", "in 8) min_blocks_per_sm 2"),
    KERNEL.format(grid=4, threads=8).replace("in 8)", "in 8) min_blocks_per_sm 2 operations 36893488147419103232"),
    KERNEL.format(grid=4, threads=8).replace("in 8)", "in 8) cluster 4 min_blocks_per_sm 2"),
    FUNC.format(grid=4, threads=12).replace("in 12)", "in 12) cluster 2"),
    FUNC.format(grid=3, threads=12),
    FUNC.format(grid=3, threads=12).replace("\n    grid(", " outputs 2 partial grid("),
    FUNC.format(grid=3, threads=12).replace("\n    grid(", " partial grid("),
]


@pytest.mark.parametrize("text", GOOD, ids=lambda text: text.rsplit("loop.", 1)[1].split("\n")[0][:40])
def test_round_trip(text: str):
    printed = str(parse(text))
    assert str(parse(printed)) == printed
    assert parse(printed).is_structurally_equivalent(parse(text))


def test_every_operation_is_tested():
    tested = {op.name for text in GOOD for op in parse(text).walk()}
    assert {op.name for op in LOOP.operations} <= tested


REJECTED = [
    (dispatch("0"), "alternative 1 has no leaf: expected leaves 0 to 1"),
    (dispatch("e0 <= 8 ? 0 : 2"), "alternative 1 has no leaf"),
    (dispatch("e0 <= 8 ? 0 : (e0 <= 9 ? 1 : 2)"), "alternative 2 is none"),
    (dispatch("e0 <= 8 ? 0 : (e0 <= 7 ? 0 : 1)"), "no point reaches leaf 0: e0 is from 9 to 7"),
    (dispatch("e1 <= 8 ? 0 : 1"), "e1 is not given: there are 1 extents"),
    (dispatch("e0 <= 8 ? 0 : 1").replace("tensor<i64>", "tensor<i32>"), "expected tensor<i64>"),
    (dispatch("e0 <= 8 ? 0 : 1").replace("} : tensor<4xf32>", "} : tensor<5xf32>"), "gives tensor<4xf32>: expected"),
    (dispatch("e0 <= 8 ? 0 : 1", PREDICTED.replace(", 0.125]", "]").replace(", 1.5]", "]")), "2 predictions a point"),
    (dispatch("e0 <= 8 ? 0 : 1", PREDICTED.replace(", 1.5]", "]")), "different numbers of extents or seconds"),
    (VALUES + "%r = loop.load %A[%i] : memref<64x8xf32>", "1 indices into memref<64x8xf32>: expected 2"),
    (
        VALUES + "%r = loop.opaque_buffer %A : memref<64x8xf32> -> memref<8x64xf32>",
        "a result memref<8x64xf32>: expected memref<512xf32>",
    ),
    (
        TILES + "%r = loop.opaque_buffer %W : memref<64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>> -> "
        "memref<2048xf16, #loop.space<shared>>",
        "expected static extents, in row-major order",
    ),
    (VALUES + "%r = loop.load %A[%i, %j] : tensor<64x8xf32>", "expected a memref, got tensor<64x8xf32>"),
    (VALUES + "%r = loop.load %B[%i] where %p else %h : memref<64xf32>", "operand is used with type f32"),
    (VALUES + "loop.store %v, %A[%i] : memref<64x8xf32>", "1 indices into memref<64x8xf32>: expected 2"),
    (VALUES + "loop.store %h, %B[%i] : memref<64xf32>", "operand is used with type f32"),
    (
        "%r = loop.alloc : memref<8xf32>",
        "memref<8xf32> has no space: expected #loop.space<register | shared | device | zeroed>",
    ),
    ("%r = loop.alloc : memref<?xf32, #loop.space<shared>>", "a buffer of a kernel has static extents"),
    (VALUES + "%r = loop.lane_compare ult, %w, %z : vector<16xf32>", "'ult' compares no lanes: expected one of oeq, "),
    (VALUES + "%r = loop.lane_compare olt, %m, %m : vector<16xi1>", "expected two vectors of floats of one type"),
    (VALUES + "%r = loop.lane_compare olt, %w, %z : f32", "expected a vector, got f32"),
    (VALUES + "%r = loop.lane_select %short, %w, %z : vector<16xf32>", "operand is used with type vector<16xi1>"),
    (VALUES + "%r = loop.round_pair %w, %z : vector<16xf32> -> vector<8xi32>", "expected as many i32"),
    (VALUES + "%r = loop.round_pair %v, %v : f32 -> vector<2xi32>", "expected as many i32"),
    (VALUES + "%r = loop.lane_convert %w : vector<16xf32> to vector<8xi8>", "expected as many lanes"),
    (VALUES + "%r = loop.lane_convert %w : vector<16xf32> to vector<16xi32>", "expected i8 or ui8"),
    (VALUES + "%r = loop.lane_convert %m : vector<16xi1> to vector<16xi32>", "expected a vector of i8, ui8, i32, f32"),
    (VALUES + "%r = loop.lane_convert %w : vector<16xf32> to f32", "expected a vector, got f32"),
    (NUMBERS + f"%r = loop.lane_lookup %n in {table(8)} : vector<16xi32> to vector<16xf32>", "8 entries: expected 16"),
    (
        NUMBERS + f"%r = loop.lane_lookup %n in {table(16)} : vector<16xi32> to vector<8xf32>",
        "expected lanes of i32 to as",
    ),
    (
        VALUES + f"%r = loop.lane_lookup %w in {table(16)} : vector<16xf32> to vector<16xf32>",
        "expected lanes of i32 to as",
    ),
    (VALUES + "%r = loop.lane_mask %i, %j : vector<16xf32>", "a mask is a vector of i1 of rank 1, not vector<16xf32>"),
    (
        VALUES + "%r = loop.strided_load %A[%i] by 2 : memref<64x8xf32>, vector<16xf32>",
        "1 indices into memref<64x8xf32>: expected 2",
    ),
    (VALUES + "%r = loop.strided_load %B[%i] by 2 : memref<64xf32>, f32", "expected a vector, got f32"),
    (
        VALUES + "%r = loop.strided_load %B[%i] by 2 : memref<64xf32>, vector<16xf16>",
        "vector<16xf16> and memref<64xf32> differ in element type",
    ),
    (
        VALUES + "%r = loop.strided_load %B[%i] by 2 where %short else %z : memref<64xf32>, vector<16xf32>",
        "operand is used with type vector<16xi1>",
    ),
    (
        TILE + "loop.transpose %T[%i] : memref<2x16xvector<16xf32>, #loop.space<register>>",
        "1 indices into memref<2x16xvector<16xf32>, #loop.space<register>>: expected 2",
    ),
    (VALUES + "loop.transpose %A[%i, %j] : memref<64x8xf32>", "expected vectors of rank 1, got f32"),
    (
        '%T, %i = "test.op"() : () -> (memref<8xvector<16xf32>>, index)\n'
        "loop.transpose %T[%i] : memref<8xvector<16xf32>>",
        "memref<8xvector<16xf32>> has fewer vectors in its last dimension than vector<16xf32> has lanes",
    ),
    (
        VALUES + "loop.strided_store %w, %A[%i] by 2 : memref<64x8xf32>, vector<16xf32>",
        "1 indices into memref<64x8xf32>: expected 2",
    ),
    (
        VALUES + "loop.strided_store %w, %B[%i] by 2 where %short : memref<64xf32>, vector<16xf32>",
        "operand is used with type vector<16xi1>",
    ),
    (
        VALUES + "%r = loop.warp_reduce and %v over 32 : f32",
        "unknown reduction 'and': expected one of add, mul, max, min",
    ),
    (VALUES + "%r = loop.warp_reduce add %v over 3 : f32", "groups of 3 lanes: expected 2, 4, 8, 16 or 32"),
    (VALUES + "%r = loop.warp_reduce add %h over 32 : f16", "lanes exchange f32, f64, i32, not f16"),
    (VALUES + "%r = loop.shuffle %h from %i : f16", "lanes exchange f32, f64, i32, not f16"),
    (
        TILES + COPY.replace("S[%i, %i, %i]", "S[%i, %i]"),
        "2 indices into memref<2x64x32xf16, #loop.space<shared>>: expected 3",
    ),
    (
        TILES
        + COPY.replace("S[%i, %i, %i]", "G[%i, %i]").replace(
            "memref<2x64x32xf16, #loop.space<shared>>", "memref<64x64xf16>"
        ),
        "a copy to memref<64x64xf16>: expected a buffer in #loop.space<shared>",
    ),
    (TILES + COPY.replace("in 8", "in 0"), "a copy of 0 elements: expected at least 1"),
    (TILES + COPY.replace("yield %v : f16", "yield %c : vector<2x2xf32>"), "yields vector<2x2xf32>: expected f16"),
    (TILES + COPY.replace("loop.yield %v : f16", "loop.yield"), "the region yields nothing: expected f16"),
    (TILES + "loop.yield %z : f16", "'loop.yield' expects parent op 'loop.copy'"),
    (
        TILES + f"loop.async_copy 8 %S[%i, %i, %i], %S[%i, %i, %i] : {SHARED}, {SHARED}",
        "expected global to #loop.space<shared>",
    ),
    (
        TILES + "loop.async_copy 8 %G[%i, %i], %R[%i, %i] : memref<64x64xf16>, memref<64x32xf32, #loop.space<shared>>",
        "the elements' types differ",
    ),
    (
        TILES + f"loop.async_copy 0 %G[%i, %i], %S[%i, %i, %i] : memref<64x64xf16>, {SHARED}",
        "a copy of 0 elements: expected at least 1",
    ),
    ("loop.wait -1", "cannot leave -1 groups under way: expected 0 or more"),
    (
        "%r = loop.alloc : memref<64x32xf16, #loop.swizzle<8, 2>, #loop.space<shared>>",
        "a swizzle of 2 numbers: expected chunk, rows, phases",
    ),
    (
        "%r = loop.alloc : memref<64x24xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>",
        "swizzle<8, 2, 4> of rows of 24 elements: expected a multiple of 32",
    ),
    (
        "%r = loop.alloc : memref<64x24xf16, #loop.swizzle<8, 2, 3>, #loop.space<shared>>",
        "swizzle<8, 2, 3>: expected sizes of at least 1, and a power of two for the phases",
    ),
    (
        "%r = loop.alloc : memref<32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>",
        "has no rows: a swizzle permutes the last of two or more dimensions",
    ),
    (
        TILES + "%r = loop.load_matrix %G[%i, %i] : memref<64x64xf16> -> vector<4x2xf16>",
        "matrices of memref<64x64xf16>: expected a buffer in #loop.space<shared>",
    ),
    (
        TILES
        + "%r = loop.load_matrix transpose %R[%i, %i] : memref<64x32xf32, #loop.space<shared>> -> vector<4x1xf32>",
        "matrices of f32: expected f16, bf16, or f32, i8 or ui8 without transpose",
    ),
    (
        BYTES
        + "%r = loop.load_matrix transpose %S[%i, %i] : memref<64x32xui8, #loop.space<shared>> -> vector<4x4xui8>",
        "matrices of ui8: expected f16, bf16, or f32, i8 or ui8 without transpose",
    ),
    (
        BYTES + "%r = loop.mma %a, %b, %d : vector<4x4xui8>, vector<2x4xi8>, vector<2x2xf32>",
        "a tile product of (vector<4x4xui8>, vector<2x4xi8>, vector<2x2xf32>): expected (vector<4x2xf16>, ",
    ),
    (
        TILES + "%r = loop.load_matrix %S[%i, %i, %i] : memref<2x64x32xf16, #loop.space<shared>> -> vector<3x2xf16>",
        "as vector<3x2xf16>: expected one of vector<1x2xf16>",
    ),
    (
        TILES + "%r = loop.load_matrix %S[%i, %i, %i] : memref<2x64x32xf16, #loop.space<shared>> -> f16",
        "expected a vector, got f16",
    ),
    (
        TILES + "%r = loop.mma %b, %a, %c : vector<2x2xf16>, vector<4x2xf16>, vector<2x2xf32>",
        "a tile product of (vector<2x2xf16>, vector<4x2xf16>, vector<2x2xf32>): expected (vector<4x2xf16>, ",
    ),
    (
        UNIT + PRODUCT.replace("AHEAD", "").replace("depth 64", "depth 40"),
        "a depth of 40 by taps [0]: expected a multiple ",
    ),
    (
        UNIT + PRODUCT.replace("AHEAD", "").replace("[0]", "[0, 32, 64]"),
        "by taps [0, 32, 64]: expected a multiple of 96",
    ),
    (UNIT + PRODUCT.replace("AHEAD", "").replace("[0]", "[]"), "a depth of 64 by taps []: expected a multiple of 32"),
    (UNIT + PRODUCT.replace("AHEAD", " ahead %i lines 0"), "0 lines are fetched: expected some from an element on"),
    (
        UNIT
        + PRODUCT.replace("AHEAD", "")
        .replace("%rows", "%bytes")
        .replace("16x64xbf16, #loop.space<register>", "16x64xui8"),
        "a product of tiles of ui8 and bf16: expected both bf16, or i8 and ui8",
    ),
    (
        UNIT + PRODUCT.replace("AHEAD", "").replace("rows 16", "rows 12"),
        "12 rows of memref<16x32xf32, #loop.space<register>>: expected 1, 2, 4, 8, 16, 24 or 32 rows, 16 or 32 "
        "columns of f32",
    ),
    (UNIT + PRODUCT.replace("AHEAD", "").replace("[%i, %i] *", "[%i] *"), "1 indices into memref<16x64xbf16"),
    (TILES + "%r = loop.round_tf32 %a : vector<4x2xf16>", "Expected attribute"),
    (
        COUNTERS + "%r = loop.arrive %n[%i] of 0 : memref<16xi32, #loop.space<zeroed>>",
        "the last of 0 blocks: expected at least one",
    ),
    (
        COUNTERS + "%r = loop.arrive %n[%i, %i] of 2 : memref<16xi32, #loop.space<zeroed>>",
        "Expected ']'",
    ),
    (
        '%n, %i = "test.op"() : () -> (memref<16xi32>, index)\n%r = loop.arrive %n[%i] of 2 : memref<16xi32>',
        "counters in memref<16xi32>: expected a row of i32 in #loop.space<zeroed>",
    ),
    (JOIN.replace("[16, 0]", "[0, 16]"), "@k: joins [0, 16], which do not fill the result"),
    (JOIN.replace("[16, 0]", "[0]"), "@k: joins [0], which do not fill the result"),
    (KERNEL.format(grid=0, threads=8), "@k: grid and threads are at least 1"),
    (KERNEL.format(grid=4, threads=0), "@k: grid and threads are at least 1"),
    (KERNEL.format(grid=4, threads=8).replace("outs(%Y : tensor", "outs(%Y : memref"), "expected a tensor, got memref"),
    (
        KERNEL.format(grid=6, threads=8).replace("in 8)", "in 8) cluster 4"),
        "clusters of 4 blocks do not divide a grid of 6",
    ),
    (FUNC.format(grid=32, threads=8).replace("in 8)", "in 8) cluster 16"), "expected 1 to 8 blocks"),
    (FUNC.format(grid=0, threads=1), "@k: grid and threads are at least 1"),
    (FUNC.format(grid=1, threads=0), "@k: grid and threads are at least 1"),
    (
        FUNC.format(grid=1, threads=1).replace(" grid(", " outputs 9 grid("),
        "9 outputs: expected 1 to ",
    ),
    ("loop.func @k(%A: f32) grid(%b in 1) threads(%t in 1) {\n}", "@k: arguments are memrefs, then block and thread"),
    (
        '"loop.func"() <{sym_name = "k", grid = 1 : i64, threads = 1 : i64}> ({\n^bb0(%b: index):\nloop.barrier\n})'
        " : () -> ()",
        "@k: arguments are memrefs, then block and thread",
    ),
]


@pytest.mark.parametrize(("text", "expected"), REJECTED, ids=[message[:40] for _, message in REJECTED])
def test_rejected(text: str, expected: str):
    with pytest.raises((ParseError, VerifyException)) as caught:
        parse(text)
    assert expected in str(caught.value)


def arguments() -> Block:
    """A buffer, an index, a predicate, a float, a half; a vector, its mask, a shorter mask, another vector."""
    return Block(
        arg_types=[
            MemRefType(f32, [64]),
            *(IndexType(), i1, f32, f16),
            *(VectorType(f32, [16]), VectorType(i1, [16]), VectorType(i1, [8]), VectorType(f32, [8])),
        ]
    )


def test_operations_built_without_text_are_verified_too():
    buffer, i, inside, value, half, vector, mask, short_mask, short = arguments().args
    wide = VectorType(f32, [16])
    cases = [
        (LoadOp(buffer, [i], inside), "'where' and 'else' come together"),
        (LoadOp(buffer, [i], inside, half), "'else' gives f16: expected f32"),
        (StoreOp(half, buffer, [i]), "f16 is no element of memref<64xf32>"),
        (AllocOp(MemRefType(f32, [4])), "has no space"),
        (StridedLoadOp(buffer, [i], 2, wide, mask), "'where' and 'else' come together"),
        (StridedLoadOp(buffer, [i], 2, wide, mask, short), "'else' gives vector<8xf32>: expected vector<16xf32>"),
        (StridedLoadOp(buffer, [i], 2, wide, short_mask, vector), "the mask of vector<16xf32> is vector<16xi1>"),
        (StridedStoreOp(vector, buffer, [i], 2, short_mask), "the mask of vector<16xf32> is vector<16xi1>"),
    ]
    LoadOp(buffer, [i], inside, value).verify()
    LaneMaskOp(i, i, 16).verify()
    for op, message in cases:
        with pytest.raises(VerifyException, match="(?s).*" + message.split("(")[0]):
            op.verify()


def test_a_kernel_gives_at_least_one_tensor():
    kernel = KernelOp("k", [], [], 1, 1, Region(Block(arg_types=[IndexType(), IndexType()])))
    with pytest.raises(VerifyException, match="@k: a kernel gives at least one tensor"):
        kernel.verify()


def test_the_body_of_a_kernel_takes_the_buffers_of_its_operands():
    x = Block(arg_types=[TensorType(f32, [4])]).args[0]
    index = IndexType()
    body = Block(arg_types=[MemRefType(f32, [5]), memref_of(TensorType(f32, [4])), index, index])
    kernel = KernelOp("k", [x], [TensorType(f32, [4])], 1, 1, Region(body))
    with pytest.raises(VerifyException, match=r"expected \(memref<4xf32>, memref<4xf32>, index, index\)"):
        kernel.verify()


def test_the_body_of_a_kernel_captures_nothing():
    text = KERNEL.format(grid=4, threads=8)
    captured = text.replace("{\n  %y", "{\n  %o = arith.constant 1.0 : f32\n  %y").replace("store %v", "store %o")
    with pytest.raises((ParseError, VerifyException)):
        parse(captured)
