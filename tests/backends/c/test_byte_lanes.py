"""Vectors of bytes and integers: the functions of treadle.h that convert them, and kernels that load and store them."""

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects import vector
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from tests.backends.c.test_printer import kernel, run
from tests.backends.c.toolchains import BUILDS, library_of
from treadle.backends.reference.kernels import evaluate_kernel
from treadle.dialects.loop import FuncOp, LaneConvertOp
from treadle.dialects.registry import treadle_context
from treadle.passes.loop.loop_vectorize import LoopVectorizePass

TYPES: dict[str, tuple[str, str, Any]] = {"i8": ("b", "signed char", np.int8), "ui8": ("ub", "unsigned char", np.uint8)}
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 3e9, -3e9, 1e-40, -0.0, 0.9, -0.9, 127.9, 255.9], np.float32)
FLOATS = np.concatenate([SPECIAL, np.arange(-300.0, 301.0, 0.25).astype(np.float32), np.zeros(4, np.float32)])
BYTES = np.arange(256, dtype=np.uint8)


def loops(lanes: int, name: str) -> str:
    """The conversions of vectors at addresses that are aligned like one element."""
    suffix, scalar, _ = TYPES[name]
    v = f"v{lanes}"
    each = f"for (long i = 0; i < n; i += {lanes})"
    return (
        f"void widen_{name}_{lanes}(const {scalar} *x, int *y, long n) {{ {each} "
        f"*({v}i_u *)&y[i] = treadle_{name}_to_i32_{v}i(({v}{suffix})*(const {v}{suffix}_u *)&x[i]); }}\n"
        f"void whole_{name}_{lanes}(const float *x, int *y, long n) {{ {each} "
        f"*({v}i_u *)&y[i] = treadle_f32_to_{name}_{v}i(({v}f)*(const {v}f_u *)&x[i]); }}\n"
        f"void narrow_{name}_{lanes}(const float *x, {scalar} *y, long n) {{ {each} "
        f"*({v}{suffix}_u *)&y[i] = treadle_f32_to_{name}_{v}{suffix}(({v}f)*(const {v}f_u *)&x[i]); }}\n"
        f"void again_{name}_{lanes}(const float *x, int *y, long n) {{ {each} "
        f"*({v}i_u *)&y[i] = "
        f"treadle_{name}_to_i32_{v}i(treadle_f32_to_{name}_{v}{suffix}(({v}f)*(const {v}f_u *)&x[i])); }}"
    )


TABLE = np.linspace(-3.75, 3.75, 16, dtype=np.float32)


def lookup(lanes: int) -> str:
    v = f"v{lanes}"
    return (
        f"void lookup_{lanes}(const int *x, float *y, long n) {{ for (long i = 0; i < n; i += {lanes}) "
        f"*({v}f_u *)&y[i] = treadle_lookup_{v}f(({v}i)*(const {v}i_u *)&x[i], {', '.join(f'{e}f' for e in TABLE)}); }}"
    )


def rounding(lanes: int) -> str:
    v = f"v{lanes}f"
    return (
        f"void nearest_{lanes}(const float *x, float *y, long n) {{ for (long i = 0; i < n; i += {lanes}) "
        f"*({v}_u *)&y[i] = treadle_roundeven_{v}(({v})*(const {v}_u *)&x[i]); }}"
    )


@pytest.fixture(scope="module", params=BUILDS, ids="-".join)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    functions = [loops(lanes, kind) for lanes in (4, 8, 16) for kind in TYPES]
    text = "\n".join([*functions, *map(rounding, (4, 8, 16)), *map(lookup, (4, 8, 16))])
    return library_of(text, request.param, tmp_path_factory.mktemp("bytes"))


def call(library: ctypes.CDLL, name: str, x: NDArray[Any], dtype: type[Any]) -> NDArray[Any]:
    """The result of a function for all of `x`."""
    assert len(x) % 16 == 0
    result = np.empty(len(x), dtype)
    library[name](*(ctypes.c_void_p(a.ctypes.data) for a in (x, result)), ctypes.c_long(len(x)))
    return result


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("name", TYPES)
def test_bytes_are_numbers(library: ctypes.CDLL, name: str, lanes: int) -> None:
    x = BYTES.view(TYPES[name][2])
    np.testing.assert_array_equal(call(library, f"widen_{name}_{lanes}", x, np.int32), x)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("name", TYPES)
def test_floats_become_the_nearest_bytes(library: ctypes.CDLL, name: str, lanes: int) -> None:
    dtype = TYPES[name][2]
    limits = np.iinfo(dtype)
    x = np.resize(FLOATS, -(-len(FLOATS) // 16) * 16)
    wanted = np.clip(np.trunc(np.nan_to_num(x, nan=0.0)), limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(call(library, f"narrow_{name}_{lanes}", x, dtype), wanted)
    np.testing.assert_array_equal(call(library, f"whole_{name}_{lanes}", x, np.int32), wanted)
    np.testing.assert_array_equal(call(library, f"again_{name}_{lanes}", x, np.int32), wanted)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_the_low_four_bits_name_an_entry(library: ctypes.CDLL, lanes: int) -> None:
    x = np.resize(np.concatenate([np.arange(-40, 40), [2**31 - 1, -(2**31)]]).astype(np.int32), 96)
    np.testing.assert_array_equal(call(library, f"lookup_{lanes}", x, np.float32), TABLE[x & 15])


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_ties_become_even(library: ctypes.CDLL, lanes: int) -> None:
    x = np.resize(np.concatenate([FLOATS, [2.0**23 + 1, -(2.0**22) - 0.5, 2.0**31]]).astype(np.float32), 2432)
    found = call(library, f"nearest_{lanes}", x, np.float32)
    np.testing.assert_array_equal(found, np.rint(x))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.rint(x)))


def requantising(size: int, element: str, stores: bool = True) -> str:
    """Sums of i32 and bytes, scaled and made bytes again; with `stores` one block's are stored as such, too."""
    extend, convert, narrow = ("arith.extui", "arith.sitofp", "arith.fptoui")
    if element == "i8":
        extend, narrow = "arith.extsi", "arith.fptosi"
    body = f"""
  %n = arith.constant {size} : index
  %scale = arith.constant 0.25 : f32
  %z = arith.constant 7 : i32
  %first = arith.cmpi slt, %b, %c1 : index
  scf.for %i = %c0 to %n step %c1 {{
    %x = loop.load %A[%b, %i] : memref<2x{size}x{element}>
    %w = {extend} %x : {element} to i32
    %d = arith.subi %w, %z : i32
    %s = loop.load %B[%b, %i] : memref<2x{size}xi32>
    %total = arith.addi %d, %s : i32
    %f = {convert} %total : i32 to f32
    %g = arith.mulf %f, %scale : f32
    %y = {narrow} %g : f32 to {element}
    %v = {extend} %y : {element} to i32
    loop.store %v, %D[%b, %i] : memref<2x{size}xi32>
    {f"loop.store %y, %C[%b, %i] where %first : memref<2x{size}x{element}>" if stores else ""}
  }} {{loop.vector}}"""
    arguments = f"%A : memref<2x{size}x{element}>, %B : memref<2x{size}xi32>, %D : memref<2x{size}xi32>"
    return kernel(body, arguments + (f", %C : memref<2x{size}x{element}>" if stores else ""))


def vectorised(text: str, target: str) -> ModuleOp:
    module = Parser(treadle_context(), text).parse_module()
    LoopVectorizePass(target).apply(treadle_context(), module)
    module.verify()
    return module


@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("size", [5, 16, 48])
def test_kernels_compute_with_bytes(size: int, name: str, target: str) -> None:
    dtype = TYPES[name][2]
    rng = np.random.default_rng(size)
    limits = np.iinfo(dtype)
    a = rng.integers(limits.min, limits.max, (2, size), dtype, endpoint=True)
    b = rng.integers(-1500, 1500, (2, size), np.int32)
    wanted = np.clip(np.trunc((a.astype(np.int32) - 7 + b) * 0.25), limits.min, limits.max).astype(dtype)

    module = vectorised(requantising(size, name), target)
    lanes = {"avx512": 16, "avx2": 8, "sse2": 4}[target]
    operations = list(module.walk())
    assert any(isinstance(op, LaneConvertOp) for op in operations) == (size % lanes == 0)
    assert any(isinstance(op, vector.StoreOp) for op in operations) == (size % lanes == 0)
    outputs = [((2, size), np.dtype(np.int32)), ((2, size), np.dtype(dtype))]
    wide, narrow = run(str(next(iter(module.ops))), [a, b], outputs)
    np.testing.assert_array_equal(wide, wanted)
    np.testing.assert_array_equal(narrow[0], wanted[0])
    (func,) = vectorised(requantising(size, name, stores=False), target).ops
    assert isinstance(func, FuncOp)
    np.testing.assert_array_equal(evaluate_kernel(func, [a, b]), wanted)


def padding(size: int, element: str) -> str:
    """Rows of bytes behind two 7, and of floats as bytes in a border of 9."""
    narrow, constant = ("arith.fptosi", "arith.constant") if element == "i8" else ("arith.fptoui", "scalar.constant")
    body = f"""
  %n = arith.constant {size + 5} : index
  %end = arith.constant {size + 2} : index
  %seven = {constant} 7 : {element}
  %nine = {constant} 9 : {element}
  %none = arith.constant 0.0 : f32
  scf.for %i = %c0 to %n step %c1 {{
    %j = arith.subi %i, %c2 : index
    %above = arith.cmpi sge, %j, %c0 : index
    %below = arith.cmpi slt, %i, %end : index
    %inside = arith.andi %above, %below : i1
    %x = loop.load %A[%b, %j] where %inside else %seven : memref<2x{size}x{element}>
    loop.store %x, %C[%b, %c0, %i] : memref<2x2x{size + 5}x{element}>
    %y = loop.load %B[%b, %j] where %inside else %none : memref<2x{size}xf32>
    %z = {narrow} %y : f32 to {element}
    %w = arith.select %inside, %z, %nine : {element}
    loop.store %w, %C[%b, %c1, %i] : memref<2x2x{size + 5}x{element}>
  }} {{loop.vector}}"""
    arguments = f"%A : memref<2x{size}x{element}>, %B : memref<2x{size}xf32>"
    return kernel(body, f"{arguments}, %C : memref<2x2x{size + 5}x{element}>")


@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("size", [3, 16, 43])
def test_kernels_load_and_store_some_bytes(size: int, name: str, target: str) -> None:
    dtype = TYPES[name][2]
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(size)
    a = rng.integers(limits.min, limits.max, (2, size), dtype, endpoint=True)
    b = rng.uniform(-300, 300, (2, size)).astype(np.float32)
    bytes_of_b = np.clip(np.trunc(b), limits.min, limits.max).astype(dtype)
    border = [(0, 0), (2, 3)]
    padded = (np.pad(a, border, constant_values=7), np.pad(bytes_of_b, border, constant_values=9))
    wanted = np.stack(padded, axis=1)

    module = vectorised(padding(size, name), target)
    assert any(isinstance(op, vector.MaskedStoreOp | LaneConvertOp) for op in module.walk())
    (found,) = run(str(next(iter(module.ops))), [a, b], [(wanted.shape, np.dtype(dtype))])
    np.testing.assert_array_equal(found, wanted)
    (func,) = module.ops
    assert isinstance(func, FuncOp)
    np.testing.assert_array_equal(evaluate_kernel(func, [a, b]), wanted)
