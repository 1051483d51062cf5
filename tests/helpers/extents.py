"""Modules whose extents are data: their text, their inputs, and what NumPy gives for the exact shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from treadle.ir import parse

Array = NDArray[Any]
Region = tuple[slice, ...]
Reference = Callable[..., Sequence[Array]]


@dataclass(frozen=True)
class Extents:
    """A module with extents.

    bounds: of the extents, which are its last arguments
    inputs: for each other argument its shape, where a string is an extent's letter: `("b", "s", 16)`
    outputs: the same for its results
    reference: the outputs from inputs of the exact shapes, then the extents, in float64
    draw: an input of a shape
    """

    bounds: Mapping[str, int]
    inputs: Sequence[tuple[str | int, ...]]
    outputs: Sequence[tuple[str | int, ...]]
    body: str
    required_region: Sequence[str]
    reference: Reference
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array] = np.random.Generator.standard_normal

    def module(self) -> ModuleOp:
        """The module, parsed."""
        types = [self._type(shape) for shape in self.inputs] + ["tensor<i64>"] * len(self.bounds)
        names = [f"x{n}" for n in range(len(self.inputs))] + list(self.bounds)
        results = [self._type(shape) for shape in self.outputs]
        arguments = ", ".join(f"%{name}: {type}" for name, type in zip(names, types, strict=True))
        attributes = {
            "input_names": _quoted(names),
            "output_names": _quoted([f"y{n}" for n in range(len(results))]),
            "extents": _quoted(self.bounds),
            "output_required": f"[{', '.join(f'#graph.required<{each}>' for each in self.required_region)}]",
        }
        listed = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        given = ", ".join(f"%y{n}" for n in range(len(results)))
        return parse(
            f"func.func @main({arguments}) -> ({', '.join(results)}) attributes {{{listed}}} {{\n{self.body}\n"
            f"func.return {given} : {', '.join(results)}\n}}"
        )

    def arguments(self, extents: Mapping[str, int], beyond: float = np.nan) -> tuple[list[Array], list[Array]]:
        """The arrays of a call, `beyond` where extents end; and the inputs of the exact shapes."""
        rng = np.random.default_rng(list(extents.values()))
        exact = [self.draw(rng, self._exact(shape, extents)).astype(np.float32) for shape in self.inputs]
        padded: list[Array] = []
        for shape, array in zip(self.inputs, exact, strict=True):
            whole = np.full(self._exact(shape, self.bounds), beyond, np.float32)
            whole[tuple(map(slice, array.shape))] = array
            padded.append(whole)
        return [*padded, *(np.array(extents[name], np.int64) for name in self.bounds)], exact

    def check(self, extents: Mapping[str, int], outputs: Sequence[Array], exact: Sequence[Array]) -> None:
        """AssertionError unless the outputs are right wherever they are needed."""
        expected = self.reference(*(array.astype(np.float64) for array in exact), *extents.values())
        for shape, actual, right in zip(self.outputs, outputs, expected, strict=True):
            inside = tuple(map(slice, self._exact(shape, extents)))
            np.testing.assert_allclose(actual[inside], right, rtol=0, atol=2e-5 * max(1, float(np.abs(right).max())))

    def _exact(self, shape: Sequence[str | int], extents: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(extents[extent] if isinstance(extent, str) else extent for extent in shape)

    def _type(self, shape: Sequence[str | int]) -> str:
        return f"tensor<{''.join(f'{extent}x' for extent in self._exact(shape, self.bounds))}f32>"


def _quoted(words: Mapping[str, int] | Sequence[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def _layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def _attention(x: Array, w: Array, w2: Array) -> Array:
    heads = (x @ w).reshape(*x.shape[:2], 2, x.shape[2] // 2).transpose(0, 2, 1, 3)
    mixed = _softmax(heads @ heads.transpose(0, 1, 3, 2)) @ heads
    return mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ w2


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """-1, 0 and 1: sums of 2048 of their products are exact in f16."""
    return rng.integers(-1, 2, shape)


def _half(batch: int, rows: int, k: int, n: int) -> str:
    """A product in f16 of f32 tensors."""
    a, b, c = f"tensor<{batch}x{rows}x{k}x", f"tensor<{k}x{n}x", f"tensor<{batch}x{rows}x{n}x"
    return f"""
  %a = graph.cast %x0 to f16 : ({a}f32>) -> {a}f16>
  %w = graph.cast %x1 to f16 : ({b}f32>) -> {b}f16>
  %h = graph.matmul %a, %w : ({a}f16>, {b}f16>) -> {c}f16>
  %y0 = graph.cast %h to f32 : ({c}f16>) -> {c}f32>"""


CASES: Mapping[str, Extents] = {
    "linear": Extents(
        {"b": 3, "s": 40},
        [("b", "s", 16), (16, 24), (24,)],
        [("b", "s", 24)],
        """
  %h = graph.matmul %x0, %x1 : (tensor<3x40x16xf32>, tensor<16x24xf32>) -> tensor<3x40x24xf32>
  %a = graph.binary "add" %h, %x2 : (tensor<3x40x24xf32>, tensor<24xf32>) -> tensor<3x40x24xf32>
  %y0 = graph.unary "gelu" %a : (tensor<3x40x24xf32>) -> tensor<3x40x24xf32>""",
        ["d0 < 0, d1 < 1"],
        lambda x, w, bias, b, s: [_gelu(x @ w + bias)],
    ),
    "rows": Extents(
        {"b": 3, "s": 40},
        [("b", "s", 48), (48,), (48,)],
        [("b", "s", 48)],
        """
  %y0 = graph.layer_norm %x0, %x1, %x2 {dim = 2 : i64, epsilon = 1.0e-05 : f64}
      : (tensor<3x40x48xf32>, tensor<48xf32>, tensor<48xf32>) -> tensor<3x40x48xf32>""",
        ["d0 < 0, d1 < 1"],
        lambda x, scale, bias, b, s: [_layer_norm(x, scale, bias)],
    ),
    "softmax": Extents(
        {"s": 40},
        [(6, "s", "s")],
        [(6, "s", "s")],
        """
  %m = graph.mask %x0 below %s {dim = 2 : i64, fill = 0xFF800000 : f32}
      : (tensor<6x40x40xf32>, tensor<i64>) -> tensor<6x40x40xf32>
  %y0 = graph.softmax %m {dim = 2 : i64} : (tensor<6x40x40xf32>) -> tensor<6x40x40xf32>""",
        ["d1 < 0, d2 < 0"],
        lambda x, s: [_softmax(x)],
    ),
    "elementwise": Extents(
        {"n": 5003},
        [("n",), ("n",)],
        [("n",)],
        """
  %h = graph.binary "mul" %x0, %x1 : (tensor<5003xf32>, tensor<5003xf32>) -> tensor<5003xf32>
  %y0 = graph.unary "exp" %h : (tensor<5003xf32>) -> tensor<5003xf32>""",
        ["d0 < 0"],
        lambda x, y, n: [np.exp(x * y)],
    ),
    "transposes": Extents(
        {"b": 3, "s": 40},
        [("b", "s", 32)],
        [("b", 4, "s", 8), (8, "s", "b", 4)],
        """
  %h = graph.reshape %x0 {shape = array<i64: 3, 40, 4, 8>} : (tensor<3x40x32xf32>) -> tensor<3x40x4x8xf32>
  %y0 = graph.transpose %h {perm = array<i64: 0, 2, 1, 3>} : (tensor<3x40x4x8xf32>) -> tensor<3x4x40x8xf32>
  %y1 = graph.transpose %h {perm = array<i64: 3, 1, 0, 2>} : (tensor<3x40x4x8xf32>) -> tensor<8x40x3x4xf32>""",
        ["d0 < 0, d2 < 1", "d1 < 1, d2 < 0"],
        lambda x, b, s: [
            x.reshape(b, s, 4, 8).transpose(0, 2, 1, 3),
            x.reshape(b, s, 4, 8).transpose(3, 1, 0, 2),
        ],
    ),
    "merged": Extents(
        {"b": 3, "s": 40},
        [("b", "s", 16), (16, 24), (24, 16)],
        [("b", "s", 16)],
        """
  %flat = graph.reshape %x0 {shape = array<i64: 120, 16>} : (tensor<3x40x16xf32>) -> tensor<120x16xf32>
  %h = graph.matmul %flat, %x1 : (tensor<120x16xf32>, tensor<16x24xf32>) -> tensor<120x24xf32>
  %r = graph.unary "relu" %h : (tensor<120x24xf32>) -> tensor<120x24xf32>
  %z = graph.matmul %r, %x2 : (tensor<120x24xf32>, tensor<24x16xf32>) -> tensor<120x16xf32>
  %y0 = graph.reshape %z {shape = array<i64: 3, 40, 16>} : (tensor<120x16xf32>) -> tensor<3x40x16xf32>""",
        ["d0 < 0, d1 < 1"],
        lambda x, w, w2, b, s: [np.maximum(x @ w, 0) @ w2],
    ),
    "attention": Extents(
        {"b": 2, "s": 40},
        [("b", "s", 16), (16, 16), (16, 16)],
        [("b", "s", 16)],
        """
  %p = graph.matmul %x0, %x1 : (tensor<2x40x16xf32>, tensor<16x16xf32>) -> tensor<2x40x16xf32>
  %r = graph.reshape %p {shape = array<i64: 2, 40, 2, 8>} : (tensor<2x40x16xf32>) -> tensor<2x40x2x8xf32>
  %q4 = graph.transpose %r {perm = array<i64: 0, 2, 1, 3>} : (tensor<2x40x2x8xf32>) -> tensor<2x2x40x8xf32>
  %q = graph.reshape %q4 {shape = array<i64: 4, 40, 8>} : (tensor<2x2x40x8xf32>) -> tensor<4x40x8xf32>
  %v = graph.mask %q below %s {dim = 1 : i64, fill = 0.0 : f32}
      : (tensor<4x40x8xf32>, tensor<i64>) -> tensor<4x40x8xf32>
  %k = graph.transpose %q {perm = array<i64: 0, 2, 1>} : (tensor<4x40x8xf32>) -> tensor<4x8x40xf32>
  %a = graph.matmul %q, %k : (tensor<4x40x8xf32>, tensor<4x8x40xf32>) -> tensor<4x40x40xf32>
  %m = graph.mask %a below %s {dim = 2 : i64, fill = 0xFF800000 : f32}
      : (tensor<4x40x40xf32>, tensor<i64>) -> tensor<4x40x40xf32>
  %w = graph.softmax %m {dim = 2 : i64} : (tensor<4x40x40xf32>) -> tensor<4x40x40xf32>
  %o = graph.matmul %w, %v : (tensor<4x40x40xf32>, tensor<4x40x8xf32>) -> tensor<4x40x8xf32>
  %o4 = graph.reshape %o {shape = array<i64: 2, 2, 40, 8>} : (tensor<4x40x8xf32>) -> tensor<2x2x40x8xf32>
  %t = graph.transpose %o4 {perm = array<i64: 0, 2, 1, 3>} : (tensor<2x2x40x8xf32>) -> tensor<2x40x2x8xf32>
  %f = graph.reshape %t {shape = array<i64: 2, 40, 16>} : (tensor<2x40x2x8xf32>) -> tensor<2x40x16xf32>
  %y0 = graph.matmul %f, %x2 : (tensor<2x40x16xf32>, tensor<16x16xf32>) -> tensor<2x40x16xf32>""",
        ["d0 < 0, d1 < 1"],
        lambda x, w, w2, b, s: [_attention(x, w, w2)],
    ),
    "attention operator": Extents(
        {"b": 2, "s": 70},
        [("b", "s", 32), (32, 32), (32, 32)],
        [("b", "s", 32)],
        """
  %p = graph.matmul %x0, %x1 : (tensor<2x70x32xf32>, tensor<32x32xf32>) -> tensor<2x70x32xf32>
  %r = graph.reshape %p {shape = array<i64: 2, 70, 2, 16>} : (tensor<2x70x32xf32>) -> tensor<2x70x2x16xf32>
  %q = graph.transpose %r {perm = array<i64: 0, 2, 1, 3>} : (tensor<2x70x2x16xf32>) -> tensor<2x2x70x16xf32>
  %o = graph.attention %q, %q, %q length %s {scale = 1.0 : f64, causal = 0 : i64, guard = 0 : i64}
      : (tensor<2x2x70x16xf32>, tensor<2x2x70x16xf32>, tensor<2x2x70x16xf32>) -> tensor<2x2x70x16xf32>
  %t = graph.transpose %o {perm = array<i64: 0, 2, 1, 3>} : (tensor<2x2x70x16xf32>) -> tensor<2x70x2x16xf32>
  %f = graph.reshape %t {shape = array<i64: 2, 70, 32>} : (tensor<2x70x2x16xf32>) -> tensor<2x70x32xf32>
  %y0 = graph.matmul %f, %x2 : (tensor<2x70x32xf32>, tensor<32x32xf32>) -> tensor<2x70x32xf32>""",
        ["d0 < 0, d1 < 1"],
        lambda x, w, w2, b, s: [_attention(x, w, w2)],
        lambda rng, shape: rng.standard_normal(shape) / 4,
    ),
    "two outputs": Extents(
        {"n": 37, "m": 29},
        [("n", 16), (16, "m")],
        [("n", "m"), ("m",)],
        """
  %h = graph.matmul %x0, %x1 : (tensor<37x16xf32>, tensor<16x29xf32>) -> tensor<37x29xf32>
  %y0 = graph.unary "exp" %h : (tensor<37x29xf32>) -> tensor<37x29xf32>
  %k = graph.mask %h below %n {dim = 0 : i64, fill = 0.0 : f32}
      : (tensor<37x29xf32>, tensor<i64>) -> tensor<37x29xf32>
  %y1 = graph.reduction "add" %k {dims = array<i64: 0>, keep = 0 : i64} : (tensor<37x29xf32>) -> tensor<29xf32>""",
        ["d0 < 0, d1 < 1", "d0 < 1"],
        lambda x, w, n, m: [np.exp(x @ w), (x @ w).sum(0)],
    ),
    "windows": Extents(
        {"w": 50},
        [(2, 3, "w"), (4, 3, 3)],
        [(2, 4, "w")],
        """
  %m = graph.mask %x0 below %w {dim = 2 : i64, fill = 0.0 : f32}
      : (tensor<2x3x50xf32>, tensor<i64>) -> tensor<2x3x50xf32>
  %e = graph.unary "exp" %m : (tensor<2x3x50xf32>) -> tensor<2x3x50xf32>
  %k = graph.mask %e below %w {dim = 2 : i64, fill = 0.0 : f32}
      : (tensor<2x3x50xf32>, tensor<i64>) -> tensor<2x3x50xf32>
  %y0 = graph.conv %k, %x1 {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>,
      groups = 1 : i64} : (tensor<2x3x50xf32>, tensor<4x3x3xf32>) -> tensor<2x4x50xf32>""",
        ["d2 < 0"],
        lambda x, w, n: [_conv(np.exp(x), w)],
    ),
    "half": Extents(
        {"b": 3, "s": 96},
        [("b", "s", 64), (64, 128)],
        [("b", "s", 128)],
        _half(3, 96, 64, 128),
        ["d0 < 0, d1 < 1"],
        lambda x, w, b, s: [x @ w],
        _signs,
    ),
    "split k": Extents(
        {"s": 48},
        [(1, "s", 2048), (2048, 128)],
        [(1, "s", 128)],
        _half(1, 48, 2048, 128),
        ["d1 < 0"],
        lambda x, w, s: [x @ w],
        _signs,
    ),
}
"""Modules by name; on a GPU, the last two take tensor cores, and several blocks for one tile."""


def _conv(x: Array, w: Array) -> Array:
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1)])
    return np.sum([np.einsum("bcn,oc->bon", padded[:, :, k : k + x.shape[2]], w[:, :, k]) for k in range(3)], 0)


def draws(case: Extents) -> list[dict[str, int]]:
    """Extents to call a module with: ones, bounds, primes, tiles' borders, and one short beside one long."""
    values = {name: [1, bound, 7, 16, 13] for name, bound in case.bounds.items()}
    limited = {name: [min(value, case.bounds[name]) for value in given] for name, given in values.items()}
    each = [{name: given[n] for name, given in limited.items()} for n in range(5)]
    mixed = [{name: case.bounds[name] if k == n else 1 for k, name in enumerate(limited)} for n in range(len(limited))]
    return [dict(pairs) for pairs in dict.fromkeys(tuple(draw.items()) for draw in each + mixed)]


__all__ = ["CASES", "Extents", "draws"]
