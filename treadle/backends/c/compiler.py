"""C text to a shared library: one object a translation unit, compiled in parallel, cached by content."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from treadle.backends.c.compiler_call import WORKING_COMPILER, write
from treadle.backends.c.toolchain import INCLUDE_DIRECTORIES, Toolchain, find_toolchain
from treadle.backends.interface import has_interface
from treadle.environment import Environment, available_cores, load_environment
from treadle.errors import TreadleError
from treadle.store import digest, store_of
from treadle.target import Target

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
) -> Path:
    """A shared library of the objects, which define all that they call; it contains the text `interface`.

    Raises TreadleError with the linker's message, and if the text is missing. Such objects leave the cache: the
    compiler that wrote them may be repaired without another version.
    """
    chosen = environment or load_environment()
    toolchain = find_toolchain(chosen, target)
    paths = list(objects)
    key = digest(toolchain.identity(), *(path.read_bytes() for path in paths))
    store = store_of(chosen)

    def produce(made: Path) -> None:
        command = toolchain.link_command(paths, made)
        write([*command, *_ALL_DEFINED], made, "link")

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
