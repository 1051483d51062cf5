"""What CPU cores multiply tiles of narrow types with, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil


@dataclass(frozen=True)
class MatrixUnit:
    """A unit of a CPU's core, or vector instructions, that multiply tiles of bf16 or bytes with sums in f32 or i32.

    features: what a processor must have, by the names that Linux lists in cpuinfo
    bf16, bytes: whether it multiplies elements of bf16, and bytes, signed or not
    least_rows: of a product; others are multiples of it
    step_cycles: of the product of 32 rows by 32 columns and 64 bytes along K, at the clock of the vectors
    least_cycles: the same of the least number of rows
    """

    features: tuple[str, ...] = ()
    bf16: bool = False
    bytes: bool = False
    least_rows: int = 16
    step_cycles: int = 0
    least_cycles: int = 0

    def cycles(self, rows: int) -> int:
        """Of the products of so many rows, in steps of 32 and the rest, by 32 columns and 64 bytes along K."""
        whole, rest = divmod(rows, _STEP_ROWS)
        return whole * self.step_cycles + ceil(rest / self.least_rows) * self.least_cycles

    def covering(self, rows: int) -> int:
        """The rows of products that give so many."""
        return ceil(rows / self.least_rows) * self.least_rows


_STEP_ROWS = 32

NO_UNIT, AMX, VNNI, VNNI_BF16 = "none", "amx", "vnni", "vnni_bf16"

_VECTORS = MatrixUnit(("avx512_vnni", "avx512f"), bytes=True, least_rows=8, step_cycles=1024, least_cycles=256)
"""They start one operation a cycle on Zen 4: 32 rows of two vectors, 16 times 4 bytes."""

MATRIX_UNITS: Mapping[str, MatrixUnit] = {
    NO_UNIT: MatrixUnit(),
    AMX: MatrixUnit(("amx_bf16", "amx_int8", "amx_tile"), bf16=True, bytes=True, step_cycles=64, least_cycles=40),
    VNNI: _VECTORS,
    VNNI_BF16: replace(_VECTORS, features=("avx512_bf16", *_VECTORS.features), bf16=True),
}
"""By their names, as targets have them."""
