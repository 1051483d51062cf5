"""Finding the C compiler, and the flags it is called with."""

from __future__ import annotations

import functools
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.backends.c.compiler_call import WORKING_COMPILER
from treadle.environment import Environment, with_english_messages
from treadle.errors import TreadleError
from treadle.host import native_isa
from treadle.instruction_sets import INSTRUCTION_SETS, NATIVE
from treadle.target import TARGETS, Target

_HERE = Path(__file__).parent
INCLUDE_DIRECTORIES = (_HERE / "include", _HERE / "runtime")

# float32 means float32: the two math flags drop errno and the exception flags, which nobody reads, and change no value.
# A product that is added is rounded once, with the sum, where the processor has an instruction for that: clang's
# default depends on how the text is divided into statements. Integers wrap by a flag, not by casts in the text: where
# accumulators are cast in every step of a loop, GCC 12 leaves out the last step of some. docs/numerics.md says more.
_FLAGS = (
    "-std=gnu11", "-O3", "-fwrapv", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC",
    "-Wno-psabi", "-Werror=implicit-function-declaration",
)  # fmt: skip
_CLANG_ELSEWHERE = re.compile(r"^Target: (?!x86_64|i\d86)", re.MULTILINE)
_BRANCH = re.compile(r"\bif \(| \? |&&|\|\|")
_LANES_APART = re.compile(r"load_strided_v.*load_strided_v", re.DOTALL)
_ALL_FLAGS = "if (_Float16 load_strided_v load_strided_v"
"""A text that every flag is for."""
_WIDEST = 64
"""Bytes of the widest vectors of x86-64; where kernels do not use vectors themselves, the compiler chooses."""
_ARCHITECTURES = {"AMD64": "x86_64", "arm64": "aarch64"}
"""What systems call them, and what Linux does."""


@dataclass(frozen=True)
class Toolchain:
    """A C compiler as it is called, and everything about it that decides what its output is."""

    command: tuple[str, ...]
    version: str
    """All that `command --version` prints."""
    flags: tuple[str, ...]
    cpu: str
    """The processor that -march=native means; empty where no flag depends on it."""
    more_flags: tuple[str, ...] = ()
    """Those of the environment, which are among `flags`."""

    def compile_command(self, source: Path, target: Path, includes: Sequence[Path], text: str = "") -> list[str]:
        """The command line that compiles one source file to an object; `includes` are the folders of headers.

        text: of the source, where flags depend on it
        """
        folders = [f"-I{directory}" for directory in includes]
        return [*self.command, *self.flags, *self._flags_of(text), *folders, "-c", str(source), "-o", str(target)]

    def _flags_of(self, text: str) -> tuple[str, ...]:
        """float16 means float16: where the processor has no instructions for it, compilers keep several operations in
        float32 unless they are told not to; clang does so for x86 alone, and rejects the flag elsewhere. GCC 12 turns a
        branch that stores a _Float16 or 0 into an instruction that no assembler takes.

        GCC makes masked loads and stores of branches in loops, of which 12 loses some, or takes elements of other rows,
        with AVX-512 and with AVX2 (`tests/backends/c/test_selections.py`). Where a text has branches, it is told to
        keep them. Those of functions in headers read no memory, and without them loops stay scalar: a product of bytes
        with Gelu behind it took six times as long.

        Of several vectors whose lanes lie some distance apart, GCC 12 reads neighbours two by two where it vectorises
        straight code, and puts the vectors together on the stack (docs/adr/0060).
        """
        is_gcc, flags = _is_gcc(self.version), list[str]()
        if is_gcc and _BRANCH.search(text):
            flags.append("-fno-tree-loop-if-convert")
        if is_gcc and _LANES_APART.search(text):
            flags.append("-fno-tree-slp-vectorize")
        if "_Float16" in text:
            is_known = _major(self.version) >= (12 if is_gcc else 16)
            if is_known and not _CLANG_ELSEWHERE.search(self.version):
                flags.append("-fexcess-precision=16")
            if is_gcc:
                flags.append("-fno-if-conversion")
        return tuple(flags)

    def link_command(self, objects: list[Path], target: Path) -> list[str]:
        """The command line that links objects to a shared library; flags of the environment may name a runtime."""
        return [*self.command, *self.more_flags, "-shared", *map(str, objects), "-o", str(target), "-lpthread", "-lm"]

    def archiver(self) -> tuple[str, ...] | None:
        """The `ar` of the compiler's architecture; zig has its own. None if there is none."""
        if "cc" in self.command and _is_zig(self.command):
            return (*self.command[: self.command.index("cc")], "ar")
        prefix = re.fullmatch(r"(.+-)?(?:gcc|cc|clang)(?:-\d+)?", Path(self.command[0]).name)
        found = shutil.which(f"{(prefix and prefix[1]) or ''}ar") or shutil.which("ar")
        return None if found is None else (found,)

    def identity(self) -> str:
        """Text that differs wherever the same C text could become a different object."""
        return "\n".join((*self.command, self.version, *self.flags, *self._flags_of(_ALL_FLAGS), self.cpu))


def find_toolchain(environment: Environment, target: Target | None = None) -> Toolchain:
    """The toolchain to compile for a target: the environment's, else the system's compiler, else the ziglang wheel.

    By default it compiles for this machine. For another architecture it is an installed cross compiler, such as
    aarch64-linux-gnu-gcc, else the ziglang wheel.

    Raises TreadleError if there is none, or if the one that was asked for does not answer to --version.
    """
    target = target or TARGETS["cpu"]
    command = environment.c_compiler or _installed_compiler(_architecture(target))
    cpu = cpu_identity() if target.isa == NATIVE else ""
    version = _version(command)
    machine = _machine_flags(target, command, version)
    return Toolchain(command, version, (*_FLAGS, *machine, *environment.c_flags), cpu, environment.c_flags)


def _architecture(target: Target) -> str:
    """The architecture that a target's code is for."""
    machine = platform.machine()
    return INSTRUCTION_SETS[target.isa][0] if target.isa in INSTRUCTION_SETS else _ARCHITECTURES.get(machine, machine)


def _machine_flags(target: Target, command: Sequence[str], version: str) -> tuple[str, ...]:
    """The instruction set, and no wider vectors than the target has where the instruction set would allow them. GCC 12
    and later copy structures with the widest registers all the same, unless they are told not to."""
    narrow = _architecture(target) == "x86_64" and target.vector_bytes < _WIDEST
    options = ("prefer-vector-width", "move-max", "store-max") if _is_gcc(version, 12) else ("prefer-vector-width",)
    width = [f"-m{option}={8 * target.vector_bytes}" for option in options] if narrow else []
    isa = native_isa() if target.isa == NATIVE else target.isa
    return (f"-march={_march(isa, command)}", *width)


def _is_gcc(version: str, oldest: int = 0) -> bool:
    """Whether the text of `--version` is that of GCC, of some major version or a later one."""
    return "Free Software Foundation" in version and _major(version) >= oldest


def _major(version: str) -> int:
    """The first number of a version; 0 where it cannot be read."""
    found = re.search(r"(?:version|\)) (\d+)", version)
    return 0 if found is None else int(found[1])


def _is_zig(command: Sequence[str]) -> bool:
    return not {"zig", "ziglang"}.isdisjoint(Path(part).stem for part in command)


def _march(isa: str, command: Sequence[str]) -> str:
    """The instruction set as a compiler calls it: zig knows processors only, with underscores in their names."""
    if not _is_zig(command):
        return isa
    return "generic" if isa == "armv8-a" else isa.replace("-", "_")


def _installed_compiler(architecture: str) -> tuple[str, ...]:
    is_here = architecture == _ARCHITECTURES.get(platform.machine(), platform.machine())
    triple = f"{architecture}-linux-gnu"
    for name in ("cc", "gcc", "clang") if is_here else (f"{triple}-gcc",):
        path = shutil.which(name)
        if path is not None:
            return (path,)
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc", *(() if is_here else ("-target", triple)))
    if is_here:
        raise TreadleError("no C compiler found", "cpu target", WORKING_COMPILER)
    accepted = ("the ziglang wheel (pip install ziglang)", f"{triple}-gcc on the PATH", "TREADLE_CC naming one")
    raise TreadleError(f"no C compiler for {architecture} found on this {platform.machine()}", "cpu target", accepted)


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    try:
        answer = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, check=True, env=with_english_messages()
        )
    except (OSError, subprocess.SubprocessError) as error:
        message = f"the C compiler {' '.join(command)!r} does not run: {error}"
        raise TreadleError(message, "cpu target", WORKING_COMPILER) from error
    return answer.stdout


@functools.cache
def cpu_identity() -> str:
    """Text that tells this machine's processor from others: architecture, model, instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))][:2]
    return "\n".join((platform.machine(), *first))
