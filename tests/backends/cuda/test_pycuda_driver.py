"""The driver on pycuda: what is said without pycuda or a GPU, and how pycuda is called."""

import importlib
import importlib.util
import warnings
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from treadle.backends.cuda.driver import BoundLaunch
from treadle.backends.cuda.pycuda_driver import PycudaDriver
from treadle.errors import TreadleError


class PycudaError(Exception):
    """Stands for `pycuda.driver.Error`."""


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A mock in place of `pycuda.driver`."""
    module = MagicMock(name="pycuda.driver")
    module.Error = PycudaError
    module.Device.count.return_value = 1
    module.mem_alloc.side_effect = [MagicMock(__int__=lambda _: 4096), MagicMock(__int__=lambda _: 8192)]
    module.Device.return_value.compute_capability.return_value = (9, 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    return module


def context_of(cuda: MagicMock) -> MagicMock:
    return cuda.Device.return_value.retain_primary_context.return_value


def test_absent_pycuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TreadleError) as caught:
        PycudaDriver()
    assert str(caught.value) == (
        "cuda driver: pycuda is not installed; accepted: pip install pycuda, where CUDA's headers are"
    )


def test_an_absent_nvidia_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        raise ImportError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(TreadleError, match=r"NVIDIA driver cannot be loaded \(libcuda\.so\.1"):
        PycudaDriver()


def test_pycudas_own_warning_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        warnings.warn("Failed to import the CUDA driver interface", stacklevel=1)
        raise ImportError("undefined symbol: cuArrayCreate_v2")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(TreadleError, match=r"cannot be loaded \(undefined symbol"):
        PycudaDriver()


def test_a_machine_without_gpu_is_told(cuda: MagicMock) -> None:
    cuda.init.side_effect = PycudaError("cuInit failed: no CUDA-capable device is detected")
    with pytest.raises(TreadleError, match="no GPU can be used: cuInit failed"):
        PycudaDriver()


def test_a_device_that_does_not_exist_is_refused(cuda: MagicMock) -> None:
    with pytest.raises(TreadleError, match="no GPU number 1") as caught:
        PycudaDriver(device=1)
    assert caught.value.accepted == "0 to 0"


def test_capability_is_two_numbers(cuda: MagicMock) -> None:
    assert PycudaDriver().capability == (9, 0)


def test_kernels_are_prepared_for_pointers_and_launched_on_the_stream(cuda: MagicMock) -> None:
    driver = PycudaDriver()
    function = driver.load(b"image", "k", 3, 65536)
    prepared = cuda.module_from_buffer.return_value.get_function.return_value
    cuda.module_from_buffer.assert_called_once_with(b"image")
    prepared.prepare.assert_called_once_with(["P", "P", "P"])
    prepared.set_attribute.assert_called_once_with(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536)
    driver.launch([BoundLaunch(function, (2, 1, 1), (32, 1, 1), (1, 2, 3), 65536)])
    prepared.prepared_async_call.assert_called_once_with(
        (2, 1, 1), (32, 1, 1), cuda.Stream.return_value, 1, 2, 3, shared_size=65536
    )


def test_the_context_is_current_only_during_a_call(cuda: MagicMock) -> None:
    driver = PycudaDriver()
    driver.upload(driver.allocate(16), np.zeros(4, np.float32))
    driver.synchronize()
    assert context_of(cuda).push.call_count == cuda.Context.pop.call_count == 4


def test_a_failure_says_what_was_being_done(cuda: MagicMock) -> None:
    driver = PycudaDriver()
    cuda.mem_alloc.side_effect = PycudaError("cuMemAlloc failed: out of memory")
    with pytest.raises(TreadleError) as caught:
        driver.allocate(1 << 40)
    assert str(caught.value) == ("allocating 1099511627776 bytes: the GPU failed: cuMemAlloc failed: out of memory")
    assert context_of(cuda).push.call_count == cuda.Context.pop.call_count


def test_empty_arrays_are_not_copied(cuda: MagicMock) -> None:
    driver = PycudaDriver()
    driver.upload(4096, np.zeros(0, np.float32))
    driver.download(np.zeros(0, np.float32), 4096)
    cuda.memcpy_htod_async.assert_not_called()
    cuda.memcpy_dtoh_async.assert_not_called()


def test_time_between_events_is_in_seconds(cuda: MagicMock) -> None:
    driver = PycudaDriver()
    start, end = MagicMock(), MagicMock()
    start.time_till.return_value = 2.5
    assert driver.seconds_between(start, end) == 2.5e-3
    end.synchronize.assert_called_once_with()


def test_close_gives_everything_back_once(cuda: MagicMock) -> None:
    driver = PycudaDriver()
    driver.allocate(4)
    driver.free(driver.allocate(4))
    driver.close()
    driver.close()
    context_of(cuda).detach.assert_called_once_with()
    with pytest.raises(TreadleError, match="the driver was closed"):
        driver.allocate(4)
