"""The features of x86-64 processors as the processor itself tells them, by the words of Linux's `/proc/cpuinfo`.

That file is the kernel's view. Under an emulator such as Valgrind, and in some sandboxes, it is another processor's;
code that asks `cpuid` and `xgetbv` is answered by the one that runs it (Intel SDM volume 2A, CPUID; volume 1, 13.3).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EAX, EBX, ECX, EDX = range(4)
_YMM, _ZMM, _TILES = 0x6, 0xE6, 0x60000
"""Registers that a system must save before programs may use them, as bits of XCR0."""
_OSXSAVE = 27


@dataclass(frozen=True)
class Feature:
    """Where a feature is told: the bit of a register of `cpuid` with a leaf and a subleaf, and the bits of XCR0 that
    must be set besides."""

    leaf: int
    subleaf: int
    register: int
    bit: int
    state: int = 0


def _words(leaf: int, subleaf: int, register: int, state: int, **bits: int) -> dict[str, Feature]:
    return {word: Feature(leaf, subleaf, register, bit, state) for word, bit in bits.items()}


FEATURES: Mapping[str, Feature] = {
    **_words(1, 0, ECX, 0, pni=0, pclmulqdq=1, ssse3=9, cx16=13, sse4_1=19, sse4_2=20, movbe=22, popcnt=23, aes=25),
    **_words(1, 0, ECX, 0, xsave=26),
    **_words(1, 0, ECX, _YMM, fma=12, avx=28, f16c=29),
    **_words(1, 0, EDX, 0, sse=25, sse2=26),
    **_words(7, 0, EBX, 0, bmi1=3, bmi2=8, adx=19, sha_ni=29),
    **_words(7, 0, EBX, _YMM, avx2=5),
    **_words(7, 0, EBX, _ZMM, avx512f=16, avx512dq=17, avx512ifma=21, avx512pf=26, avx512er=27, avx512cd=28),
    **_words(7, 0, EBX, _ZMM, avx512bw=30, avx512vl=31),
    **_words(7, 0, ECX, 0, gfni=8, rdpid=22, movdiri=27, movdir64b=28),
    **_words(7, 0, ECX, _YMM, vaes=9, vpclmulqdq=10),
    **_words(7, 0, ECX, _ZMM, avx512vbmi=1, avx512_vbmi2=6, avx512_vnni=11, avx512_bitalg=12, avx512_vpopcntdq=14),
    **_words(7, 0, EDX, 0, serialize=14),
    **_words(7, 0, EDX, _ZMM, avx512_4vnniw=2, avx512_4fmaps=3, avx512_vp2intersect=8, avx512_fp16=23),
    **_words(7, 0, EDX, _TILES, amx_bf16=22, amx_tile=24, amx_int8=25),
    **_words(7, 1, EAX, _YMM, avx_vnni=4, avx_ifma=23),
    **_words(7, 1, EAX, _ZMM, avx512_bf16=5),
    **_words(7, 1, EAX, _TILES, amx_fp16=21),
    **_words(7, 1, EDX, _YMM, avx_vnni_int8=4, avx_ne_convert=5, avx_vnni_int16=10),
    **_words(7, 1, EDX, _TILES, amx_complex=8),
    **_words(0x80000001, 0, ECX, 0, lahf_lm=0, abm=5, sse4a=6, tbm=21),
    **_words(0x80000001, 0, ECX, _YMM, xop=11, fma4=16),
}
"""Those that compilers use for plain C. What is not here is known from `/proc/cpuinfo` alone."""

_CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
"""void f(leaf, subleaf, uint32_t *registers): push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid; mov [r8], eax;
mov [r8 + 4], ebx; mov [r8 + 8], ecx; mov [r8 + 12], edx; pop rbx; ret."""
_XGETBV = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")
"""uint64_t f(void): xor ecx, ecx; xgetbv; shl rdx, 32; or rax, rdx; ret."""
_AT = 64
"""Where the second of them lies."""


@functools.cache
def processor_words() -> frozenset[str] | None:
    """Which of `FEATURES` this processor has; None on other architectures, and where code may not be written to
    memory."""
    if platform.machine() != "x86_64" or platform.system() == "Windows":
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # a system that forbids it, as SELinux may
        return None
    code[: len(_CPUID)] = _CPUID
    code[_AT : _AT + len(_XGETBV)] = _XGETBV
    start = ctypes.addressof(ctypes.c_char.from_buffer(code))
    registers = (ctypes.c_uint32 * 4)()
    cpuid = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(start)
    xgetbv = ctypes.CFUNCTYPE(ctypes.c_uint64)(start + _AT)

    @functools.cache
    def told(leaf: int, subleaf: int) -> Sequence[int]:
        cpuid(leaf, subleaf, ctypes.addressof(registers))
        return tuple(registers)

    def is_told(feature: Feature) -> bool:
        largest = told(feature.leaf & 0x80000000, 0)[EAX]
        subleaves = told(feature.leaf, 0)[EAX] if feature.subleaf else 0
        if feature.leaf > largest or feature.subleaf > subleaves:
            return False
        return bool(told(feature.leaf, feature.subleaf)[feature.register] >> feature.bit & 1)

    state = xgetbv() if is_told(Feature(1, 0, ECX, _OSXSAVE)) else 0
    words = (word for word, feature in FEATURES.items() if feature.state & ~state == 0 and is_told(feature))
    return frozenset(words)


__all__ = ["FEATURES", "Feature", "processor_words"]
