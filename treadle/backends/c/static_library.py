"""A cpu artifact as a C library: `libNAME.a`, `NAME.h`, `NAME.weights` and a program, `run_NAME.c`."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from treadle.artifact import Artifact
from treadle.backends.c.compiler import Unit, compile_objects
from treadle.backends.c.compiler_call import write
from treadle.backends.c.library_header import arena_bytes, library_header, tensor_tables
from treadle.backends.c.open_artifact import artifact_text
from treadle.backends.c.toolchain import find_toolchain
from treadle.backends.file_names import file_names
from treadle.cpuid import FEATURES
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.manifest import WROTE_IT, Manifest
from treadle.passes.lower.identifiers import identifier
from treadle.progress import Progress, no_progress
from treadle.shapes import Dim, Shapes, normalized
from treadle.target import TARGETS, Target
from treadle.weights import ALIGNMENT, FOLDER

_WHERE = "a C library"
_SOURCES = Path(__file__).parent / "library"
_FUNCTION = re.compile(r"^void (\w+)\(void \*const \*args, long worker, long workers\)", re.MULTILINE)
_POOL = tuple(
    f"treadle_pool_{word}" for word in ("create", "create_on", "run", "record", "workers", "layout", "destroy")
)
_HOST = ("treadle_run", "treadle_interface")
_POOL_UNIT = "pool"
_BASE = {"x86_64": "sse2", "AMD64": "sse2", "aarch64": "neon", "arm64": "neon"}
"""What code runs on that asks the processor what it has."""


def check_library(target: Target, shapes: Shapes, name: str) -> None:
    """TreadleError for what cannot be compiled to a C library, and for a name that cannot begin C's names."""
    if target.is_cuda:
        raise TreadleError(f"target {target.name}", _WHERE, "a cpu target")
    for given, extents in normalized(shapes).items():
        if any(isinstance(extent, Dim) for extent in extents):
            raise TreadleError(f"the shape of {given} has a range", _WHERE, "one extent for each dimension")
    if identifier(name) != name:
        raise TreadleError(f"{name!r} cannot begin names in C", "--name", f"a C identifier, such as {identifier(name)}")


def library_files(name: str) -> tuple[str, ...]:
    """The files of a library; the last one is there if the model has constants."""
    return f"lib{name}.a", f"{name}.h", f"run_{name}.c", f"{name}.weights"


def write_library(
    artifact: Artifact, target: Target, name: str, folder: Path, progress: Progress = no_progress
) -> None:
    """Writes the library of an artifact that was compiled for `target` into a folder.

    All names that the linker sees begin with `name`, so that a program may have several libraries. TreadleError for an
    artifact with ranges of extents, or of which a file is missing or changed, and what the compiler raises.
    """
    manifest = artifact.manifest
    if manifest.symbols:
        ranges = ", ".join(map(str, manifest.symbols))
        raise TreadleError(f"the model has ranges of extents: {ranges}", _WHERE, "one shape for each input")
    progress("writing weights", 0.0)
    offsets, size, digest = _write_weights(artifact, folder / f"{name}.weights")
    header = library_header(name, manifest, size)
    (folder / f"{name}.h").write_text(header)
    (folder / f"run_{name}.c").write_text((_SOURCES / "run_model.c").read_text().replace("MODEL", name))
    sources, headers = artifact_text(artifact)
    if not sources:
        raise TreadleError("the artifact has no C text", artifact.folder, WROTE_IT)
    progress("compiling C", 0.2)
    objects = compile_objects(_renamed(sources, name), headers=headers, target=target)
    entry = _entry(name, manifest, header, offsets, size, digest)
    headers["sha256.h"] = (_SOURCES / "sha256.h").read_text()
    base = TARGETS[_BASE[manifest.machine.split()[0]]]
    objects += compile_objects([entry], headers=headers, target=base)
    progress("writing the library", 0.9)
    _archive(objects, [*sources, "library"], folder / f"lib{name}.a", target)


def _write_weights(artifact: Artifact, path: Path) -> tuple[list[int], int, str]:
    """Writes the constants, equal ones once; the byte of each, the size of all, and their sha256. None: no file."""
    positions: dict[str, int] = {}
    hasher, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for tensor in artifact.manifest.constants:
            if tensor.name in positions:
                continue
            data = artifact.read(f"{FOLDER}/{tensor.name}")
            padded = data + bytes(-len(data) % ALIGNMENT)
            positions[tensor.name] = size
            file.write(padded)
            hasher.update(padded)
            size += len(padded)
    if size == 0:
        path.unlink()
    return [positions[tensor.name] for tensor in artifact.manifest.constants], size, hasher.hexdigest()


def _renamed(sources: dict[str, str], name: str) -> list[Unit]:
    """The units with `name` before the names that they share; the pool, which includes system headers, has its own
    alone."""
    kernels = [found for text in sources.values() for found in _FUNCTION.findall(text)]
    units: list[Unit] = []
    for stem, text in sources.items():
        shared = _POOL if stem == _POOL_UNIT else (*_POOL, *_HOST, *kernels)
        units.append(Unit(stem, f"{_renaming(name, shared)}\n{text}"))
    return units


def _renaming(name: str, words: Sequence[str]) -> str:
    return "\n".join(f"#define {word} {name}__{word}" for word in words)


def _entry(name: str, manifest: Manifest, header: str, offsets: Sequence[int], size: int, digest: str) -> Unit:
    """The unit with the functions of the header."""
    _, *features = manifest.machine.split()
    needs = ", ".join([*map(_need, features), "{NULL, 0, 0, 0, 0, 0}"])
    definitions = {
        "MODEL": name,
        "CONSTANTS": str(len(offsets)),
        "OFFSETS": f"{{{', '.join(map(str, offsets)) or '0'}}}",
        "WEIGHTS_BYTES": str(size),
        "WEIGHTS_DIGEST": f"{{{', '.join(map(str, bytes.fromhex(digest)))}}}",
        "ARENA_BYTES": str(arena_bytes(manifest)),
        "NEEDS": f"{{{needs}}}",
    }
    lines = [f"#define {word} {text}" for word, text in definitions.items()]
    renaming = _renaming(name, (*_POOL, *_HOST))
    text = (_SOURCES / "library.c").read_text()
    return Unit("library", "\n".join([renaming, header, tensor_tables(name, manifest), *lines, text]))


def _need(word: str) -> str:
    """A feature as library.c asks the processor for it."""
    told = FEATURES.get(word)
    if told is None:
        return f'{{"{word}", 0, 0, -1, 0, 0}}'
    return f'{{"{word}", {told.leaf}u, {told.subleaf}, {told.register}, {told.bit}, {told.state}}}'


def _archive(objects: Sequence[Path], names: Sequence[str], path: Path, target: Target) -> None:
    """A static library of the objects, whose members have these names."""
    archiver = find_toolchain(load_environment(), target).archiver()
    if archiver is None:
        raise TreadleError("there is no ar", _WHERE, "the package binutils, or the ziglang wheel")
    members = path.parent / "members"
    members.mkdir()
    files = [members / f"{stem}.o" for stem in file_names(names)]
    for file, made in zip(files, objects, strict=True):
        shutil.copyfile(made, file)
    write([*archiver, "rcsD", str(path), *map(str, files)], path, str(path))
    shutil.rmtree(members)


__all__ = ["check_library", "library_files", "write_library"]
