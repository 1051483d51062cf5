"""Single operators in Triton: what somebody would write who knows it, tuned by its autotuner.

All compute in float32 without TF32, on contiguous tensors. Imported only where Triton is installed.
"""
# Triton has no types.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_TILES = ((64, 64, 16), (64, 64, 32), (128, 64, 16), (64, 128, 16), (128, 128, 16), (128, 128, 32), (32, 64, 32))
_TUNED = [
    triton.Config({"ROWS": rows, "COLUMNS": columns, "DEPTH": depth}, num_warps=warps, num_stages=stages)
    for rows, columns, depth in _TILES
    for warps, stages in ((4, 2), (4, 3), (8, 3))
]
_GROUP = 8
"""Rows of tiles that run next to one another, so that they share B's columns in L2."""


@triton.autotune(configs=_TUNED, key=["m", "n", "k"])
@triton.jit
def _matmul(a, b, c, m, n, k, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    tile, across = tl.program_id(0), tl.cdiv(n, COLUMNS)
    group, inside = tile // (GROUP * across), tile % (GROUP * across)
    high = min(tl.cdiv(m, ROWS) - group * GROUP, GROUP)
    row = (group * GROUP + inside % high) * ROWS + tl.arange(0, ROWS)
    column = inside // high * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, k, DEPTH):
        term = first + depth
        left = tl.load(a + row[:, None] * k + term[None, :], (row[:, None] < m) & (term[None, :] < k), 0.0)
        right = tl.load(b + term[:, None] * n + column[None, :], (term[:, None] < k) & (column[None, :] < n), 0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + row[:, None] * n + column[None, :], total, (row[:, None] < m) & (column[None, :] < n))


@triton.jit
def _softmax(x, y, columns, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    inside = at < columns
    first = tl.program_id(0).to(tl.int64) * columns
    values = tl.load(x + first + at, inside, -float("inf"))
    weights = tl.exp(values - tl.max(values, 0))
    tl.store(y + first + at, weights / tl.sum(weights, 0), inside)


@triton.jit
def _layer_norm(x, scale, bias, y, columns, epsilon, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    inside = at < columns
    first = tl.program_id(0).to(tl.int64) * columns
    values = tl.load(x + first + at, inside, 0.0)
    centred = tl.where(inside, values - tl.sum(values, 0) / columns, 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    shifted = centred * spread * tl.load(scale + at, inside, 0.0) + tl.load(bias + at, inside, 0.0)
    tl.store(y + first + at, shifted, inside)


def _warps(width: int) -> int:
    """Four elements a lane, or sixteen warps."""
    return min(16, max(1, width // 128))


def matmul(a: Any, b: Any) -> Any:
    """`[m, k]` times `[k, n]`."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)
    _matmul[lambda tile: (triton.cdiv(m, tile["ROWS"]) * triton.cdiv(n, tile["COLUMNS"]),)](a, b, c, m, n, k, _GROUP)
    return c


def softmax(x: Any) -> Any:
    """Of the rows of a matrix."""
    y, width = torch.empty_like(x), triton.next_power_of_2(x.shape[1])
    _softmax[(x.shape[0],)](x, y, x.shape[1], WIDTH=width, num_warps=_warps(width))
    return y


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    """Of the rows of a matrix, with an epsilon of 1e-5."""
    y, width = torch.empty_like(x), triton.next_power_of_2(x.shape[1])
    _layer_norm[(x.shape[0],)](x, scale, bias, y, x.shape[1], 1e-5, WIDTH=width, num_warps=_warps(width))
    return y
