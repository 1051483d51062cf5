"""Vectors of bfloat16 and float16: how treadle.h widens and narrows them, and kernels that load and store them."""

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
TYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
IN_C = {"bfloat16": "treadle_bfloat16", "float16": "_Float16"}
IN_IR = {"bfloat16": "bf16", "float16": "f16"}
ALL = np.arange(1 << 16, dtype=np.uint16)
Words = NDArray[np.uint32]


def floats(type: str) -> Words:
    """Every number of 16 bits with what lies just below, at and above the tie after it, also NaN, infinities and
    subnormals; and floats beyond those of float16."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    found = np.bitwise_or.outer(ALL.astype(np.uint32) << 16, low).reshape(-1)
    if type == "bfloat16":
        return found
    with np.errstate(invalid="ignore"):
        wide = ALL.view(np.float16).astype(np.float32).view(np.uint32)
    ties = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF], np.uint32)
    return np.concatenate([np.bitwise_or.outer(wide, ties).reshape(-1), found])


def loops(type: str, lanes: int) -> str:
    """The conversions of vectors at addresses that are aligned like one element."""
    v, element = f"v{lanes}", IN_C[type]
    return (
        f"void widen_{type}_{lanes}(const {element} *x, float *y, long n) {{ for (long i = 0; i < n; i += {lanes}) "
        f"*({v}f_u *)&y[i] = treadle_{type}_to_float_{v}f(({v}h)*(const {v}h_u *)&x[i]); }}\n"
        f"void narrow_{type}_{lanes}(const float *x, {element} *y, long n) {{ for (long i = 0; i < n; i += {lanes}) "
        f"*({v}h_u *)&y[i] = treadle_float_to_{type}_{v}h(({v}f)*(const {v}f_u *)&x[i]); }}"
    )


SCALAR = """
void narrow_bfloat16_1(const float *x, treadle_bfloat16 *y, long n) {
    for (long i = 0; i < n; i++) y[i] = treadle_float_to_bfloat16(x[i]);
}
void narrow_float16_1(const float *x, _Float16 *y, long n) {
    for (long i = 0; i < n; i++) y[i] = (_Float16)x[i];
}
"""


@pytest.fixture(scope="module", params=BUILDS, ids="-".join)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = "\n".join([SCALAR, *(loops(type, lanes) for type in TYPES for lanes in WIDTHS)])
    return library_of(text, request.param, tmp_path_factory.mktemp("narrow"))


def call(library: ctypes.CDLL, name: str, x: NDArray[Any], dtype: type[Any]) -> NDArray[Any]:
    """The result of one function for all of `x`, read and written one element behind an aligned address."""
    source, result = np.empty(len(x) + 1, x.dtype), np.empty(len(x) + 1, dtype)
    source[1:] = x
    addresses = (ctypes.c_void_p(a.ctypes.data + a.itemsize) for a in (source, result))
    library[name](*addresses, ctypes.c_long(len(x)))
    return result[1:]


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("lanes", WIDTHS)
def test_every_number_is_a_float(library: ctypes.CDLL, type: str, lanes: int) -> None:
    bits = call(library, f"widen_{type}_{lanes}", ALL, np.uint32)
    with np.errstate(invalid="ignore"):
        wanted = ALL.view(TYPES[type]).astype(np.float32)
    number = wanted == wanted
    np.testing.assert_array_equal(bits[number], wanted.view(np.uint32)[number])
    assert np.isnan(bits[~number].view(np.float32)).all()


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("lanes", WIDTHS)
def test_floats_are_rounded_as_by_the_scalar_function(library: ctypes.CDLL, type: str, lanes: int) -> None:
    x = floats(type)
    x = x[: len(x) // 16 * 16]
    found = call(library, f"narrow_{type}_{lanes}", x, np.uint16)
    nan = x & 0x7FFFFFFF > 0x7F800000
    np.testing.assert_array_equal(found[~nan], call(library, f"narrow_{type}_1", x, np.uint16)[~nan])
    assert np.isnan(found[nan].view(TYPES[type])).all()
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(found[~nan], x[~nan].view(np.float32).astype(TYPES[type]).view(np.uint16))


def adding(size: int, type: str) -> str:
    """A sum that is rounded; a copy of one block's elements, which others replace by 1; a narrow sum of both."""
    body = f"""
  %n = arith.constant {size} : index
  %one = arith.constant 1.0 : {type}
  %first = arith.cmpi slt, %b, %c1 : index
  scf.for %i = %c0 to %n step %c1 {{
    %x = loop.load %A[%b, %i] : memref<2x{size}x{type}>
    %w = arith.extf %x : {type} to f32
    %z = loop.load %B[%b, %i] : memref<2x{size}xf32>
    %s = arith.addf %w, %z : f32
    %y = arith.truncf %s : f32 to {type}
    loop.store %y, %C[%b, %c0, %i] : memref<2x3x{size}x{type}>
    %p = loop.load %A[%b, %i] where %first else %one : memref<2x{size}x{type}>
    loop.store %p, %C[%b, %c1, %i] : memref<2x3x{size}x{type}>
    %sum = arith.addf %y, %p : {type}
    loop.store %sum, %C[%b, %c2, %i] : memref<2x3x{size}x{type}>
  }} {{loop.vector}}"""
    return kernel(body, f"%A : memref<2x{size}x{type}>, %B : memref<2x{size}xf32>, %C : memref<2x3x{size}x{type}>")


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2"])
@pytest.mark.parametrize("size", [3, 8, 16, 21, 48, 64])
def test_kernels_load_widened_and_store_rounded(size: int, target: str, type: str) -> None:
    rng, dtype = np.random.default_rng(size), TYPES[type]
    a = rng.integers(0, 0x7F80 if type == "bfloat16" else 0x7C00, (2, size), np.uint16).view(dtype)
    b = rng.integers(1 << 31, 0xFF800000, (2, size), np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        total = (a.astype(np.float32) + b).astype(dtype)
        copied = np.stack([a[0], np.ones(size, dtype)])
        both = (total.astype(np.float64) + copied.astype(np.float64)).astype(dtype)
    wanted = np.stack([total, copied, both], axis=1)

    module = Parser(treadle_context(), adding(size, IN_IR[type])).parse_module()
    LoopVectorizePass(target).apply(treadle_context(), module)
    module.verify()
    lanes = {"avx512": 16, "avx2": 8, "sse2": 4}[target]
    kind = vector.StoreOp if size % lanes == 0 else vector.MaskedStoreOp
    assert sum(isinstance(op, kind) for op in module.walk()) == 3
    (compiled,) = run(str(next(iter(module.ops))), [a, b], [((2, 3, size), np.dtype(dtype))])
    assert_same(compiled, wanted)
    func = next(op for op in module.walk() if isinstance(op, FuncOp))
    with np.errstate(all="ignore"):
        assert_same(evaluate_kernel(func, [a, b]), wanted)


def assert_same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Bit by bit, but for what is in a NaN."""
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])
