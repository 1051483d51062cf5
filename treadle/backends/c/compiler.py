"""C text to a shared library: one object a translation unit, compiled in parallel, cached by content."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from treadle.backends.c.toolchain import INCLUDE_DIRECTORIES, Toolchain, find_toolchain
from treadle.environment import Environment, available_cores, load_environment
from treadle.errors import TreadleError
from treadle.store import digest, store_of
from treadle.target import Target

_LOG_LINES = 40
_ACCEPTED = "C11 with GNU extensions that calls the functions of treadle/backends/c/include/treadle.h"


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
    compiled, with those headers.
    """
    all_units = [*units, pool_unit()] if headers is None else units
    chosen = environment or load_environment()
    with store_of(chosen).writing():  # until the objects are linked, nobody evicts them
        return link(compile_objects(all_units, chosen, headers=headers, target=target), chosen)


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


def link(objects: Sequence[Path], environment: Environment | None = None) -> Path:
    """A shared library of the objects; raises TreadleError with the linker's first error."""
    chosen = environment or load_environment()
    toolchain = find_toolchain(chosen)
    paths = list(objects)
    key = digest(toolchain.identity(), *(path.read_bytes() for path in paths))

    def produce(target: Path) -> None:
        _run(toolchain.link_command(paths, target), "link")

    return store_of(chosen).fetch("libraries", key, ".so", produce)


def _headers() -> list[bytes]:
    return [path.read_bytes() for folder in INCLUDE_DIRECTORIES for path in sorted(folder.glob("*.h"))]


def _compile(toolchain: Toolchain, unit: Unit, target: Path, headers: Mapping[str, str] | None) -> None:
    stem = re.sub(r"[^A-Za-z0-9_]", "_", unit.name)[:80] or "unit"
    source = target.parent / f"{stem}.c"
    source.write_text(unit.text)
    for name, text in (headers or {}).items():
        (target.parent / name).write_text(text)
    includes = INCLUDE_DIRECTORIES if headers is None else (target.parent,)
    _run(toolchain.compile_command(source, target, includes, unit.text), unit.name)


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise TreadleError(f"{command[0]} does not run: {error}", what, "a working C compiler") from error
    if done.returncode == 0:
        return
    lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
    first = next((line for line in lines if "error" in line), lines[0])
    error = TreadleError(f"{command[0]} failed: {first.strip()}", what, _ACCEPTED)
    error.add_note(" ".join(command))
    error.add_note("\n".join(lines[:_LOG_LINES]))
    raise error
