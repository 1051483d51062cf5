"""graph-pack-dequantized keeps every matrix that is dequantised, and what is no such matrix as it is."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from xdsl.dialects.builtin import f16, f32, i32
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, assert_same_values, random
from treadle.dialects.graph import BinaryOp, CastOp, ConstantOp, MatmulOp, ReshapeOp, TransposeOp
from treadle.dialects.graph.constant import constant_array
from treadle.dialects.graph.dtypes import element_type
from treadle.passes.graph.graph_define import GraphDefinePass
from treadle.passes.graph.graph_fuse import GraphFusePass
from treadle.passes.graph.graph_inline import GraphInlinePass
from treadle.passes.graph.graph_pack_dequantized import GraphPackDequantizedPass

PASSES = [GraphDefinePass(), GraphInlinePass(), GraphFusePass("sse2"), GraphPackDequantizedPass(width=4)]
SIZES = [(1, 8, 2, 16), (3, 5, 1, 32), (17, 70, 3, 16), (2, 2, 1, 2)]
RANDOM = np.random.default_rng(3)


def matrix(graph: Graph, numbers: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> SSAValue:
    """`(numbers - zeros) * scales`, of `[columns, blocks, block]`, as `[rows, columns]`."""
    columns, *block = numbers.shape
    wide = graph.add(CastOp(graph.constant(numbers), i32))
    shifted = graph.add(BinaryOp("sub", wide, graph.constant(zeros)))
    scaled = graph.add(BinaryOp("mul", graph.add(CastOp(shifted, element_type(scales.dtype))), graph.constant(scales)))
    return graph.add(TransposeOp(graph.add(ReshapeOp(scaled, [columns, prod(block)])), [1, 0]))


def bytes_of_weights(graph: Graph, y: SSAValue) -> int:
    """The bytes of the constants that are bytes, after the passes."""
    module = assert_same_values(graph, [y], PASSES, tolerance=1e-6)
    arrays = [constant_array(op) for op in module.walk() if isinstance(op, ConstantOp)]
    return sum(array.nbytes for array in arrays if array.dtype == np.uint8)


@pytest.mark.parametrize("each", [False, True], ids=["one zero point", "zero points"])
@pytest.mark.parametrize(
    ("rows", "columns", "blocks", "block"), [(1, 8, 2, 16), (3, 5, 1, 32), (17, 70, 3, 16), (2, 2, 1, 2)]
)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_numbers_of_few_bits(bits: int, rows: int, columns: int, blocks: int, block: int, each: bool) -> None:
    graph = Graph(random(rows, blocks * block))
    numbers = RANDOM.integers(0, 1 << bits, (columns, blocks, block)).astype(np.uint8)
    numbers.reshape(-1)[0] = (1 << bits) - 1
    zeros = RANDOM.integers(0, 1 << bits, (columns, blocks, 1) if each else ()).astype(np.int32)
    scales = random(columns, blocks, 1)
    y = graph.add(MatmulOp(graph[0], matrix(graph, numbers, zeros, scales)))
    per = 8 // bits if block % (8 // bits) == 0 else 1
    assert bytes_of_weights(graph, y) == -(-columns // 4) * 4 * blocks * block // per


def packed_for_gpus(
    graph: Graph, numbers: np.ndarray, zeros: np.ndarray, scales: np.ndarray
) -> dict[tuple[int, ...], np.ndarray]:
    """The constants of integers by their shapes, after the passes for a GPU."""
    y = graph.add(MatmulOp(graph[0], matrix(graph, numbers, zeros, scales)))
    passes = [*PASSES[:2], GraphFusePass("sm_80"), GraphPackDequantizedPass("sm_80", by_columns=True)]
    module = assert_same_values(graph, [y], passes, tolerance=1e-6)
    arrays = [constant_array(op) for op in module.walk() if isinstance(op, ConstantOp)]
    return {array.shape: array for array in arrays if array.dtype.kind in "iu"}


@pytest.mark.parametrize("rows", [1, 8, 40])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_numbers_by_columns(bits: int, rows: int) -> None:
    """As products of few rows on GPUs read them: neighbours along the terms in a byte; so are zero points."""
    columns, blocks, block, per = 24, 16, 32, 8 // bits
    graph = Graph(random(rows, blocks * block).astype(np.float16))
    numbers = RANDOM.integers(0, 1 << bits, (columns, blocks, block)).astype(np.uint8)
    zeros = RANDOM.integers(0, 1 << bits, (columns, blocks, 1)).astype(np.int32)
    numbers[0, 0, 0] = zeros[0, 0, 0] = (1 << bits) - 1
    found = packed_for_gpus(graph, numbers, zeros, random(columns, blocks, 1).astype(np.float16))
    shifts = bits * np.arange(per, dtype=np.uint8)
    apart = numbers.reshape(columns, blocks, block // per, per)
    np.testing.assert_array_equal(found[columns, blocks, block // per], np.bitwise_or.reduce(apart << shifts, axis=-1))
    together = zeros.astype(np.uint8).reshape(columns, blocks // per, per, 1)
    np.testing.assert_array_equal(
        found[columns, blocks // per, 1], np.bitwise_or.reduce(together << shifts.reshape(per, 1), axis=2)
    )


def test_numbers_by_rows_get_the_column_first() -> None:
    graph = Graph(random(2, 512).astype(np.float16))
    numbers = RANDOM.integers(-128, 128, (512, 24)).astype(np.int8)
    numbers[0, 0] = -128
    b = graph.add(CastOp(graph.constant(numbers), f16))
    passes = [*PASSES[:2], GraphFusePass("sm_80"), GraphPackDequantizedPass("sm_80", by_columns=True)]
    module = assert_same_values(graph, [graph.add(MatmulOp(graph[0], b))], passes, tolerance=1e-6)
    (found,) = (constant_array(op) for op in module.walk() if isinstance(op, ConstantOp))
    np.testing.assert_array_equal(found, numbers.T)


@pytest.mark.parametrize(("rows", "dtype"), [(1, "float32"), (65, "float16")])
def test_kernels_that_read_no_columns_keep_what_they_have(rows: int, dtype: str) -> None:
    graph = Graph(random(rows, 512).astype(dtype))
    numbers = RANDOM.integers(0, 16, (24, 16, 32)).astype(np.uint8)
    zeros = RANDOM.integers(0, 16, (24, 16, 1)).astype(np.int32)
    found = packed_for_gpus(graph, numbers, zeros, random(24, 16, 1).astype(dtype))
    np.testing.assert_array_equal(found[24, 16, 32], numbers)


def test_one_column_stays() -> None:
    """Its elements are neighbours already."""
    graph = Graph(random(2, 32))
    numbers = RANDOM.integers(0, 16, (1, 2, 16)).astype(np.uint8)
    y = graph.add(MatmulOp(graph[0], matrix(graph, numbers, np.array(8, np.int32), random(1, 2, 1))))
    assert bytes_of_weights(graph, y) == numbers.nbytes


def test_odd_blocks_keep_bytes() -> None:
    """Of a block of three, a byte cannot hold two."""
    graph = Graph(random(2, 3))
    numbers = RANDOM.integers(0, 16, (8, 1, 3)).astype(np.uint8)
    y = graph.add(MatmulOp(graph[0], matrix(graph, numbers, np.array(8, np.int32), random(8, 1, 1))))
    assert bytes_of_weights(graph, y) >= numbers.nbytes


def test_numbers_that_are_no_constants_stay() -> None:
    graph = Graph(random(2, 16), RANDOM.integers(0, 16, (8, 16)).astype(np.uint8))
    b = graph.add(TransposeOp(graph.add(CastOp(graph[1], f32)), [1, 0]))
    assert bytes_of_weights(graph, graph.add(MatmulOp(graph[0], b))) == 0


def test_bytes_hold_neighbours_of_a_block_however_many_blocks_there_are() -> None:
    graph = Graph(random(1, 32))
    numbers = RANDOM.integers(0, 16, (4, 8, 4)).astype(np.uint8)
    y = graph.add(MatmulOp(graph[0], matrix(graph, numbers, np.array(8, np.int32), random(4, 8, 1))))
    module = assert_same_values(graph, [y], PASSES, tolerance=1e-6)
    shapes = [constant_array(op).shape for op in module.walk() if isinstance(op, ConstantOp)]
    assert (1, 8, 2, 4) in shapes
