"""treadle_vec: operators lane by lane, and accesses of 8 and 16 bytes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.case import Case
from tests.backends.cuda.conformance.samples import pairs

Array = NDArray[Any]

_OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_COUNT = 256
_X, _Y = (array[-4 * _COUNT :].reshape(_COUNT, 4) for array in pairs(40))
_BYTES = np.random.default_rng(42).integers(-128, 128, 2 * _COUNT, np.int8)
_LOAD = """const auto a = treadle_load<treadle_vec<float, 4>>(x + 4 * i);
  const auto b = treadle_load<treadle_vec<float, 4>>(y + 4 * i);
  """


def _binary(sign: str, compute: Callable[[Array, Array], Array]) -> Case:
    """Vector with vector, scalar with vector, vector with scalar."""
    body = f"""{_LOAD}treadle_store(out + 12 * i, a {sign} b);
  treadle_store(out + 12 * i + 4, a.v[1] {sign} b);
  treadle_store(out + 12 * i + 8, a {sign} b.v[2]);"""
    with np.errstate(all="ignore"):
        expected = np.stack([compute(_X, _Y), compute(_X[:, 1:2], _Y), compute(_X, _Y[:, 2:3])], 1)
    return Case(body, {"x": _X, "y": _Y}, expected, block=_COUNT)


def _in_place(sign: str, compute: Callable[[Array, Array], Array]) -> Case:
    """A vector changed by a vector, and by a scalar."""
    body = f"""{_LOAD}auto c = a, d = a;
  c {sign}= b;
  d {sign}= b.v[3];
  treadle_store(out + 8 * i, c);
  treadle_store(out + 8 * i + 4, d);"""
    with np.errstate(all="ignore"):
        expected = np.stack([compute(_X, _Y), compute(_X, _Y[:, 3:4])], 1)
    return Case(body, {"x": _X, "y": _Y}, expected, block=_COUNT)


VECTOR_CASES: dict[str, Case] = {
    **{f"operator{sign}": _binary(sign, compute) for sign, compute in _OPERATORS.items()},
    **{f"operator{sign}=": _in_place(sign, compute) for sign, compute in _OPERATORS.items()},
    "treadle_splat": Case(
        """const auto v = treadle_splat<treadle_vec<float, 3>>(x[i]);
  const auto low = treadle_splat<treadle_vec<double, 3>>(-INFINITY);
  for (int n = 0; n < 3; ++n) out[3 * i + n] = low.v[n] == -INFINITY ? v.v[n] : 0.0f;""",
        {"x": _X[:, 0].copy()},
        np.repeat(_X[:, 0], 3).reshape(_COUNT, 3),
        block=_COUNT,
    ),
    "treadle_part": Case(
        """const auto four = treadle_load<treadle_vec<float, 4>>(x + 4 * i);
  for (int n = 0; n < 2; ++n) treadle_store(out + 4 * i + 2 * n, treadle_part<treadle_vec<float, 2>>(four, 1 - n));""",
        {"x": _X},
        _X[:, [2, 3, 0, 1]],
        block=_COUNT,
    ),
    "treadle_as_float": Case(
        """treadle_vec<unsigned, 4> bits;
  for (int n = 0; n < 4; ++n) bits.v[n] = x[4 * i + n];
  treadle_store(out + 4 * i, treadle_as_float(bits));""",
        {"x": _X.view(np.uint32)},
        _X,
        block=_COUNT,
    ),
    "treadle_twice": Case(
        """const treadle_half low = {(unsigned short)x[i]};
  out[i] = treadle_twice(low);""",
        {"x": np.arange(_COUNT, dtype=np.uint32) * 2 + 1},
        (np.arange(_COUNT, dtype=np.uint32) * 2 + 1) * np.uint32(65537),
        block=_COUNT,
    ),
    "treadle_load": Case(
        """const auto four = treadle_load<treadle_vec<float, 4>>(x + 4 * i);
  const auto two = treadle_load<treadle_vec<int, 2>>(y + 2 * i);
  const auto bytes = treadle_load<treadle_vec<signed char, 2>>(z + i);
  for (int n = 0; n < 4; ++n) out[8 * i + n] = four.v[3 - n];
  for (int n = 0; n < 2; ++n) out[8 * i + 4 + n] = two.v[n];
  for (int n = 0; n < 2; ++n) out[8 * i + 6 + n] = bytes.v[n];""",
        {"x": _X, "y": np.arange(2 * _COUNT, dtype=np.int32), "z": _BYTES.view(np.uint16)},
        np.concatenate(
            [_X[:, ::-1], np.arange(2 * _COUNT, dtype=np.float32).reshape(_COUNT, 2), _BYTES.reshape(_COUNT, 2)], 1
        ).astype(np.float32),
        block=_COUNT,
        sass="LDG.128",
    ),
    "treadle_store": Case(
        """treadle_vec<float, 4> four;
  for (int n = 0; n < 4; ++n) four.v[n] = x[4 * i + 3 - n];
  treadle_vec<float, 2> two{{y[2 * i], y[2 * i + 1]}};
  treadle_store(out + 4 * i, four);
  treadle_store(out + 1024 + 2 * i, two);""",
        {"x": _X, "y": _Y[:, :2].copy()},
        np.concatenate([_X[:, ::-1].ravel(), _Y[:, :2].ravel()]),
        block=_COUNT,
        sass="STG.128",
    ),
}
"""By function."""
