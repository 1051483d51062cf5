"""What small lowered kernels do, counted by hand: branches, bounds of loops, quotients, hoisting, registers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from xdsl.parser import Parser

from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.work.cpu_work import Body, Work
from treadle.schedules.work.gpu_work import OTHER_REGISTERS
from treadle.schedules.work.lowered import count_gpu_work, count_work
from treadle.target import Target

ONE_CORE = replace(Target.parse("cpu{vector_bytes=64 vector_registers=32}"), cores=1)
CONSTANTS = (0, 1, 2, 4, 8, 16)


def kernel(
    body: str, *, grid: int = 1, threads: int = 1, constants: tuple[int, ...] = CONSTANTS, element: str = "f32"
) -> FuncOp:
    """A kernel of 1024 elements each in %A, %B and %C."""
    given = "\n".join(f"%c{n} = arith.constant {n} : index" for n in constants)
    arguments = ", ".join(f"%{name} : memref<1024x{element}>" for name in "ABC")
    text = f"loop.func @kernel({arguments}) grid(%b in {grid}) threads(%t in {threads}) {{ {given}\n{body} }}"
    (found,) = [op for op in Parser(treadle_context(), text).parse_module().walk() if isinstance(op, FuncOp)]
    return found


def on_cpu(body: str, *, grid: int = 1, constants: tuple[int, ...] = CONSTANTS) -> Work:
    """Its work, for one worker."""
    return count_work(kernel(body, grid=grid, constants=constants), ONE_CORE)


def on_gpu(body: str, *, grid: int = 1, threads: int = 32) -> GpuWork:
    """Its work."""
    return count_gpu_work(kernel(body, grid=grid, threads=threads))


COPY = """%x = loop.load %A[%i] : memref<1024xf32>
loop.store %x, %C[%i] : memref<1024xf32>"""


def test_either_side_of_a_branch() -> None:
    """The first of four blocks stores one element, the others two."""
    (body,) = on_cpu("""%first = arith.cmpi slt, %b, %c1 : index
    %x = loop.load %A[%b] : memref<1024xf32>
    scf.if %first {
      loop.store %x, %B[%b] : memref<1024xf32>
    } else {
      loop.store %x, %B[%b] : memref<1024xf32>
      loop.store %x, %C[%b] : memref<1024xf32>
    }""", grid=4).bodies  # fmt: skip
    assert (body.executions, body.loads, body.stores) == (1, 1, 0.25 * 1 + 0.75 * 2)


@pytest.mark.parametrize(
    ("condition", "likely"),
    [
        ("%p = arith.andi %low, %high : i1", 0.25 * 0.5),
        ("%p = arith.ori %low, %high : i1", 1 - 0.75 * 0.5),
    ],
)
def test_conditions_are_independent(condition: str, likely: float) -> None:
    (body,) = on_cpu(f"""%half = arith.divui %b, %c4 : index
    %rest = arith.remui %b, %c4 : index
    %low = arith.cmpi eq, %rest, %c2 : index
    %high = arith.cmpi sge, %half, %c1 : index
    {condition}
    %x = arith.constant 0.0 : f32
    scf.if %p {{
      loop.store %x, %C[%b] : memref<1024xf32>
    }}""", grid=8).bodies  # fmt: skip
    assert body.stores == likely


def test_conditions_of_a_split_index_are_as_likely_as_of_the_index() -> None:
    """Of 10 blocks, whose number is divided by 4 elsewhere, 9 store."""
    work = on_cpu("""%row = arith.divui %b, %c4 : index
    %p = arith.cmpi slt, %b, %c9 : index
    %x = loop.load %A[%row] : memref<1024xf32>
    scf.if %p {
      loop.store %x, %C[%b] : memref<1024xf32>
    }""", grid=10, constants=(4, 9))  # fmt: skip
    assert [body.stores for body in work.bodies] == [pytest.approx(0.9)]


CLAMPED = """%least = arith.constant 0 : i32
%most = arith.constant 8 : i32
%first = loop.load %A[%c0] : memref<1024xf32>
%number = arith.fptosi %first : f32 to i32
CLAMPS
%end = arith.index_cast %clamped : i32 to index
scf.for %i = %c0 to %end step %c1 { COPY }"""


@pytest.mark.parametrize(
    ("clamps", "times"),
    [
        ("%low = arith.minsi %number, %most : i32\n%clamped = arith.maxsi %low, %least : i32", 4),
        ("%clamped = arith.addi %number, %least : i32", 1),
    ],
)
def test_loops_that_end_at_data(clamps: str, times: float) -> None:
    """Half as often as at most, where that is known, else once."""
    work = on_cpu(CLAMPED.replace("CLAMPS", clamps).replace("COPY", COPY))
    assert [body.executions for body in work.bodies] == [times, 1]


def test_loops_that_end_before_they_begin_do_not_run() -> None:
    """In the first two of four blocks; in the others 4 and 8 times, which is counted as the middle of 0 and 8."""
    (body,) = on_cpu(f"""%after = arith.subi %b, %c1 : index
    %end = arith.muli %after, %c4 : index
    scf.for %i = %c0 to %end step %c1 {{ {COPY} }}""", grid=4).bodies  # fmt: skip
    assert body.executions == 4


def test_loops_that_end_at_a_minimum_run_as_often_as_on_average() -> None:
    """12 times in the first of two blocks, 16 times in the second, whose end would be 24."""
    (body,) = on_cpu(f"""%number = arith.addi %b, %c1 : index
    %tile = arith.muli %number, %c12 : index
    %end = arith.minsi %tile, %c16 : index
    scf.for %i = %c0 to %end step %c1 {{ {COPY} }}""", grid=2, constants=(0, 1, 12, 16)).bodies  # fmt: skip
    assert (body.executions, body.loads, body.stores) == (14, 1, 1)


def test_steps_that_do_not_divide_a_loop() -> None:
    (body,) = on_cpu(f"scf.for %i = %c1 to %c16 step %c4 {{ {COPY} }}").bodies
    assert body.executions == 4


def test_unrolled_loops_are_straight_code_out_of_which_loads_move() -> None:
    """The load does not move with the inner loop, in which a product is fused with the sum."""
    (body,) = on_cpu("""%y = arith.constant 2.0 : f32
    scf.for %i = %c0 to %c8 step %c1 {
      scf.for %j = %c0 to %c4 step %c1 {
        %x = loop.load %A[%i] : memref<1024xf32>
        %z = arith.mulf %x, %y : f32
        %w = arith.addf %z, %y : f32
        loop.store %w, %C[%j] : memref<1024xf32>
      } {loop.unroll}
    }""").bodies  # fmt: skip
    assert (body.executions, body.arithmetic, body.loads, body.stores) == (8, 4, 1, 4)


def test_products_that_are_stored_are_not_fused() -> None:
    (body,) = on_cpu("""%x = loop.load %A[%c0] : memref<1024xf32>
    %z = arith.mulf %x, %x : f32
    %w = arith.addf %z, %x : f32
    loop.store %z, %B[%c0] : memref<1024xf32>
    loop.store %w, %C[%c0] : memref<1024xf32>""").bodies  # fmt: skip
    assert body.arithmetic == 2


SUMS = """%acc = loop.alloc : memref<4xf32, #loop.space<register>>
scf.for %i = %c0 to %c8 step %c1 {
  scf.for %j = %c0 to %c4 step %c1 {
    %x = loop.load %A[%i] : memref<1024xf32>
    %s = loop.load %acc[PLACE] : memref<4xf32, #loop.space<register>>
    %u = arith.addf %s, %x : f32
    loop.store %u, %acc[PLACE] : memref<4xf32, #loop.space<register>>
  } {loop.unroll}
}"""


@pytest.mark.parametrize(("place", "chain"), [("%j", 1), ("%c0", 4)])
def test_sums_in_registers_wait_for_themselves(place: str, chain: float) -> None:
    """Four independent additions, or four of one sum; of memory only the elements that are added are loaded."""
    (body,) = on_cpu(SUMS.replace("PLACE", place)).bodies
    assert (body.executions, body.arithmetic, body.loads, body.chain) == (8, 4, 1, chain)


MASKED = """%acc = loop.alloc : memref<16xf32, #loop.space<register>>
%zeros = arith.constant dense<0.0> : vector<16xf32>
%m = loop.lane_mask %c0, %c2 : vector<16xi1>
vector.maskedstore %acc[%c0], %m, %zeros : memref<16xf32, #loop.space<register>>, vector<16xi1>, vector<16xf32>
%v = vector.load %acc[%c0] : memref<16xf32, #loop.space<register>>, vector<16xf32>
vector.store %v, %C[%c0] : memref<1024xf32>, vector<16xf32>"""


def test_buffers_of_which_masks_take_a_part_are_in_memory() -> None:
    assert on_cpu(MASKED).bodies == (Body(1.0, loads=1, stores=2, masked=1),)


@pytest.mark.parametrize(("stride", "masked", "loads"), [(2, 1, 2), (-3, 16, 16)])
def test_strided_loads_through_a_mask(stride: int, masked: float, loads: float) -> None:
    (body,) = on_cpu(f"""%zeros = arith.constant dense<0.0> : vector<16xf32>
    %m = loop.lane_mask %c0, %c2 : vector<16xi1>
    %v = loop.strided_load %A[%c512] by {stride} where %m else %zeros : memref<1024xf32>, vector<16xf32>
    vector.store %v, %C[%c0] : memref<1024xf32>, vector<16xf32>""", constants=(0, 2, 512)).bodies  # fmt: skip
    assert (body.loads, body.masked, body.stores) == (loads, masked, 1)


def test_a_remainder_comes_back_to_the_same_lines() -> None:
    """200 rows read 48 elements again and again: 3 lines, where there is room for a part of them."""
    work = on_cpu("""scf.for %i = %c0 to %c200 step %c1 {
      %at = arith.remui %i, %c48 : index
      %x = loop.load %A[%at] : memref<1024xf32>
      loop.store %x, %C[%c0] : memref<1024xf32>
    }""", constants=(0, 1, 48, 200))  # fmt: skip
    assert work.traffic(1 << 20) == 48 * 4 + 64


def test_a_quotient_that_carries_moves_by_its_period() -> None:
    """16 iterations read lines of three rows, which are counted as two: a row each 8 iterations."""
    work = on_cpu("""scf.for %i = %c0 to %c16 step %c1 {
      %shifted = arith.addi %i, %c3 : index
      %row = arith.divui %shifted, %c8 : index
      %at = arith.muli %row, %c256 : index
      %x = loop.load %A[%at] : memref<1024xf32>
      loop.store %x, %C[%c0] : memref<1024xf32>
    }""", constants=(0, 1, 3, 8, 16, 256))  # fmt: skip
    assert work.traffic(1 << 20) == 2 * 64 + 64


# Kernels for GPUs.


def test_warps_read_whole_sectors() -> None:
    """64 threads read 8 sectors, and every second element of 16 for them to store 8."""
    work = on_gpu("""%twice = arith.muli %t, %c2 : index
    %x = loop.load %A[%twice] : memref<1024xf32>
    loop.store %x, %C[%t] : memref<1024xf32>""", threads=64)  # fmt: skip
    assert (work.sectors, work.accesses, work.bytes) == (2 * 8 + 8, 4, 3 * 4096)


def test_loops_of_threads_begin_at_their_own_element() -> None:
    """Each iteration reads two sectors and writes two; from the middle of the 16 threads on there are 56.5 elements."""
    work = on_gpu(f"""%c64 = arith.constant 64 : index
    scf.for %i = %t to %c64 step %c16 {{ {COPY} }}""", threads=16)  # fmt: skip
    assert work.sectors == 56.5 / 16 * 4


SELECTED = """%p = arith.cmpi slt, %b, %c2 : index
%number = arith.select %p, %b, %c4 : index
%inside = arith.cmpi slt, %number, %c1 : index
%x = arith.constant 0.0 : f32
scf.if %inside {
  loop.store %x, %C[%t] : memref<1024xf32>
}"""


def test_blocks_are_taken_as_the_first_one_is() -> None:
    """What compares the block's number, or one that is selected by it, holds."""
    assert on_gpu(SELECTED, grid=8).sectors == 4
    other = SELECTED.replace("slt, %number, %c1", "slt, %t, %c8")
    assert on_gpu(other, grid=8).sectors == 0.25 * 4


def test_guarded_vectors_are_as_likely_as_their_branch() -> None:
    """A quarter of the threads loads 16 bytes."""
    work = on_gpu("""%p = arith.cmpi slt, %t, %c8 : index
    %at = arith.muli %t, %c4 : index
    %zeros = arith.constant dense<0.0> : vector<4xf32>
    %v = scf.if %p -> (vector<4xf32>) {
      %x = vector.load %A[%at] : memref<1024xf32>, vector<4xf32>
      scf.yield %x : vector<4xf32>
    } else {
      scf.yield %zeros : vector<4xf32>
    }
    vector.store %v, %C[%at] : memref<1024xf32>, vector<4xf32>""")  # fmt: skip
    assert (work.sectors, work.accesses, work.round_trips) == (0.25 * 16 + 16, 1.25, 1)


def test_what_is_loaded_in_a_branch_may_hide_behind_work() -> None:
    """An addition of something else comes between the load and its use."""
    work = on_gpu("""%p = arith.cmpi slt, %t, %c8 : index
    %zero = arith.constant 0.0 : f32
    %v = scf.if %p -> (f32) {
      %x = loop.load %A[%t] : memref<1024xf32>
      scf.yield %x : f32
    } else {
      scf.yield %zero : f32
    }
    %other = arith.addf %zero, %zero : f32
    %sum = arith.addf %v, %other : f32
    loop.store %sum, %C[%t] : memref<1024xf32>""")  # fmt: skip
    assert (work.round_trips, work.steps, work.ahead, work.operations) == (0, 1, 1, 2 * 32)


SHARED = """%tile = loop.alloc : memref<32x32xf32, SPACE>
%x = arith.constant 0.0 : f32
loop.store %x, %tile[%t, %c0] : memref<32x32xf32, SPACE>
loop.barrier
scf.for %i = %c0 to %c4 step %c1 {
  %y = loop.load %tile[%c0, %t] : memref<32x32xf32, SPACE>
  loop.store %y, %C[%t] : memref<1024xf32>
} {loop.unroll}"""


@pytest.mark.parametrize(
    ("space", "cycles"), [("#loop.space<shared>", 32), ("#loop.swizzle<4, 1, 8>, #loop.space<shared>", 4)]
)
def test_columns_of_shared_memory(space: str, cycles: float) -> None:
    """A column of a tile lies in one bank, or in 8 of a swizzled one; what does not move in the loop is loaded once."""
    work = on_gpu(SHARED.replace("SPACE", space))
    assert (work.shared_stores, work.shared_loads) == (cycles, 1)
    assert (work.shared_bytes, work.barriers, work.sectors) == (4096, 1, 4 * 4)


def test_registers_of_arrays_that_live_at_once() -> None:
    """Of 8, 4 and 2 elements, the last two are live when the first is not used any more."""
    buffers = "\n".join(f"%r{n} = loop.alloc : memref<{n}xf32, #loop.space<register>>" for n in (4, 2))
    first = "%r8 = loop.alloc : memref<8xf32, #loop.space<register>>"
    store = "loop.store %x, %r{n}[%c0] : memref<{n}xf32, #loop.space<register>>"
    body = f"%x = arith.constant 0.0 : f32\n{first}\n{store.format(n=8)}\n{buffers}\n{store.format(n=4)}"
    assert on_gpu(body).registers == 8 + OTHER_REGISTERS
    assert on_gpu(f"{body}\n{store.format(n=8)}").registers == 8 + 4 + 2 + OTHER_REGISTERS


def test_truths_from_memory_are_waited_for() -> None:
    """What is combined of them needs them at once."""
    body = """%p = loop.load %A[%t] : memref<1024xi1>
    %q = arith.xori %p, %p : i1
    loop.store %q, %C[%t] : memref<1024xi1>"""
    work = count_gpu_work(kernel(body, threads=32, element="i1"))
    assert (work.round_trips, work.steps, work.sectors) == (1, 0, 2)


def test_indices_from_memory_take_a_sector_each() -> None:
    work = on_gpu("""%number = loop.load %A[%t] : memref<1024xf32>
    %whole = arith.fptosi %number : f32 to i32
    %at = arith.index_cast %whole : i32 to index
    %x = loop.load %B[%at] : memref<1024xf32>
    loop.store %x, %C[%t] : memref<1024xf32>""")  # fmt: skip
    assert work.sectors == 4 + 32 + 4
