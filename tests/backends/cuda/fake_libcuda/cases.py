"""What the executor has to do on the fake driver: `python -m ...cases NAME ...` runs some, and prints what became of
each as a line of JSON.

The process needs the folder of the fake `libcuda.so.1` in LD_LIBRARY_PATH; TREADLE_CUDA_DRIVER names the binding.
"""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from tests.backends.cuda.fake_libcuda import device_cases, model_cases, runner_cases, torch_cases
from tests.backends.cuda.fake_libcuda.setting import (
    CAPACITY,
    CONSTANT,
    DOUBLE,
    F32,
    INPUT,
    OUTPUT,
    SCRATCH,
    SIZE,
    SPEC,
    X,
    compiled,
    fails,
    free_bytes,
    image,
    kernel,
    launch,
    opened,
    program,
)
from tests.backends.cuda.gpu_graphs import CASES as GRAPHS
from tests.helpers.graphs import Graph, random
from tests.schedules.tensor_cores import scheduled
from treadle.artifact.manifest import BufferMap
from treadle.backends.cuda.bindings_driver import BindingsDriver, call
from treadle.backends.cuda.device_array import LentArray
from treadle.backends.cuda.driver import BoundLaunch, check_toolkit
from treadle.backends.cuda.executor import CudaProgram, Launch, TensorSpec
from treadle.backends.cuda.open_driver import open_driver
from treadle.backends.cuda.pycuda_driver import PycudaDriver
from treadle.backends.cuda.stream_work import Arguments
from treadle.backends.program import read_program
from treadle.backends.reference import evaluate_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import ConvOp, MatmulOp, TransposeOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice
from treadle.target import Target
from treadle.target.tensor_map import PixelBox, TensorMap

FEW_OF_HOPPER = "sm_90a{multiprocessors=3}"


def pycuda() -> Any:
    """A driver on pycuda, closed afterwards."""
    return closing(PycudaDriver())


def elapsed(driver: Any, start: Any, end: Any) -> None:
    """Asks for the time between two events without waiting for them."""
    if isinstance(driver, BindingsDriver):
        call("asking", driver._cuda.cuEventElapsedTime, start.event, end.event)
    else:
        start.time_till(end)


def fails_when_asked(driver: Any, words: str) -> Any:
    """Expects the binding's own error."""
    return fails(words) if isinstance(driver, BindingsDriver) else pytest.raises(driver._cuda.Error, match=words)


def the_device_is_described() -> None:
    """Name, capability, memory and limits; which CUDA its driver knows decides which cubins it loads."""
    with opened() as driver:
        assert driver.capability == (8, 0)
        assert driver.device_name == "Treadle emulator"
        assert driver.memory() == (CAPACITY, CAPACITY)
        assert driver.attribute("WARP_SIZE") == 32
        assert driver.cuda_version == (13, 0)
        check_toolkit(driver, "13.2")
        with fails("cuda driver: no GPU number 2; accepted: 0 to 1"):
            open_driver(2)
        with fails(r"GPU Treadle emulator: the installed driver loads cubins of CUDA 13.0 and older, NVRTC 14.1 makes"):
            check_toolkit(driver, "14.1")


def memory_is_allocated_copied_and_given_back() -> None:
    """Addresses are aligned, the device's count is right, contents come back."""
    with opened() as driver:
        addresses = [driver.allocate(size) for size in (1, 1000, 0)]
        assert all(address % 256 == 0 for address in addresses) and len(set(addresses)) == 3
        assert free_bytes(driver) == CAPACITY - 256 - 1024 - 256
        back = np.zeros(250, np.float32)
        driver.download(back, addresses[1])
        driver.synchronize()
        assert np.isnan(back).all()  # nobody has written it
        values = random(250)
        driver.upload(addresses[1], values)
        driver.download(back, addresses[1])
        driver.synchronize()
        np.testing.assert_array_equal(back, values)
        for address in addresses:
            driver.free(address)
        assert free_bytes(driver) == CAPACITY


def work_waits_for_synchronize() -> None:
    """Copies are done as late as a device may do them."""
    with opened() as driver:
        address, values, back = driver.allocate(X.nbytes), X.copy(), np.zeros(SIZE, np.float32)
        driver.upload(address, values)
        driver.download(back, address)
        assert not back.any()
        values += 1  # before the copy is done, so the device sees it
        driver.synchronize()
        np.testing.assert_array_equal(back, X + 1)


def events_have_an_order_and_a_time() -> None:
    """Time between events is known once they were reached, and not before."""
    with opened() as driver:
        function = driver.load(kernel("y[t] = x[t];"), "k", 2, 0)
        source, target = driver.allocate(X.nbytes), driver.allocate(X.nbytes)
        start = driver.record()
        driver.launch([BoundLaunch(function, (1, 1, 1), (SIZE, 1, 1), (source, target))])
        end = driver.record()
        with driver.current("asking"), fails_when_asked(driver, "not ready"):
            elapsed(driver, start, end)
        assert 0 < driver.seconds_between(start, end) < 60
        driver.synchronize()


def streams_are_asked_and_waited_for() -> None:
    """What `Driver` does not use: a second stream behind an event of the first."""
    with pycuda() as driver, driver.current("testing"):
        cuda: Any = driver._cuda
        first, second, event = cuda.Stream(), cuda.Stream(), cuda.Event()
        memory, back = cuda.mem_alloc(X.nbytes), np.zeros(SIZE, np.float32)
        cuda.memcpy_htod_async(memory, X, first)
        event.record(first)
        second.wait_for_event(event)
        cuda.memcpy_dtoh_async(back, memory, second)
        assert not event.query() and not second.is_done()
        second.synchronize()
        assert event.query() and first.is_done() and second.is_done()
        np.testing.assert_array_equal(back, X)
        memory.free()


def kernels_share_a_module_and_run_in_order() -> None:
    """Two kernels of one image, constants and the arena."""
    text = """extern "C" __global__ void add(const float *a, const float *b, float *c) {
  c[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];
}
extern "C" __global__ void twice(float *a) { a[threadIdx.x] *= 2; }
"""
    shape = ((1, 1, 1), (SIZE, 1, 1))
    launches = [
        Launch("add", image(text), *shape, (INPUT, CONSTANT, SCRATCH)),
        Launch("twice", image(text), *shape, (SCRATCH,)),
        Launch("add", image(text), *shape, (SCRATCH, INPUT, OUTPUT)),
    ]
    with (
        opened() as driver,
        CudaProgram(driver, launches, [SPEC], [SPEC], [random(SIZE)], 256 + X.nbytes) as program,
    ):
        for values in (X, -X):
            np.testing.assert_allclose(program.run([values])[0], 2 * (values + random(SIZE)) + values, rtol=1e-6)


def dynamic_shared_memory_beyond_48_kib() -> None:
    """What a kernel gets only because `load` asked for it."""
    body = "extern __shared__ float s[]; s[t + 16000] = x[t]; __syncthreads(); y[t] = s[16063 - t];"
    with opened() as driver, program(driver, launch(body, shared=64 * 1024)) as reversed:
        np.testing.assert_array_equal(reversed.run([X])[0], X[::-1])


def scalars_are_passed_by_their_types() -> None:
    """What `Driver` does not use: parameters of several sizes, packed and aligned by pycuda."""
    body = "if (t < n) y[t] = (float)(a * c);"
    with pycuda() as driver, driver.current("testing"):
        cuda: Any = driver._cuda
        module = cuda.module_from_buffer(kernel(body, "char c, double a, short n, float *y"))
        target = cuda.mem_alloc(X.nbytes)
        cuda.memset_d32(target, 0, SIZE)
        arguments = np.int8(3), np.float64(0.5), np.int16(5), target
        module.get_function("k")(*arguments, block=(SIZE, 1, 1), grid=(1, 1))
        back = np.empty(SIZE, np.float32)
        cuda.memcpy_dtoh(back, target)
        np.testing.assert_array_equal(back, np.where(np.arange(SIZE) < 5, 1.5, 0))
        target.free()


def a_whole_model_agrees_with_numpy() -> None:
    """A compiled graph, run twice and measured."""
    _check_graph("attention")


def slices_of_a_product_find_their_counters_zero() -> None:
    """What the first run leaves in the counters, the second and those that are measured begin with."""
    _check_graph("slices")


def _check_graph(name: str) -> None:
    case = GRAPHS[name]
    graph = Graph(random(*case.large))
    module = graph.module(case.build(graph))
    (expected,) = evaluate_module(module, graph.inputs)
    with opened() as driver:
        lower(treadle_context(), module, Target.for_capability(*driver.capability))
        planned = read_program(module)
        launches = compiled(module, planned)
        constants = [constant.array() for constant in planned.constants]
        sizes = planned.arena_bytes, planned.zeroed_bytes
        with CudaProgram(driver, launches, planned.inputs, planned.outputs, constants, *sizes) as model:
            for _ in range(2):
                np.testing.assert_allclose(model.run(graph.inputs)[0], expected, rtol=1e-5, atol=1e-5)
            seconds = model.measure(graph.inputs, repeats=3)
        assert len(seconds) == 3 and all(0 < each < 60 for each in seconds)
        assert free_bytes(driver) == CAPACITY


def clusters_are_launched_like_other_kernels() -> None:
    """By a grid that they divide: how many blocks they have is said in the kernel's text."""
    a, b = random(100, 264).astype(np.float16), random(264, 72, seed=1).astype(np.float16)
    graph = Graph(a, b)
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    choices: dict[str, Choice] = {"block": (64, 64), "split": 4, "stages": 2}
    lowered = scheduled(module, "matmul_cluster", choices, Target.parse(FEW_OF_HOPPER))
    planned, expected = read_program(lowered), a.astype(np.float64) @ b.astype(np.float64)
    with opened() as driver, CudaProgram(driver, compiled(lowered, planned), planned.inputs, planned.outputs) as model:
        for _ in range(2):
            np.testing.assert_allclose(model.run([a, b])[0], expected, rtol=2e-3, atol=4e-2)


def products_of_warpgroups_take_maps_of_their_buffers() -> None:
    """Of the program's own buffers, and of a caller's: the maps in a captured graph follow their addresses."""
    a, b = random(200, 136).astype(np.float16), random(136, 264, seed=1).astype(np.float16)
    graph = Graph(a, b)
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lowered = scheduled(module, "matmul_wgmma", {"block": (128, 128), "stages": 2}, Target.parse(FEW_OF_HOPPER))
    planned, expected = read_program(lowered), a.astype(np.float64) @ b.astype(np.float64)
    with opened() as driver, CudaProgram(driver, compiled(lowered, planned), planned.inputs, planned.outputs) as model:
        for _ in range(2):
            np.testing.assert_allclose(model.run([a, b])[0], expected, rtol=2e-3, atol=2e-2)
        address, doubled = driver.allocate(a.nbytes), 2 * a
        driver.upload(address, doubled)
        driver.synchronize()
        (result,) = model.run([LentArray(address, a.shape, a.dtype, driver.number, None), b])
        np.testing.assert_allclose(result.numpy(), 2 * expected, rtol=2e-3, atol=4e-2)
        np.testing.assert_allclose(model.run([a, b])[0], expected, rtol=2e-3, atol=2e-2)
        driver.free(address)


def convolutions_take_maps_of_pixels() -> None:
    """That the driver makes by cuTensorMapEncodeIm2col."""
    x, w = random(2, 9, 8, 64).astype(np.float16), random(72, 64, 3, 3, seed=1).astype(np.float16)
    graph = Graph(x)
    image = graph.add(TransposeOp(graph[0], [0, 3, 1, 2]))
    product = graph.add(ConvOp(image, graph.constant(w), [2, 2], [1] * 4, [1, 1], 1))
    module = graph.module(graph.add(TransposeOp(product, [0, 2, 3, 1])))
    lowered = scheduled(module, "matmul_wgmma", {"block": (64, 128), "stages": 2}, Target.parse(FEW_OF_HOPPER))
    planned, padded = read_program(lowered), np.pad(x.astype(np.float64), [(0, 0), (1, 1), (1, 1), (0, 0)])
    expected = np.zeros((2, 5, 4, 72))
    for r, s in np.ndindex(3, 3):
        expected += padded[:, r : r + 9 : 2, s : s + 8 : 2] @ w[:, :, r, s].T.astype(np.float64)
    constants = [constant.array() for constant in planned.constants]
    sizes = planned.arena_bytes, planned.zeroed_bytes
    with opened() as driver:
        launches = compiled(lowered, planned)
        with CudaProgram(driver, launches, planned.inputs, planned.outputs, constants, *sizes) as model:
            for _ in range(2):
                np.testing.assert_allclose(model.run([x])[0], expected, rtol=2e-3, atol=4e-2)


def maps_that_the_driver_refuses() -> None:
    """An address that is no multiple of 16 bytes; the map's own numbers are checked before."""
    with opened() as driver:
        map = BufferMap(0, TensorMap("f16", (8, 64), (128,), (8, 64), 128))
        arguments = Arguments(1, [map])
        arguments.set([driver.allocate(1024)])
        with fails("encoding a tensor map: the GPU failed: cuTensorMapEncodeTiled failed: invalid argument"):
            arguments.set([driver.allocate(1024) + 8])
        walk = PixelBox((-1, -1), (-1, -1), (1, 1))
        pixels = BufferMap(0, TensorMap("f16", (1, 2, 2, 64), (512, 256, 128), (4, 64), 128, walk))
        arguments = Arguments(1, [pixels])
        arguments.set([driver.allocate(1024)])
        with fails("encoding a tensor map: the GPU failed: cuTensorMapEncodeIm2col failed: invalid argument"):
            arguments.set([driver.allocate(1024) + 8])


def out_of_memory_is_told_and_leaks_nothing() -> None:
    """A model that does not fit leaves the device to one that does."""
    with opened() as driver:
        large = TensorSpec("x", (CAPACITY // 4 - 64,), F32)
        with fails(rf"allocating {CAPACITY - 256} bytes: the GPU failed: cuMemAlloc failed: out of memory"):
            CudaProgram(driver, [launch(DOUBLE)], [large], [large])
        assert free_bytes(driver) == CAPACITY
        with program(driver, launch(DOUBLE)) as works:
            np.testing.assert_array_equal(works.run([X])[0], 2 * X)


def a_kernel_that_is_not_in_the_image() -> None:
    """Its name is told, and the memory given back."""
    with opened() as driver:
        missing = Launch("other", kernel(DOUBLE), (1, 1, 1), (SIZE, 1, 1), (INPUT, OUTPUT))
        with fails("loading kernel 'other': the GPU failed: cuModuleGetFunction failed: named symbol not found"):
            program(driver, missing)
        assert free_bytes(driver) == CAPACITY


def images_that_are_none() -> None:
    """Text, and a cubin for a real GPU."""
    # A cubin is an ELF file for machine 190, which the emulator cannot run.
    real = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (190).to_bytes(2, "little") + bytes(64)
    for given, reason in (
        (b"no image", "device kernel image is invalid"),
        (real, "no kernel image is available for execution on the device"),
    ):
        with opened() as driver, fails(f"loading kernel 'k': the GPU failed: cuModuleLoadData(Ex)? failed: {reason}"):
            program(driver, Launch("k", given, (1, 1, 1), (SIZE, 1, 1), (INPUT, OUTPUT)))


def launches_that_do_not_fit() -> None:
    """Too much shared memory, too many threads, an argument too few: refused before anything runs."""
    with opened() as driver:
        too_much = 164 * 1024
        with fails("loading kernel 'k': the GPU failed: cuFuncSetAttribute failed: invalid argument"):
            program(driver, launch(DOUBLE, shared=too_much))
        with (
            program(driver, launch(DOUBLE, threads=1025)) as wide,
            fails("launching a kernel: the GPU failed: (cuFuncSetBlockShape|cuLaunchKernel) failed: invalid argument"),
        ):
            wide.run([X])
        with (
            program(driver, Launch("k", kernel(DOUBLE), (1, 1, 1), (SIZE, 1, 1), (INPUT,))) as few,
            fails("launching a kernel: the GPU failed: cuLaunchKernel failed: invalid argument"),
        ):
            few.run([X])
        with program(driver, launch(DOUBLE)) as works:  # none of these harmed the context
            np.testing.assert_array_equal(works.run([X])[0], 2 * X)


def _breaks(body: str, reason: str) -> None:
    """The kernel is noticed at `synchronize`, its context is of no use afterwards, and a new one is."""
    driver = open_driver()
    broken = program(driver, launch(body))
    with fails(f"waiting for the device: the GPU failed: cuStreamSynchronize failed: {reason}"):
        broken.run([X])
    with fails(f"allocating 4 bytes: the GPU failed: cuMemAlloc failed: {reason}"):
        driver.allocate(4)
    broken.close()
    driver.close()
    with opened() as fresh, program(fresh, launch(DOUBLE)) as works:
        np.testing.assert_array_equal(works.run([X])[0], 2 * X)


def a_kernel_that_writes_out_of_bounds() -> None:
    """Its first write is behind every allocation."""
    _breaks("y[t + 1024] = x[t];", "an illegal memory access was encountered")


def a_kernel_that_never_ends() -> None:
    """The device's limit stops it."""
    _breaks("while (x[t] == x[t]) {} y[t] = 0;", "the launch timed out and was terminated")


def a_driver_that_is_closed_is_refused() -> None:
    """A program outlives its driver."""
    with opened() as driver:
        works = program(driver, launch(DOUBLE))
    with fails("cuda:0: the driver was closed"):
        works.run([X])


def no_device() -> None:
    """The driver is there and finds no GPU."""
    with fails("cuda driver: .* cuInit failed: no CUDA-capable device is detected"):
        open_driver()


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        the_device_is_described,
        products_of_warpgroups_take_maps_of_their_buffers,
        clusters_are_launched_like_other_kernels,
        convolutions_take_maps_of_pixels,
        maps_that_the_driver_refuses,
        memory_is_allocated_copied_and_given_back,
        work_waits_for_synchronize,
        events_have_an_order_and_a_time,
        streams_are_asked_and_waited_for,
        kernels_share_a_module_and_run_in_order,
        dynamic_shared_memory_beyond_48_kib,
        scalars_are_passed_by_their_types,
        a_whole_model_agrees_with_numpy,
        slices_of_a_product_find_their_counters_zero,
        runner_cases.functions_of_the_header_run_as_on_a_gpu,
        runner_cases.a_program_becomes_a_graph,
        runner_cases.the_benchmark_measures_and_writes,
        runner_cases.the_first_minutes_are_rehearsed,
        runner_cases.schedules_are_timed_and_a_second_run_measures_nothing,
        runner_cases.a_search_times_kernels_and_its_entries_are_used,
        out_of_memory_is_told_and_leaks_nothing,
        a_kernel_that_is_not_in_the_image,
        images_that_are_none,
        launches_that_do_not_fit,
        a_kernel_that_writes_out_of_bounds,
        a_kernel_that_never_ends,
        a_driver_that_is_closed_is_refused,
        *device_cases.CASES,
        *model_cases.CASES,
        *torch_cases.CASES,
        no_device,
    )
}

ONLY_PYCUDA = (streams_are_asked_and_waited_for.__name__, scalars_are_passed_by_their_types.__name__)
"""Cases of the fake driver itself that are written in pycuda's words."""


SLOW = (runner_cases.the_first_minutes_are_rehearsed.__name__,)
ALONE = (a_kernel_that_never_ends.__name__, no_device.__name__, *SLOW)
"""Cases that want another device than the rest, or minutes: a process each."""


def main(names: Sequence[str]) -> None:
    """Runs cases; prints name and error, None for a case that passed."""
    # Some builds of pycuda leave it to others to load the driver.
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    for name in names:
        error = None
        try:
            CASES[name]()
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps([name, error]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
