"""A cache of whole compiled models; the key covers everything that determines the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from treadle.artifact.artifact import Artifact
from treadle.artifact.manifest import Source
from treadle.artifact.store import Store
from treadle.errors import TreadleError
from treadle.support.extensions import extensions_digest
from treadle.support.files import Confinement
from treadle.target.options import CompileOptions

_PACKAGE = Path(__file__).parents[1]
_SOURCES = (".py", ".c", ".h")
_DEPENDENCIES = ("xdsl", "onnx", "numpy")
_CHUNK = 1 << 20
_KIND = "models"


def artifact_key(
    model: bytes,
    shapes: Mapping[str, Sequence[object]],
    target: str,
    toolchain: str,
    precision: str = "f32",
    convolution: str = CompileOptions.convolution,
    decided: str = "",
    constants: str = "",
    weights: str = CompileOptions.weights,
) -> str:
    """The key under which the cache has the result of compiling `model`.

    It covers the model's bytes, the given shapes and constants, the target, the precision, how convolutions are
    computed and weights are stored, the compiler that makes the code (`toolchain`), the origin of the schedules
    (`decided`), this package's own sources and those of what a program has added to it. External data is not covered:
    `find_artifact` compares it.
    """
    hasher = hashlib.sha256()
    given = repr(sorted((name, tuple(shape)) for name, shape in shapes.items()))
    options = precision, convolution, toolchain, decided, constants, weights
    sources = source_fingerprint(), extensions_digest()
    for part in (hashlib.sha256(model).hexdigest(), given, target, *options, *sources):
        hasher.update(f"{len(part)}:{part}".encode())
    return hasher.hexdigest()


def find_artifact(store: Store, key: str, model: Path | None) -> Artifact | None:
    """A cached artifact whose external data, beside the file of its model, did not change; None if there is none. A
    damaged one is removed."""
    for folder in store.folders(_KIND, key):
        try:
            artifact = Artifact(folder)
            artifact.check()
        except TreadleError:
            store.discard(folder)
            continue
        if _same_sources(artifact.manifest.sources, model):
            store.use(folder)
            return artifact
    return None


def store_artifact(store: Store, key: str, write: Callable[[Path], str]) -> Artifact:
    """Caches the artifact that `write(folder)` makes; it returns the digest of its manifest."""
    with store.writing():  # until it is opened, nobody evicts it
        return Artifact(store.add_folder(_KIND, key, write))


@cache
def source_fingerprint(*folders: str) -> str:
    """A digest of this package's sources and of the versions of what it compiles with; `folders`: of these alone."""
    hasher = hashlib.sha256()
    roots = [_PACKAGE / folder for folder in folders] or [_PACKAGE]
    for path in sorted(path for root in roots for path in root.rglob("*") if path.suffix in _SOURCES):
        hasher.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for name in _DEPENDENCIES:
        hasher.update(f"{name} {_version(name)}\n".encode())
    return hasher.hexdigest()


def kernel_fingerprint() -> str:
    """A digest of the sources that decide what a scheduled kernel's code is, and of what a program has added to them:
    twelve digits."""
    own, added = source_fingerprint("backends", "passes", "schedules"), extensions_digest()
    return hashlib.sha256(f"{own} {added}".encode()).hexdigest()[:12] if added else own[:12]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _same_sources(sources: Sequence[Source], model: Path | None) -> bool:
    """Whether the model's external data did not change; files outside of the model's folder are not opened here
    either."""
    if not sources:
        return True
    if model is None:
        return False
    confinement = Confinement.of_model(model)
    try:
        return all(_digest_of_part(confinement, source) == source.sha256 for source in sources)
    except (OSError, TreadleError):
        return False


def _digest_of_part(confinement: Confinement, source: Source) -> str:
    hasher = hashlib.sha256()
    left = source.nbytes
    with confinement.open(source.location, source.location) as file:
        file.seek(source.offset)
        while left > 0 and (chunk := file.read(min(left, _CHUNK))):
            hasher.update(chunk)
            left -= len(chunk)
    return hasher.hexdigest()
