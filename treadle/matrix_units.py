"""What CPU cores multiply tiles of narrow types with, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MatrixUnit:
    """A unit of a CPU's core, or vector instructions, that multiply tiles of bf16 or bytes with sums in f32 or i32.

    features: what a processor must have, by the names that Linux lists in cpuinfo
    bf16, bytes: whether it multiplies elements of bf16, and bytes, signed or not
    step_cycles: of the product of 32 rows by 32 columns and 64 bytes along K, at the clock of the vectors
    half_step_cycles: the same of 16 rows
    """

    features: tuple[str, ...] = ()
    bf16: bool = False
    bytes: bool = False
    step_cycles: int = 0
    half_step_cycles: int = 0


NO_UNIT, AMX, VNNI, VNNI_BF16 = "none", "amx", "vnni", "vnni_bf16"

# Of vectors, which start one operation a cycle on Zen 4: 32 rows of two vectors, 16 times 4 bytes.
MATRIX_UNITS: Mapping[str, MatrixUnit] = {
    NO_UNIT: MatrixUnit(),
    AMX: MatrixUnit(("amx_bf16", "amx_int8", "amx_tile"), True, True, 64, 40),
    VNNI: MatrixUnit(("avx512_vnni", "avx512f"), False, True, 1024, 512),
    VNNI_BF16: MatrixUnit(("avx512_bf16", "avx512_vnni", "avx512f"), True, True, 1024, 512),
}
"""By their names, as targets have them."""
