"""Timing candidates on a device in numpy: weights in turn, results, and what a library or a device does wrong.

That a whole search works on a driver is a case on the fake one, `tests/backends/cuda/fake_libcuda/runner_cases.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.backends.cuda.fake_driver import FakeDriver, Memory
from treadle.artifact.manifest import BufferMap
from treadle.backends.cuda.driver import BoundLaunch
from treadle.backends.cuda.executor import Launch
from treadle.backends.interface import BufferRef, TensorSpec
from treadle.errors import TreadleError
from treadle.target import Target
from treadle.tuning import device_timer
from treadle.tuning.child import CallEndedError, Child
from treadle.tuning.device_timer import DeviceLostError, DeviceTimer, GpuLibrary, device_name
from treadle.tuning.measure import LocalMeasurer

SIZE = 8
SPEC = TensorSpec("y", (SIZE,), np.dtype(np.float32))
X, W = np.arange(SIZE, dtype=np.float32), np.full(SIZE, 3.0, np.float32)
BUFFERS = (BufferRef("input", 0), BufferRef("input", 1), BufferRef("output", 0))


def multiplied(memory: Memory, x: int, w: int, y: int) -> None:
    memory[y : y + SIZE] = memory[x : x + SIZE] * memory[w : w + SIZE]


def failing(memory: Memory, x: int, w: int, y: int) -> None:
    raise TreadleError("an illegal memory access was encountered", "the GPU failed")


class Device(FakeDriver):
    """With what a `Device` is asked for besides; notes which weights its launches read."""

    capability = (8, 0)
    device_name = "numpy"

    def __init__(self, l2_bytes: int):
        super().__init__({"multiplied": multiplied, "failing": failing})
        self.l2_bytes, self.weights, self.load_fails = l2_bytes, list[int](), False

    def attribute(self, name: str) -> int:
        assert name == "L2_CACHE_SIZE"
        return self.l2_bytes

    def memory(self) -> tuple[int, int]:
        return 1 << 12, 1 << 16

    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        self.weights += [each.arguments[1] for each in launches]
        super().launch(launches)

    def load(
        self, image: bytes, kernel: str, num_arguments: int, dynamic_shared: int, maps: Sequence[BufferMap] = ()
    ) -> object:
        if image == b"damaged":
            raise TreadleError("the image is none", "loading")
        return super().load(image, kernel, num_arguments, dynamic_shared)


def library(kernel: str, image: bytes = b"cubin") -> GpuLibrary:
    return GpuLibrary((Launch(kernel, image, (1, 1, 1), (1, 1, 1), BUFFERS),))


def timer(device: Device, *libraries: GpuLibrary) -> DeviceTimer:
    return DeviceTimer(device, libraries, 0, [X, W], [SPEC], [1])  # pyright: ignore[reportArgumentType]


def test_weights_take_turns_and_together_exceed_l2_twice() -> None:
    device = Device(l2_bytes=100)
    timed = timer(device, library("multiplied"), library("multiplied"))
    (result,) = timed.outputs(1)
    np.testing.assert_array_equal(result, X * W)
    device.weights.clear()
    timed.run(rounds=4, seconds=60.0)
    assert [len(each) for each in timed.samples] == [4, 4] and all(each > 0 for side in timed.samples for each in side)
    copies = 2 * device.l2_bytes // W.nbytes + 1
    assert len(set(device.weights)) == copies == 7
    assert device.weights[:copies] == sorted(set(device.weights))  # one after the other
    timed.close()
    assert not device.live


def test_no_more_copies_than_a_part_of_the_memory_takes() -> None:
    device = Device(l2_bytes=1 << 30)
    timed = timer(device, library("multiplied"))
    timed.run(rounds=1, seconds=0.0)
    assert len(set(device.weights)) == (1 << 12) // 4 // W.nbytes


def test_what_cannot_be_loaded_has_an_error_and_no_time() -> None:
    timed = timer(Device(100), library("multiplied", b"damaged"), library("multiplied"))
    assert timed.errors == ["loading: the image is none", None]
    timed.run(rounds=3, seconds=60.0)
    assert [len(each) for each in timed.samples] == [0, 3]


def test_a_kernel_that_fails_ends_the_process_that_has_the_device() -> None:
    timed = timer(Device(100), library("failing"))
    with pytest.raises(DeviceLostError, match="an illegal memory access"):
        timed.outputs(0)


@pytest.mark.parametrize(("target", "name"), [("sm_80", "numpy"), ("sm_86", ""), ("sm_90a", "")])
def test_code_for_another_gpu_is_not_timed(target: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_timer, "this_device", lambda: Device(100))
    assert device_name(target) == name


def test_a_device_that_ends_its_process_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: Child, function: object, seconds: float) -> str:
        raise CallEndedError("it did not end within 30 seconds")

    monkeypatch.setattr(Child, "call", call)
    with pytest.raises(TreadleError, match="the GPU cannot be opened: it did not end within 30 seconds"):
        LocalMeasurer().device(Target.parse("sm_80"))
