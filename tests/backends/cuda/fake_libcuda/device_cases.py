"""Calls on arrays of the device: what the driver is asked for, in which order, and what is refused."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from tests.backends.cuda.fake_libcuda.framework import (
    ByDLPack,
    ByInterface,
    ByOldDLPack,
    ByOldInterface,
    Framework,
    Tensor,
    calls,
    check,
    consumed,
    forget_calls,
    waits,
)
from tests.backends.cuda.fake_libcuda.setting import (
    CAPACITY,
    CONSTANT,
    DOUBLE,
    INPUT,
    OUTPUT,
    SCRATCH,
    SIZE,
    SPEC,
    X,
    fails,
    free_bytes,
    kernel,
    launch,
    opened,
    program,
)
from treadle.backends.cuda.device_array import DeviceArray
from treadle.backends.cuda.device_memory import MOST_WAITING
from treadle.backends.cuda.driver import BoundLaunch, Device
from treadle.backends.cuda.executor import CudaProgram, Launch
from treadle.backends.cuda.stream_work import CapturedGraph
from treadle.errors import TreadleError

LENT = (ByInterface, ByOldInterface, ByDLPack, ByOldDLPack)
BIAS = np.linspace(1, 2, SIZE, dtype=np.float32)


@contextmanager
def framework(number: int = 0, *, default_stream: bool = False) -> Generator[Framework]:
    """A library of tensors beside the program."""
    library = Framework(number, default_stream=default_stream)
    try:
        yield library
    finally:
        gc.collect()
        library.close()


def two_kernels(driver: Device) -> CudaProgram:
    """`2 * x + bias` in two launches by way of the arena."""
    shape = ((1, 1, 1), (SIZE, 1, 1))
    add = kernel("y[t] = x[t] + b[t];", "const float *x, const float *b, float *y")
    launches = [
        Launch("k", kernel(DOUBLE), *shape, (INPUT, SCRATCH)),
        Launch("k", add, *shape, (SCRATCH, CONSTANT, OUTPUT)),
    ]
    return CudaProgram(driver, launches, [SPEC], [SPEC], [BIAS], 256 + X.nbytes)


def run(model: CudaProgram, value: object, stream: int | None = None, out: Any = None) -> Any:
    """The only output of a call."""
    buffers = None if out is None else [model.lent(out, "output 'x'", stream)]
    (result,) = model.run([model.lent(value, "input 'x'", stream)], buffers, stream)
    return result


def a_call_on_device_arrays_neither_copies_nor_waits() -> None:
    """One driver call launches; results have the bits of a call from the host."""
    with framework() as library, opened() as driver, two_kernels(driver) as model:
        (expected,) = model.run([X])
        for kind in LENT:
            x = library.tensor(X, kind)
            first = run(model, x, library.stream)  # allocates
            np.testing.assert_array_equal(library.read(first), expected)
            del first
            forget_calls()
            y = run(model, x, library.stream)
            assert calls("HtoD", "DtoH", "DtoD", "cuMemAlloc_v2", "cuMemHostAlloc") == [0] * 5 and waits() == 0
            assert calls("cuGraphLaunch", "cuLaunchKernel", "cuGraphExecKernelNodeSetParams") == [1, 0, 0]
            np.testing.assert_array_equal(library.read(y), expected)
            np.testing.assert_array_equal(y.numpy(), expected)


def a_call_finds_its_order_without_a_stream() -> None:
    """Producers are waited for, and consumers wait, as their protocols say."""
    for default in (False, True):
        for kind in LENT:
            if kind is ByOldInterface and not default:
                continue  # its work is on a stream that nobody names
            with framework(default_stream=default) as library, opened() as driver, two_kernels(driver) as model:
                y = run(model, library.tensor(X, kind))
                forget_calls()
                found, device = consumed(y, library.stream or 1)
                assert waits() == 0 and device == (2, 0)
                library.synchronize()
                np.testing.assert_array_equal(found, 2 * X + BIAS)
                interface = y.__cuda_array_interface__
                assert (interface["version"], interface["typestr"], interface["shape"]) == (3, "<f4", (SIZE,))
                library.order(interface["stream"], library.stream)
                np.testing.assert_array_equal(library.read(y), 2 * X + BIAS)


def freed_tensors_are_not_read() -> None:
    """A tensor that is dropped right after the call is poisoned by its library's next work."""
    for kind in (ByInterface, ByDLPack):
        with framework() as library, opened() as driver, two_kernels(driver) as model:
            for stream in (library.stream, None):
                x = library.tensor(X, kind)
                y = run(model, x, stream)
                del x
                np.testing.assert_array_equal(y.numpy(), 2 * X + BIAS)


def a_freed_result_is_not_overwritten_before_it_is_read() -> None:
    """The next call's result takes the memory only behind what has been queued to read it: on the call's own stream, or
    on the default one; not on another, whose handle may be gone by then."""
    with (
        framework() as library,
        framework() as other,
        framework(default_stream=True) as default,
        opened() as driver,
        two_kernels(driver) as model,
    ):
        for reader, stream, reused in (
            (library, library.stream, True), (library, None, False), (other, library.stream, False),
            (default, library.stream, True), (default, None, True),
        ):  # fmt: skip
            copy = reader.tensor(np.zeros_like(X))
            first = run(model, library.tensor(X), stream)
            consumed(first, reader.stream or 1)
            _queue_copy(copy, first, reader.stream)
            address = first.pointer
            del first
            second = run(model, library.tensor(-X), stream)
            assert (second.pointer == address) == reused
            np.testing.assert_array_equal(second.numpy(), -2 * X + BIAS)
            np.testing.assert_array_equal(reader.read(copy), 2 * X + BIAS)


def results_that_are_read_on_unknown_streams_do_not_pile_up() -> None:
    """Their memory is used again once the device was waited for, a few calls later."""
    with framework() as library, framework() as other, opened() as driver, two_kernels(driver) as model:
        xs, copies = ([each.tensor(n * X) for n in range(20)] for each in (library, other))
        y = run(model, xs[0], library.stream)
        for stream in (library.stream, None):
            forget_calls()
            for x, copy in zip(xs, copies, strict=True):
                y = run(model, x, stream)
                consumed(y, other.stream)
                _queue_copy(copy, y, other.stream)
            assert calls("cuMemAlloc_v2")[0] <= MOST_WAITING + 1 and calls("cuCtxSynchronize")[0] <= 3
            y.numpy()  # what the program has queued is done before what the reader has
            for n, copy in enumerate(copies):
                np.testing.assert_array_equal(other.read(copy), 2 * n * X + BIAS)


def a_freed_result_is_not_overwritten_before_a_model_reads_it() -> None:
    """As above, where the reader is another model on a stream of its own."""
    with (
        framework() as library,
        framework() as other,
        opened() as driver,
        opened() as second,
        two_kernels(driver) as model,
        program(second, launch(DOUBLE)) as reader,
    ):
        y = run(reader, run(model, library.tensor(X), library.stream), other.stream)
        z = run(model, library.tensor(-X), library.stream)
        np.testing.assert_array_equal(z.numpy(), -2 * X + BIAS)
        np.testing.assert_array_equal(other.read(y), 2 * (2 * X + BIAS))


def _queue_copy(target: Tensor, source: DeviceArray, stream: int) -> None:
    addresses = ctypes.c_uint64(target.pointer), ctypes.c_uint64(source.pointer)
    with target.framework.current():
        check("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(source.nbytes), ctypes.c_void_p(stream))


def results_go_where_the_caller_says() -> None:
    """`out`, whose addresses and the inputs' are changed in the captured graph, call by call."""
    with framework() as library, opened() as driver, two_kernels(driver) as model:
        for kind in LENT:
            for factor in (1, 3):
                x, y = library.tensor(factor * X, kind), library.tensor(np.zeros_like(X), kind)
                forget_calls()
                run(model, x, library.stream, y)
                assert calls("cuMemAlloc_v2", "DtoD", "cuGraphLaunch") == [0, 0, 1]
                np.testing.assert_array_equal(library.read(y), 2 * factor * X + BIAS)
        host = model.run([X])  # the graph is pointed back at the program's own buffers
        np.testing.assert_array_equal(host[0], 2 * X + BIAS)


def two_models_interleave_on_two_streams() -> None:
    """Each call is behind its own stream alone."""
    square = launch("y[t] = x[t] * x[t];")
    with (
        framework() as one,
        framework() as two,
        opened() as driver,
        opened() as other,
        two_kernels(driver) as a,
        program(other, square) as b,
    ):
        xs, ys = [one.tensor(n * X) for n in range(4)], [two.tensor(n * X) for n in range(4)]
        forget_calls()
        results = [(run(a, x, one.stream), run(b, y, two.stream)) for x, y in zip(xs, ys, strict=True)]
        assert waits() == 0 and calls("cuGraphLaunch") == [8]
        for n, (left, right) in reversed(list(enumerate(results))):
            np.testing.assert_array_equal(two.read(right), n * X * (n * X))
            np.testing.assert_array_equal(one.read(left), 2 * n * X + BIAS)


def models_hand_arrays_on() -> None:
    """A result is another model's input on the device, with and without a stream."""
    with (
        framework() as library,
        opened() as driver,
        opened() as other,
        two_kernels(driver) as first,
        program(other, launch(DOUBLE)) as second,
    ):
        for stream in (library.stream, None):
            forget_calls()
            y = run(second, run(first, library.tensor(X), stream), stream)
            assert waits() == 0 and calls("HtoD", "DtoH", "DtoD") == [1, 0, 0]  # the tensor's own elements
            np.testing.assert_array_equal(y.numpy(), 2 * (2 * X + BIAS))


def an_address_that_kernels_cannot_take_is_copied() -> None:
    """One that is not aligned, and one where the driver does not change a launch: one copy each, the same bits."""
    with framework() as library, opened() as driver, two_kernels(driver) as model:
        x, y = library.tensor(X, offset=4), library.tensor(np.zeros_like(X), offset=8)
        forget_calls()
        run(model, x, library.stream, y)
        assert calls("DtoD", "cuGraphLaunch") == [2, 1] and waits() == 0
        np.testing.assert_array_equal(library.read(y), 2 * X + BIAS)

    def refuse(graph: CapturedGraph, position: int, arguments: object) -> None:
        raise TreadleError("no launch of this kind", "changing the arguments of a launch in a graph")

    with (
        framework() as library,
        opened() as driver,
        two_kernels(driver) as model,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(CapturedGraph, "update", refuse)
        for factor in (1, 2):
            x = library.tensor(factor * X)
            forget_calls()
            y = run(model, x, library.stream)
            assert calls("DtoD", "cuGraphLaunch") == [2, 1] and waits() == 0
            np.testing.assert_array_equal(library.read(y), 2 * factor * X + BIAS)


def kernels_are_launched_one_by_one_on_demand() -> None:
    """TREADLE_CUDA_GRAPH=off: the same bits, on the host and on the device."""
    with pytest.MonkeyPatch.context() as patch, framework() as library, opened() as driver:
        patch.setenv("TREADLE_CUDA_GRAPH", "off")
        with two_kernels(driver) as model:
            forget_calls()
            np.testing.assert_array_equal(model.run([X])[0], 2 * X + BIAS)
            y = run(model, library.tensor(-X), library.stream)
            assert calls("cuGraphLaunch", "cuLaunchKernel") == [0, 4]
            np.testing.assert_array_equal(library.read(y), -2 * X + BIAS)


def arrays_on_the_host_and_on_the_device_mix() -> None:
    """Host inputs are copied from pinned memory, so that a call does not wait; the next one waits for that copy."""
    text = kernel("y[t] = x[t] + b[t];", "const float *x, const float *b, float *y")
    other = type(INPUT)("input", 1)
    add = Launch("k", text, (1, 1, 1), (SIZE, 1, 1), (INPUT, other, OUTPUT))
    with framework() as library, opened() as driver, CudaProgram(driver, [add], [SPEC, SPEC], [SPEC]) as model:
        for n in range(3):
            x, b = model.lent(library.tensor(X), "input", library.stream), np.full(SIZE, n, np.float32)
            forget_calls()
            (y,) = model.run([x, b], None, library.stream)
            b += 100  # the caller's, from now on
            assert (waits(), calls("cuGraphLaunch")) == (min(n, 1), [1])
            np.testing.assert_array_equal(library.read(y), X + n)


def arrays_outlive_their_program() -> None:
    """Memory of results goes back with the last array; that of the program at once."""
    with framework() as library, opened() as driver:
        before = free_bytes(driver)
        model = two_kernels(driver)
        x = library.tensor(X)
        y, dropped = run(model, x), run(model, x)
        del dropped
        model.close()
        x.framework.synchronize()
        assert free_bytes(driver) == before - 2 * 256, "the tensor and the array that is kept"
        np.testing.assert_array_equal(y.numpy(), 2 * X + BIAS)
        capsule = y.__dlpack__(stream=library.stream)
        del y
        assert free_bytes(driver) == before - 2 * 256, "the capsule keeps it, too"
        del capsule
        assert free_bytes(driver) == before - 256
        with fails("run: the program was closed"):
            model.run([X])


def out_of_memory_within_a_call() -> None:
    """Nothing is lost, and the next call works."""
    with framework() as library, opened() as driver, two_kernels(driver) as model:
        x = library.tensor(X)
        model.run([X])
        before = free_bytes(driver)
        hog = driver.allocate(before)
        with fails("output 'x' on cuda:0: there is no memory for it: allocating 256 bytes: the GPU failed: cuMemAlloc"):
            run(model, x, library.stream)
        driver.free(hog)
        gc.collect()
        assert free_bytes(driver) == before
        np.testing.assert_array_equal(library.read(run(model, x, library.stream)), 2 * X + BIAS)
    with opened() as driver, two_kernels(driver) as model, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(driver), "allocate_host", _no_pinned_memory)
        with fails("allocating 256 bytes of pinned memory: out of memory"):
            model.run([X])
        patch.undo()
        np.testing.assert_array_equal(model.run([X])[0], 2 * X + BIAS)


def _no_pinned_memory(driver: object, num_bytes: int) -> np.ndarray:
    raise TreadleError("out of memory", f"allocating {num_bytes} bytes of pinned memory")


def arrays_that_do_not_fit_are_refused() -> None:
    """Each says which, why, and what would be accepted; the next call works."""
    with framework() as library, framework(1) as elsewhere, opened() as driver, two_kernels(driver) as model:
        where = "input 'x'"
        for kind in (ByInterface, ByDLPack):
            with fails(
                "input 'x': the array is on cuda:1; accepted: one on cuda:0, where the model is; or the model with"
            ):
                model.lent(elsewhere.tensor(X, kind), where)
            with fails(r"input 'x': the array of shape \(8, 8\) has strides \(1, 8\); accepted: a C-contiguous array"):
                model.lent(library.tensor(X.reshape(8, 8).T, kind), where)
            with fails(r"input 'x': got float32 of shape \(65,\); accepted: float32 of shape \(64,\)"):
                run(model, library.tensor(np.zeros(65, np.float32), kind))
            with fails(r"input 'x': got int32 of shape \(64,\); accepted: float32 of shape \(64,\)"):
                run(model, library.tensor(np.zeros(64, np.int32), kind))
            x, y = library.tensor(X, kind), library.tensor(X, kind)
            y.read_only = True
            np.testing.assert_array_equal(run(model, y).numpy(), 2 * X + BIAS)
            with fails("output 'x': the buffer is read-only; accepted: one that its library lets others write"):
                run(model, x, library.stream, y)
            with fails("output 'x': the buffer overlaps an input or another output; accepted: memory of its own"):
                run(model, x, library.stream, x)
        host = ByInterface(library, X.shape, X.dtype, X.strides, 0)
        pointer, host.pointer = host.pointer, X.ctypes.data
        with fails("input 'x': 0x.* is no address of a GPU's memory .*; accepted: an array on cuda:0"):
            model.lent(host, where)
        host.pointer = pointer
        np.testing.assert_array_equal(run(model, x, library.stream).numpy(), 2 * X + BIAS)


def streams_that_cannot_be_used_are_refused() -> None:
    """One of another device, and one that the caller is capturing, whose capture stays whole."""
    with framework() as library, framework(1) as elsewhere, opened() as driver, two_kernels(driver) as model:
        x = library.tensor(X)
        library.synchronize()
        with fails("stream 0x.*: the stream cannot be used: .* invalid resource handle; accepted: a stream of cuda:0"):
            run(model, x, elsewhere.stream)
        run(model, x)  # what is allocated once is allocated now

        graph = ctypes.c_void_p()
        with library.current():
            check("cuStreamBeginCapture_v2", ctypes.c_void_p(library.stream), 1)
        with fails("stream 0x.*: work on the stream is being captured; accepted: a call outside the capture"):
            model.run([model.lent(x, "input", -1)], None, library.stream)
        with library.current():
            check("cuStreamEndCapture", ctypes.c_void_p(library.stream), ctypes.byref(graph))
            check("cuGraphDestroy", graph)
        np.testing.assert_array_equal(library.read(run(model, x, library.stream)), 2 * X + BIAS)


def threads_use_arrays_while_a_graph_is_captured() -> None:
    """What they queue is no part of it."""
    with (
        framework() as library,
        opened() as driver,
        two_kernels(driver) as model,
        pytest.MonkeyPatch.context() as patch,
    ):
        launched, found = cast("Any", type(driver)).record_launch, list[Any]()
        y = run(model, library.tensor(X), library.stream)

        def record(self: Any, each: BoundLaunch) -> None:
            launched(self, each)
            with ThreadPoolExecutor(1) as pool:
                found.append(pool.submit(y.numpy).result())
                pool.submit(consumed, y, library.stream).result()

        patch.setattr(type(driver), "record_launch", record)
        with two_kernels(driver) as other:
            for n in range(2):
                np.testing.assert_array_equal(other.run([n * X])[0], 2 * n * X + BIAS)
        assert len(found) == 2
        for each in found:
            np.testing.assert_array_equal(each, 2 * X + BIAS)


def a_capture_forbids_allocations_and_waits() -> None:
    """The fake driver's own rules: what a GPU's driver refuses ends the capture."""

    with framework() as library, library.current():
        stream, graph, memory = ctypes.c_void_p(library.stream), ctypes.c_void_p(), ctypes.c_uint64()
        cuda = ctypes.CDLL("libcuda.so.1")
        forbidden = {
            "cuMemAlloc_v2": (ctypes.byref(memory), ctypes.c_size_t(4)),
            "cuStreamSynchronize": (stream,),
            "cuCtxSynchronize": (),
        }
        for name, arguments in forbidden.items():
            check("cuStreamBeginCapture_v2", stream, 1)
            assert getattr(cuda, name)(*arguments) == 900
            assert cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == 901 and graph.value is None


def a_device_that_is_gone() -> None:
    """Whoever resets it destroys what programs have there: the call says so, and what is opened anew works."""
    with framework() as library, opened() as driver:
        model = two_kernels(driver)
        model.run([X])
        x = model.lent(library.tensor(X), "input 'x'", library.stream)
        library.reset()
        with fails(
            "cuda:0: the GPU failed: cuStreamQuery failed: context is destroyed; accepted: close\\(\\) the model"
        ):
            model.run([X])
        with fails(r"stream 0x[0-9a-f]+: the stream cannot be used: .* failed: context is destroyed"):
            model.run([x], None, library.stream)
        model.close()
    with opened() as driver, two_kernels(driver) as model:
        np.testing.assert_array_equal(model.run([X])[0], 2 * X + BIAS)
        assert free_bytes(driver) < CAPACITY


CASES = (
    a_call_on_device_arrays_neither_copies_nor_waits,
    a_call_finds_its_order_without_a_stream,
    freed_tensors_are_not_read,
    a_freed_result_is_not_overwritten_before_it_is_read,
    results_that_are_read_on_unknown_streams_do_not_pile_up,
    a_freed_result_is_not_overwritten_before_a_model_reads_it,
    results_go_where_the_caller_says,
    two_models_interleave_on_two_streams,
    models_hand_arrays_on,
    an_address_that_kernels_cannot_take_is_copied,
    kernels_are_launched_one_by_one_on_demand,
    arrays_on_the_host_and_on_the_device_mix,
    arrays_outlive_their_program,
    out_of_memory_within_a_call,
    arrays_that_do_not_fit_are_refused,
    streams_that_cannot_be_used_are_refused,
    threads_use_arrays_while_a_graph_is_captured,
    a_capture_forbids_allocations_and_waits,
    a_device_that_is_gone,
)
