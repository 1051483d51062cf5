"""graph-pack-dequantized keeps every matrix that is dequantised, and what is no such matrix as it is."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, assert_same_values, random
from treadle.dialects.graph import BinaryOp, CastOp, ConstantOp, MatmulOp, ReshapeOp, TransposeOp
from treadle.dialects.graph.constant import constant_array
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
    scaled = graph.add(BinaryOp("mul", graph.add(CastOp(shifted, f32)), graph.constant(scales)))
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


@pytest.mark.parametrize("each", [False, True], ids=["one zero point", "zero points"])
@pytest.mark.parametrize(("rows", "columns", "blocks", "block"), SIZES)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_numbers_by_columns(bits: int, rows: int, columns: int, blocks: int, block: int, each: bool) -> None:
    """As GPUs take them: no column is padded, and zero points are bytes of as many numbers as their blocks allow."""
    graph = Graph(random(rows, blocks * block))
    numbers = RANDOM.integers(0, 1 << bits, (columns, blocks, block)).astype(np.uint8)
    numbers.reshape(-1)[0] = (1 << bits) - 1
    zeros = RANDOM.integers(0, 1 << bits, (columns, blocks, 1) if each else ()).astype(np.int32)
    zeros.reshape(-1)[0] = (1 << bits) - 1
    y = graph.add(MatmulOp(graph[0], matrix(graph, numbers, zeros, random(columns, blocks, 1))))
    passes = [*PASSES[:2], GraphFusePass("sm_80"), GraphPackDequantizedPass(by_columns=True)]
    module = assert_same_values(graph, [y], passes, tolerance=1e-6)
    arrays = [constant_array(op) for op in module.walk() if isinstance(op, ConstantOp)]
    held = sum(array.nbytes for array in arrays if array.dtype == np.uint8)
    per = 8 // bits
    of_zeros = columns * (blocks // per if blocks % per == 0 else blocks) if each else 0
    assert held == numbers.size // (per if block % per == 0 else 1) + of_zeros


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
