"""Instruction sets of processors by the names that C compilers know, and the features that each guarantees.

Features have the names of `/proc/cpuinfo`, so that what code needs and what a processor has are sets of the same words.
"""

from __future__ import annotations

from collections.abc import Mapping

NATIVE = "native"
"""Whatever the processor has that the code is compiled on."""

_V2 = ("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")

# x86-64 levels: System V ABI, AMD64 supplement 1.0, table 3.1; what every 64-bit processor has is left out.
INSTRUCTION_SETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "x86-64": ("x86_64", ()),
    "x86-64-v2": ("x86_64", _V2),
    "x86-64-v3": ("x86_64", _V3),
    "x86-64-v4": ("x86_64", (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")),
    "armv8-a": ("aarch64", ("asimd", "fp")),
}
"""The architecture and the features of each, by what `-march` calls it."""
