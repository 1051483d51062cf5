"""Compiles a CUDA text to a shared library for the CPU, and the emulator's runtime once."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from treadle.backends.c.cache import digest, fetch
from treadle.backends.c.toolchain import Toolchain, find_toolchain
from treadle.backends.cuda.compiler import HEADER
from treadle.backends.cuda.emulator.red_zones import ZONE_BYTES, with_red_zones
from treadle.backends.cuda.emulator.signature import dynamic_arrays, kernels
from treadle.errors import TreadleError
from treadle.knobs import Knobs, available_cores

MAX_DYNAMIC_BYTES = 227 * 1024
"""The largest dynamic shared memory of any target."""

_BORDER_BYTES = 64 * 1024  # as runtime/memory.cpp has it

_HERE = Path(__file__).parent
_INCLUDES = (_HERE / "include", HEADER.parent)
_RUNTIME = _HERE / "runtime"

_ONE_RUNTIME = Lock()  # threads that compile texts would each compile it

_COMMON = ("-x", "c++", "-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti")
# One compiler at hand links a library of its own for this sanitizer unless it is told not to.
_NO_UBSAN = "-fno-sanitize=undefined"
_RUNTIME_FLAGS = ("-O3", "-fno-threadsafe-statics", "-ftls-model=initial-exec", _NO_UBSAN)
# The reinterpretations of CUDA programs are no undefined behaviour here, and endless loops stay endless.
_KERNEL_FLAGS = (
    "-w", "-fno-strict-aliasing", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-fno-finite-loops",
    "-fno-stack-protector",
)  # fmt: skip
_FAST = ("-O3", "-march=native", "-g1", _NO_UBSAN)
# -O1 keeps accesses where the text has them. The runtime stands in for the sanitizers' libraries.
_CHECKED = (
    "-O1", "-g1", _NO_UBSAN, "-fsanitize=thread", "-fsanitize=bounds,alignment",
    "-fsanitize-recover=bounds,alignment", "-ftrivial-auto-var-init=pattern",
)  # fmt: skip
# Else a load moves behind the predicate under which its value is used, and out of bounds nobody sees it.
_LOADS_STAY_IN_GCC = ("-fno-tree-sink",)
_LOADS_STAY_IN_CLANG = ("-mllvm", "-instcombine-code-sinking=0")

_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<message>.*)$", re.M)
_ASSEMBLER = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+): Error: (?P<message>.*)$", re.M)


def build_text(text: str, name: str, checked: bool, knobs: Knobs) -> Path:
    """The shared library of a CUDA text, compiled unless the cache has it.

    `name` is the text's file name in messages. Raises TreadleError with the compiler's first message and the
    line of the text, and where no compiler is found.
    """
    toolchain = find_toolchain(knobs)
    with _ONE_RUNTIME:
        runtime = _build_runtime(toolchain, knobs)
    mode = (*_CHECKED, *_loads_stay(toolchain)) if checked else _FAST
    flags = [*_COMMON, *_KERNEL_FLAGS, *mode, *(f"-I{folder}" for folder in _INCLUDES)]
    unit = f'#include "treadle_emulator.h"\n#line 1 "{name}"\n{text}\n#line 1 "emulator entry"\n{_trailer(text)}'
    key = digest(
        toolchain.identity(), *_sources(_INCLUDES), *flags, str(runtime), f"{ZONE_BYTES} {_BORDER_BYTES}", unit
    )

    def produce(target: Path) -> None:
        # Older debug-information readers confuse the compiled file with the one that #line names.
        source, made = target.parent / name, target.parent / "text.o"
        source.write_text(unit)
        objects = [made]
        if checked:
            assembly = target.parent / "text.s"
            _run([*toolchain.command, *flags, "-S", str(source), "-o", str(assembly)], text, name)
            assembly.write_text(with_red_zones(assembly.read_text()))
            _run([*toolchain.command, "-c", str(assembly), "-o", str(made)], text, name)
            border = _build_border(toolchain, knobs)
            objects = [border, made, border]
        else:
            _run([*toolchain.command, *flags, "-c", str(source), "-o", str(made)], text, name)
        _run([*toolchain.link_command([*objects, runtime], target), _NO_UBSAN], text, name)

    return fetch(knobs.cache_dir / "emulator", key, ".so", produce)


def _loads_stay(toolchain: Toolchain) -> tuple[str, ...]:
    return _LOADS_STAY_IN_CLANG if "clang" in toolchain.version else _LOADS_STAY_IN_GCC


def _trailer(text: str) -> str:
    """What stands behind the text: entries for its kernels, and its dynamic shared memory."""
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


def _build_border(toolchain: Toolchain, knobs: Knobs) -> Path:
    """An object of nothing but a red zone, for either end of a library's shared memory."""
    text = f'.section .tbss,"awT",@nobits\n.p2align 8\n.zero {_BORDER_BYTES}\n.section .note.GNU-stack,"",@progbits\n'

    def produce(target: Path) -> None:
        source = target.parent / "border.s"
        source.write_text(text)
        _run([*toolchain.command, "-c", str(source), "-o", str(target)], text, "emulator border")

    return fetch(knobs.cache_dir / "emulator", digest(toolchain.identity(), text), ".o", produce)


def _build_runtime(toolchain: Toolchain, knobs: Knobs) -> Path:
    """The runtime as a shared library of its own, which all texts' libraries share in a process."""
    sources = sorted(_RUNTIME.glob("*.cpp"))
    flags = [*_COMMON, *_RUNTIME_FLAGS, "-march=native"]
    key = digest(toolchain.identity(), *_sources([_RUNTIME]), *flags)

    def produce(target: Path) -> None:
        objects = [target.parent / f"{source.stem}.o" for source in sources]

        def compile_one(index: int) -> None:
            command = [*toolchain.command, *flags, "-c", str(sources[index]), "-o", str(objects[index])]
            _run(command, "", "emulator runtime")

        with ThreadPoolExecutor(available_cores()) as pool:
            list(pool.map(compile_one, range(len(sources))))
        _run([*toolchain.link_command(objects, target), "-ldl", _NO_UBSAN], "", "emulator runtime")

    return fetch(knobs.cache_dir / "emulator", key, ".so", produce)


def _sources(folders: Sequence[Path]) -> list[bytes]:
    return [path.read_bytes() for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]


def _run(command: list[str], text: str, name: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise TreadleError(f"{command[0]} does not run: {error}", name, "a working C++ compiler") from error
    if done.returncode != 0:
        raise _diagnosis(done.stderr, text, name, command)


def _diagnosis(log: str, text: str, name: str, command: list[str]) -> TreadleError:
    """The compiler's first message, with the line of the text that it is about."""
    found = _DIAGNOSTIC.search(log) or _ASSEMBLER.search(log)
    if found is None:
        first = next(iter(log.strip().splitlines()), "no message")
        error = TreadleError(f"{command[0]} failed: {first}", name)
    else:
        number, lines = int(found["line"]), text.splitlines()
        line = lines[number - 1].strip() if found["file"] == name and 0 < number <= len(lines) else ""
        error = TreadleError(f"{found['message']}{f' in {line!r}' if line else ''}", f"{found['file']}:{number}")
    error.add_note(log[:8000])
    return error
