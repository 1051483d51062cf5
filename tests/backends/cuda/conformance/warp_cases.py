"""Threads that exchange values: barriers, shuffles, asynchronous copies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.case import Case

Array = NDArray[Any]

_LANES = np.arange(32)
_SHIFTS = (0, 1, 5, 16, 31)
_FLOATS = np.arange(64, dtype=np.float32) + np.float32(0.25)
_WHOLE = np.arange(64, dtype=np.int32) * 3 - (1 << 25) - 1
"""Whole numbers that no float holds."""
_DOUBLES = np.arange(64) / 3
"""Doubles both of whose words matter."""


def _shuffle(mode: str, sources: list[Array]) -> Case:
    """All types, in two warps; `sources` are the lanes that are read for each of `_SHIFTS`.

    With `idx` the lane that is read differs from lane to lane, as the others' cannot.
    """
    lane = "(t * 7 + shift) % 32" if mode == "idx" else "shift"
    shifts = ", ".join(map(str, _SHIFTS))
    body = f"""const int shifts[] = {{{shifts}}};
  for (int n = 0; n < {len(_SHIFTS)}; ++n) {{
    const int shift = shifts[n];
    out[n * 192 + i] = __float_as_int(treadle_shuffle_{mode}(x[i], {lane}));
    out[n * 192 + 64 + i] = treadle_shuffle_{mode}(y[i], {lane});
    out[n * 192 + 128 + i] = __double_as_longlong(treadle_shuffle_{mode}(z[i], {lane}));
  }}"""
    of_both_warps = [np.concatenate([source, source + 32]) for source in sources]
    inputs = {"x": _FLOATS, "y": _WHOLE, "z": _DOUBLES}
    bits = _FLOATS.view(np.int32).astype(np.int64), _WHOLE.astype(np.int64), _DOUBLES.view(np.int64)
    expected = np.stack([np.stack([each[of] for each in bits]) for of in of_both_warps])
    return Case(body, inputs, expected, block=64, sass="SHFL")


def _copy(bytes: int, sass: str) -> Case:
    """Every lane copies `bytes`, two lanes of three under a true predicate; the others' elements become 0."""
    count = bytes // 4
    source = np.arange(64 * count, dtype=np.float32) + 1
    body = f"""__shared__ alignas(16) float s[{64 * count}];
  for (int n = t; n < {64 * count}; n += 64) s[n] = -1;
  treadle_barrier();
  treadle_cp_async_{bytes}(s + {count} * t, x + {count} * t, t % 3 != 1);
  treadle_cp_async_commit();
  treadle_cp_async_wait<0>();
  treadle_barrier();
  for (int n = 0; n < {count}; ++n) out[n * 64 + t] = s[{64 * count - 1} - n * 64 - t];"""
    copied = np.where(np.arange(64 * count) // count % 3 == 1, np.float32(0), source)
    return Case(body, {"x": source}, copied[::-1].copy(), block=64, sass=sass)


_COPIED = np.arange(32 * 4 * 6, dtype=np.float32)
_IN_STAGES = """__shared__ alignas(16) float s[3][128];
  for (int n = 0; n < 2; ++n) {
    treadle_cp_async_16(&s[n][t * 4], x + n * 128 + t * 4);
    treadle_cp_async_commit();
  }
  for (int n = 0; n < 6; ++n) {
    treadle_cp_async_wait<1>();
    treadle_barrier();
    if (n < 4) treadle_cp_async_16(&s[(n + 2) % 3][t * 4], x + (n + 2) * 128 + t * 4);
    treadle_cp_async_commit();
    for (int k = 0; k < 4; ++k) out[n * 128 + k * 32 + t] = s[n % 3][127 - k * 32 - t];
  }"""
_GROUPS = """__shared__ alignas(16) float s[3][32];
  treadle_cp_async_4(&s[0][t], x + t);
  treadle_cp_async_4(&s[1][t], x + 32 + t);
  treadle_cp_async_commit();
  treadle_cp_async_commit();
  treadle_cp_async_4(&s[2][t], x + 64 + t);
  treadle_cp_async_commit();
  treadle_cp_async_wait<2>();
  treadle_barrier();
  out[t] = s[0][31 - t];
  out[32 + t] = s[1][31 - t];
  treadle_cp_async_wait<0>();
  treadle_barrier();
  out[64 + t] = s[2][31 - t];"""
_BARRIER = """__shared__ float s[256];
  for (int n = 0; n < 3; ++n) {
    s[t] = x[i] * (n + 1);
    treadle_barrier();
    out[n * 512 + i] = s[255 - t];
    treadle_barrier();
  }"""
_ARRIVALS = """__shared__ int told;
  if (t == 0) out[0] = 0;
  for (int n = 1; n < 8; ++n) {
    treadle_barrier();
    if (t == 0) told = treadle_arrive(out, 3);
    treadle_barrier();
    out[n * 32 + t] = told * (t + 1);
  }
  if (t > 0) out[t] = 0;"""
"""One block arrives seven times at a counter of three blocks: it is the last the third and the sixth time."""
_ARRIVED = np.outer([0, 0, 0, 1, 0, 0, 1, 0], np.arange(1, 33)).astype(np.int32)
_ARRIVED[0, 0] = 1
_IN_BLOCKS = np.random.default_rng(0).standard_normal(512).astype(np.float32)
_SWAPPED = _IN_BLOCKS.reshape(2, 256)[:, ::-1].ravel()

WARP_CASES: dict[str, Case] = {
    "treadle_barrier": Case(
        _BARRIER,
        {"x": _IN_BLOCKS},
        np.stack([_SWAPPED, _SWAPPED * 2, _SWAPPED * 3]),
        grid=2,
        block=256,
        sass="BAR.SYNC",
    ),
    "treadle_arrive": Case(_ARRIVALS, {}, _ARRIVED, sass="ATOMG.INC"),
    "treadle_shuffle_down": _shuffle("down", [np.where(_LANES + n < 32, _LANES + n, _LANES) for n in _SHIFTS]),
    "treadle_shuffle_up": _shuffle("up", [np.where(_LANES - n >= 0, _LANES - n, _LANES) for n in _SHIFTS]),
    "treadle_shuffle_xor": _shuffle("xor", [_LANES ^ n for n in _SHIFTS]),
    "treadle_shuffle_idx": _shuffle("idx", [(_LANES * 7 + n) % 32 for n in _SHIFTS]),
    "treadle_shared_address": Case(
        "__shared__ float s[32];\n  out[t] = (int)(treadle_shared_address(s + t) - treadle_shared_address(s));",
        {},
        np.arange(0, 128, 4, dtype=np.int32),
    ),
    "treadle_cp_async_4": _copy(4, "LDGSTS"),
    "treadle_cp_async_8": _copy(8, "LDGSTS.64"),
    "treadle_cp_async_16": _copy(16, "LDGSTS.BYPASS.128"),
    "treadle_cp_async_commit": Case(
        _GROUPS,
        {"x": _COPIED[:96].copy()},
        _COPIED[:96].reshape(3, 32)[:, ::-1].copy(),
        sass="LDGDEPBAR",
    ),
    "treadle_cp_async_wait": Case(_IN_STAGES, {"x": _COPIED}, _COPIED.reshape(6, 128)[:, ::-1].copy(), sass="DEPBAR"),
}
"""By function."""
