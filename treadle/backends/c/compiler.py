"""C text to a shared library: one object a translation unit, compiled in parallel, cached by content."""

from __future__ import annotations

import functools
import importlib.util
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from treadle.artifact.store import digest, store_of
from treadle.backends.interface import has_interface
from treadle.backends.timeline import now
from treadle.environment import Environment, available_cores, load_environment, with_english_messages
from treadle.errors import TreadleError
from treadle.target import INSTRUCTION_SETS, NATIVE, TARGETS, Target
from treadle.target.host import native_isa

# Finding the C compiler, and the flags it is called with.

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
WASM = "wasm32"
"""The architecture of WebAssembly: addresses, and so `long`, have 32 bits there, and libraries are modules."""
_LIBRARIES = ("-lpthread", "-lm", "-ldl")
_STACK_BYTES = 8 << 20
"""Of a module: kernels' local arrays stay below half of it."""
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

    @property
    def is_wasm(self) -> bool:
        """Whether it compiles for WebAssembly."""
        return any(part.startswith(WASM) for part in self.command)

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

    def link_command(self, objects: list[Path], target: Path, exported: Sequence[str] = ()) -> list[str]:
        """The command line that links objects to a shared library; flags of the environment may name a runtime.

        exported: what a module of WebAssembly lets others see; a shared library shows all names
        """
        if self.is_wasm:
            seen = [f"-Wl,--export={name}" for name in exported]
            options = ("-mexec-model=reactor", f"-Wl,-z,stack-size={_STACK_BYTES}", "-s")
            return [*self.command, *self.more_flags, *options, *seen, *map(str, objects), "-o", str(target), "-lm"]
        return [*self.command, *self.more_flags, "-shared", *map(str, objects), "-o", str(target), *_LIBRARIES]

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
    aarch64-linux-gnu-gcc, else the ziglang wheel. Zig, which compiles for all, is told the architecture.

    Raises TreadleError if there is none, or if the one that was asked for does not answer to --version.
    """
    target = target or TARGETS["cpu"]
    architecture = _architecture(target)
    command = _aimed(environment.c_compiler, architecture) or _installed_compiler(architecture)
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
    if _architecture(target) == WASM:
        return (f"-march=generic+{target.isa}" if _is_zig(command) else f"-m{target.isa}", "-fno-pic")
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


def _is_here(architecture: str) -> bool:
    return architecture == _ARCHITECTURES.get(platform.machine(), platform.machine())


def _triple(architecture: str) -> str:
    """What cross compilers call a system of the architecture; WebAssembly's has functions of C alone."""
    return f"{architecture}-wasi" if architecture == WASM else f"{architecture}-linux-gnu"


def _aimed(command: tuple[str, ...], architecture: str) -> tuple[str, ...]:
    """A compiler that was asked for, told another architecture than this machine's if it is zig and nobody did."""
    if not command or _is_here(architecture) or not _is_zig(command) or "-target" in command:
        return command
    return (*command, "-target", _triple(architecture))


def _installed_compiler(architecture: str) -> tuple[str, ...]:
    is_here, triple = _is_here(architecture), _triple(architecture)
    for name in ("cc", "gcc", "clang") if is_here else (f"{triple}-gcc",):
        path = shutil.which(name)
        if path is not None:
            return (path,)
    if importlib.util.find_spec("ziglang") is not None:
        return _aimed((sys.executable, "-m", "ziglang", "cc"), architecture)
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


# Calls of C compilers, and why one failed: each cause has its own remedy.

WORKING_COMPILER = (
    "TREADLE_CC or CC naming a C compiler",
    "cc, gcc or clang on the PATH",
    "the ziglang wheel (pip install ziglang)",
)
"""What is accepted where no compiler works."""

_TEXT = "C11 with GNU extensions that calls the functions of treadle/backends/c/include/treadle.h"
_ROOM = "more room in the folder for temporary files (TMPDIR) and in the cache's (TREADLE_CACHE_DIR)"
_MEMORY = "more free memory, or fewer compilers at a time (one for each CPU of the process)"
_OTHER = "another version of the compiler (TREADLE_CC)"
_CAUSES = (
    (r"no space left on device|disk quota exceeded|file too large|file size limit exceeded", _ROOM),
    (r"cannot create temporary file|read-only file system", "TMPDIR naming a folder that can be written"),
    (r"killed signal|memory exhausted|out of memory|cannot allocate memory|: killed", _MEMORY),
    (r"internal compiler error|please submit a .*bug report", _OTHER),
    (
        r"-march|unknown (?:target )?cpu|unknown architecture",
        "a compiler that knows {march}, such as the ziglang wheel's (pip install ziglang)",
    ),
    (
        r"(?:unrecognized|unknown|unsupported|invalid) .*(?:option|argument)",
        "options that the compiler knows (TREADLE_CFLAGS, TREADLE_CC), or gcc or clang",
    ),
    (
        r"fatal error: \W*[\w/]+\.h\W+(?:no such file|file not found)|cannot find (?:-l|\S*crt)|(?:cannot|to) execute",
        "a complete compiler: the C library's headers (package libc6-dev), an assembler and a linker (binutils)",
    ),
    (r"undefined (?:reference|symbol)|file format not recognized|file truncated", "a compiler whose objects are whole"),
)  # fmt: skip
"""What compilers and linkers write, ignoring case, and what is accepted then; the first match counts."""
_SIGNALS = {signal.SIGKILL: _MEMORY, signal.SIGXFSZ: _ROOM}
_SOURCE_LINE = re.compile(r"\s*\d*\s*\|")
_FIRST_SIGNAL_STATUS = 128
_LOG_LINES = 40


Observer = Callable[[str, int, int], None]
"""Called after each call of a compiler, by the thread that waited for it, with what was compiled, and when it began and
ended: nanoseconds of CLOCK_MONOTONIC."""

_observers: list[Observer] = []


@contextmanager
def observed_calls(observer: Observer) -> Generator[None]:
    """Meanwhile `observer` is told of all calls of compilers in this process."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def call(command: Sequence[str], what: str) -> subprocess.CompletedProcess[str]:
    """Runs a compiler; TreadleError if it does not start, or a signal ends it. `what` it compiles is named there."""
    start = now()
    try:
        return _call(command, what)
    finally:
        for observer in tuple(_observers):
            observer(what, start, now())


def _call(command: Sequence[str], what: str) -> subprocess.CompletedProcess[str]:
    variables = with_english_messages()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=variables)
    except OSError as error:
        raise TreadleError(f"{command[0]} does not run: {error}", what, WORKING_COMPILER) from error
    number = -done.returncode if done.returncode < 0 else done.returncode - _FIRST_SIGNAL_STATUS
    if number in set(signal.Signals):
        ended = signal.Signals(number)
        raise _noted(
            TreadleError(f"{command[0]} was ended by {ended.name}", what, _SIGNALS.get(ended, _OTHER)), command
        )
    return done


def write(command: Sequence[str], made: Path, what: str) -> None:
    """Runs a compiler that writes a file; TreadleError if it fails, or does not write it."""
    done = call(command, what)
    if done.returncode != 0:
        raise failure(command, done.stderr or f"exit status {done.returncode}", what)
    if not made.is_file() or made.stat().st_size == 0:
        raise _noted(TreadleError(f"{command[0]} reported success and wrote nothing", what, WORKING_COMPILER), command)


def failure(command: Sequence[str], log: str, what: str) -> TreadleError:
    """The error of a call that wrote this: the line that says why, and what is accepted; the log is a note."""
    lines = [line for line in log.splitlines() if line.strip()] or ["it wrote no message"]
    said = [line for line in lines if not _SOURCE_LINE.match(line)]
    for pattern, accepted in _CAUSES:
        first = next((line for line in said if re.search(pattern, line, re.IGNORECASE)), None)
        if first is not None:
            march = next((part for part in reversed(command) if part.startswith("-march=")), "the instruction set")
            return _failed(command, first, lines, what, accepted.format(march=march))
    first = next((line for line in said if "error" in line), lines[0])
    return _failed(command, first, lines, what, _TEXT)


def _failed(command: Sequence[str], line: str, lines: Sequence[str], what: str, accepted: str) -> TreadleError:
    error = _noted(TreadleError(f"{command[0]} failed: {line.strip()}", what, accepted), command)
    error.add_note("\n".join(lines[:_LOG_LINES]))
    return error


def _noted(error: TreadleError, command: Sequence[str]) -> TreadleError:
    error.add_note(" ".join(command))
    return error


_ALL_DEFINED = ("-Wl,-z,defs",) if sys.platform == "linux" else ()
"""Objects that call what none defines are an error of the linker, not of the first call."""


@dataclass(frozen=True)
class Unit:
    """One C translation unit. `name` names it in errors; it need not be a file name."""

    name: str
    text: str
    code: str | None = None
    """The text without comments, if it is known."""

    @property
    def decisive(self) -> str:
        """What the compiled code depends on, and so keys of caches do."""
        return self.text if self.code is None else self.code


def pool_unit() -> Unit:
    """The thread pool that every library carries (runtime/pool.c)."""
    return Unit("treadle_pool", (Path(__file__).parent / "runtime" / "pool.c").read_text())


def build_library(
    units: Sequence[Unit],
    environment: Environment | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    target: Target | None = None,
) -> Path:
    """Compiles the units for `target` (default: this machine) and links them; the path of the shared library.

    The thread pool and the headers are this package's; with `headers` (texts by name), only the given units are
    compiled, with those headers, whose names may be paths.
    """
    all_units = [*units, pool_unit()] if headers is None else units
    chosen = environment or load_environment()
    with store_of(chosen).writing():  # until the objects are linked, nobody evicts them
        return link(compile_objects(all_units, chosen, headers=headers, target=target), chosen, target=target)


def compile_objects(
    units: Sequence[Unit],
    environment: Environment | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    target: Target | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> list[Path]:
    """One object file a unit, in the order of the units, at most one compiler process a core at a time.

    They are compiled for `target` (default: this machine). `headers` (texts by name) replace this package's.
    `meanwhile` is called after they have started, before they are awaited. Raises
    TreadleError that names the unit and the compiler's first error; the log is attached as a note.
    """
    chosen = environment or load_environment()
    toolchain = find_toolchain(chosen, target)
    found = _headers() if headers is None else [part for item in sorted(headers.items()) for part in item]
    salt = digest(toolchain.identity(), *found)
    store = store_of(chosen)

    def compile_unit(unit: Unit) -> Path:
        key = digest(salt, unit.decisive)
        return store.fetch("objects", key, ".o", lambda target: _compile(toolchain, unit, target, headers))

    with ThreadPoolExecutor(max_workers=available_cores()) as workers:
        objects = workers.map(compile_unit, units)
        if meanwhile is not None:
            meanwhile()
        return list(objects)


def link(
    objects: Sequence[Path],
    environment: Environment | None = None,
    *,
    target: Target | None = None,
    interface: str | None = None,
    exported: Sequence[str] = (),
) -> Path:
    """A shared library of the objects, which define all that they call; it contains the text `interface`.
    A module of WebAssembly shows what is `exported`.

    Raises TreadleError with the linker's message, and if the text is missing. Such objects leave the cache: the
    compiler that wrote them may be repaired without another version.
    """
    chosen = environment or load_environment()
    toolchain = find_toolchain(chosen, target)
    paths = list(objects)
    key = digest(toolchain.identity(), *exported, *(path.read_bytes() for path in paths))
    store = store_of(chosen)

    def produce(made: Path) -> None:
        command = toolchain.link_command(paths, made, exported)
        write([*command, *(() if toolchain.is_wasm else _ALL_DEFINED)], made, "link")

    try:
        made = store.fetch("libraries", key, ".so", produce)
        if interface is not None and not has_interface(made.read_bytes(), interface):
            paths.append(made)
            message = f"{toolchain.command[0]} reported success and wrote a library without the model's interface"
            raise TreadleError(message, "link", WORKING_COMPILER)
    except TreadleError:
        for path in paths:
            store.discard(path)
        raise
    return made


def _headers() -> list[bytes]:
    return [path.read_bytes() for folder in INCLUDE_DIRECTORIES for path in sorted(folder.glob("*.h"))]


def _compile(toolchain: Toolchain, unit: Unit, target: Path, headers: Mapping[str, str] | None) -> None:
    stem = re.sub(r"[^A-Za-z0-9_]", "_", unit.name)[:80] or "unit"
    source = target.parent / f"{stem}.c"
    source.write_text(unit.text)
    folder = target.parent / "headers"
    for name, text in (headers or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    includes = INCLUDE_DIRECTORIES if headers is None else (folder,)
    write(toolchain.compile_command(source, target, includes, unit.text), target, unit.name)
