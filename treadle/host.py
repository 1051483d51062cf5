"""This machine as a value: its processor as a `Target`, and the features that compiled code may rely on.

Read from Linux's `/proc/cpuinfo` and `/sys/devices/system/cpu`. Where these are missing, the processor is taken to be
the architecture's baseline, and code for the native instruction set is taken to run on machines of the same
description.
"""

from __future__ import annotations

import functools
import platform
import re
from dataclasses import replace
from pathlib import Path

from treadle.environment import available_cores
from treadle.instruction_sets import INSTRUCTION_SETS, NATIVE
from treadle.target import AMX, KIB, NO_UNIT, TARGETS, Target

CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

_WIDEST_FIRST = ("avx512", "avx2")
_OTHER = {"x86_64": "sse2", "AMD64": "sse2", "aarch64": "neon", "arm64": "neon"}
_UNIT = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
"""The features of a matrix unit that multiplies both types; Linux lists them if it saves the unit's registers."""
_SIZE = re.compile(r"(\d+)([KM]?)")
_UNITS = {"": 1, "K": KIB, "M": KIB * KIB}
# The features that compilers for x86-64 use for plain C; on other architectures every feature counts.
_COMPILED = re.compile(
    r"(ssse|sse|avx|amx)\w*|pni|fma|fma4|f16c|bmi1|bmi2|abm|popcnt|movbe|adx|cx16|lahf_lm|xsave|lzcnt|tbm|xop|gfni|"
    r"aes|vaes|pclmulqdq|vpclmulqdq|sha_ni|rdpid|serialize|movdiri|movdir64b"
)


def features_of(cpuinfo: Path) -> frozenset[str]:
    """The processor's features; where they cannot be read, one word that describes the processor."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    listed = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    words = listed.partition(":")[2].split()
    return frozenset(words or ["-".join(("unread", *platform.processor().split()))])


def target_of(features: frozenset[str], machine: str, caches: Path = CACHES) -> Target:
    """The target "cpu" on a machine of this architecture: its vectors, registers, matrix unit, caches and cores."""
    fits = (name for name in _WIDEST_FIRST if not _lacking(TARGETS[name].isa, features, machine))
    like = TARGETS[next(fits, _OTHER.get(machine, "sse2"))]
    l1, l2 = (_cache(caches, level) or size for level, size in ((1, like.l1_bytes), (2, like.l2_bytes)))
    unit, cores = AMX if features >= _UNIT else NO_UNIT, available_cores()
    return replace(like, name="cpu", isa=NATIVE, matrix_unit=unit, cores=cores, l1_bytes=l1, l2_bytes=l2)


@functools.cache
def host_target() -> Target:
    """The processor of this machine."""
    return target_of(features_of(CPUINFO), platform.machine())


def hardware_of(target: Target) -> str:
    """What times of a target are times of: this machine's processor and cores, or the product that the target names."""
    if target.kind == "cpu" and target == host_target():
        return f"{_model_name(CPUINFO)} {target.cores} cores"
    return f"{target.device} {target.name}"


def needs_of(target: Target) -> str:
    """The requirements of code for a target: the architecture, and features by their names in cpuinfo."""
    if target.isa in INSTRUCTION_SETS:
        architecture, features = INSTRUCTION_SETS[target.isa]
        unit = sorted(_UNIT) if target.matrix_unit == AMX else ()
        return " ".join((architecture, *features, *unit))
    x86 = platform.machine() in ("x86_64", "AMD64")
    features = sorted(features_of(CPUINFO))
    unread = [word for word in features if word.startswith("unread")]
    return " ".join((platform.machine(), *(unread or (f for f in features if not x86 or _COMPILED.fullmatch(f)))))


def lacks(needs: str) -> list[str]:
    """Which of `needs_of` this machine does not have, in the order of the text; a text of another form, as a whole."""
    architecture, *features = needs.split() or [""]
    if architecture != platform.machine():
        return [architecture or "an unknown machine"]
    here = features_of(CPUINFO)
    return [feature for feature in features if feature not in here]


def _model_name(cpuinfo: Path) -> str:
    """The processor's name, with the numbers that tell generations of one name apart."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
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
