"""Vectors of bfloat16: the functions of treadle.h that widen and narrow them, and kernels that load and store them."""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects import vector
from xdsl.parser import Parser

from tests.backends.c.test_printer import kernel, run
from tests.backends.c.toolchains import BUILDS, library_of
from treadle.backends.reference.kernels import evaluate_kernel
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.passes.loop.loop_vectorize import LoopVectorizePass

WIDTHS = (4, 8, 16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ALL = np.arange(1 << 16, dtype=np.uint16)
Words = NDArray[np.uint32]


def floats() -> Words:
    """Every bfloat16 with what lies just below, at and above the tie after it: also NaN, infinities, subnormals."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return np.bitwise_or.outer(ALL.astype(np.uint32) << 16, low).reshape(-1)


def loops(lanes: int) -> str:
    """The conversions of vectors at addresses that are aligned like one element."""
    v = f"v{lanes}"
    return (
        f"void widen_{lanes}(const treadle_bfloat16 *x, float *y, long n) {{ for (long i = 0; i < n; i += {lanes}) "
        f"*({v}f_u *)&y[i] = treadle_bfloat16_to_float_{v}f(({v}h)*(const {v}h_u *)&x[i]); }}\n"
        f"void narrow_{lanes}(const float *x, treadle_bfloat16 *y, long n) {{ for (long i = 0; i < n; i += {lanes}) "
        f"*({v}h_u *)&y[i] = treadle_float_to_bfloat16_{v}h(({v}f)*(const {v}f_u *)&x[i]); }}"
    )


SCALAR = (
    "void narrow_1(const float *x, treadle_bfloat16 *y, long n) "
    "{ for (long i = 0; i < n; i++) y[i] = treadle_float_to_bfloat16(x[i]); }"
)


@pytest.fixture(scope="module", params=BUILDS, ids="-".join)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = "\n".join([SCALAR, *(loops(lanes) for lanes in WIDTHS)])
    return library_of(text, request.param, tmp_path_factory.mktemp("bfloat16"))


def call(library: ctypes.CDLL, name: str, x: NDArray[Any], dtype: type[Any]) -> NDArray[Any]:
    """The result of one function for all of `x`, read and written one element behind an aligned address."""
    source, result = np.empty(len(x) + 1, x.dtype), np.empty(len(x) + 1, dtype)
    source[1:] = x
    addresses = (ctypes.c_void_p(a.ctypes.data + a.itemsize) for a in (source, result))
    library[name](*addresses, ctypes.c_long(len(x)))
    return result[1:]


@pytest.mark.parametrize("lanes", WIDTHS)
def test_every_bfloat16_is_the_upper_half_of_a_float(library: ctypes.CDLL, lanes: int) -> None:
    bits = call(library, f"widen_{lanes}", ALL, np.uint32)
    np.testing.assert_array_equal(bits, ALL.astype(np.uint32) << 16)
    number = ALL & 0x7FFF <= 0x7F80
    values = ALL.view(BFLOAT16)[number].astype(np.float32)
    np.testing.assert_array_equal(bits[number].view(np.float32), values)


@pytest.mark.parametrize("lanes", WIDTHS)
def test_floats_are_rounded_as_by_the_scalar_function(library: ctypes.CDLL, lanes: int) -> None:
    x = floats()
    found = call(library, f"narrow_{lanes}", x, np.uint16)
    np.testing.assert_array_equal(found, call(library, "narrow_1", x, np.uint16))
    nan = x & 0x7FFFFFFF > 0x7F800000
    assert (found[nan] & 0x7FFF > 0x7F80).all()
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(found[~nan], x[~nan].view(np.float32).astype(BFLOAT16).view(np.uint16))


def adding(size: int) -> str:
    """A sum that is rounded, and a copy of one block's elements, which others replace by 1."""
    body = f"""
  %n = arith.constant {size} : index
  %one = arith.constant 1.0 : bf16
  %first = arith.cmpi slt, %b, %c1 : index
  scf.for %i = %c0 to %n step %c1 {{
    %x = loop.load %A[%b, %i] : memref<2x{size}xbf16>
    %w = arith.extf %x : bf16 to f32
    %z = loop.load %B[%b, %i] : memref<2x{size}xf32>
    %s = arith.addf %w, %z : f32
    %y = arith.truncf %s : f32 to bf16
    loop.store %y, %C[%b, %c0, %i] : memref<2x2x{size}xbf16>
    %p = loop.load %A[%b, %i] where %first else %one : memref<2x{size}xbf16>
    loop.store %p, %C[%b, %c1, %i] : memref<2x2x{size}xbf16>
  }} {{loop.vector}}"""
    return kernel(body, f"%A : memref<2x{size}xbf16>, %B : memref<2x{size}xf32>, %C : memref<2x2x{size}xbf16>")


@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2"])
@pytest.mark.parametrize("size", [3, 8, 16, 21, 48, 64])
def test_kernels_load_widened_and_store_rounded(size: int, target: str) -> None:
    rng = np.random.default_rng(size)
    a = rng.integers(0, 0x7F80, (2, size), np.uint16).view(BFLOAT16)
    b = rng.integers(1 << 31, 0xFF800000, (2, size), np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        wanted = (a.astype(np.float32) + b).astype(BFLOAT16)
    wanted = np.stack([wanted, [a[0], np.ones(size, BFLOAT16)]], axis=1).view(np.uint16)

    module = Parser(treadle_context(), adding(size)).parse_module()
    LoopVectorizePass(target).apply(treadle_context(), module)
    module.verify()
    lanes = {"avx512": 16, "avx2": 8, "sse2": 4}[target]
    assert any(isinstance(op, vector.StoreOp) for op in module.walk()) == (size % lanes == 0)
    (compiled,) = run(str(next(iter(module.ops))), [a, b], [((2, 2, size), BFLOAT16)])
    np.testing.assert_array_equal(compiled.view(np.uint16), wanted)
    func = next(op for op in module.walk() if isinstance(op, FuncOp))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate_kernel(func, [a, b]).view(np.uint16), wanted)
