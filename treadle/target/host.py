"""This machine as a value: its processor as a `Target`, and the features that compiled code may rely on.

Read from Linux's `/proc/cpuinfo` and `/sys/devices/system/cpu`; of what the first says of an x86's features, what the
processor itself denies is left out. Where these are missing, the processor is taken to be the architecture's
baseline, and code for the native instruction set is taken to run on machines of the same description.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from treadle.environment import available_cores
from treadle.target.description import (
    AMX,
    INSTRUCTION_SETS,
    KIB,
    MATRIX_UNITS,
    NATIVE,
    NO_UNIT,
    TARGETS,
    VNNI,
    VNNI_BF16,
    Target,
)

# The features of x86-64 processors as the processor itself tells them, by the words of Linux's `/proc/cpuinfo`.
#
# That file is the kernel's view. Under an emulator such as Valgrind, and in some sandboxes, it is another processor's;
# code that asks `cpuid` and `xgetbv` is answered by the one that runs it (Intel SDM volume 2A, CPUID; volume 1, 13.3).

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

HWCAP: Mapping[str, int] = {
    "fp": 0, "asimd": 1, "evtstrm": 2, "aes": 3, "pmull": 4, "sha1": 5, "sha2": 6, "crc32": 7, "atomics": 8, "fphp": 9,
    "asimdhp": 10, "cpuid": 11, "asimdrdm": 12, "jscvt": 13, "fcma": 14, "lrcpc": 15, "dcpop": 16, "sha3": 17,
    "sm3": 18, "sm4": 19, "asimddp": 20, "sha512": 21, "sve": 22, "asimdfhm": 23, "dit": 24, "uscat": 25,
    "ilrcpc": 26, "flagm": 27, "ssbs": 28, "sb": 29, "paca": 30, "pacg": 31,
}  # fmt: skip
"""Where Linux tells a program of 64-bit ARM that a feature is there: the bit of `getauxval(AT_HWCAP)` (Linux's
arch/arm64/include/uapi/asm/hwcap.h). Under an emulator of programs, /proc/cpuinfo is the host's."""

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


CPUINFO = Path("/proc/cpuinfo")
PROCESSORS = Path("/sys/devices/system/cpu")
CACHES = PROCESSORS / "cpu0/cache"

_WIDEST_FIRST = ("avx512", "avx2")
_OTHER = {"x86_64": "sse2", "AMD64": "sse2", "aarch64": "neon", "arm64": "neon"}
_UNITS_BY_SPEED = (AMX, VNNI_BF16, VNNI)
"""Linux lists their features if it saves their registers."""
_FAST_BF16 = ("AuthenticAMD",)
"""The vendors of processors whose vectors multiply bfloat16 in less time than float32: Zen 4 starts as many dot
products of two as it starts multiplications (docs/adr/0064). Xeons take longer than in float32 (docs/adr/0045)."""
_SIZE = re.compile(r"(\d+)([KM]?)")
_UNITS = {"": 1, "K": KIB, "M": KIB * KIB}
# The features that compilers for x86-64 use for plain C; on other architectures every feature counts.
_COMPILED = re.compile(
    r"(ssse|sse|avx|amx)\w*|pni|fma|fma4|f16c|bmi1|bmi2|abm|popcnt|movbe|adx|cx16|lahf_lm|xsave|lzcnt|tbm|xop|gfni|"
    r"aes|vaes|pclmulqdq|vpclmulqdq|sha_ni|rdpid|serialize|movdiri|movdir64b"
)


def features_of(cpuinfo: Path) -> frozenset[str]:
    """The processor's features; where they cannot be read, one word that describes the processor."""
    fields = _fields(cpuinfo)
    words = fields.get("flags", fields.get("Features", "")).split()
    return frozenset(words or ["-".join(("unread", *platform.processor().split()))])


def host_features(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """The features of the processor that runs this, which under an emulator is not the one that the file describes."""
    listed, told = features_of(cpuinfo), processor_words()
    if told is None:
        return listed
    return told if _are_unread(listed) else listed - (FEATURES.keys() - told)


def native_isa(cpuinfo: Path = CPUINFO) -> str:
    """What code for this processor is compiled for: "native", or under an emulator, of which compilers may not know,
    the largest instruction set that is there."""
    listed, features = features_of(cpuinfo), host_features(cpuinfo)
    if _are_unread(listed) or listed == features:
        return NATIVE
    fitting = (isa for isa in INSTRUCTION_SETS if not _lacking(isa, features, platform.machine()))
    return max(fitting, key=lambda isa: len(INSTRUCTION_SETS[isa][1]))


def _are_unread(features: frozenset[str]) -> bool:
    return any(word.startswith("unread") for word in features)


def vendor_of(cpuinfo: Path) -> str:
    """Who makes the processor, as x86's say it; empty where that cannot be read."""
    return _fields(cpuinfo).get("vendor_id", "")


def target_of(features: frozenset[str], machine: str, caches: Path = CACHES, vendor: str = "") -> Target:
    """The target "cpu" on a machine of this architecture: its vectors, registers, matrix unit, caches and cores."""
    fits = (name for name in _WIDEST_FIRST if not _lacking(TARGETS[name].isa, features, machine))
    like = TARGETS[next(fits, _OTHER.get(machine, "sse2"))]
    l1, l2 = (_cache(caches, level) or size for level, size in ((1, like.l1_bytes), (2, like.l2_bytes)))
    unit, cores = _unit_of(features, vendor), available_cores()
    return replace(like, name="cpu", isa=NATIVE, matrix_unit=unit, cores=cores, l1_bytes=l1, l2_bytes=l2)


def _unit_of(features: frozenset[str], vendor: str) -> str:
    """The fastest matrix unit of which the processor has the features."""
    for name in _UNITS_BY_SPEED:
        slow = name == VNNI_BF16 and vendor not in _FAST_BF16
        if features.issuperset(MATRIX_UNITS[name].features) and not slow:
            return name
    return NO_UNIT


@functools.cache
def host_target() -> Target:
    """The processor of this machine."""
    return target_of(host_features(), platform.machine(), vendor=vendor_of(CPUINFO))


def hardware_of(target: Target) -> str:
    """What times of a target are times of: this machine's processor and cores, or the product that the target names."""
    if target.kind == "cpu" and target == host_target():
        return f"{_model_name(CPUINFO)} {target.cores} cores"
    return f"{target.device} {target.name}"


def needs_of(target: Target) -> str:
    """The requirements of code for a target: the architecture, and features by their names in cpuinfo."""
    if target.isa in INSTRUCTION_SETS:
        architecture, features = INSTRUCTION_SETS[target.isa]
        return " ".join(dict.fromkeys((architecture, *features, *target.unit.features)))
    x86 = platform.machine() in ("x86_64", "AMD64")
    features = sorted(host_features())
    unread = [word for word in features if word.startswith("unread")]
    return " ".join((platform.machine(), *(unread or (f for f in features if not x86 or _COMPILED.fullmatch(f)))))


def lacks(needs: str) -> list[str]:
    """Which of `needs_of` this machine does not have, in the order of the text; a text of another form, as a whole."""
    architecture, *features = needs.split() or [""]
    if architecture != platform.machine():
        return [architecture or "an unknown machine"]
    here = host_features()
    return [feature for feature in features if feature not in here]


def _fields(cpuinfo: Path) -> dict[str, str]:
    """What is said of the processor, by name; of several, the last one's. Empty where it cannot be read."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _model_name(cpuinfo: Path) -> str:
    """The processor's name, with the numbers that tell generations of one name apart."""
    fields = _fields(cpuinfo)
    numbers = "-".join(fields[key] for key in ("cpu family", "model", "stepping") if key in fields)
    return f"{fields.get('model name', platform.machine())} {numbers}".strip()


def _lacking(isa: str, features: frozenset[str], machine: str) -> bool:
    architecture, needed = INSTRUCTION_SETS[isa]
    return architecture != machine.replace("AMD64", "x86_64") or not features.issuperset(needed)


def _cache(caches: Path, wanted: int) -> int | None:
    """Bytes of the core's cache of a level, for data; None where the system does not say."""
    for folder in sorted(caches.glob("index*")):
        try:
            level, type, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            return None
        found = _SIZE.fullmatch(size)
        if level == str(wanted) and type != "Instruction" and found is not None and int(found[1]) > 0:
            return int(found[1]) * _UNITS[found[2]]
    return None


@dataclass(frozen=True)
class Cache:
    """The caches for data of a level, from 1: how many bytes one of them holds, and how many there are."""

    level: int
    nbytes: int
    count: int


def caches_of(processors: Path = PROCESSORS) -> tuple[Cache, ...]:
    """The levels of caches of this machine, from the first; none where the system does not say."""
    found: list[Cache] = []
    for level in range(1, _LEVELS + 1):
        nbytes = _cache(processors / "cpu0/cache", level)
        if nbytes is not None:
            found.append(Cache(level, nbytes, max(1, len(_sharing(processors, level)))))
    return tuple(found)


_LEVELS = 4


def _sharing(processors: Path, wanted: int) -> set[str]:
    """Which processors share a cache of a level, for each of them."""
    found = set[str]()
    for folder in processors.glob("cpu[0-9]*/cache/index[0-9]*"):
        with suppress(OSError):
            level, type, shared = ((folder / each).read_text().strip() for each in ("level", "type", "shared_cpu_list"))
            if level == str(wanted) and type != "Instruction":
                found.add(shared)
    return found
