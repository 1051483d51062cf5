"""Element types that are only moved and converted, as compiled C and on the emulator, against Python's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

import treadle
from tests.frontends.onnx.models import model, node
from tests.helpers.compiled import RUNNERS, TARGETS, run_graph, run_module
from tests.helpers.emulated_batch import CUDA
from tests.helpers.graphs import Graph
from tests.helpers.integer_arithmetic import BOOL, INTEGERS, LIMITS, array, converted, extremes
from tests.helpers.program_batch import C, ProgramBatch
from treadle.dialects.graph import BinaryOp, CastOp, ConcatOp, PadOp, SliceOp, TransposeOp, UnaryOp, WhereOp
from treadle.dialects.graph.dtypes import element_type
from treadle.errors import TreadleError

Array = NDArray[Any]

BITS = {np.dtype(t): bits for bits, types in ((4, ("int4", "uint4")), (2, ("int2", "uint2"))) for t in types}
FEW = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))
"""Of the floats, whose values are in test_small_floats.py."""
FLOATS = tuple(np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64))


def number(byte: int, dtype: np.dtype[Any]) -> int:
    """The number that the low bits of a byte are."""
    bits = BITS[dtype]
    low = byte & (1 << bits) - 1
    return low - (1 << bits) if dtype.name.startswith("int") and low >> bits - 1 else low


def every_byte(dtype: np.dtype[Any]) -> Array:
    """Elements whose bytes are all that there are, also those whose high bits no program writes."""
    return np.arange(256, dtype=np.uint8).view(dtype)


def assert_bytes(actual: Array, dtype: np.dtype[Any], numbers: list[int], what: str) -> None:
    """The low bits of a byte are the number, the others are 0."""
    assert actual.dtype == dtype, what
    expected = np.array([n & (1 << BITS[dtype]) - 1 for n in numbers], np.uint8)
    np.testing.assert_array_equal(actual.reshape(-1).view(np.uint8), expected, what)


@pytest.mark.parametrize("target", TARGETS)
def test_every_byte_becomes_its_number_in_every_type(target: str) -> None:
    graph, names, results, expected = Graph(*map(every_byte, BITS)), list[str](), list[Any](), list[Array]()
    for n, dtype in enumerate(BITS):
        numbers = [number(byte, dtype) for byte in range(256)]
        for to in (*INTEGERS, *FLOATS, BOOL):
            names.append(f"{dtype} to {to}")
            results.append(graph.add(CastOp(graph[n], element_type(to))))
            wide = np.array(numbers, np.int64)
            expected.append(wide.astype(to) if to in FLOATS else converted(wide, to))
    for name, actual, wanted in zip(names, run_graph(target, graph, results), expected, strict=True):
        assert actual.dtype == wanted.dtype, name
        np.testing.assert_array_equal(actual, wanted, name)


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_keep_their_low_bits(target: str) -> None:
    """Integers as they are, floats and bools by way of int32; also from one of these types to another."""
    data = [array(extremes(dtype), dtype) for dtype in INTEGERS]
    data += [
        np.array([*LIMITS, 7.5, 8.0, -8.5, -9.0, 15.9, np.inf, -np.inf, np.nan, -0.0]).astype(f) for f in FLOATS[2:]
    ]
    data += [np.array([False, True]), *map(every_byte, BITS)]
    graph, cases = Graph(*data), list[tuple[str, np.dtype[Any], list[int]]]()
    results: list[Any] = []
    for n, x in enumerate(data):
        numbers = [number(b, x.dtype) for b in range(256)] if x.dtype in BITS else None
        wholes = numbers or converted(x, np.dtype(np.int32)) if x.dtype.kind == "f" else numbers or x.astype(object)
        for to in BITS:
            if to != x.dtype:
                results.append(graph.add(CastOp(graph[n], element_type(to))))
                cases.append((f"{x.dtype} to {to}", to, [int(v) for v in wholes]))
    for (name, to, numbers), actual in zip(cases, run_graph(target, graph, results), strict=True):
        assert_bytes(actual, to, numbers, name)


@dataclass(frozen=True)
class Movement:
    """Operators that only move elements, of a shape; also several at once, on the emulator, from a row whose length is
    a power of two."""

    dtype: np.dtype[Any]
    shape: tuple[int, int]

    def arrays(self) -> list[Array]:
        """Two arrays of any bits, and truths."""
        rng, bits = np.random.default_rng(3), BITS.get(self.dtype, 8)
        x, y = (rng.integers(0, 1 << bits, self.shape).astype(np.uint8).view(self.dtype) for _ in range(2))
        return [x, y, rng.random(self.shape) < 0.5]

    def module(self) -> ModuleOp:
        """A result for each of `expected`."""
        graph = Graph(*self.arrays())
        fill = graph.constant(np.array(1, self.dtype))
        results = [
            graph.add(TransposeOp(graph[0], [1, 0])),
            graph.add(ConcatOp([graph[0], graph[1]], 1)),
            graph.add(SliceOp(graph[0], [1, 6], [2, 3], [2, -2])),
            graph.add(PadOp("constant", graph[0], fill, [1, 0, 0, 2])),
            graph.add(PadOp("constant", graph[0], fill, [1, 64, 0, 64])),
            graph.add(WhereOp(graph[2], graph[0], graph[1])),
            graph.add(WhereOp(graph[2], graph[0], graph.constant(graph.inputs[1]))),
        ]
        return graph.module(*results)

    def expected(self) -> list[Array]:
        """The results' bytes."""
        x, y, flags = self.arrays()
        a, b = x.view(np.uint8), y.view(np.uint8)
        one = np.array(1, self.dtype).view(np.uint8)
        return [
            a.T, np.concatenate([a, b], 1), a[1:4:2, 6:1:-2], np.pad(a, ((1, 0), (0, 2)), constant_values=one),
            np.pad(a, ((1, 0), (64, 64)), constant_values=one),
            np.where(flags, a, b), np.where(flags, a, b),
        ]  # fmt: skip


MOVEMENTS = {f"{dtype}-{shape}": Movement(dtype, shape) for dtype in (*BITS, *FEW) for shape in ((5, 7), (32, 64))}


@pytest.fixture(scope="module")
def movers() -> dict[str, ProgramBatch[Any, Any]]:
    """All movements by target: kernels whose code is the same in two types are compiled once."""
    makers = {name: movement.module for name, movement in MOVEMENTS.items()}
    return {"c": ProgramBatch(makers, C), "emulator": ProgramBatch(makers, CUDA)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MOVEMENTS)
def test_elements_are_moved(target: str, name: str, movers: dict[str, ProgramBatch[Any, Any]]) -> None:
    movement = MOVEMENTS[name]
    arrays = movement.arrays()
    found = movers[target][name].run(arrays) if target in movers else run_module(target, movement.module(), arrays)
    for actual, wanted in zip(found, movement.expected(), strict=True):
        assert actual.dtype == movement.dtype
        np.testing.assert_array_equal(np.ascontiguousarray(actual).view(np.uint8), wanted)


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_nothing_is_computed_with_them(dtype: np.dtype[Any]) -> None:
    x = Graph(np.zeros(4, dtype))[0]
    with pytest.raises(VerifyException, match=f"graph.binary is not defined on {element_type(dtype)}, "):
        BinaryOp("add", x, x)
    with pytest.raises(VerifyException, match=f"graph.unary is not defined on {element_type(dtype)}, "):
        UnaryOp("abs", x)


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_a_compiled_model_takes_and_gives_arrays_of_ml_dtypes(dtype: np.dtype[Any]) -> None:
    element = helper.np_dtype_to_tensor_dtype(dtype)
    proto = model([node("Transpose", "x", "y", perm=[1, 0])], {"x": [2, 3]}, opset=25, element=element)
    compiled = treadle.compile(proto)
    x = np.array([[0, 1, 1], [1, 0, 1]], np.uint8).view(dtype)
    (y,) = compiled(x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.view(np.uint8), x.view(np.uint8).T)
    for other in (x.view(np.uint8), x.astype(np.int8), x.astype(np.float32)):
        with pytest.raises(TreadleError, match=rf"{other.dtype}\[2, 3\] given; accepted: x: {dtype}\[2, 3\]"):
            compiled(other)


@pytest.mark.parametrize("target", RUNNERS)
def test_high_bits_of_a_float_of_four_bits_do_not_matter(target: str) -> None:
    x = np.arange(256, dtype=np.uint8)
    dtype = np.dtype(ml_dtypes.float4_e2m1fn)
    graph = Graph(x.view(dtype))
    (actual,) = run_graph(target, graph, [graph.add(CastOp(graph[0], element_type(np.dtype(np.float32))))])
    expected = (x & 15).view(dtype).astype(np.float32)
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))
