"""Compiles a CUDA text to a shared library for the CPU, and the emulator's runtime once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

from treadle.artifact.store import digest, store_of
from treadle.backends.c.compiler import Toolchain, call, failure, find_toolchain
from treadle.backends.call_lock import CallLock
from treadle.backends.cuda.compiler import HEADER
from treadle.backends.cuda.emulator.instrument import counts_operations, with_counts
from treadle.environment import Environment, available_cores
from treadle.errors import TreadleError

# What the emulator reads in a CUDA text before compiling it: kernels, parameter names, dynamic shared memory.

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.S)
_ATTRIBUTES = r"(?:__(?:launch_bounds|cluster_dims)__\s*\([^()]*\)\s*)*"
_KERNEL = re.compile(
    rf"__global__\s+(?P<before>{_ATTRIBUTES})void\s+(?P<after>{_ATTRIBUTES})(?P<name>[A-Za-z_]\w*)\s*\("
)
_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(\d+)\s*[,)]")
_CLUSTER = re.compile(r"__cluster_dims__\s*\(([^()]*)\)")
_TEMPLATE = re.compile(r"template\s*<[^;{}]*>\s*(?:static\s+|inline\s+)*$")
_DYNAMIC = re.compile(r"\bextern\b[^;{}()\[\]]*?(?:\([^)]*\))*[^;{}\[\]]*?\b(?P<name>[A-Za-z_]\w*)\s*\[\s*\]\s*;")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*$")


@dataclass(frozen=True)
class Signature:
    """A `__global__` function of a text."""

    name: str
    parameters: tuple[str, ...]
    """Their names, in order; a parameter without one is called by its position."""
    max_threads: int | None
    """What `__launch_bounds__` allows, where it is a number."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """What `__cluster_dims__` says."""


def kernels(text: str) -> dict[str, Signature]:
    """The kernels of a text by name, without templates."""
    plain = without_comments(text)
    found: dict[str, Signature] = {}
    for match in _KERNEL.finditer(plain):
        if _TEMPLATE.search(plain[: match.start()].rstrip() + " "):
            continue
        pieces = _split(plain, match.end())
        names = tuple(_parameter_name(piece, index) for index, piece in enumerate(pieces))
        attributes = match["before"] + match["after"]
        bound = _BOUNDS.search(attributes)
        found[match["name"]] = Signature(match["name"], names, int(bound[1]) if bound else None, _cluster(attributes))
    return found


MOST_BLOCKS = 8
"""Of a cluster, on every device that has any."""


def _cluster(attributes: str) -> tuple[int, int, int]:
    found = _CLUSTER.search(attributes)
    if found is None:
        return 1, 1, 1
    extents = [piece.strip() for piece in found[1].split(",")]
    if not all(map(str.isdecimal, extents)) or not 1 <= prod(map(int, extents)) <= MOST_BLOCKS or len(extents) > 3:
        raise TreadleError(found[0], "emulator", f"up to three numbers of blocks, {MOST_BLOCKS} in all")
    x, y, z = [*map(int, extents), 1, 1][:3]
    return x, y, z


def dynamic_arrays(text: str) -> tuple[str, ...]:
    """The names under which a text declares its dynamic shared memory, in order, each once."""
    matches = (match for match in _DYNAMIC.finditer(without_comments(text)) if "__shared__" in match[0])
    return tuple(dict.fromkeys(match["name"] for match in matches))


def without_comments(text: str) -> str:
    """The text with comments and strings blanked; lines keep their numbers."""
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _split(text: str, start: int) -> list[str]:
    """The comma-separated pieces from `start` up to the parenthesis that closes them."""
    pieces, depth, begin = [""], 0, start
    for position in range(begin, len(text)):
        character = text[position]
        if character == ")" and depth == 0:
            break
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    stripped = [piece.strip() for piece in pieces]
    return [] if stripped in ([""], ["void"]) else stripped


def _parameter_name(piece: str, index: int) -> str:
    match = _NAME.search(piece.split("=")[0].strip())
    return match[1] if match else f"argument {index}"


# How a CUDA text is compiled for the emulator: to run fast, to be checked, to be counted.

COMMON = ("-x", "c++", "-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti")
# One of the compilers links a library of its own for this sanitizer by default.
NO_UBSAN = "-fno-sanitize=undefined"
RUNTIME = ("-O3", "-march=native", "-fno-threadsafe-statics", "-ftls-model=initial-exec", NO_UBSAN)
# What a text calls and does not define is an error of the link, not of the load.
LINK = (NO_UBSAN, "-Wl,-z,defs")

# The reinterpretations of CUDA programs are no undefined behaviour here, and endless loops stay endless. The overflow
# of signed integers is undefined as in NVRTC, so that a text that relies on it shows; contraction is what --fmad is.
# Without stubs of the linker, each instruction of a module belongs to a line of its text: a kernel that is stopped
# inside a stub would be reported without one.
_OF_KERNELS = (
    "-w", "-fno-strict-aliasing", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-finite-loops",
    "-fno-stack-protector", "-fno-plt",
)  # fmt: skip
_FAST = ("-O3", "-march=native", "-g1", NO_UBSAN)
# The runtime stands in for the sanitizers' libraries.
_SANITIZED = (
    "-g1", NO_UBSAN, "-fsanitize=thread", "-fsanitize=bounds,alignment", "-fsanitize-recover=bounds,alignment",
    "-ftrivial-auto-var-init=pattern",
)  # fmt: skip

# Hooks of their own for volatile accesses.
_VOLATILE_IN_GCC = ("--param=tsan-distinguish-volatile=1", "-fno-tree-fre")
_VOLATILE_IN_CLANG = ("-mllvm", "-tsan-distinguish-volatile")

# -O1 keeps most accesses where the text has them. The others would move behind the predicate under which their value
# is used, and out of bounds nobody would see them.
_LOADS_STAY_IN_GCC = ("-fno-tree-sink",)
_LOADS_STAY_IN_CLANG = ("-mllvm", "-instcombine-code-sinking=0")

# Counts are those of the text: without optimisation one access of it is one access, one operation one instruction.
_COUNTED = (
    "-O0", "-ffp-contract=off", "-ftrapping-math", "-fno-semantic-interposition", "-fno-optimize-sibling-calls",
    "-DTREADLE_EMU_COUNTERS",
)  # fmt: skip
# Roundings are no sums then; and treadle_emu_run uses the stack below a leaf function.
_COUNTED_ON_X86 = ("-msse4.1", "-mno-red-zone")
# This compiler would leave out reads of what is written right afterwards.
_COUNTED_BY_CLANG = ("-mllvm", "-tsan-instrument-read-before-write")


def text_flags(toolchain: Toolchain, checked: bool, counted: bool) -> tuple[str, ...]:
    """What compiles a text; one that is compiled for counting can be checked, too."""
    if not checked and not counted:
        return (*COMMON, *_OF_KERNELS, *_FAST)
    clang = "clang" in toolchain.version
    sanitized = (*COMMON, *_OF_KERNELS, *_SANITIZED, *(_VOLATILE_IN_CLANG if clang else _VOLATILE_IN_GCC))
    if not counted:
        return (*sanitized, "-O1", *(_LOADS_STAY_IN_CLANG if clang else _LOADS_STAY_IN_GCC))
    on_x86 = _COUNTED_ON_X86 if counts_operations() else ()
    return (*sanitized, *_COUNTED, *on_x86, *(_COUNTED_BY_CLANG if clang else ()))


# Red zones between the variables in shared memory, put into the compiler's assembly text.

ZONE_BYTES = 256

_THREAD_LOCAL = re.compile(r"\s*\.section\s+\.tbss")
_OTHER = re.compile(r"\s*\.(section|text|data|bss|previous|pushsection|popsection)\b")
_SPACE = re.compile(r"\s*\.(zero|skip|space|byte|short|value|long|quad)\s+\d+")


def with_red_zones(assembly: str) -> str:
    """The text with unused bytes after each thread-local variable.

    No source spells this: the compiler lays the variables out side by side, and an access just behind one of
    them would fall into the next. A variable's size, as its symbol has it, does not change.
    """
    lines: list[str] = []
    inside = False
    for line in assembly.splitlines():
        lines.append(line)
        if _THREAD_LOCAL.match(line):
            inside = True
        elif _OTHER.match(line):
            inside = False
        elif inside and _SPACE.match(line):
            lines.append(f"\t.zero\t{ZONE_BYTES}")
    return "\n".join([*lines, ""])


# The initial contents of local memory: a pattern that arithmetic propagates, put into the compiler's assembly text.

PATTERN = 0xFFFB
"""Each 16 bits of local memory: not a number as float16, bfloat16, float32 and float64, and no likely integer."""

# gcc fills local memory with bytes of 0xfe: as floats they are large numbers, which a product or a maximum hides. NaN
# propagates through both.
_WORD, _PAIR, _BYTES = -0x01010102, -0x0101010101010102, "\t.byte\t-2\n"
_MADE = {
    _WORD: (PATTERN << 16 | PATTERN) - (1 << 32),
    _PAIR: (PATTERN << 48 | PATTERN << 32 | PATTERN << 16 | PATTERN) - (1 << 64),
}
_NUMBER = re.compile(rf"(?<=[$\t ])({_PAIR}|{_WORD})\b")
_RUN = re.compile(rf"(?:{re.escape(_BYTES * 4)})+")
_IN_TEXT = re.compile(r"(?i)(fe){4}|16843010|4278124286|72340172838076674")


def with_unwritten_pattern(assembly: str, text: str) -> str:
    """The assembly with another pattern where the compiler wrote its own.

    A CUDA text that spells such a number itself is left alone, as is assembly that builds its constants in parts.
    """
    if _IN_TEXT.search(text):
        return assembly
    low, high = PATTERN & 0xFF, PATTERN >> 8
    halves = f"\t.byte\t{low}\n\t.byte\t{high}\n"
    with_numbers = _NUMBER.sub(lambda match: str(_MADE[int(match[1])]), assembly)
    return _RUN.sub(lambda match: halves * (len(match[0]) // len(_BYTES) // 2), with_numbers)


MAX_DYNAMIC_BYTES = 227 * 1024
"""The largest dynamic shared memory of any target."""

_BORDER_BYTES = 64 * 1024  # as runtime/memory.cpp has it

_HERE = Path(__file__).parent
_INCLUDES = (_HERE / "include", HEADER.parent)
_RUNTIME = _HERE / "runtime"
_INSTRUMENT = _HERE / "instrument.py"

_ONE_RUNTIME = CallLock("build_text")  # threads that compile texts would each compile it

_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<message>.*)$", re.M)
_UNDEFINED = re.compile(r"undefined (?:reference to|symbol:?) [`']?(\w+)")
_ASSEMBLER = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+): Error: (?P<message>.*)$", re.M)


def build_text(text: str, name: str, checked: bool, environment: Environment, counted: bool = False) -> Path:
    """The shared library of a CUDA text, compiled unless the cache has it.

    `name` is the text's file name in messages. What is built for counting can be checked, too. Raises TreadleError
    with the compiler's first message and the line of the text, and where no compiler is found.
    """
    toolchain = find_toolchain(environment)
    runtime = _ONE_RUNTIME.call(lambda: _build_runtime(toolchain, environment))
    flags = [*text_flags(toolchain, checked, counted), *(f"-I{folder}" for folder in _INCLUDES)]
    alone = f'#include "treadle_emulator.h"\n#line 1 "{name}"\n{text}\n'
    unit = f'{alone}#line 1 "emulator entry"\n{_trailer(text)}'
    edits = (f"{ZONE_BYTES} {_BORDER_BYTES} {PATTERN}", _INSTRUMENT.read_bytes())
    key = digest(toolchain.identity(), *_sources(_INCLUDES), *flags, *LINK, str(runtime), *edits, unit)

    def produce(target: Path) -> None:
        # Older debug-information readers confuse the compiled file with the one that #line names.
        source, made = target.parent / name, target.parent / "text.o"
        source.write_text(unit)
        check = [*toolchain.command, *flags, "-fsyntax-only", str(source)]
        objects = [made]
        if checked or counted:
            assembly = target.parent / "text.s"
            command = [*toolchain.command, *flags, "-S", str(source), "-o", str(assembly)]
            if not (counted and _failure(command, name) is None):
                # Functions that call themselves cannot be inlined by force.
                command += ["-DTREADLE_EMU_CALLS"] if counted else []
                _compile(command, check, alone, text, name)
            lines = with_unwritten_pattern(assembly.read_text(), text)
            lines = with_counts(lines) if counted and counts_operations() else lines
            assembly.write_text(with_red_zones(lines))
            _run([*toolchain.command, "-c", str(assembly), "-o", str(made)], text, name)
            border = _build_border(toolchain, environment)
            objects = [border, made, border]
        else:
            _compile([*toolchain.command, *flags, "-c", str(source), "-o", str(made)], check, alone, text, name)
        _run([*toolchain.link_command([*objects, runtime], target), *LINK], text, name)

    return store_of(environment).fetch("emulator", key, ".so", produce)


def _trailer(text: str) -> str:
    """The trailer after the text: entry points of its kernels, their clusters, and its dynamic shared memory."""
    found = kernels(text)
    lines = [f"TREADLE_EMU_KERNEL({kernel})" for kernel in found]
    lines += [
        f"TREADLE_EMU_CLUSTER({kernel}, {', '.join(map(str, each.cluster))})"
        for kernel, each in found.items()
        if each.cluster != (1, 1, 1)
    ]
    names = dynamic_arrays(text)
    if names:
        # All names mean the same memory.
        symbols = "".join(
            f".globl {each}\\n.type {each},@object\\n.size {each},{MAX_DYNAMIC_BYTES}\\n{each}:\\n" for each in names
        )
        section = '.section .tbss.treadle_emu_dynamic,\\"awT\\",@nobits\\n.p2align 10\\n'
        lines.append(f'asm("{section}{symbols}.zero {MAX_DYNAMIC_BYTES}\\n.previous\\n");')
    return "\n".join([*lines, "TREADLE_EMU_ANCHOR", ""])


def _build_border(toolchain: Toolchain, environment: Environment) -> Path:
    """An object of nothing but a red zone, for either end of a library's shared memory."""
    text = f'.section .tbss,"awT",@nobits\n.p2align 8\n.zero {_BORDER_BYTES}\n.section .note.GNU-stack,"",@progbits\n'

    def produce(target: Path) -> None:
        source = target.parent / "border.s"
        source.write_text(text)
        _run([*toolchain.command, "-c", str(source), "-o", str(target)], text, "emulator border")

    return store_of(environment).fetch("emulator", digest(toolchain.identity(), text), ".o", produce)


def _build_runtime(toolchain: Toolchain, environment: Environment) -> Path:
    """The runtime as a shared library of its own, which all texts' libraries share in a process."""
    sources = sorted(_RUNTIME.glob("*.cpp"))
    flags = [*COMMON, *RUNTIME]
    key = digest(toolchain.identity(), *_sources([_RUNTIME]), *flags)

    def produce(target: Path) -> None:
        objects = [target.parent / f"{source.stem}.o" for source in sources]

        def compile_one(index: int) -> None:
            command = [*toolchain.command, *flags, "-c", str(sources[index]), "-o", str(objects[index])]
            _run(command, "", "emulator runtime")

        with ThreadPoolExecutor(available_cores()) as pool:
            list(pool.map(compile_one, range(len(sources))))
        _run([*toolchain.link_command(objects, target), "-ldl", NO_UBSAN], "", "emulator runtime")

    return store_of(environment).fetch("emulator", key, ".so", produce)


def _sources(folders: Sequence[Path]) -> list[bytes]:
    return [path.read_bytes() for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]


def _compile(command: list[str], check: list[str], alone: str, text: str, name: str) -> None:
    """Compiles a text with its trailer; `check` looks at the same file once only the text is in it."""
    log = _failure(command, name)
    if log is None:
        return
    found = _DIAGNOSTIC.search(log)
    if found is not None and found["file"] != name and not _ASSEMBLER.search(log):
        # An error in the trailer may be caused by the end of the text.
        Path(check[-1]).write_text(alone)
        own = _failure(check, name)
        if own is None:
            accepted = 'extern "C" __global__ functions of pointers, numbers and structures'
            raise TreadleError(f"its kernels cannot be called: {found['message']}", name, accepted)
        log = own
    raise _diagnosis(log, text, name, command)


def _run(command: list[str], text: str, name: str) -> None:
    log = _failure(command, name)
    if log is not None:
        raise _diagnosis(log, text, name, command)


def _failure(command: list[str], name: str) -> str | None:
    """What a command wrote if it failed."""
    done = call(command, name)
    return done.stderr if done.returncode != 0 else None


def _diagnosis(log: str, text: str, name: str, command: list[str]) -> TreadleError:
    """The compiler's first message, with the line of the text that it is about."""
    found = _DIAGNOSTIC.search(log) or _ASSEMBLER.search(log)
    undefined = _UNDEFINED.search(log)
    if found is None and undefined is not None:
        error = TreadleError(f"'{undefined[1]}' is called but not defined", name, "a text that defines what it calls")
    elif found is None:
        return failure(command, log, name)
    else:
        number, lines = int(found["line"]), text.splitlines()
        line = lines[number - 1].strip() if found["file"] == name and 0 < number <= len(lines) else ""
        error = TreadleError(f"{found['message']}{f' in {line!r}' if line else ''}", f"{found['file']}:{number}")
    error.add_note(log[:8000])
    return error
