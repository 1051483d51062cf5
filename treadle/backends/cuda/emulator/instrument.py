"""Counting calls put into the compiler's assembly text: which instructions are executed how often."""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

SECTION = "treadle_operations"
"""The library's section with a `Row` for each instruction that computes."""

_ROW = struct.Struct("<QIHH")

_LABEL = re.compile(r"([\w.$]+):")
_INSTRUCTION = re.compile(r"\s+([a-z][\w.]*)(?:\s+([^#]*))?")
_JUMP = re.compile(r"j[a-z]+|ret[qlw]?|ud2|hlt|loopn?e?")
_CALL = re.compile(r"(?:call|jmp)q?$")
_CALLED = re.compile(r"\*?([A-Za-z_]\w*)(?:@\w+)?(?:\(%rip\))?$")
_SECTION_CHANGE = re.compile(r"\s*\.(section|text|data|bss|previous|pushsection|popsection|size)\b")

_ARITHMETIC = re.compile(r"v?(?:add|sub|mul|div|sqrt|addsub|hadd|hsub)([sp])([sd])$")
_FUSED = re.compile(r"vf(?:n?m(?:add|sub)|m(?:addsub|subadd))(?:\d{3})?([sp])([sd])$")
_REGISTER = re.compile(r"%([xyz])mm\d+")
_REGISTER_BYTES = {"x": 16, "y": 32, "z": 64}

_SPECIAL = re.compile(
    r"_*(?:exp|exp2|exp10|expm1|log|log2|log10|log1p|cbrt|sin|cos|tan|asin|acos|atan|sinh|cosh|tanh|asinh|acosh|atanh"
    r"|erf|erfc|tgamma|lgamma|pow|fmod|atan2|hypot)f?$"
)
_CALLED_ARITHMETIC = {"fma": 2, "fmaf": 2, "sqrt": 1, "sqrtf": 1}


@dataclass(frozen=True)
class Row:
    """An instruction that computes.

    `address` is the one after it, as an offset in the library; `run` numbers the instructions that are executed
    together, always all of them; `operations` and `special` are what one execution by one thread counts.
    """

    address: int
    run: int
    operations: int
    special: int


def counts_operations() -> bool:
    """Whether instructions are known on this machine."""
    return platform.machine() in ("x86_64", "AMD64")


def with_counts(assembly: str) -> str:
    """The x86-64 text with a call before each run of instructions that compute, and where a loop's next pass begins.

    A run has no label and no jump in it, so that its instructions are executed equally often. Loops count if
    their body calls anything: only then can it touch memory that others see.
    """
    lines = assembly.splitlines()
    loops = _loops(lines)
    ends: dict[int, list[int]] = {}
    for label, end in loops.items():
        ends.setdefault(end, []).append(label)
    made: list[str] = []
    rows: list[str] = []
    inside = False
    runs = 0
    for number, line in enumerate(lines):
        instruction = _INSTRUCTION.match(line)
        operations, special = _counted(instruction[1], instruction[2] or "") if instruction else (0, 0)
        if operations or special:
            if not inside:
                inside, runs = True, runs + 1
                made += [f"\tpushq\t${runs - 1}", "\tcall\t*treadle_emu_run@GOTPCREL(%rip)"]
            label = f".Ltreadle_emu_{len(rows)}"
            rows.append(f"\t.quad\t{label}\n\t.long\t{runs - 1}\n\t.short\t{operations}, {special}")
            made += [line, f"{label}:"]
        else:
            made.append(line)
        if number in ends:
            made += [f".Ltreadle_emu_end_{each}:" for each in ends[number]]
        if number in loops:
            begin, end = f".Ltreadle_emu_pass_{number}", f".Ltreadle_emu_end_{number}"
            made += [f"\tpushq\t${end}-{begin}", "\tcall\t*treadle_emu_pass@GOTPCREL(%rip)", f"{begin}:"]
        if _LABEL.match(line) or _SECTION_CHANGE.match(line) or (instruction and _JUMP.fullmatch(instruction[1])):
            inside = False
    return "\n".join([*made, f'\t.section\t{SECTION},"",@progbits', *rows, "\t.text", ""])


def rows(section: bytes) -> tuple[Row, ...]:
    """What `with_counts` noted, from the bytes of the library's section."""
    return tuple(Row(*fields) for fields in _ROW.iter_unpack(section))


def _counted(name: str, operands: str) -> tuple[int, int]:
    """Floating-point operations and special functions of one execution."""
    if _CALL.match(name):
        called = _CALLED.match(operands.strip())
        function = called[1] if called else ""
        return _CALLED_ARITHMETIC.get(function, 0), int(_SPECIAL.match(function) is not None)
    fused = _FUSED.match(name)
    match = fused or _ARITHMETIC.match(name)
    if match is None:
        return 0, 0
    lanes = 1 if match[1] == "s" else _vector_bytes(operands) // (4 if match[2] == "s" else 8)
    return lanes * (2 if fused else 1), 0


def _vector_bytes(operands: str) -> int:
    return max((_REGISTER_BYTES[width] for width in _REGISTER.findall(operands)), default=16)


def _loops(lines: Sequence[str]) -> dict[int, int]:
    """The lines of labels that later instructions jump to, with a call in between; the last of these jumps."""
    labels: dict[str, int] = {}
    calls: list[int] = []
    found: dict[int, int] = {}
    for number, line in enumerate(lines):
        label = _LABEL.match(line)
        if label is not None:
            labels[label[1]] = number
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        if instruction[1].startswith("call"):
            calls.append(number)
        target = (instruction[2] or "").strip()
        if instruction[1].startswith("j") and target in labels and calls and calls[-1] > labels[target]:
            found[labels[target]] = number
    return found
