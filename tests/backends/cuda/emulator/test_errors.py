"""What the emulator says to texts, launches and kernels that are wrong."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.errors import TreadleError

TEXT = """
extern "C" __global__ void __launch_bounds__(64) axpy(const float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
"""
X = np.arange(8, dtype=np.float32)
ALL = tuple(CHECKS)


def arguments(**changed: Any) -> list[Any]:
    return list({"x": X, "y": np.zeros(8, np.float32), "a": 2.0, "n": 8, **changed}.values())


def test_a_text_that_does_not_compile(emulate: Callable[..., Emulator]) -> None:
    with pytest.raises(TreadleError, match=re.escape("kernel.cu:4: ")) as caught:
        emulate(TEXT.replace("y[i]", "z[i]"))
    assert "z" in caught.value.message and "in 'if (i < n) z[i] += a * x[i];'" in str(caught.value)


WRONG_TEXTS = {
    "a header that is not there": ('#include "none.h"\n' + TEXT, "kernel.cu:1: none.h: No such file or directory"),
    "a brace that is not closed": (TEXT.rstrip()[:-1], "kernel.cu:4: expected"),
    "a function that is not there": (
        'extern "C" float f(float);' + TEXT.replace("a * x[i]", "f(x[i])"),
        "kernel.cu: 'f' is called but not defined; accepted: a text that defines what it calls",
    ),
    "PTX": (TEXT.replace("int i =", 'asm("bar.sync 0;"); int i ='), "kernel.cu:3: "),
    "a kernel in a namespace": (
        "namespace a {" + TEXT.replace('extern "C"', "") + "}",
        "its kernels cannot be called: ",
    ),
    "a reference": (TEXT.replace("int n", "const int &n"), 'accepted: extern "C" __global__ functions of pointers'),
}


@pytest.mark.parametrize("checks", [(), ALL], ids=["fast", "checked"])
@pytest.mark.parametrize("name", list(WRONG_TEXTS))
def test_a_text_that_cannot_run(name: str, checks: tuple[str, ...], emulate: Callable[..., Emulator]) -> None:
    text, message = WRONG_TEXTS[name]
    with pytest.raises(TreadleError, match=re.escape(message)) as caught:
        emulate(text, checks)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), 1e7, "3", None])
def test_a_limit_that_is_none(limit: Any, emulate: Callable[..., Emulator]) -> None:
    with pytest.raises(
        TreadleError, match=r"emulator: a limit of .*; accepted: seconds, more than 0 and at most 1000000"
    ):
        emulate(TEXT, limit=limit)


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_workers_that_are_none(workers: Any, emulate: Callable[..., Emulator]) -> None:
    with pytest.raises(TreadleError, match="workers; accepted: a whole number from 1 upwards"):
        emulate(TEXT, workers=workers)


def test_unknown_checks_and_names(emulate: Callable[..., Emulator]) -> None:
    with pytest.raises(TreadleError, match="unknown check 'leaks'; accepted: races, bounds, init, divergence"):
        emulate(TEXT, ("leaks",))
    with pytest.raises(TreadleError, match=r"the name '\.\./k\.cu' of a text"):
        Emulator(TEXT, name="../k.cu")


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("kernel", {"kernel": "gemm"}, "kernel.cu: no kernel 'gemm'; accepted: axpy"),
    ("grid", {"grid": (1, 0, 1)}, "kernel 'axpy': grid (1, 0, 1); accepted: three whole numbers from 1"),
    ("grid of two", {"grid": (1, 1)}, "kernel 'axpy': grid (1, 1); accepted: three whole numbers from 1"),
    ("grid of one number", {"grid": 4}, "kernel 'axpy': grid 4; accepted: three whole numbers from 1"),
    ("grid of fractions", {"grid": (1.5, 1, 1)}, "kernel 'axpy': grid (1.5, 1, 1); accepted: three whole numbers"),
    ("grid too high", {"grid": (1, 65536, 1)}, "grid (1, 65536, 1); accepted: three whole numbers from 1 up to 21"),
    ("block", {"block": (2048, 1, 1)}, "block (2048, 1, 1)"),
    ("block too deep", {"block": (1, 1, 65)}, "accepted: three whole numbers from 1 up to 1024, 1024, 64"),
    ("launch bounds", {"block": (128, 1, 1)}, "kernel 'axpy': a block of 128 threads; accepted: at most 64"),
    ("shared", {"shared_bytes": 10**6}, "1000000 bytes of dynamic shared memory"),
    ("negative shared", {"shared_bytes": -4}, "kernel 'axpy': -4 bytes of dynamic shared memory; accepted: 0 to"),
    ("half a byte", {"shared_bytes": 0.5}, "kernel 'axpy': 0.5 bytes of dynamic shared memory; accepted: 0 to"),
    ("too many", {"args": [*arguments(), 1]}, "got 5 arguments, expected 4; accepted: x, y, a, n"),
    ("count", {"args": [X]}, "got 1 arguments, expected 4; accepted: x, y, a, n"),
    ("type", {"args": arguments(x=X.astype(np.float64))}, "argument 'x' of kernel 'axpy': got an array of float64"),
    ("byte order", {"args": arguments(x=X.astype(">f4"))}, "argument 'x' of kernel 'axpy': got an array of >f4"),
    ("objects", {"args": arguments(x=X.astype(object))}, "argument 'x' of kernel 'axpy': got an array of object"),
    ("no array", {"args": arguments(y=3)}, "argument 'y' of kernel 'axpy': got int for a pointer"),
    ("strides", {"args": arguments(x=np.zeros(16, np.float32)[::2])}, "an array that is not contiguous"),
    ("fraction", {"args": arguments(n=1.5)}, "argument 'n' of kernel 'axpy': got 1.5; accepted: one value of int32"),
    ("range", {"args": arguments(n=2**31)}, "got 2147483648; accepted: one value of int32"),
    ("array for a number", {"args": arguments(a=X)}, "got an array of shape (8,); accepted: one value of float32"),
    ("text for a number", {"args": arguments(a="2")}, "got str; accepted: one value of float32"),
]


@pytest.mark.parametrize(("changes", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_launch_that_does_not_fit(changes: dict[str, Any], message: str, emulate: Callable[..., Emulator]) -> None:
    launch: dict[str, Any] = {"kernel": "axpy", "grid": (1, 1, 1), "block": (8, 1, 1), "args": arguments(), **changes}
    with pytest.raises(TreadleError, match=re.escape(message)) as caught:
        emulate(TEXT, ()).launch(**launch)
    assert "\n" not in str(caught.value)


def test_a_read_only_array_is_not_written(emulate: Callable[..., Emulator]) -> None:
    y = np.zeros(8, np.float32)
    y.flags.writeable = False
    with pytest.raises(TreadleError, match="argument 'y' of kernel 'axpy': got a read-only array"):
        emulate(TEXT, ()).launch("axpy", (1, 1, 1), (8, 1, 1), arguments(y=y))


NEVER_ENDS = {
    "without memory": "if (t == 3) while (true) {}",
    "spinning on memory": "if (t == 3) while (*(volatile float *)y == 0) {}",
    "spinning on a barrier": "while (off) __syncthreads();",
}


@pytest.mark.parametrize("checks", [(), ALL], ids=["fast", "checked"])
@pytest.mark.parametrize("name", list(NEVER_ENDS))
def test_a_kernel_that_never_ends_is_stopped(
    name: str, checks: tuple[str, ...], emulate: Callable[..., Emulator]
) -> None:
    text = f"""extern "C" __global__ void k(float *y, int off) {{
  int t = threadIdx.x;
  {NEVER_ENDS[name]}
  __syncthreads();
  y[t] = 1;
}}
"""
    with pytest.raises(TreadleError, match=r"kernel 'k': stopped after 0\.3 s; in block 0: ") as caught:
        emulate(text, checks, 0.3).launch("k", (1, 1, 1), (64, 1, 1), [np.zeros(64, np.float32), 1])
    assert "at line 3" in str(caught.value)
    # A checked thread that waits for memory lets the others run.
    arrived = "0-2, 4-63" if checks and name == "spinning on memory" else "0-2"
    if name != "spinning on a barrier":
        assert f"threads {arrived} at a barrier at line 4; threads 3 running" in str(caught.value)


@pytest.mark.parametrize("checks", [(), ALL], ids=["fast", "checked"])
def test_an_address_in_no_buffer(checks: tuple[str, ...], emulate: Callable[..., Emulator]) -> None:
    text = 'extern "C" __global__ void k(float *y) {\n  if (threadIdx.x == 5) *(float *)64 = 1;\n}'
    emulator = emulate(text, checks)
    if checks:
        (finding,) = emulator.launch("k", (1, 1, 1), (32, 1, 1), [np.zeros(4, np.float32)]).findings
        assert (finding.kind, finding.line, finding.threads) == ("bounds", 2, (5,))
    else:
        with pytest.raises(TreadleError, match="access to address 0x40, which is in no buffer, at line"):
            emulator.launch("k", (1, 1, 1), (32, 1, 1), [np.zeros(4, np.float32)])


@pytest.mark.parametrize("checks", [(), ALL], ids=["fast", "checked"])
def test_a_division_by_zero(checks: tuple[str, ...], emulate: Callable[..., Emulator]) -> None:
    text = 'extern "C" __global__ void k(int *y) {\n  y[0] = 7 / y[1];\n}'
    with pytest.raises(TreadleError, match=r"integer division by zero at line \d+ by thread 0 of block 0"):
        emulate(text, checks).launch("k", (1, 1, 1), (32, 1, 1), [np.zeros(4, np.int32)])


def test_the_next_launch_works_after_a_failure(emulate: Callable[..., Emulator]) -> None:
    test_an_address_in_no_buffer((), emulate)
    y = np.zeros(8, np.float32)
    emulate(TEXT, ()).launch("axpy", (1, 1, 1), (8, 1, 1), arguments(y=y))
    np.testing.assert_array_equal(y, 2 * X)
