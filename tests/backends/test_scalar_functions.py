"""Every row of SCALAR_FUNCTIONS as compiled C and on the emulator, in each form that it claims, against its definition.

A kernel computes all rows of one element type: row r reads `x[r, i]`, `y[r, i]` and `z[r, i]`. The definition is
computed in a wider type and rounded once. Of 16 bits, every number there is is an operand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import bf16, f16, f32, f64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.parser import Parser

from tests.backends.cuda.conformance.accuracy import largest_error
from tests.backends.cuda.conformance.function_cases import OWN_ERROR, definition
from tests.backends.cuda.conformance.samples import SPECIALS, operands
from treadle.backends.c.compiler import Unit, compile_objects, link
from treadle.backends.c.printer import print_kernel as print_c
from treadle.backends.cuda.emulator import Emulator
from treadle.backends.cuda.printer import print_kernel as print_cuda
from treadle.dialects.cuda import KernelOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.scalar import FLOATS, SCALAR_FUNCTIONS, ScalarFunction
from treadle.frontends.onnx import supported_operators

Array = NDArray[Any]
DTYPES: dict[Attribute, type[Any]] = {bf16: ml_dtypes.bfloat16, f16: np.float16, f32: np.float32, f64: np.float64}
WIDER: dict[Attribute, type[Any]] = {bf16: np.float64, f16: np.float64, f32: np.float64, f64: np.longdouble}
BLOCK = 256
LENGTHS: dict[Attribute, int] = {bf16: 1 << 16, f16: 1 << 16, f32: 22 * BLOCK, f64: 44 * BLOCK}
LANES = (4, 8, 16)
FORMS: dict[str, Sequence[tuple[str, Attribute]]] = {
    "cpu": [*((str(t), t) for t in FLOATS), *((f"v{lanes}f32", f32) for lanes in LANES)],
    "cuda": [(str(t), t) for t in FLOATS],
}
"""By target the kernels, with the type of their elements."""


def rows(target: Any, type: Attribute) -> list[ScalarFunction]:
    """The rows that a target has for an element type."""
    return [row for row in SCALAR_FUNCTIONS if type in row.types(target)]


def body(target: Any, type: Attribute, lanes: int) -> Iterator[str]:
    """The loads, the operation and the store of each row, at column %i."""
    n, of = LENGTHS[type], f"vector<{lanes}x{type}>" if lanes > 1 else str(type)
    for r, row in enumerate(rows(target, type)):
        memory = f"memref<{len(rows(target, type))}x{n}x{type}>"
        yield f"%r{r} = arith.constant {r} : index"
        names = [f"%{name}{r}" for name in "xyz"[: row.operands]]
        for name in names:
            load, types = ("vector.load", f"{memory}, {of}") if lanes > 1 else ("memref.load", memory)
            yield f"{name} = {load} {name[:2]}[%r{r}, %i] : {types}"
        yield f'%o{r} = "{row.operation.name}"({", ".join(names)}) : ({", ".join([of] * len(names))}) -> {of}'
        store, types = ("vector.store", f"{memory}, {of}") if lanes > 1 else ("memref.store", memory)
        yield f"{store} %o{r}, %out[%r{r}, %i] : {types}"


def parameters(target: Any, type: Attribute) -> str:
    memory = f"memref<{len(rows(target, type))}x{LENGTHS[type]}x{type}>"
    return ", ".join(f"%{name}: {memory}" for name in ("x", "y", "z", "out"))


def c_text(name: str, type: Attribute) -> str:
    """A function that computes every row of a type."""
    lanes = int(name[1:-3]) if name[0] == "v" else 1
    text = f"""func.func @{name}({parameters("cpu", type)}, %worker: index, %workers: index) {{
  %c0 = arith.constant 0 : index
  %n = arith.constant {LENGTHS[type]} : index
  %step = arith.constant {lanes} : index
  scf.for %i = %c0 to %n step %step {{
    {chr(10).join(body("cpu", type, lanes))}
  }}
  func.return
}}"""
    (function,) = Parser(treadle_context(), text).parse_module().ops
    assert isinstance(function, FuncOp)
    return print_c(function)


def cuda_text(name: str, type: Attribute) -> str:
    """A kernel whose threads compute every row at their own column."""
    grid = f"grid = [{LENGTHS[type] // BLOCK}, 1, 1] block = [{BLOCK}, 1, 1]"
    text = f"""cuda.kernel @{name}({parameters("cuda", type)}) {grid} {{
  %t = cuda.thread_id x : index
  %b = cuda.block_id x : index
  %threads = arith.constant {BLOCK} : index
  %start = arith.muli %b, %threads : index
  %i = arith.addi %start, %t : index
  {chr(10).join(body("cuda", type, 1))}
  cuda.return
}}"""
    (kernel,) = Parser(treadle_context(), text).parse_module().ops
    assert isinstance(kernel, KernelOp)
    return print_cuda(kernel)


@cache
def inputs(target: Any, type: Attribute) -> Array:
    """Operands x, y and z of every row, by row and column."""
    n, every = LENGTHS[type], np.arange(1 << 16, dtype=np.uint16)
    made = np.zeros((3, len(rows(target, type)), n), DTYPES[type])
    for r, row in enumerate(rows(target, type)):
        for k, samples in enumerate(_samples(row, type, r, every)):
            made[k, r] = np.resize(samples, n)
    return made


def _samples(row: ScalarFunction, type: Attribute, seed: int, every: Array) -> Sequence[Array]:
    if type in (f32, f64):
        return operands(row.operands, seed, row.spread, DTYPES[type])
    numbers = every.view(DTYPES[type])
    if row.operands == 1:
        return [numbers]
    with np.errstate(all="ignore"):
        # Of a signalling NaN and a number `fmax` gives NaN, of a quiet one the number.
        numbers = np.where(np.isnan(numbers), np.full(1, np.nan, DTYPES[type]), numbers)
        special = np.unique(SPECIALS.astype(DTYPES[type]).view(np.uint16)).view(DTYPES[type])
    grid = [side.ravel() for side in np.meshgrid(*[special[::2] if row.operands == 3 else special] * row.operands)]
    rng = np.random.default_rng(seed)
    return [np.concatenate([side, rng.permutation(numbers)[side.size :]]) for side in grid]


@cache
def compiled() -> ctypes.CDLL:
    """All C kernels."""
    return ctypes.CDLL(str(link(compile_objects([Unit(name, c_text(name, type)) for name, type in FORMS["cpu"]]))))


@cache
def emulator() -> Emulator:
    """All CUDA kernels, for the emulator."""
    return Emulator("\n".join(cuda_text(name, type) for name, type in FORMS["cuda"]), ())


@cache
def results(target: Any, name: str, type: Attribute) -> Array:
    """What a kernel computes, by row and column."""
    x, y, z = (np.ascontiguousarray(each) for each in inputs(target, type))
    out = np.zeros_like(x)
    if target == "cuda":
        emulator().launch(name, (LENGTHS[type] // BLOCK, 1, 1), (BLOCK, 1, 1), [x, y, z, out])
    else:
        arguments = (ctypes.c_void_p * 4)(*(a.ctypes.data for a in (x, y, z, out)))
        compiled()[name](arguments, ctypes.c_long(0), ctypes.c_long(1))
    return out


def expected(row: ScalarFunction, type: Attribute, given: Sequence[Array]) -> Array:
    """The definition, rounded once; of what is exact or rounded correctly, in the type at hand."""
    own = type in (f32, f64) and row.ulps("cuda", type) == 0
    with np.errstate(all="ignore"):
        wide = [x if own else x.astype(WIDER[type]) for x in given]
        return np.asarray((definition(row, type) if own else row.numpy)(*wide)).astype(DTYPES[type])


CASES = [
    pytest.param(target, name, type, row, id=f"{target}-{name}-{row.name}")
    for target in ("cpu", "cuda")
    for name, type in FORMS[target]
    for row in rows(target, type)
]


@pytest.mark.parametrize(("target", "name", "type", "row"), CASES)
def test_a_function_is_within_its_bound(target: Any, name: str, type: Attribute, row: ScalarFunction) -> None:
    r = rows(target, type).index(row)
    given = [each[r] for each in inputs(target, type)[: row.operands]]
    result, wanted = results(target, name, type)[r], expected(row, type, given)
    if row.any_zero:
        result, wanted = (np.where(x == 0, np.zeros(1, x.dtype), x) for x in (result, wanted))
    assert largest_error(result, wanted) <= row.ulps(target, type) + OWN_ERROR.get((row.name, type), 0)


def test_rows_are_complete() -> None:
    for key in ("name", "operation", "kind", "onnx"):
        given = [value for row in SCALAR_FUNCTIONS if (value := getattr(row, key)) is not None]
        assert len(given) == len(set(given)), key
    for row in SCALAR_FUNCTIONS:
        assert (row.cpu_ulps is None) == (row.cuda_ulps is None), row.name
        assert row.onnx is None or (row.kind is not None and row.onnx in supported_operators()), row.name
        assert row.header or row.operands == 1, f"{row.name}: TREADLE_EACH_LANE takes one operand"
        assert set(row.types("cuda")) <= set(FLOATS) and row.cost >= 1, row.name
