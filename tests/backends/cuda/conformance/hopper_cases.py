"""Barriers, copies of boxes and what belongs to a warpgroup: the functions of treadle_hopper.h but for products."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.hopper_case import HopperCase
from tests.backends.cuda.conformance.hopper_layouts import SPANS, boxed, tile
from tests.backends.cuda.conformance.hopper_products import PRODUCT_CASES
from treadle.target.tensor_map import PixelBox, TensorMap

Array = NDArray[Any]

_TYPES = {"float32": "f32", "uint8": "ui8", "uint16": "ui16"}
_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}
"""By swizzle, as `treadle_matrix` numbers them."""
_WORDS = np.random.default_rng(9).integers(0, 2**16, (96, 128)).astype(np.uint16)
_NUMBERS = np.arange(64, dtype=np.int32)

# Whoever waits for phase n of `full` reads what was written before, and `empty` keeps the writer from going on.
_RING = """__shared__ int s[32];
  __shared__ treadle_mbarrier full[1], empty[1];
  const unsigned full_at = treadle_uniform(treadle_shared_address(full));
  const unsigned empty_at = treadle_uniform(treadle_shared_address(empty));
  if (t == 0) {
    treadle_mbarrier_init(full_at, 32);
    treadle_mbarrier_init(empty_at, 32);
    treadle_mbarrier_fence();
  }
  treadle_barrier();
  int sum = 0;
  for (int n = 0; n < 5; ++n) {
    if (t < 32) {
      treadle_mbarrier_wait(empty_at, n % 2 ^ 1);
      s[t] = x[t] * (n + 1);
      treadle_mbarrier_arrive(full_at);
    } else {
      treadle_mbarrier_wait(full_at, n % 2);
      sum = sum * 10 + s[63 - t];
      treadle_mbarrier_arrive(empty_at);
    }
  }
  out[t] = sum;"""

# One warp only counts as having come, and goes on.
_NAMED = """__shared__ int s[32];
  if (t < 32) {
    s[t] = x[t];
    treadle_named_barrier_arrive(3, 64);
    out[t] = t;
  } else {
    treadle_named_barrier(3, 64);
    out[t] = s[63 - t];
  }"""

_UNIFORM = """out[t] = treadle_uniform(t / 32 + x[t] - x[t]) + (int)treadle_uniform((unsigned)t);"""

_REGISTERS = """if (treadle_uniform(t / 128) == 0) {
    treadle_registers_decrease<40>();
    out[t] = x[t];
  } else {
    treadle_registers_increase<232>();
    out[t] = x[t] + 1;
  }"""

_LAUNCHES = """treadle_grid_wait();
  out[t] = x[t] + 7;
  treadle_grid_done();"""

_STMATRIX = """__shared__ alignas(16) unsigned short s[32][8];
  treadle_vec<unsigned, 4> v;
  for (int n = 0; n < 4; ++n) v.v[n] = x[n * 32 + t];
  treadle_stmatrix_x4(s[(t * 5 + 3) % 32], v);
  treadle_warp_barrier();
  for (int n = t; n < 256; n += 32) out[n] = s[n / 8][n % 8];"""


def _stmatrix() -> HopperCase:
    """Four matrices to rows in no order. Source: PTX ISA, "stmatrix": as ldmatrix, the other way."""
    matrices = _WORDS.reshape(-1)[:256].reshape(4, 8, 8)
    lane = np.arange(32)
    pairs = matrices[:, lane // 4].reshape(4, 32, 4, 2)[:, lane, lane % 4].astype(np.uint32)
    expected = np.zeros((32, 8), np.uint16)
    expected[(lane * 5 + 3) % 32] = matrices.reshape(32, 8)
    return HopperCase(_STMATRIX, {"x": pairs[..., 0] | pairs[..., 1] << 16}, expected, sass="STSM.16.M88.4", block=32)


def _map(tensor: Array, box: Sequence[int], swizzle: int) -> TensorMap:
    return TensorMap(_TYPES[tensor.dtype.name], tensor.shape, tensor.strides[:-1], tuple(box), _SPANS[swizzle])


def _load(tensor: Array, box: Sequence[int], at: Sequence[int], swizzle: int = 0) -> HopperCase:
    """A box of a tensor becomes a tile; coordinates are outermost first."""
    call = f"treadle_tensor_load(s_at, x_map, full_at, {_numbers(at)});"
    return _brought(tensor, boxed(tensor, box, at), call, _map(tensor, box, swizzle), swizzle, f"UTMALDG.{len(box)}D")


def _pixels(
    images: Array,
    walk: PixelBox,
    first: int,
    offsets: Sequence[int],
    box: tuple[int, int],
    channel: int = 0,
    swizzle: int = 1,
) -> HopperCase:
    """Pixels of images `[N, spatial..., C]` from one of a walk on, and some channels of each, become a tile.

    first: the number of the pixel in the walk over all images; box: pixels and channels; offsets: outermost first
    """
    count, *extents, channels = images.shape
    spans = [
        range(low, extent + high, step)
        for low, high, step, extent in zip(walk.lower, walk.upper, walk.steps, extents, strict=True)
    ]
    every = [(n, *place) for n in range(count) for place in itertools.product(*spans)]
    wide = np.zeros((box[0], channels + box[1]), images.dtype)
    for row, (n, *place) in zip(wide, every[first:], strict=False):
        moved = [at + offset for at, offset in zip(place, offsets, strict=True)]
        if all(0 <= at < extent for at, extent in zip(moved, extents, strict=True)):
            row[:channels] = images[(n, *moved)]
    map = TensorMap(_TYPES[images.dtype.name], images.shape, images.strides[:-1], box, _SPANS[swizzle], walk)
    at = _numbers([*every[first], channel])
    call = f"treadle_tensor_load_pixels(s_at, x_map, full_at, {at}, {_numbers(offsets)});"
    sass = f"UTMALDG.{images.ndim}D.IM2COL"
    return _brought(images, wide[:, channel : channel + box[1]].copy(), call, map, swizzle, sass)


def _numbers(outermost_first: Sequence[int]) -> str:
    return ", ".join(map(str, reversed(outermost_first)))


def _brought(tensor: Array, elements: Array, call: str, map: TensorMap, swizzle: int, sass: str) -> HopperCase:
    """A copy that brings these elements."""
    made = tile(elements, swizzle)
    # What a swizzle leaves between rows that are shorter than its span is not written.
    row, span = elements.shape[-1] * tensor.itemsize, SPANS[swizzle]
    written = f"(n ^ (n >> 7 & {span // 16 - 1}) << 4) % {span} < {row}" if 16 < span != row else "true"
    body = f"""__shared__ alignas(1024) unsigned char s[{made.size}];
  __shared__ treadle_mbarrier full;
  const unsigned s_at = treadle_uniform(treadle_shared_address(s));
  const unsigned full_at = treadle_uniform(treadle_shared_address(&full));
  if (t == 0) {{
    treadle_tensor_map_prefetch(x_map);
    treadle_mbarrier_init(full_at, 1);
    treadle_mbarrier_fence();
    treadle_mbarrier_expect(full_at, {elements.nbytes});
    {call}
  }}
  treadle_barrier();
  treadle_mbarrier_wait(full_at, 0);
  for (int n = t; n < {made.size}; n += 128) out[n] = {written} ? s[n] : 0;"""
    return HopperCase(body, {"x": tensor}, made, {"x": map}, sass=sass)


def _store(shape: Sequence[int], box: Sequence[int], at: Sequence[int], swizzle: int = 0) -> HopperCase:
    """A tile becomes a box of a tensor, as far as it lies in it."""
    given = _WORDS.reshape(-1)[: int(np.prod(box))].reshape(box)
    expected = np.zeros(shape, np.uint16)
    spans = [(max(0, a), min(extent, a + size)) for a, size, extent in zip(at, box, shape, strict=True)]
    here = tuple(slice(low - a, high - a) for (low, high), a in zip(spans, at, strict=True))
    expected[tuple(slice(*span) for span in spans)] = given[here]
    made = tile(given, swizzle)
    body = f"""__shared__ alignas(1024) unsigned char s[{made.size}];
  const unsigned s_at = treadle_uniform(treadle_shared_address(s));
  for (int n = t; n < {made.size}; n += 128) s[n] = x[n];
  treadle_fence_async();
  treadle_barrier();
  if (t == 0) {{
    treadle_tensor_store(out_map, s_at, {", ".join(map(str, reversed(at)))});
    treadle_bulk_commit();
    treadle_bulk_wait_read<0>();
  }}
  treadle_barrier();
  s[t] = 0;
  if (t == 0) treadle_bulk_wait<0>();"""
    return HopperCase(body, {"x": made}, expected, {"out": _map(expected, box, swizzle)}, sass=f"UTMASTG.{len(box)}D")


# Each of two blocks copies half of the tile to both, and each waits for the other before it ends.
_CLUSTER = """__shared__ alignas(1024) unsigned char s[4096];
  __shared__ treadle_mbarrier full, read;
  const unsigned s_at = treadle_uniform(treadle_shared_address(s));
  const unsigned full_at = treadle_uniform(treadle_shared_address(&full));
  const unsigned read_at = treadle_uniform(treadle_shared_address(&read));
  const int rank = treadle_cluster_rank();
  if (t == 0) {
    treadle_mbarrier_init(full_at, 1);
    treadle_mbarrier_init(read_at, 2);
    treadle_mbarrier_fence();
  }
  treadle_cluster_barrier();
  for (int n = 0; n < 3; ++n) {
    if (t == 0) {
      if (n > 0) treadle_mbarrier_wait(read_at, (n - 1) % 2);
      treadle_mbarrier_expect(full_at, 4096);
      treadle_tensor_load_multicast(s_at + rank * 2048, x_map, full_at, 3, 0, n * 32 + rank * 16);
    }
    treadle_mbarrier_wait(full_at, n % 2);
    for (int i = t; i < 4096; i += 128) out[(rank * 3 + n) * 4096 + i] = s[i];
    treadle_barrier();
    if (t < 2) treadle_mbarrier_arrive_at(read_at, t);
  }
  treadle_cluster_barrier();"""


def _cluster() -> HopperCase:
    given = np.ascontiguousarray(_WORDS[:, :64])
    tiles = np.stack([tile(given[n * 32 : n * 32 + 32], 1) for n in range(3)])
    maps = {"x": _map(given, (16, 64), 1)}
    expected = np.stack([tiles, tiles])
    return HopperCase(_CLUSTER, {"x": given}, expected, maps, sass="UTMALDG.2D.MULTICAST", cluster=2)


# Each of four blocks stores a pair a thread to each block, which adds them up.
_STORES = """__shared__ alignas(16) treadle_vec<TYPE, 2> s[4][64];
  __shared__ treadle_mbarrier full;
  const unsigned s_at = treadle_uniform(treadle_shared_address(s));
  const unsigned full_at = treadle_uniform(treadle_shared_address(&full));
  const int rank = treadle_cluster_rank();
  if (t == 0) {
    treadle_mbarrier_init(full_at, 1);
    treadle_mbarrier_fence();
    treadle_mbarrier_expect(full_at, 2048);
  }
  treadle_cluster_arrive();
  treadle_cluster_wait();
  for (int to = 0; to < 4; ++to) {
    treadle_vec<TYPE, 2> pair;
    pair.v[0] = x[rank * 64 + t] * (to + 1);
    pair.v[1] = x[rank * 64 + 63 - t] - to;
    const unsigned there = treadle_remote_address(s_at, to) + (rank * 64 + t) * 8;
    treadle_store_async(there, treadle_remote_address(full_at, to), pair);
  }
  treadle_mbarrier_wait_cluster(full_at, 0);
  TYPE sum = 0;
  for (int from = 0; from < 4; ++from) sum = sum * 3 + s[from][t].v[0] * 2 - s[from][t].v[1];
  out[rank * 64 + t] = sum;"""


def _stores(dtype: type[np.float32 | np.int32], type: str) -> HopperCase:
    given = np.random.default_rng(4).integers(-50, 50, (4, 64)).astype(dtype)
    expected = np.zeros((4, 64), dtype)
    for to in range(4):
        for sent in given:
            expected[to] = expected[to] * 3 + sent * (to + 1) * 2 - (sent[::-1] - to)
    return HopperCase(_STORES.replace("TYPE", type), {"x": given}, expected, sass="STAS.64", block=64, cluster=4)


_PLANES = _WORDS.reshape(6, 16, 128)
_FOUR = _WORDS.reshape(3, 4, 8, 128)
_FIVE = _WORDS.reshape(2, 3, 4, 4, 128)

_SIGNALS = np.ascontiguousarray(_WORDS[:, :120]).reshape(4, 24, 120)
_IMAGES = np.ascontiguousarray(_WORDS[:90, :120]).reshape(3, 5, 6, 120)
_VOLUMES = _WORDS.reshape(2, 3, 4, 4, 128)

_BARRIER_CASES = {
    "treadle_mbarrier_wait": HopperCase(
        _RING,
        {"x": _NUMBERS},
        np.where(_NUMBERS < 32, 0, _NUMBERS[::-1] * 12345).astype(np.int32),
        sass="SYNCS.PHASECHK",
        block=64,
    ),
    "treadle_named_barrier": HopperCase(
        _NAMED, {"x": _NUMBERS}, np.where(_NUMBERS < 32, _NUMBERS, 63 - _NUMBERS).astype(np.int32), block=64
    ),
    "treadle_uniform": HopperCase(_UNIFORM, {"x": _NUMBERS}, (_NUMBERS // 32 * 33).astype(np.int32), block=64),
    "treadle_registers_increase": HopperCase(
        _REGISTERS,
        {"x": np.arange(384, dtype=np.int32)},
        (np.arange(384) + (np.arange(384) >= 128)).astype(np.int32),
        sass="USETMAXREG",
        block=384,
    ),
    "treadle_grid_wait": HopperCase(_LAUNCHES, {"x": _NUMBERS}, _NUMBERS + np.int32(7), sass="ACQBULK", block=64),
    "treadle_stmatrix_x4": _stmatrix(),
}

_COPY_CASES = {
    **{
        f"treadle_tensor_load swizzle {s}": _load(_WORDS, (16, 64 >> (s - 1) if s else 96), (8, 16), s)
        for s in range(4)
    },
    "treadle_tensor_load low overhang": _load(_WORDS, (16, 64), (-5, -8), 1),
    "treadle_tensor_load high overhang": _load(_WORDS, (16, 64), (90, 96), 1),
    "treadle_tensor_load outside": _load(_WORDS, (8, 64), (200, 0), 1),
    "treadle_tensor_load half a span": _load(_WORDS, (8, 32), (3, 8), 1),
    "treadle_tensor_load bytes": _load(_WORDS.view(np.uint8), (64, 128), (40, 192), 1),
    "treadle_tensor_load floats": _load(_WORDS.view(np.float32), (32, 16), (70, 52), 2),
    "treadle_tensor_load_multicast": _cluster(),
    "treadle_store_async floats": _stores(np.float32, "float"),
    "treadle_store_async integers": _stores(np.int32, "int"),
    "treadle_tensor_load 3 dimensions": _load(_PLANES, (3, 5, 64), (4, -2, 88), 1),
    "treadle_tensor_load 4 dimensions": _load(_FOUR, (2, 3, 4, 32), (1, 2, -1, 8), 2),
    "treadle_tensor_load 5 dimensions": _load(_FIVE, (2, 2, 3, 2, 16), (1, -1, 2, 3, 120), 3),
    # Padding before and behind, from the middle of a row on, through the second image.
    **{
        f"treadle_tensor_load_pixels swizzle {s}": _pixels(
            _IMAGES, PixelBox.of((5, 6), (1, 1), (-1, -1), (5, 6)), 8, (0, 2), (40, 64 >> (s - 1) if s else 96), 16, s
        )
        for s in range(4)
    },
    "treadle_tensor_load_pixels behind the last image": _pixels(
        _IMAGES, PixelBox((-1, -1), (-1, -1), (1, 1)), 70, (2, 1), (64, 64), 64
    ),
    "treadle_tensor_load_pixels in steps": _pixels(_IMAGES, PixelBox((-1, -2), (-1, -2), (2, 3)), 3, (1, 0), (16, 64)),
    "treadle_tensor_load_pixels far offsets": _pixels(
        _IMAGES, PixelBox((-3, -3), (-3, -3), (1, 1)), 5, (5, 6), (72, 64), 56
    ),
    "treadle_tensor_load_pixels 3 dimensions": _pixels(_SIGNALS, PixelBox((-2,), (-2,), (2,)), 7, (4,), (48, 64), 64),
    "treadle_tensor_load_pixels 5 dimensions": _pixels(
        _VOLUMES, PixelBox((-1, 0, -1), (-1, -1, -2), (1, 1, 2)), 5, (1, 1, 2), (32, 64), 64
    ),
    **{
        f"treadle_tensor_store swizzle {s}": _store((40, 128), (16, 64 >> (s - 1) if s else 96), (8, 16), s)
        for s in range(4)
    },
    "treadle_tensor_store overhang": _store((40, 120), (16, 64), (30, 80), 1),
    "treadle_tensor_store 3 dimensions": _store((5, 10, 64), (2, 4, 32), (4, -1, 40), 2),
}

HOPPER_CASES: Mapping[str, HopperCase] = {**_BARRIER_CASES, **_COPY_CASES, **PRODUCT_CASES}
"""By function, and what is special about the case."""


def kernel_of(name: str) -> str:
    """The name of a case's kernel."""
    return "case_" + name.replace(" ", "_")


def kernels_of(names: Iterable[str]) -> str:
    """The text of these cases' kernels; a specialisation that several have is there once."""
    seen: set[str] = set()

    def first(match: re.Match[str]) -> str:
        again = match[0] in seen
        seen.add(match[0])
        return "" if again else match[0]

    text = "".join(HOPPER_CASES[name].text(kernel_of(name)) for name in names)
    return re.sub(r"#ifndef TREADLE_NO_DEVICE_BODIES\n.*?#endif\n", first, text, flags=re.S)
