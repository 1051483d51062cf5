"""`treadle sanitize`: launches as text, findings and arrays of hand-written CUDA files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from treadle.backends.cuda.emulator import Emulator
from treadle.errors import TreadleError
from treadle.tools.launch_text import ArrayText, LaunchText, parse_launch
from treadle.tools.treadle_cli import main

TEXT = """#include <cuda_runtime.h>
extern "C" __global__ void axpy(const float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
extern "C" __global__ void total(const float *x, float *sum) {
  extern __shared__ float s[];
  s[threadIdx.x] = x[threadIdx.x];
  for (int w = blockDim.x / 2; w > 0; w /= 2) {
    __syncthreads();
    if (threadIdx.x < w) s[threadIdx.x] += s[threadIdx.x + w];
  }
  if (threadIdx.x == 0) *sum = s[0];
}
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some kernels.cu"
    path.write_text(TEXT)
    return path


def test_launches_share_arrays(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launches = ["--launch", "axpy<<<4, 64>>>(f32[256]:in, y=f32[256], 2.0f, 250)"]
    launches += ["--launch", "total<<<1, dim3(64), 256>>>(y, f32[1]);"]
    assert main(["sanitize", str(file), *launches, "--save", str(tmp_path / "out")]) == 0
    x, y, total = (np.load(tmp_path / "out" / f"{name}.npy") for name in ("x", "y", "sum"))
    np.testing.assert_array_equal(y[:250], 2 * x[:250])
    np.testing.assert_allclose(total[0], y[:64].sum(dtype=np.float64), rtol=1e-5, atol=1e-5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("axpy: 4 x 1 x 1 blocks of 64 x 1 x 1 threads, ")
    assert lines[3].startswith("y: f32[256] from ") and lines[3].endswith(", of 256 elements 6 not written")
    assert lines[-1] == "findings: 0; launches: 2"


def test_findings_have_lines_of_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(TEXT.replace("    __syncthreads();\n", ""))
    launch = ["--launch", "total<<<1, 64, 256>>>(f32[64]:in, f32[1])"]
    assert main(["sanitize", str(file), *launch, "--checks", "races,bounds"]) == 1
    out = capsys.readouterr().out
    assert "some kernels.cu: race total:10: s[" in out and ": init " not in out
    file.write_text(TEXT)
    assert main(["sanitize", str(file), "--launch", "total<<<1, 128, 256>>>(f32[64]:in, f32[1])"]) == 1
    assert "some kernels.cu: bounds total:8: x[64]" in capsys.readouterr().out


def test_a_profile(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = ["--launch", "axpy<<<2, 32>>>(f32[64]:zeros, f32[64], 2, 64)", "--checks", "", "--profile"]
    assert main(["sanitize", str(file), *launch]) == 0
    assert "y[i] = a * x[i];" in capsys.readouterr().out


# Launches as text.


def test_a_launch_is_read() -> None:
    launch = parse_launch("k <<< (2, 3), dim3(32, 4, 1), 1024>>> (a=f16[8, 16]:in, ui8[4 x 4], a, -3, 16u, 2.5f, true)")
    assert launch == LaunchText(
        "k", (2, 3, 1), (32, 4, 1), 1024,
        (ArrayText("a", "f16", (8, 16), "in"), ArrayText(None, "ui8", (4, 4)), "a", -3, 16, 2.5, True),
    )  # fmt: skip
    assert parse_launch("k<<<1,1>>>()").args == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k(1)", r"cannot read 'k\(1\)'; accepted: kernel<<<GRID"),
        ("k<<<1>>>()", "1 values between"),
        ("k<<<x, 1>>>()", "'x' for a grid"),
        ("k<<<(1, 2, 3, 4), 1>>>()", r"\(1, 2, 3, 4\)' for a grid"),
        ("k<<<1, 1>>>(f31[4])", "unknown type 'f31' in 'f31"),
        ("k<<<1, 1>>>(f32[0])", "has 0 bytes"),
        ("k<<<1, 1>>>(f32[99999999999])", "bytes; accepted: 1 to"),
        ("k<<<1, 1>>>(f32[4]:random)", "unknown contents 'random' in .*accepted: out, in, zeros, a file"),
        ("k<<<1, 1>>>(1 + 1)", r"cannot read the argument '1 \+ 1'"),
    ],
)
def test_launches_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(TreadleError, match=message):
        parse_launch(text)


# What cannot run.


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ("other<<<1, 1>>>()", "no kernel 'other'; accepted: axpy, total"),
        ("axpy<<<1, 1>>>(f32[4])", "axpy takes 4 arguments, not 1; accepted: x, y, a, n"),
        ("axpy<<<1, 1>>>(x, f32[4], 1, 4)", "no array 'x'; accepted: NAME=TYPE[EXTENTS] before it"),
        ("axpy<<<1, 1>>>(f16[4], f32[4], 1, 4)", "argument 'x' of kernel 'axpy': got an array of float16"),
        ("axpy<<<1, 2000>>>(f32[4], f32[4], 1, 4)", "block (2000, 1, 1)"),
        ("axpy<<<1, 4>>>(f32[4]:none.npy, f32[4], 1, 4)", "none.npy: cannot read the array: [Errno 2] No such file"),
        (
            "axpy<<<1, 4>>>(f32[4]:{}/five.npy, f32[4], 1, 4)",
            "it has float32 of shape [5]; accepted: float32 of",
        ),
    ],
)
def test_launches_that_do_not_fit(
    launch: str, message: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "five.npy", np.zeros(5, np.float32))
    assert main(["sanitize", str(file), "--launch", launch.replace("{}", str(tmp_path))]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('asm volatile("bar.sync 0;");', "some_kernels.cu:4: inline PTX is not emulated: 'asm volatile("),
        ("wmma::fragment<int> f;", "some_kernels.cu:4: nvcuda::wmma is not emulated"),
        ("cudaMalloc(&x, 4);", "a call of the host's API is not emulated"),
        ("axpy<<<1, 1>>>(x);", "a launch is not emulated: 'axpy<<<1, 1>>>(x); "),
        ("__nanosleep_all();", "some_kernels.cu:4: "),
    ],
)
def test_what_is_not_emulated_is_named(line: str, message: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(TEXT.replace("  if (i < n)", f"  {line} if (i < n)"))
    assert main(["sanitize", str(file), "--launch", "axpy<<<1, 1>>>(f32[4], f32[4], 1, 4)"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_files_that_are_none(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = ["--launch", "axpy<<<1, 1>>>(f32[4], f32[4], 1, 4)"]
    assert main(["sanitize", str(tmp_path / "none.cu"), *launch]) == 2
    assert "none.cu: cannot read: No such file" in capsys.readouterr().err
    assert main(["sanitize", str(file), *launch, "--checks", "speed"]) == 2
    assert "unknown check 'speed'; accepted: races, bounds, init, divergence" in capsys.readouterr().err


# CUDA's header of halves, as far as kernels use it.

HALVES = """#include <cuda_fp16.h>
extern "C" __global__ void pairs(const half *a, const half *b, half *sum, half *less, half *product, half *quotient,
                                 half *fma, half *most, bool *below, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  half x = a[i], y = b[i];
  sum[i] = __hadd(x, y);
  less[i] = x - y;
  half z = x;
  z *= y;
  product[i] = z;
  quotient[i] = x / y;
  fma[i] = __hfma(x, y, __float2half(0.3f));
  most[i] = __hmax(x, y);
  below[i] = x < y;
}
extern "C" __global__ void twos(const __half2 *a, float2 *wide, __half2 *b) {
  int i = threadIdx.x;
  wide[i] = __half22float2(a[i]);
  b[i] = __hfma2(a[i], __half2half2(__low2half(a[i])), __floats2half2_rn(1.0f, -1.0f)) + a[i];
}
"""


def test_halves_are_rounded_once() -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 16, (2, 20000)).astype(np.uint16)
    a, b = bits.view(np.float16)
    emulator = Emulator(HALVES, ())
    made = [np.zeros(20000, np.float16) for _ in range(6)]
    below = np.zeros(20000, np.bool_)
    emulator.launch("pairs", (79, 1, 1), (256, 1, 1), [a, b, *made, below, 20000])
    with np.errstate(all="ignore"):
        third = np.float64(np.float16(np.float32(0.3)))
        wide = a.astype(np.float64) * b.astype(np.float64) + third
        expected = [a + b, a - b, a * b, a / b, wide.astype(np.float16), np.fmax(a, b)]
        for found, wanted in zip(made, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(below, a < b)


def test_pairs_of_halves() -> None:
    a = np.random.default_rng(1).standard_normal((32, 2)).astype(np.float16)
    wide, b = np.zeros((32, 2), np.float32), np.zeros((32, 2), np.float16)
    Emulator(HALVES, ()).launch("twos", (1, 1, 1), (32, 1, 1), [a, wide, b])
    np.testing.assert_array_equal(wide, a.astype(np.float32))
    sums = a.astype(np.float64) * a[:, :1].astype(np.float64) + np.array([1.0, -1.0])
    np.testing.assert_array_equal(b, sums.astype(np.float16) + a)
