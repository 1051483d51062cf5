"""What CPU cores multiply tiles of narrow types with, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


_STEP_ROWS = 32

NO_UNIT, AMX, VNNI, VNNI_BF16 = "none", "amx", "vnni", "vnni_bf16"

# Of vectors, which start one operation a cycle on Zen 4: 32 rows of two vectors, 16 times 4 bytes.
MATRIX_UNITS: Mapping[str, MatrixUnit] = {
    NO_UNIT: MatrixUnit(),
    AMX: MatrixUnit(("amx_bf16", "amx_int8", "amx_tile"), True, True, 16, 64, 40),
    VNNI: MatrixUnit(("avx512_vnni", "avx512f"), False, True, 8, 1024, 256),
    VNNI_BF16: MatrixUnit(("avx512_bf16", "avx512_vnni", "avx512f"), True, True, 8, 1024, 256),
}
"""By their names, as targets have them."""
