"""Every operation of the graph dialect: its text reads back, and each diagnostic of its verifier."""

from __future__ import annotations

import re

import pytest
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import TensorType, f32, i32, i64
from xdsl.utils.exceptions import ParseError, VerifyException

from tests.dialects.graph.operator_texts import (
    CONTROL,
    ZEROS,
    append,
    attention,
    batch_norm,
    compute,
    conv,
    conv_transpose,
    ints,
    layer_norm,
    mask,
    one,
    packed_conv,
    packed_matmul,
    parse,
    pool,
    rms_norm,
    slice_of,
    two,
    where,
    window,
    winograd_conv,
    with_arguments,
)  # fmt: skip
from treadle.dialects.graph import GRAPH, AttentionOp

READ = "%a = graph.at {%x: tensor<4x8xf32>}[%i, %j] : tensor<4x8xf32>\ngraph.yield %a : f32"
IMAGE, U, TILED = "tensor<2x3x7x6x4xf32>", "tensor<16x10x8xf32>", "tensor<2x2x7x6x4xf32>"
"""An image in blocks, filters of 10 of its channels, and the result."""
BLOCKS, FILTERS, PANELS = "tensor<2x2x7x6x32xbf16>", "tensor<2x288x32x2xbf16>", "tensor<2x2x4x6x32xf32>"
"""The same for a matrix unit."""
FUSED = 'graph.fused "g" {\ngraph.yield {%x: tensor<4xf32>} : tensor<4xf32>\n}'

GOOD = [
    '%c = graph.constant #graph.inline<"1.0, -inf, nan"> : tensor<3xf32>',
    '%c = graph.constant #graph.inline<"True"> : tensor<i1>',
    '%c = graph.constant #graph.inline<"-8, 7"> : tensor<2xi4>',
    '%c = graph.constant #graph.inline<"0, 3"> : tensor<2xui2>',
    f'%c = graph.constant #graph.blob<"{ZEROS}", 24> : tensor<2x3xf32>',
    one('unary "exp"', "tensor<4x8xf32>", "tensor<4x8xf32>"),
    one('unary "isnan"', "tensor<4xf16>", "tensor<4xi1>"),
    two('binary "add"', "tensor<4x8xf32>", "tensor<8xf32>", "tensor<4x8xf32>"),
    two('binary "lt"', "tensor<?x8xi64>", "tensor<i64>", "tensor<?x8xi1>"),
    where("tensor<4x1xi1>", "tensor<4x8xf32>", "tensor<f32>", "tensor<4x8xf32>"),
    "%y = graph.cast {%x: tensor<4xi64>} to f32 : (tensor<4xi64>) -> tensor<4xf32>",
    "%y = graph.bitcast {%x: tensor<4xf32>} to ui32 : (tensor<4xf32>) -> tensor<4xui32>",
    two("matmul", "tensor<12x128x64xf32>", "tensor<12x64x128xf32>", "tensor<12x128x128xf32>"),
    two("matmul", "tensor<5x3xf32>", "tensor<2x3x4xf32>", "tensor<2x5x4xf32>"),
    two("matmul", "tensor<5x3xf8E4M3FN>", "tensor<3x4xf8E5M2>", "tensor<5x4xf32>", "{sums = f32}"),
    two(
        "matmul",
        "tensor<5x3xf8E5M2>",
        "tensor<3x4xf8E5M2>",
        "tensor<5x4xf32>",
        '{sums = f32, precision = "bf16"}',
    ),
    two("matmul", "tensor<5x3xui8>", "tensor<2x3x4xi8>", "tensor<2x5x4xi32>", "{sums = i32}"),
    conv("tensor<1x3x8x8xf32>", "tensor<4x3x3x3xf32>", "tensor<1x4x3x3xf32>", window(ints(2, 2))),
    conv_transpose("tensor<1x4x3x3xf32>", "tensor<4x2x2x2xf32>", "tensor<1x2x6x6xf32>"),
    one('reduction "mean"', "tensor<1x6x7x7xf32>", "tensor<1x6x1x1xf32>", f"{{dims = {ints(2, 3)}, keep = 1 : i64}}"),
    one('reduction "or"', "tensor<3x4xi1>", "tensor<3xi1>", f"{{dims = {ints(1)}, keep = 0 : i64}}"),
    one('arg_reduction "min"', "tensor<3x4xf32>", "tensor<3xi64>", "{dim = 1 : i64, keep = 0 : i64, last = 1 : i64}"),
    one('arg_reduction "max"', "tensor<3x4xi32>", "tensor<1x4xi64>", "{dim = 0 : i64, keep = 1 : i64, last = 0 : i64}"),
    pool("max"),
    pool("avg", y="tensor<1x2x4x4xf32>", pads=ints(1, 1, 1, 1)),
    one("reshape", "tensor<100xf32>", "tensor<2x50xf32>", f"{{shape = {ints(2, 50)}}}"),
    one("transpose", "tensor<1x4x8xf32>", "tensor<1x8x4xf32>", f"{{perm = {ints(0, 2, 1)}}}"),
    one("broadcast", "tensor<8xf32>", "tensor<4x8xf32>", f"{{shape = {ints(4, 8)}}}"),
    slice_of("tensor<4x8xf32>", "tensor<4x4xf32>", ints(0, 7), ints(4, 4), ints(1, -2)),
    two("concat", "tensor<1x4xf32>", "tensor<1x8xf32>", "tensor<1x12xf32>", "{dim = 1 : i64}"),
    two('pad "reflect"', "tensor<4x8xf32>", "tensor<f32>", "tensor<4x10xf32>", f"{{pads = {ints(0, 1, 0, 1)}}}"),
    two("gather", "tensor<9x4xf32>", "tensor<1x3xi64>", "tensor<1x3x4xf32>", "{dim = 0 : i64}"),
    mask("tensor<8x512xf32>", dim=1, fill="0xFF800000 : f32"),
    mask("tensor<4xui8>", fill="255 : ui8"),
    mask("tensor<4xi1>", fill="true"),
    one("resize", "tensor<1x8x3x3xf32>", "tensor<1x8x6x6xf32>", f"{{shape = {ints(1, 8, 6, 6)}}}"),
    one("softmax", "tensor<1x4x8xf32>", "tensor<1x4x8xf32>", "{dim = 2 : i64}"),
    layer_norm("tensor<1x4x8xf32>", "tensor<8xf32>", "tensor<8xf32>", 2),
    batch_norm("tensor<1x4x8xf32>", "tensor<4xf32>"),
    rms_norm("tensor<1x4x8xf32>", "tensor<8xf32>", 2),
    append("tensor<2x8x4xf32>", "tensor<2x3x4xf32>", "tensor<2x8x4xf32>", 1),
    append("tensor<8xui8>", "tensor<9xui8>", "tensor<8xui8>", count="tensor<i64>"),
    attention("tensor<5x8xf16>", "tensor<6x8xf16>", "tensor<6x3xf16>", "tensor<5x3xf16>"),
    attention(
        "tensor<2x4x5x8xf32>", "tensor<2x2x6x8xf32>", "tensor<2x2x6x3xf32>", "tensor<2x4x5x3xf32>", "tensor<1x6xf32>"
    ),
    attention("tensor<5x8xf16>", "tensor<6x8xf16>", "tensor<6x3xf16>", "tensor<5x3xf16>", length="tensor<i64>"),
    attention("tensor<5x8xf32>", "tensor<6x8xf32>", "tensor<6x3xf32>", "tensor<5x3xf32>", offset="tensor<i64>"),
    attention(
        "tensor<5x8xf32>",
        "tensor<6x8xf32>",
        "tensor<6x3xf32>",
        "tensor<5x3xf32>",
        "tensor<5x6xf32>",
        "tensor<i64>",
        "tensor<i64>",
    ),
    attention(
        "tensor<5x8xf16>", "tensor<6x8xf16>", "tensor<6x3xf16>", "tensor<5x3xf16>", "tensor<6xf32>", "tensor<i64>"
    ),
    winograd_conv(IMAGE, U, TILED),
    winograd_conv("tensor<1x1x5x9x16xf32>", "tensor<36x16x16xf32>", "tensor<1x1x3x8x16xf32>", 4, ints(0, 1, 0, 0)),
    packed_matmul("tensor<5x40xbf16>", "tensor<2x32x32x2xbf16>", "tensor<5x33xf32>", 33),
    packed_matmul("tensor<2x5x40xui8>", "tensor<1x16x32x4xi8>", "tensor<2x5x7xi32>", 7),
    packed_conv(BLOCKS, FILTERS, PANELS),
    packed_conv("tensor<1x1x5x6x64xui8>", "tensor<1x48x32x4xi8>", "tensor<1x1x4x6x32xi32>", (9, 7), ints(1, 3)),
    compute(READ),
    compute("%v = arith.constant 0xFF800000 : f32\ngraph.yield %v : f32"),
    compute(
        "%in = arith.cmpi slt, %i, %j : index\n%z = arith.constant 0x7fc00000 : f32\n"
        "%a = graph.at {%x: tensor<4x8xf32>}[%i, %j] where %in else %z : tensor<4x8xf32>\ngraph.yield %a : f32"
    ),
    compute(
        "%s = graph.reduce max (%k in 8, %l in 0) {\n%a = graph.at {%x: tensor<4x8xf32>}[%i, %k] : tensor<4x8xf32>\n"
        "graph.yield %a : f32\n}\ngraph.yield %s : f32",
        "tensor<4xf32>",
        "%i",
    ),
    f"%y = {FUSED} : tensor<4xf32>",
    f'%y = {FUSED} schedule #schedule.use<"generic_cpu", {{run = 16, rows = 2}}> : tensor<4xf32>',
]


@pytest.mark.parametrize("text", GOOD, ids=lambda text: text.split("graph.")[1].partition(" ")[0])
def test_round_trip(text: str):
    printed = str(parse(with_arguments(text)))
    again = parse(printed)
    assert str(again) == printed
    assert again.is_structurally_equivalent(parse(with_arguments(text)))


def test_every_operation_is_tested():
    texts = [*map(with_arguments, GOOD), CONTROL]
    tested = {op.name for text in texts for op in parse(text).walk()}
    assert {op.name for op in GRAPH.operations} <= tested


F, N, B = "tensor<4xf32>", "tensor<4xi32>", "tensor<4xi1>"
Q = "tensor<1x4x5x8xf32>"
X, W = "tensor<1x3x8x8xf32>", "tensor<4x3x3x3xf32>"

REJECTED = [
    ('%c = graph.constant #graph.inline<"1.0"> : tensor<2xf32>', "'1.0' is no tensor<2xf32>"),
    ('%c = graph.constant #graph.inline<"300"> : tensor<1xi8>', "'300' is no tensor<1xi8>"),
    ('%c = graph.constant #graph.inline<"8"> : tensor<1xi4>', "'8' is no tensor<1xi4>: 8 is no int4"),
    ('%c = graph.constant #graph.inline<"-1"> : tensor<1xui2>', "'-1' is no tensor<1xui2>: -1 is no uint2"),
    ('%c = graph.constant #graph.inline<"yes"> : tensor<i1>', "'yes' is no tensor<i1>"),
    ('%c = graph.constant #graph.inline<"1.0"> : tensor<?xf32>', "a constant has static extents"),
    ('%c = graph.constant #graph.inline<"1"> : tensor<1xi3>', "a supported element type"),
    (
        f'%c = graph.constant #graph.blob<"{ZEROS}", 4> : tensor<2xf32>',
        "a blob of 4 bytes is no tensor<2xf32> (8 bytes)",
    ),
    ('%c = graph.constant #graph.blob<"md5:00", 4> : tensor<1xf32>', "a blob's digest is 'sha256:' and 64 hex digits"),
    (one('unary "sine"', F, F), "unknown unary operator 'sine': expected one of abs"),
    (one('unary "exp"', N, N), "exp is not defined on i32"),
    (one('unary "not"', F, F), "not is not defined on f32"),
    (one('unary "exp"', F, "tensor<5xf32>"), "the result is tensor<5xf32>, the operands give tensor<4xf32>"),
    (two('binary "plus"', F, F, F), "unknown binary operator 'plus': expected one of add"),
    (two('binary "xor"', F, F, F), "xor is not defined on f32"),
    (two('binary "add"', B, B, B), "add is not defined on i1"),
    (two('binary "pow"', N, N, N), "pow is not defined on i32"),
    (two('binary "add"', F, N, F), "add of f32 and i32: element types differ"),
    (two('binary "add"', F, "tensor<3xf32>", F), "shapes (4,), (3,) do not broadcast"),
    (where(F, F, F, F), "the condition is a tensor of i1, not of f32"),
    (where(B, F, N, F), "branches of f32 and i32: element types differ"),
    ("%y = graph.cast {%x: tensor<4xi64>} to i3 : (tensor<4xi64>) -> tensor<4xi3>", "no tensor has elements of i3"),
    ("%y = graph.bitcast {%x: tensor<4xf32>} to i3 : (tensor<4xf32>) -> tensor<4xi3>", "no tensor has elements of i3"),
    (
        "%y = graph.bitcast {%x: tensor<4xf32>} to i64 : (tensor<4xf32>) -> tensor<4xi64>",
        "the bits of f32 as i64: expected a type as wide",
    ),
    (
        "%y = graph.bitcast {%x: tensor<4xf16>} to i16 : (tensor<4xf16>) -> tensor<4xi16>",
        "the bits of f16 as i16: no floats of 16 bits are read by their bits",
    ),
    (two("matmul", F, "tensor<4x4xf32>", F), "matmul of ranks 1 and 2: each is at least 2"),
    (two("matmul", "tensor<2x4xf32>", "tensor<3x5xf32>", "tensor<2x5xf32>"), "4 columns against 3 rows"),
    (two("matmul", "tensor<2x4xf32>", "tensor<4x5xf16>", "tensor<2x5xf32>"), "element types differ"),
    (
        two("matmul", "tensor<2x4xf8E5M2>", "tensor<4x5xf8E5M2>", "tensor<2x5xf8E5M2>"),
        "graph.matmul is not defined on f8E5M2 without sums",
    ),
    (
        two("matmul", "tensor<2x4xf16>", "tensor<4x5xf16>", "tensor<2x5xf32>", "{sums = f32}"),
        "sums of f32 of f16 and f16: only i32 of i8 and ui8, f32 of f8E4M3FN and f8E5M2 are known",
    ),
    (
        two(
            "matmul", "tensor<2x4xf8E5M2>", "tensor<4x5xf8E5M2>", "tensor<2x5xf32>", '{precision = "tf32", sums = f32}'
        ),
        'only "tf32" and "bf16" of f32, "bf16" of floats of 8 bits are known',
    ),
    (
        two("matmul", "tensor<2x4xi8>", "tensor<4x5xi16>", "tensor<2x5xi32>", "{sums = i32}"),
        "sums of i32 of i8 and i16: only i32 of i8 and ui8, f32 of f8E4M3FN and f8E5M2 are known",
    ),
    (
        two("matmul", "tensor<2x4xi8>", "tensor<4x5xi8>", "tensor<2x5xi64>", "{sums = i64}"),
        "sums of i64 of i8 and i8: only i32 of i8 and ui8, f32 of f8E4M3FN and f8E5M2 are known",
    ),
    (
        two("matmul", "tensor<2x4xi8>", "tensor<4x5xui8>", "tensor<2x5xi32>"),
        "element types differ",
    ),
    (two("matmul", "tensor<2x1x4xf32>", "tensor<3x4x5xf32>", "tensor<2x1x5xf32>"), "batch dimensions differ"),
    (conv("tensor<1x3xf32>", "tensor<4x3xf32>", X), "rank is at least 3"),
    (conv(X, "tensor<4x3x3xf32>", X), "ranks differ"),
    (conv("tensor<1x3x8x8xi8>", "tensor<4x3x3x3xi8>", X), "floats or i32 are needed"),
    (conv(X, "tensor<4x3x3x3xf16>", X), "input and weights differ in element type"),
    (conv(X, W, X, window(ints(1))), "(1, 2, 4) strides, dilations, pads for 2 spatial dimensions"),
    (conv(X, W, X, window(ints(0, 1))), "strides and dilations are at least 1"),
    (conv(X, W, X, window(pads=ints(0, 0, 0, -1))), "pads are at least 0"),
    (conv(X, "tensor<4x2x3x3xf32>", X), "3 channels are not 1 groups of 2"),
    (conv(X, "tensor<4x1x3x3xf32>", X, window(more=", groups = 3 : i64")), "4 output channels are not a multiple of 3"),
    (conv(X, "tensor<4x3x9x3xf32>", X), "a window of (9, 3) does not fit the padded input (8, 8)"),
    (conv_transpose(X, W, X), "3 channels do not fit weights"),
    (conv_transpose(X, "tensor<3x4x2x2xf32>", X, groups=2), "3 channels are not a multiple of 2 groups"),
    (conv_transpose(X, "tensor<3x4x2x2xf32>", X, groups=0), "3 channels are not a multiple of 0 groups"),
    (conv_transpose(X, "tensor<3x4x2x2xf32>", X, output_padding=ints(0)), "1 entries of output_padding for 2"),
    (conv_transpose(X, "tensor<3x4x2x2xf32>", X, pads=ints(9, 0, 9, 0)), "leave nothing of the result [-2, 16]"),
    (one('reduction "norm"', F, F, f"{{dims = {ints(0)}, keep = 1 : i64}}"), "unknown reduction 'norm'"),
    (
        one('reduction "mean"', "tensor<128xi8>", "tensor<1xi8>", f"{{dims = {ints(0)}, keep = 1 : i64}}"),
        "mean of 128 elements of i8: expected at most 127",
    ),
    (one('reduction "and"', F, F, f"{{dims = {ints(0)}, keep = 1 : i64}}"), "and is not defined on f32"),
    (one('reduction "add"', F, F, f"{{dims = {ints(0, 0)}, keep = 1 : i64}}"), "dimensions (0, 0) name one twice"),
    (one('reduction "add"', F, F, f"{{dims = {ints(1)}, keep = 1 : i64}}"), "dimensions (1,) of a tensor of rank 1"),
    (
        one('arg_reduction "sum"', F, F, "{dim = 0 : i64, keep = 1 : i64, last = 0 : i64}"),
        "unknown arg_reduction 'sum'",
    ),
    (one('arg_reduction "max"', F, F, "{dim = 1 : i64, keep = 1 : i64, last = 0 : i64}"), "dimension 1 of a tensor of"),
    (
        one('arg_reduction "max"', "tensor<0xf32>", F, "{dim = 0 : i64, keep = 1 : i64, last = 0 : i64}"),
        "the max of no elements, along dimension 0 of tensor<0xf32>",
    ),
    (
        one('arg_reduction "max"', "tensor<4xi1>", F, "{dim = 0 : i64, keep = 1 : i64, last = 0 : i64}"),
        "arg_reduction of i1: floats or integers are needed",
    ),
    (pool("median"), "unknown pooling 'median': expected max or avg"),
    (pool("max", x="tensor<2x6xf32>"), "rank is at least 3"),
    (pool("max", kernel=ints(2)), "(1, 2, 2, 4) entries for 2 spatial dimensions"),
    (pool("max", strides=ints(2, 0)), "kernel, strides and dilations are at least 1"),
    (pool("max", pads=ints(0, -1, 0, 0)), "pads are at least 0"),
    (pool("avg", x="tensor<1x2x6x6xi32>"), "floats are needed"),
    (pool("max", kernel=ints(7, 2)), "a window of (7, 2) does not fit the padded input (6, 6)"),
    (one("reshape", F, "tensor<5xf32>", f"{{shape = {ints(5)}}}"), "tensor<4xf32> does not reshape to (5,)"),
    (one("reshape", F, F, f"{{shape = {ints(-2, -2)}}}"), "tensor<4xf32> does not reshape to (-2, -2)"),
    (one("transpose", "tensor<1x4xf32>", F, f"{{perm = {ints(0, 0)}}}"), "(0, 0) is no permutation of 2 dimensions"),
    (one("broadcast", F, F, f"{{shape = {ints(3, 5)}}}"), "shapes (4,), (3, 5) do not broadcast"),
    (one("broadcast", F, F, f"{{shape = {ints(1)}}}"), "tensor<4xf32> does not broadcast to (1,)"),
    (slice_of(F, F, ints(0), ints(4), ints(0)), "dimension 0: a step is not 0"),
    (slice_of(F, F, ints(1), ints(4), ints(1)), "dimension 0: elements (1, 4) of 4"),
    (slice_of(F, F, ints(0, 0), ints(4), ints(1)), "a slice of tensor<4xf32> has 1 entries"),
    (f"%y = graph.concat {{dim = 0 : i64}} : () -> {F}", "concat of no tensor"),
    (two("concat", F, F, F, "{dim = 1 : i64}"), "dimension 1 of tensor<4xf32>"),
    (two("concat", "tensor<4x2xf32>", "tensor<3x2xf32>", F, "{dim = 1 : i64}"), "does not continue tensor<4x2xf32>"),
    (two("concat", F, N, F, "{dim = 0 : i64}"), "operands differ in element type"),
    (two('pad "wrap"', F, "tensor<f32>", F, f"{{pads = {ints(0, 0)}}}"), "unknown mode 'wrap'"),
    (two('pad "edge"', F, "tensor<f32>", F, f"{{pads = {ints(0, -1)}}}"), "pads (0, -1) for tensor<4xf32>"),
    (two('pad "edge"', F, "tensor<1xf32>", F, f"{{pads = {ints(0, 0)}}}"), "expected a scalar of f32"),
    (two('pad "reflect"', F, "tensor<f32>", F, f"{{pads = {ints(4, 0)}}}"), "a reflection of 4 in 4 elements"),
    (two("gather", F, F, F, "{dim = 0 : i64}"), "indices of f32: integers are needed"),
    (two("gather", F, N, F, "{dim = 1 : i64}"), "dimension 1 of tensor<4xf32>"),
    (mask(F, dim=1), "dimension 1 of tensor<4xf32>"),
    (mask("tensor<f32>"), "dimension 0 of tensor<f32>"),
    (mask(F, "tensor<1xi64>"), "n is a tensor<1xi64>: expected tensor<i64>"),
    (mask(F, "tensor<i32>"), "n is a tensor<i32>: expected tensor<i64>"),
    (mask(F, fill="0 : i32"), "fill is 0 : i32: expected a number of f32"),
    (mask(F, fill="0.000000e+00 : f64"), "fill is 0.000000e+00 : f64: expected a number of f32"),
    (one("resize", F, F, f"{{shape = {ints(1, 4)}}}"), "tensor<4xf32> does not resize to (1, 4)"),
    (one("resize", F, F, f"{{shape = {ints(-2)}}}"), "tensor<4xf32> does not resize to (-2,)"),
    (one("resize", "tensor<0xf32>", F, f"{{shape = {ints(4)}}}"), "tensor<0xf32> does not resize to (4,)"),
    (two('pad "edge"', "tensor<0xf32>", "tensor<f32>", F, f"{{pads = {ints(4, 0)}}}"), "the border of no elements"),
    (two("gather", "tensor<0xf32>", N, F, "{dim = 0 : i64}"), "tensor<0xf32> has no elements to choose from"),
    (one("broadcast", "tensor<1xf32>", F, f"{{shape = {ints(-3)}}}"), "tensor<1xf32> does not broadcast to (-3,)"),
    (one("softmax", N, N, "{dim = 0 : i64}"), "softmax of tensor<4xi32>: floats are needed"),
    (one("softmax", F, F, "{dim = 1 : i64}"), "dimension 1 is out of range for tensor<4xf32>"),
    (layer_norm(F, F, "tensor<3xf32>", 0), "scale and bias are tensor<4xf32>, not tensor<3xf32>"),
    (layer_norm(F, F, F, 1), "dimension 1 of tensor<4xf32>"),
    (layer_norm(N, N, N, 0), "layer_norm of tensor<4xi32>: floats are needed"),
    (
        batch_norm("tensor<1x4xf32>", "tensor<4xf32>", "tensor<3xf32>"),
        "parameters are tensor<4xf32>, not tensor<3x",
    ),
    (batch_norm("tensor<4xf32>", "tensor<4xf32>"), "rank is at least 2"),
    (batch_norm("tensor<1x4xi32>", "tensor<4xi32>"), "floats are needed"),
    (rms_norm(F, "tensor<3xf32>", 0), "the scale is tensor<4xf32>, not tensor<3xf32>"),
    (rms_norm(F, F, 1), "dimension 1 of tensor<4xf32>"),
    (rms_norm(N, N, 0), "rms_norm of tensor<4xi32>: floats are needed"),
    (append("tensor<8xf32>", "tensor<3xf16>", "tensor<8xf32>"), "element types differ"),
    (append("tensor<8xf32>", "tensor<3x1xf32>", "tensor<8xf32>"), "ranks differ"),
    (append("tensor<8x2xf32>", "tensor<3x1xf32>", "tensor<8x2xf32>"), "extents differ beside those of dimension 0"),
    (append("tensor<8xf32>", "tensor<3xf32>", "tensor<8xf32>", 1), "dimension 1 of tensor<8xf32>"),
    (append("tensor<8xf32>", "tensor<3xf32>", "tensor<11xf32>"), "the operands give tensor<8xf32>"),
    (append("tensor<8xf32>", "tensor<3xf32>", "tensor<8xf32>", begin="tensor<i32>"), "type tensor<i64>"),
    (attention("tensor<5x8xi32>", "tensor<6x8xi32>", "tensor<6x3xi32>", "tensor<5x3xi32>"), "floats are needed"),
    (
        packed_matmul("tensor<5x40xf32>", "tensor<1x32x32x2xbf16>", "tensor<5x7xf32>", 7),
        "packed_matmul of f32 and bf16: both bf16, or i8 and ui8, are needed",
    ),
    (packed_matmul("tensor<40xbf16>", "tensor<1x32x32x2xbf16>", "tensor<7xf32>", 7), "its rank is at least 2"),
    (
        packed_matmul("tensor<5x40xbf16>", "tensor<1x32x32x2xbf16>", "tensor<5x33xf32>", 33),
        "of 40 rows and 33 columns: tensor<2x32x32x2xbf16> is needed",
    ),
    (packed_conv(BLOCKS, "tensor<2x288x32x2xf16>", PANELS), "packed_conv of bf16 and f16: both bf16, or i8 and ui8, "),
    (packed_conv("tensor<2x2x7x6x16xbf16>", FILTERS, PANELS), "an image [N, blocks, H, W, 32] is needed"),
    (
        packed_conv(BLOCKS, FILTERS, PANELS, (20, 33)),
        "20 channels of tensor<2x2x7x6x32xbf16>: they do not need 2 blocks",
    ),
    (packed_conv(BLOCKS, FILTERS, PANELS, (40, 30)), "of 30 columns: tensor<1x288x32x2xbf16> is needed"),
    (packed_conv(BLOCKS, FILTERS, PANELS, kernel=ints(3)), "numbers: 2, 2, 2 and 4"),
    (packed_conv(BLOCKS, FILTERS, PANELS, kernel=ints(3, 0)), "a kernel, strides and dilations are at least 1"),
    (packed_conv(BLOCKS, FILTERS, PANELS, pads=ints(0, -1, 0, 0)), "pads [0, -1, 0, 0]: no negative ones are known"),
    (
        packed_conv("tensor<2x2x7x1x32xbf16>", FILTERS, PANELS, pads=ints(0, 0, 0, 0)),
        "a window of [3, 3] does not fit the padded input",
    ),
    (winograd_conv("tensor<2x12x7x6xf32>", U, TILED), "a tensor of rank 5 is needed"),
    (winograd_conv("tensor<2x3x7x6x4xf16>", U, TILED), "elements of f32 are needed"),
    (winograd_conv("tensor<2x3x?x6x4xf32>", U, TILED), "known extents of at least 1 are needed"),
    (winograd_conv(IMAGE, "tensor<25x10x8xf32>", TILED, 3), "tiles of 3 outputs: those of 2, 4 are known"),
    (winograd_conv(IMAGE, U, TILED, 2, ints(1, 1)), "four of at least 0 are needed"),
    (winograd_conv(IMAGE, U, TILED, 2, ints(-1, 0, 0, 0)), "four of at least 0"),
    (winograd_conv("tensor<2x3x2x4x4xf32>", U, TILED, 2, ints(0, 0, 0, 0)), "3x3 does not fit"),
    (winograd_conv(IMAGE, "tensor<16x10x8x1xf32>", TILED), "a tensor of rank 3 is needed"),
    (winograd_conv(IMAGE, "tensor<36x10x8xf32>", TILED), "of 36 products: 16 are needed"),
    (winograd_conv(IMAGE, "tensor<16x13x8xf32>", TILED), "of 13 channels: tensor<2x3x7x6x4xf32> has 9 to 12"),
    (winograd_conv(IMAGE, "tensor<16x8x8xf32>", TILED), "of 8 channels: tensor<2x3x7x6x4xf32> has 9 to 12"),
    (winograd_conv(IMAGE, "tensor<16x10x6xf32>", TILED), "6 columns of tensor<16x10x6xf32> are no blocks of 4"),
    (attention(Q, "tensor<1x4x6x8xf16>", Q, Q), "element types differ"),
    (attention(Q, "tensor<6x8xf32>", "tensor<6x3xf32>", Q), "ranks 4, 2, 2: equal ones from 2 on are needed"),
    (attention(Q, "tensor<1x4x6x7xf32>", Q, Q), "queries of size 8 against keys of size 7"),
    (attention(Q, "tensor<1x4x6x8xf32>", Q, Q), "6 keys against 5 values"),
    (attention(Q, "tensor<2x4x5x8xf32>", "tensor<2x4x5x8xf32>", Q), "batches of tensor<1x4x5x8xf32>"),
    (attention(Q, "tensor<1x3x5x8xf32>", "tensor<1x3x5x8xf32>", Q), "4 heads are not a multiple of 3 groups"),
    (attention(Q, Q, Q, Q, "tensor<3x5xf32>"), "a mask tensor<3x5xf32> does not broadcast to the scores (1, 4, 5, 5)"),
    (attention(Q, Q, Q, Q, "tensor<5xi64>"), "a mask tensor<5xi64>: floats are needed"),
    (attention(Q, Q, Q, Q, length="tensor<i32>"), "operand is used with type tensor<i64>, but has been previously"),
    (attention(Q, Q, Q, Q, offset="tensor<i64>", causal=0), "an offset of attention that is not causal"),
    (attention(Q, Q, Q, Q, "tensor<2x1x5x5xf32>"), "does not broadcast to the scores (1, 4, 5, 5)"),
    (compute(READ, "tensor<4xf32>"), "2 indices define tensor<4xf32>: expected its rank"),
    (compute(READ, "tensor<4x8xf16>"), "yields f32, elements are f16"),
    (compute(READ, "memref<4x8xf32>"), "expected a tensor, got memref<4x8xf32>"),
    (compute("%a = arith.constant 0.0 : f32"), "is not a terminator"),
    (compute("%s = graph.reduce add (%k in 8) {}\ngraph.yield %s : f32"), "the region does not end with graph.yield"),
    (compute(READ.replace("[%i, %j]", "[%i]")), "1 indices into tensor<4x8xf32>: expected 2"),
    (compute("%a = graph.at {%x: f32}[%i] : f32\ngraph.yield %a : f32"), "expected a tensor, got f32"),
    (
        compute(
            "%c = arith.constant true\n%a = graph.at {%x: tensor<4x8xf32>}[%i, %j] where %c else %c : tensor<4x8xf32>\n"
            "graph.yield %a : f32"
        ),
        "operand is used with type f32, but has been previously used or defined with type i1",
    ),
    (
        compute("%s = graph.reduce avg (%k in 8) {\ngraph.yield %k : index\n}\ngraph.yield %s : index"),
        "unknown reduction 'avg': expected one of add, mul, max, min, and, or",
    ),
    (compute("%s = graph.reduce add (%k in -8) {\ngraph.yield %k : index\n}\ngraph.yield %s : index"), "integer"),
    (
        compute(
            '%s = "graph.reduce"() <{kind = "add", extents = array<i64: 2, 3>}> ({\n^bb0(%k: index):\n'
            "%a = arith.constant 0.0 : f32\ngraph.yield %a : f32\n}) : () -> f32\ngraph.yield %s : f32"
        ),
        "1 indices for 2 extents",
    ),
    (
        compute(
            '%s = "graph.reduce"() <{kind = "add", extents = array<i64: 2>}> ({\n^bb0(%k: index):\n'
            "%a = arith.constant 0.0 : f32\ngraph.yield %a : f32\n}) : () -> f16\ngraph.yield %s : f16"
        ),
        "yields f32, result is f16",
    ),
    (f"%y = {FUSED} : tensor<5xf32>", "yields tensor<4xf32>, result is tensor<5xf32>"),
    ('graph.fused "g" {\n"graph.yield"() : () -> ()\n} : ', "expected"),
    (compute(READ.replace("graph.yield %a : f32", "graph.yield %a, %a : f32, f32")), "graph.yield gives 2 values"),
    (f"%y = {FUSED} schedule [] : tensor<4xf32>", "#schedule.dispatch<...> or a program's symbol, got"),
]


def test_a_length_is_a_scalar_of_i64():
    q = test_dialect.TestOp(result_types=[TensorType(f32, [5, 8])]).results[0]
    for type in (TensorType(i64, [1]), TensorType(i32, [])):
        length = test_dialect.TestOp(result_types=[type]).results[0]
        with pytest.raises(VerifyException, match=re.escape(f"a length or an offset {type}: expected tensor<i64>")):
            AttentionOp(q, q, q, length=length)


@pytest.mark.parametrize(("text", "expected"), REJECTED, ids=[message[:40] for _, message in REJECTED])
def test_rejected(text: str, expected: str):
    with pytest.raises((ParseError, VerifyException)) as caught:
        parse(with_arguments(text))
    assert expected in str(caught.value)
