"""Hardware as data: cores, memories, limits and peaks, from data sheets.

A `Target` is a pure value. Schedules read its limits to reject an illegal tile before anything is built, cost models
read its peaks, and the compilers read its name or its instruction set. Nothing here depends on the machine: the text
`cpu` means the same everywhere, an AVX-512 core; `treadle.target.host` describes this machine.

The text of a target describes it completely, so that passes take it as an option and caches as a part of their keys:
the name of a target of the table, then what differs from that in braces, such as `sm_86{device='RTX A6000'
multiprocessors=84}`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from math import ceil
from typing import Any, Literal, cast

from treadle.errors import TreadleError
from treadle.target.text import read_text, write_text

# Instruction sets of processors by the names that C compilers know, and the features that each guarantees.
#
# Features have the names of `/proc/cpuinfo`: what code needs and what a processor has are sets of the same words.

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
    "simd128": ("wasm32", ("simd128",)),
}
"""The architecture and the features of each, by what `-march` calls it; a proposal of WebAssembly by its own."""


# What CPU cores multiply tiles of narrow types with, as data.


@dataclass(frozen=True)
class MatrixUnit:
    """A unit of a CPU's core, or vector instructions, that multiply tiles of bf16 or bytes with sums in f32 or i32.

    features: what a processor must have, by the names that Linux lists in cpuinfo
    bf16, bytes: whether it multiplies elements of bf16, and bytes, signed or not
    least_rows: of a product; others are multiples of it, but for `few_rows`, each of which is a part of it
    step_cycles: of the product of 32 rows by 32 columns and 64 bytes along K, at the clock of the vectors
    least_cycles: the same of the least number of rows
    """

    features: tuple[str, ...] = ()
    bf16: bool = False
    bytes: bool = False
    least_rows: int = 16
    few_rows: tuple[int, ...] = ()
    step_cycles: int = 0
    least_cycles: int = 0

    def cycles(self, rows: int) -> int:
        """Of the products of so many rows, in steps of 32 and the rest, by 32 columns and 64 bytes along K."""
        whole, rest = divmod(rows, _STEP_ROWS)
        return whole * self.step_cycles + self.covering(rest) * self.least_cycles // self.least_rows

    def covering(self, rows: int) -> int:
        """The rows of products that give so many."""
        whole = ceil(rows / self.least_rows) * self.least_rows
        return next((few for few in self.few_rows if few >= rows > 0), whole)


_STEP_ROWS = 32

NO_UNIT, AMX, VNNI, VNNI_BF16 = "none", "amx", "vnni", "vnni_bf16"

_VECTORS = MatrixUnit(
    ("avx512_vnni", "avx512f"), bytes=True, least_rows=8, few_rows=(1, 2, 4), step_cycles=1024, least_cycles=256
)
"""They start one operation a cycle on Zen 4: 32 rows of two vectors, 16 times 4 bytes."""

MATRIX_UNITS: Mapping[str, MatrixUnit] = {
    NO_UNIT: MatrixUnit(),
    AMX: MatrixUnit(("amx_bf16", "amx_int8", "amx_tile"), bf16=True, bytes=True, step_cycles=64, least_cycles=40),
    VNNI: _VECTORS,
    VNNI_BF16: replace(_VECTORS, features=("avx512_bf16", *_VECTORS.features), bf16=True),
}
"""By their names, as targets have them."""


TargetKind = Literal["cpu", "cuda"]
KINDS: tuple[TargetKind, ...] = ("cpu", "cuda")

KIB = 1024

_CPU_NAME = re.compile(r"[a-z][a-z0-9_]*")
_GPU_NAME = re.compile(r"sm_(?P<capability>[0-9]{2,3})[a-z]?")
_DEVICE = re.compile(r"[^'\"\\{}\x00-\x1f\x7f]*")
_LEAST_CAPABILITY, _AMPERE = 75, 80
_WARP = 32
"""The warp size that templates and the cuda dialect are written for."""
_VECTOR_BYTES = (16, 32, 64)
"""The vectors of CPUs that C text can be printed for."""
_OF_CPUS = ("vector_registers", "l1_bytes", "cores", "isa", "matrix_unit")
"""Fields that a GPU does not have."""
_LARGEST = 1 << 40


@dataclass(frozen=True)
class Target:
    """One kind of hardware.

    On `cpu` a block has one thread, a warp has one lane and there is no shared memory, so that the limits
    of both kinds can be read without asking which one it is.

    Units: bytes, registers of 32 bits, floating point operations per second (an fma counts as two), bytes per
    second. Peaks are those of `device`, without sparsity and at its boost clock.

    `str(target)` is its text, which `Target.parse` reads. Raises `TreadleError` for a value that no hardware has.
    """

    name: str
    """On a GPU the architecture that its code is compiled for."""
    kind: TargetKind
    device: str
    """The product that the number of multiprocessors and the peaks describe."""

    peak_f32: float
    peak_bandwidth: float
    peak_f16_tensor: float = 0.0
    """f16 or bf16 operands, f32 accumulators; 0 where there are no tensor cores that kernels here are written for."""
    peak_tf32_tensor: float = 0.0
    peak_int8_tensor: float = 0.0
    """Bytes, signed or not, with sums in i32; operations a second."""

    vector_bytes: int = 16
    """Widest load or store of one thread: 16 bytes on a GPU, one vector register on a CPU."""
    vector_registers: int = 16
    """Of a CPU's core."""
    l1_bytes: int = 32 * KIB
    """The first data cache of a CPU's core."""
    l2_bytes: int = 256 * KIB
    """The private L2 cache of a CPU's core; the one that all of a GPU's multiprocessors share."""
    cores: int = 1
    """Cores of a CPU, which share the blocks of a kernel; its peaks are those of one core."""
    isa: str = NATIVE
    """Instruction set that a CPU's code is compiled for (`-march`); "native" is that of the compiling machine."""
    matrix_unit: str = NO_UNIT
    """What a CPU's core multiplies tiles of bf16, or bytes, with, a name of `MATRIX_UNITS`; "none" if nothing."""

    clock: float = 3e9
    """Cycles a second, at which the peaks are."""
    l2_bytes_per_cycle: float = 32.0
    """From L2 to one core or multiprocessor."""
    memory_latency: float = 500.0
    """Cycles from a load of global memory to its value."""
    shared_latency: float = 30.0
    """Cycles from a load of shared memory to its value."""

    warp_size: int = 1
    multiprocessors: int = 1
    max_threads_per_block: int = 1
    max_warps_per_multiprocessor: int = 1
    max_blocks_per_multiprocessor: int = 1

    registers_per_thread: int = 0
    registers_per_multiprocessor: int = 0

    shared_per_block_static: int = 0
    """Shared memory that a kernel may declare without asking the driver for more."""
    shared_per_block: int = 0
    """Shared memory that a kernel may use after opting in (dynamic shared memory)."""
    shared_per_multiprocessor: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TreadleError(f"kind is {self.kind!r}", "target", KINDS)
        if self.is_cuda and self.capability < _LEAST_CAPABILITY:
            accepted = f"sm_{_LEAST_CAPABILITY} and later architectures"
            raise TreadleError(f"{self.name!r} is no GPU to compile for", "target", accepted)
        if not self.is_cuda and (self.name.startswith("sm_") or not _CPU_NAME.fullmatch(self.name)):
            raise TreadleError(f"{self.name!r} is no name of a processor", "target", "small letters, digits and _")
        if self.warp_size != (_WARP if self.is_cuda else 1):
            raise TreadleError(f"warp_size is {self.warp_size}", f"target '{self.name}'", f"{_WARP} on a GPU, else 1")
        for each in fields(self):
            _check_field(self, each)

    def __str__(self) -> str:
        return _text_of(self)

    @property
    def is_cuda(self) -> bool:
        """Whether kernels for this target are CUDA C++."""
        return self.kind == "cuda"

    @property
    def lanes(self) -> int:
        """Elements of 32 bits in a vector."""
        return self.vector_bytes // 4

    @property
    def unit(self) -> MatrixUnit:
        """What a CPU's core multiplies tiles of bf16, or bytes, with; one that multiplies nothing on a GPU."""
        return MATRIX_UNITS[self.matrix_unit]

    @property
    def multiplies_bytes(self) -> bool:
        """Whether there is a unit for products of bytes with sums in i32: a CPU's matrix unit, or tensor cores."""
        return self.peak_int8_tensor > 0 if self.is_cuda else self.unit.bytes

    @property
    def copies_asynchronously(self) -> bool:
        """Whether a GPU's threads copy from global to shared memory without registers (`cp.async`)."""
        return self.capability >= _AMPERE

    @property
    def capability(self) -> int:
        """Compute capability as one number, 90 for `sm_90a`; 0 on `cpu`."""
        gpu = _GPU_NAME.fullmatch(self.name) if self.is_cuda else None
        return 0 if gpu is None else int(gpu["capability"])

    @property
    def has_warpgroups(self) -> bool:
        """Whether code has the products of warpgroups, and what goes with them: that of `sm_90a` alone."""
        return self.is_cuda and self.name == "sm_90a"

    @staticmethod
    def parse(text: str) -> Target:
        """The target of a text: `cpu`, `sm_80`, or one with other values, such as `sm_80{multiprocessors=56}`.

        A name that is not in the table needs every field without a default: `sm_88{kind=cuda device='Orin' ...}`.
        `cuda` (the GPU of this machine) is an alias that the caller resolves, since this module asks
        no device. Raises `TreadleError` with what is accepted.
        """
        if text in TARGETS:
            return TARGETS[text]
        name, given = read_text(text, _types())
        if name in ADDED_TARGETS and not given.keys() >= set(_needed()):
            return replace(ADDED_TARGETS[name], **cast("dict[str, Any]", given))
        if name in TARGETS:
            return replace(TARGETS[name], **cast("dict[str, Any]", given))
        if given:
            return _of_fields(name, given)
        hint = "; 'cuda' stands for this machine's GPU and must be resolved first" if name == "cuda" else ""
        raise TreadleError(
            f"unknown target '{name}'{hint}", where="target", accepted=", ".join([*TARGETS, *ADDED_TARGETS])
        )

    @staticmethod
    def for_capability(major: int, minor: int) -> Target:
        """The target that a GPU of compute capability `major.minor` runs best.

        That is its own, or else the newest of the same major version that is not newer than the device,
        because a cubin runs on later minor versions of its major version. Capability 9.0 gives `sm_90a`,
        whose instructions every such device has. Raises `TreadleError` when there is none.
        """
        wanted = major * 10 + minor
        candidates = [t for t in TARGETS.values() if t.is_cuda and wanted // 10 * 10 <= t.capability <= wanted]
        if not candidates:
            accepted = ", ".join(t.name for t in TARGETS.values() if t.is_cuda)
            message = f"no target for a GPU of compute capability {major}.{minor}"
            raise TreadleError(message, where="target", accepted=accepted)
        return max(candidates, key=lambda t: (t.capability, t.name))


def _check_field(target: Target, each: Field[object]) -> None:
    """TreadleError for a value that is of another type than its field, or out of range."""
    value: object = getattr(target, each.name)
    where = f"target '{target.name}'"
    if target.is_cuda and each.name in _OF_CPUS and value != each.default:
        accepted = [other.name for other in fields(Target) if other.name not in ("name", *_OF_CPUS)]
        raise TreadleError(f"there is no field '{each.name}'", "target", accepted)
    if each.name == "device" and not (isinstance(value, str) and _DEVICE.fullmatch(value)):
        raise TreadleError(f"device is {value!r}", where, "text without quotes, braces and backslashes")
    if each.name == "isa" and value not in (NATIVE, *INSTRUCTION_SETS):
        raise TreadleError(f"isa is {value!r}", where, (NATIVE, *INSTRUCTION_SETS))
    if each.name == "matrix_unit" and value not in MATRIX_UNITS:
        raise TreadleError(f"matrix_unit is {value!r}", where, MATRIX_UNITS)
    if each.type not in ("int", "float"):
        return
    whole = each.type == "int"
    least, most = 0 if each.default == 0 else 1, _LARGEST if whole else sys.float_info.max
    number = value if isinstance(value, int if whole else int | float) and not isinstance(value, bool) else None
    if not isinstance(number, int | float) or not least <= number <= most:
        what = "a whole number" if whole else "a number"
        raise TreadleError(f"{each.name} is {value!r}", where, f"{what} from {least} to {most}")
    if each.name == "vector_bytes" and not target.is_cuda and value not in _VECTOR_BYTES:
        raise TreadleError(f"vector_bytes is {value}", where, _VECTOR_BYTES)
    if each.name == "vector_bytes" and target.vector_bytes.bit_count() != 1:
        raise TreadleError(f"vector_bytes is {value}", where, "a power of 2")


def _text_of(target: Target) -> str:
    """See the module: the name, and what differs from the table's target of that name, or else from the defaults."""
    known = TARGETS.get(target.name)
    usual = {each.name: each.default if known is None else getattr(known, each.name) for each in fields(target)}
    return write_text(target.name, {key: value for key, value in vars(target).items() if value != usual[key]}, _types())


def _types() -> dict[str, object]:
    return {each.name: each.type for each in fields(Target) if each.name != "name"}


def _needed() -> list[str]:
    """The fields without a default."""
    return [each.name for each in fields(Target) if each.default is MISSING and each.name != "name"]


def register_target(target: Target) -> None:
    """Adds hardware to the table by its name: `Target.parse` finds it, and so do `--target` and `treadle.compile`.

    Its text has all of its values, so that caches, artifacts and other processes need no table to read it.
    TreadleError for what is no target, and a name that is taken.
    """
    given = cast("object", target)  # of untyped callers
    if not isinstance(given, Target):
        raise TreadleError(f"{given!r} is no target", "register_target", "a treadle.Target")
    if target.name in (*TARGETS, *ADDED_TARGETS, "cuda"):
        raise TreadleError(f"there is a target '{target.name}'", "register_target", "another name")
    ADDED_TARGETS[target.name] = target


def _of_fields(name: str, given: Mapping[str, str | int | float]) -> Target:
    """A target that is not in the table."""
    needed = _needed()
    missing = [each for each in needed if each not in given]
    if missing:
        accepted = f"a name of the table ({', '.join(TARGETS)}), or all of {', '.join(needed)}"
        raise TreadleError(f"target '{name}' has no {' and no '.join(missing)}", "target", accepted)
    return Target(name, **cast("dict[str, Any]", given))


def _gpu(
    name: str,
    device: str,
    *,
    multiprocessors: int,
    warps: int,
    blocks: int,
    shared_kib: int,
    reserved_kib: int = 1,
    tflops: tuple[float, float, float],
    int8_tops: float,
    bandwidth_gb: float,
    mhz: float,
    l2_mib: int,
    l2_bytes_per_cycle: float,
    memory_latency: float = 500.0,
) -> Target:
    """A row of the table below; `tflops`: f32, f16, tf32 tensor; `int8_tops`: of tensor cores; `shared_kib`,
    `l2_bytes_per_cycle`: each SM's; `reserved_kib`: of every block's shared memory, which the driver keeps from compute
    capability 8.0 on."""
    f32, f16, tf32 = tflops
    return Target(
        name=name,
        kind="cuda",
        device=device,
        peak_f32=f32 * 1e12,
        peak_f16_tensor=f16 * 1e12,
        peak_tf32_tensor=tf32 * 1e12,
        peak_int8_tensor=int8_tops * 1e12,
        peak_bandwidth=bandwidth_gb * 1e9,
        l2_bytes=l2_mib * KIB * KIB,
        clock=mhz * 1e6,
        l2_bytes_per_cycle=l2_bytes_per_cycle,
        memory_latency=memory_latency,
        warp_size=_WARP,
        multiprocessors=multiprocessors,
        max_threads_per_block=1024,
        max_warps_per_multiprocessor=warps,
        max_blocks_per_multiprocessor=blocks,
        registers_per_thread=255,
        registers_per_multiprocessor=64 * 1024,
        shared_per_block_static=48 * KIB,
        shared_per_block=(shared_kib - reserved_kib) * KIB,
        shared_per_multiprocessor=shared_kib * KIB,
    )


# Limits: CUDA C++ Programming Guide 13.0, "Compute Capabilities", table of technical specifications. For the 24 blocks
# of capability 12.0 editions before CUDA 13 say 32; the smaller number is safe.
#
# Peaks are multiprocessors x lanes x 2 x boost clock, as the manufacturer prints them:
#   sm_75    NVIDIA T4 data sheet and Turing whitepaper. Its tensor cores have no products of the shapes that loop.mma
#            has (PTX ISA, mma: m16n8k16 of f16 and m16n8k32 of bytes from sm_80 on): their peaks are left out
#   sm_80    NVIDIA A100 80GB SXM data sheet
#   sm_86    GA102 whitepaper, GeForce RTX 3090; f16 with f32 accumulators, which is half of that with f16
#   sm_87    Jetson AGX Orin series technical brief, 64 GB at 1.3 GHz; the sparse numbers halved
#   sm_89    Ada whitepaper, GeForce RTX 4090; the same
#   sm_90    H100 whitepaper, table of the SXM5 at its boost clocks (the data sheet rounds to 67, 989 and 3350)
#   sm_100   HGX B200 data sheet and, for the bandwidth, DGX B200 data sheet, divided by eight GPUs; the sparse numbers
#            halved
#   sm_120   RTX Blackwell whitepaper, GeForce RTX 5090; f16 with f32 accumulators
#
# Boost clocks and L2 caches are those of the same papers (B200: the clock that its f32 peak implies, and the L2 of its
# tuning guide). From L2 to a multiprocessor sm_80 moves 5120 bytes a cycle over 108 (A100 whitepaper); for the others
# no paper says: 31 is what microbenchmarks of Hopper reach, 32 is assumed. Latencies are rounded from published
# microbenchmarks of Ampere and Hopper, and taken for all, but for the memory's of Hopper: what a kernel waits for whose
# operands no cache has is fitted to the times of 2,318 schedules on an H100 and an H200
# (`benchmarks/results/gpu-spaces-h200-2026-11-27.json`): their rank correlation with what is predicted is 0.79 in the
# mean of 17 spaces, with 500 cycles 0.72.
_H100 = _gpu(
    "sm_90",
    "H100 SXM5",
    multiprocessors=132,
    warps=64,
    blocks=32,
    shared_kib=228,
    tflops=(66.9, 989.4, 494.7),
    int8_tops=1978.9,
    bandwidth_gb=3352,
    mhz=1980,
    l2_mib=50,
    l2_bytes_per_cycle=31,
    memory_latency=950,
)


def _cpu(name: str, vectors: str, isa: str, size: int, registers: int, peak: float) -> Target:
    """A row of the table below: a nominal core at 3 GHz that starts two vector operations a cycle, with the memory of
    one channel pair of DDR5-4800 (2 x 38.4 GB/s)."""
    return Target(
        name=name,
        kind="cpu",
        device=f"one {vectors} core",
        peak_f32=peak,
        peak_bandwidth=76.8e9,
        vector_bytes=size,
        vector_registers=registers,
        l1_bytes=(48 if size == 64 else 32) * KIB,
        l2_bytes=2048 * KIB,
        cores=2,
        isa=isa,
    )


# Peaks: 2 units x lanes x 3e9, twice that where a multiplication and an addition are one instruction.
_CPUS = (
    _cpu("cpu", "AVX-512", NATIVE, 64, 32, 192e9),
    _cpu("avx512", "AVX-512", "x86-64-v4", 64, 32, 192e9),
    _cpu("avx2", "AVX2", "x86-64-v3", 32, 16, 96e9),
    _cpu("sse2", "SSE2", "x86-64", 16, 16, 24e9),
    _cpu("neon", "NEON", "armv8-a", 16, 32, 48e9),
    replace(_cpu("wasm", "WebAssembly SIMD", "simd128", 16, 16, 24e9), cores=1),  # registers: of SSE, which runs it
)

TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        *_CPUS,
        _gpu(
            "sm_75",
            "T4",
            multiprocessors=40,
            warps=32,
            blocks=16,
            shared_kib=64,
            reserved_kib=0,
            tflops=(8.141, 0.0, 0.0),
            int8_tops=0.0,
            bandwidth_gb=320,
            mhz=1590,
            l2_mib=4,
            l2_bytes_per_cycle=32,
        ),
        _gpu(
            "sm_80",
            "A100 SXM4 80GB",
            multiprocessors=108,
            warps=64,
            blocks=32,
            shared_kib=164,
            tflops=(19.5, 312.0, 156.0),
            int8_tops=624.0,
            bandwidth_gb=2039,
            mhz=1410,
            l2_mib=40,
            l2_bytes_per_cycle=47,
        ),
        _gpu(
            "sm_86",
            "GeForce RTX 3090",
            multiprocessors=82,
            warps=48,
            blocks=16,
            shared_kib=100,
            tflops=(35.6, 71.0, 35.6),
            int8_tops=284.0,
            bandwidth_gb=936,
            mhz=1695,
            l2_mib=6,
            l2_bytes_per_cycle=32,
        ),
        _gpu(
            "sm_87",
            "Jetson AGX Orin 64GB",
            multiprocessors=16,
            warps=48,
            blocks=16,
            shared_kib=164,
            tflops=(5.325, 42.6, 21.3),
            int8_tops=85.2,
            bandwidth_gb=204.8,
            mhz=1300,
            l2_mib=4,
            l2_bytes_per_cycle=32,
        ),
        _gpu(
            "sm_89",
            "GeForce RTX 4090",
            multiprocessors=128,
            warps=48,
            blocks=24,
            shared_kib=100,
            tflops=(82.6, 165.2, 82.6),
            int8_tops=660.6,
            bandwidth_gb=1008,
            mhz=2520,
            l2_mib=72,
            l2_bytes_per_cycle=32,
        ),
        _H100,
        replace(_H100, name="sm_90a"),
        _gpu(
            "sm_100",
            "B200",
            multiprocessors=148,
            warps=64,
            blocks=32,
            shared_kib=228,
            tflops=(75.0, 2250.0, 1125.0),
            int8_tops=4500.0,
            bandwidth_gb=8000,
            mhz=1980,
            l2_mib=126,
            l2_bytes_per_cycle=31,
        ),
        _gpu(
            "sm_120",
            "GeForce RTX 5090",
            multiprocessors=170,
            warps=48,
            blocks=24,
            shared_kib=100,
            tflops=(104.8, 209.5, 104.8),
            int8_tops=838.0,
            bandwidth_gb=1792,
            mhz=2407,
            l2_mib=96,
            l2_bytes_per_cycle=32,
        ),
    )
}
"""Every target by name."""
ADDED_TARGETS: dict[str, Target] = {}
"""Those that `register_target` added."""
GPUS: tuple[Target, ...] = tuple(target for target in TARGETS.values() if target.is_cuda)
"""Those that are GPUs."""
