"""Which binding to the driver is chosen, and what is said where there is none, no library or no such GPU."""

import pytest

from treadle.backends.cuda import bindings_driver, open_driver
from treadle.backends.cuda.bindings_driver import BindingsDriver, call
from treadle.errors import TreadleError


@pytest.fixture(autouse=True)
def drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_driver, "DRIVERS", {name: lambda device, name=name: name for name in open_driver.DRIVERS})
    monkeypatch.delenv("TREADLE_CUDA_DRIVER", raising=False)


def install(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(bindings_driver, "are_installed", lambda: "bindings" in names)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name in names else None)


@pytest.mark.parametrize(
    ("installed", "expected"),
    [(("bindings", "pycuda"), "bindings"), (("bindings",), "bindings"), (("pycuda",), "pycuda")],
)
def test_bindings_come_first(installed: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *installed)
    assert open_driver.open_driver() == expected


def test_the_variable_and_the_argument_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "bindings", "pycuda")
    monkeypatch.setenv("TREADLE_CUDA_DRIVER", "pycuda")
    assert open_driver.open_driver() == "pycuda"
    assert open_driver.open_driver(name="bindings") == "bindings"


def test_without_any_binding_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(TreadleError, match="cuda driver: neither cuda-bindings nor pycuda is installed; accepted:"):
        open_driver.open_driver()


def test_absent_bindings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "pycuda")
    with pytest.raises(TreadleError, match="cuda driver: cuda-bindings are not installed; accepted: pip install"):
        BindingsDriver()


def test_an_absent_library_is_named() -> None:
    def cuInit(flags: int) -> tuple[object, ...]:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    with pytest.raises(TreadleError, match=r"cuda driver: the NVIDIA driver cannot be loaded \(Failed to dlopen"):
        call("cuda driver", cuInit, 0)
