"""Compiles a CUDA text to a shared library for the CPU, and the emulator's runtime once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from treadle.backends.c.compiler_call import call, failure
from treadle.backends.c.toolchain import Toolchain, find_toolchain
from treadle.backends.call_lock import CallLock
from treadle.backends.cuda.compiler import HEADER
from treadle.backends.cuda.emulator.flags import COMMON, LINK, NO_UBSAN, RUNTIME, text_flags
from treadle.backends.cuda.emulator.instrument import counts_operations, with_counts
from treadle.backends.cuda.emulator.red_zones import ZONE_BYTES, with_red_zones
from treadle.backends.cuda.emulator.signature import dynamic_arrays, kernels
from treadle.backends.cuda.emulator.unwritten import PATTERN, with_unwritten_pattern
from treadle.environment import Environment, available_cores
from treadle.errors import TreadleError
from treadle.store import digest, store_of

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
    """The trailer after the text: entry points of its kernels, and its dynamic shared memory."""
    lines = [f"TREADLE_EMU_KERNEL({kernel})" for kernel in kernels(text)]
    names = dynamic_arrays(text)
    if names:
        # All names mean the same memory.
        symbols = "".join(
            f".globl {each}\\n.type {each},@object\\n.size {each},{MAX_DYNAMIC_BYTES}\\n{each}:\\n" for each in names
        )
        section = '.section .tbss.treadle_emu_dynamic,\\"awT\\",@nobits\\n.p2align 7\\n'
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
