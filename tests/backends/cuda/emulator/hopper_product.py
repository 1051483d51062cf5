"""A product for compute capability 9.0, written by hand, and launches of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.hopper_case import aligned
from treadle.backends.cuda.emulator import Emulator, Report
from treadle.target.tensor_map import TensorMap

_INPUTS = Path(__file__).parent.parent / "inputs"
TEXT = (_INPUTS / "hopper_product.cu").read_text()
PING_PONG = (_INPUTS / "hopper_ping_pong_product.cu").read_text()
CLUSTER = (_INPUTS / "hopper_cluster_product.cu").read_text()
SHARED_BYTES = 2 * 65536 + 16384
THREADS = 384

Array = NDArray[Any]


@dataclass(frozen=True)
class Size:
    """M, N and K, and how many blocks share the tiles of 128 x 128."""

    m: int
    n: int
    k: int
    blocks: int


def launched(emulator: Emulator, size: Size, rows_of_b: int = 64) -> tuple[Report, Array, Array]:
    """The report, the product that the kernel computes, and the one of float64; a copy of B has `rows_of_b` rows."""
    choose = np.random.default_rng(prod((size.m, size.n, size.k)))
    a = aligned(choose.standard_normal((size.m, size.k)).astype(np.float16))
    b = aligned(choose.standard_normal((size.k, size.n)).astype(np.float16))
    c = aligned(np.full((size.m, size.n), np.nan, np.float16))
    maps = (
        (TensorMap("f16", a.shape, (2 * size.k,), (128, 64), 128), a),
        (TensorMap("f16", b.shape, (2 * size.n,), (rows_of_b, 64), 128), b),
        (TensorMap("f16", c.shape, (2 * size.n,), (64, 64), 128), c),
    )
    args = [*maps, size.m, size.n, size.k]
    report = emulator.launch("product", (size.blocks, 1, 1), (THREADS, 1, 1), args, SHARED_BYTES)
    return report, c, a.astype(np.float64) @ b.astype(np.float64)


def agrees(result: Array, expected: Array) -> bool:
    """Whether each element was rounded once to half, from a sum of floats."""
    return bool(np.allclose(result, expected, rtol=2.0**-11, atol=1e-4))
