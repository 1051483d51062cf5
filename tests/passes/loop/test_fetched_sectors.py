"""What blocks fetch: sectors of which windows use all, those that two blocks share, predicates, what is not told."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.parser import Parser

from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import ConvOp, FusedOp, Operator, PoolOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.passes.loop.fetched_sectors import Fetched, fetched_sectors, memory_transactions
from treadle.target import Target

TARGET = Target.parse("sm_80")
Shape = tuple[int, ...]


def kernel_of(graph: Graph, operator: Operator, windows: int = 1, threads: int = 64) -> FuncOp:
    """The kernel of a pooling or convolution by window_cuda, as it is when accesses are counted."""
    context, module = treadle_context(), graph.module(graph.add(operator))
    lower(context, module, TARGET, after="graph", to="fuse")
    for fused in [op for op in module.walk() if isinstance(op, FusedOp)]:
        fused.schedule = UseAttr.get("window_cuda", {"threads": threads, "windows": windows, "vector": 1})
    lower(context, module, TARGET, after="schedule", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    return kernel


def pooled(shape: Shape, size: int, step: int, pad: int, **choices: int) -> FuncOp:
    """The kernel of a maximum over windows."""
    graph = Graph(np.zeros(shape, np.float32))
    return kernel_of(graph, PoolOp("max", graph[0], [size] * 2, [step] * 2, [pad] * 4, [1, 1]), **choices)


def test_windows_that_share_all_sectors_fetch_nothing_in_vain() -> None:
    """64 rows of 32 elements, halved: 16 columns, so that a block of 64 threads has four rows of results.

    They take nine rows of the image: of the padding above the first block none is read.
    """
    kernel = pooled((8, 8, 64, 32), size=3, step=2, pad=1)
    assert [each.excess for each in memory_transactions(kernel) if not each.is_store] == [6]
    assert fetched_sectors(kernel) == [Fetched("X0", 4 * 9, 4 * 9)]


def test_a_cut_within_a_sector_is_fetched_by_both_blocks() -> None:
    """Rows of 72 results for blocks of 64 threads: the block after a cut needs one element of the sector before it."""
    (found,) = fetched_sectors(pooled((1, 4, 144, 144), size=3, step=2, pad=1))
    assert found.excess > 0


@pytest.mark.parametrize(("row", "threads"), [(56, 224), (64, 256), (112, 224), (12, 256), (300, 256), (8, 256)])
def test_blocks_take_whole_rows_that_begin_at_sectors(row: int, threads: int) -> None:
    kernel = pooled((2, 4, 64, row), size=3, step=1, pad=1, threads=256)
    assert kernel.threads.value.data == threads
    (found,) = fetched_sectors(kernel)
    assert found.excess == 0 or row in (12, 300)


@pytest.mark.parametrize(("windows", "rows"), [(1, 17), (2, 33), (4, 65), (8, 128)])
def test_padding_is_not_fetched(windows: int, rows: int) -> None:
    """Of 80 x 32 results, 8 lines times `windows` are a block's.

    A block takes a row of the image more than two for each line, except for the first one, whose first row is padding;
    eight windows make one full block only.
    """
    kernel = pooled((1, 1, 160, 64), size=3, step=2, pad=1, windows=windows, threads=256)
    assert fetched_sectors(kernel) == [Fetched("X0", rows * 8, rows * 8)]


def test_every_buffer_is_counted_unless_others_are_named() -> None:
    graph = Graph(np.zeros((1, 96, 56, 56), np.float32), np.zeros((96, 1, 3, 3), np.float32))
    kernel = kernel_of(graph, ConvOp(graph[0], graph[1], [1, 1], [1] * 4, [1, 1], 96), windows=4, threads=256)
    assert [each.buffer for each in fetched_sectors(kernel)] == ["A", "B"]
    assert [each.buffer for each in fetched_sectors(kernel, {"B"})] == ["B"]
    assert fetched_sectors(kernel, {"A"})[0].excess == 0


COPIED = """loop.func @copy(%A: memref<128xf32>, %N: memref<64xi32>, %C: memref<128xf32>)
    grid(%b in 1) threads(%t in 64) {
  %c64 = arith.constant 64 : index
  %c128 = arith.constant 128 : index
  scf.for %i = %t to %c128 step %c64 {
    %x = loop.load %A[%i] : memref<128xf32>
    loop.store %x, %C[%i] : memref<128xf32>
  }
  %n = loop.load %N[%t] : memref<64xi32>
  %at = arith.index_cast %n : i32 to index
  %y = loop.load %A[%at] : memref<128xf32>
  loop.store %y, %C[%t] : memref<128xf32>
}"""


def test_loops_of_threads_begin_at_their_own_element() -> None:
    """Each warp of 32 threads moves 4 sectors; what is gathered is left out, and with it the buffer that it is of."""
    (kernel,) = [op for op in Parser(treadle_context(), COPIED).parse_module().walk() if isinstance(op, FuncOp)]
    found = memory_transactions(kernel)
    assert [(each.buffer, each.is_store, each.sectors) for each in found] == [
        ("A", False, 4), ("C", True, 4), ("N", False, 4), ("C", True, 4),
    ]  # fmt: skip
    assert fetched_sectors(kernel) == [Fetched("N", 8, 8)]
