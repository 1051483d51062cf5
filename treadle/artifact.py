"""A compiled model as a folder: what its manifest says, and how a folder is checked and put in place.

| file                  | what                                                                    |
|-----------------------|-------------------------------------------------------------------------|
| `manifest.json`       | this module's `Manifest`, with the sha256 of every other file           |
| `module.mlir`         | the lowered IR, as text                                                 |
| `weights.safetensors` | the constants, named `0`, `1`, ...; equal ones are stored once          |
| `kernels/`            | the text of every kernel: `.c` and `.h`, or `.cu`, `.h` and `.cubin`    |
| `model.so`            | `cpu` only: the kernels and the thread pool, compiled                   |

There is no pickle and nothing is executed before its digest was compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import ml_dtypes

from treadle.errors import TreadleError

FORMAT = 4
BFLOAT16 = ml_dtypes.bfloat16.__name__
"""A dtype name beyond NumPy's own; NumPy reads it from the import of ml_dtypes on."""
MANIFEST = "manifest.json"
_ACCEPTED = "a folder that `treadle compile` or CompiledModel.save wrote, unchanged"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Tensor:
    """An input, an output or a constant: name (a constant's: its key in the weights), shape, NumPy dtype name."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Source:
    """A part of an external-data file that a model was compiled from.

    location: the file's path relative to the model, as the model has it
    sha256:   digest (hex) of the `nbytes` bytes from `offset` on
    """

    location: str
    offset: int
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that is needed to run the folder's kernels.

    kind:     "cpu" or "cuda"
    precision: of products, convolutions and attention: what the model was compiled with
    machine:  digest of the processor that `model.so` was compiled for; empty on cuda
    launches: cuda only; the kernels in order, as plain values that the backend reads
    sources:  the external data that was read
    files:    sha256 of each other file of the folder
    """

    target: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    arena_bytes: int
    zeroed_bytes: int = 0
    precision: str = "f32"
    machine: str = ""
    launches: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    sources: tuple[Source, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str])


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `manifest.json`, with the digests of the files that are in the folder now."""
    files = {
        path.relative_to(folder).as_posix(): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    content = {"format": FORMAT, **asdict(manifest), "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_manifest(folder: Path, *, check_files: bool = True) -> Manifest:
    """The manifest of an artifact; raises TreadleError if it is none, or a file's digest does not match."""
    path = folder / MANIFEST
    try:
        content = cast("dict[str, Any]", json.loads(path.read_text()))
    except OSError as error:
        raise TreadleError(f"no compiled model: {error.strerror}", path, _ACCEPTED) from error
    except ValueError as error:
        raise TreadleError("the manifest is damaged", path, _ACCEPTED) from error
    manifest = _parse(content, path)
    if check_files:
        _check_files(folder, manifest.files)
    return manifest


def file_digest(path: Path) -> str:
    """The sha256 (hex) of a file's bytes."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def publish(final: Path, write: Callable[[Path], None], *, replace: Callable[[Path], bool] | None = None) -> None:
    """Puts what `write(folder)` makes under the name `final`, in one step; nothing is left behind on failure.

    An existing folder is replaced if it is empty or `replace(final)` holds (default: it is an artifact). Raises
    TreadleError where it is not, and where the place cannot be written.
    """
    check_replaceable(final, replace)
    scratch: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}-"))
        made = scratch / "new"
        made.mkdir()
        write(made)
        if final.exists():
            final.rename(scratch / "old")
        made.rename(final)
    except OSError as error:
        reason = error.strerror or error
        raise TreadleError(f"cannot write: {reason}", final, "a folder in a place that can be written") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def check_replaceable(final: Path, replace: Callable[[Path], bool] | None = None) -> None:
    """Raises TreadleError unless `publish` may put something under the name `final`."""
    nearest = next(parent for parent in (final.absolute(), *final.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise TreadleError(f"{nearest} is a file", final, "a folder that is new, empty, or an earlier result")
    if not os.access(nearest if nearest != final.absolute() else nearest.parent, os.W_OK):
        raise TreadleError("cannot write: Permission denied", final, "a folder in a place that can be written")
    may_replace = is_artifact if replace is None else replace
    if final.is_dir() and any(final.iterdir()) and not may_replace(final):
        raise TreadleError("the folder holds other files", final, "a folder that is new, empty, or an earlier result")


def is_artifact(folder: Path) -> bool:
    """Whether a folder holds a manifest of this format; its files are not checked."""
    try:
        read_manifest(folder, check_files=False)
    except TreadleError:
        return False
    return True


def _parse(content: object, path: Path) -> Manifest:
    fields = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if fields.get("format") != FORMAT:
        raise TreadleError(f"format {fields.get('format')!r} is unknown", path, f"format {FORMAT}")
    try:
        manifest = Manifest(
            target=str(fields["target"]),
            kind=str(fields["kind"]),
            inputs=_tensors(fields["inputs"]),
            outputs=_tensors(fields["outputs"]),
            constants=_tensors(fields["constants"]),
            arena_bytes=int(fields["arena_bytes"]),
            zeroed_bytes=int(fields["zeroed_bytes"]),
            precision=str(fields["precision"]),
            machine=str(fields["machine"]),
            launches=tuple(fields["launches"]),
            metadata=dict(fields["metadata"]),
            sources=tuple(Source(**entry) for entry in fields["sources"]),
            files=dict(fields["files"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TreadleError(f"the manifest is damaged: {error!r}", path, _ACCEPTED) from error
    if manifest.kind not in ("cpu", "cuda"):
        raise TreadleError(f"kind {manifest.kind!r} is unknown", path, "cpu, cuda")
    return manifest


def _tensors(entries: list[dict[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(str(e["name"]), tuple(map(int, e["shape"])), str(e["dtype"])) for e in entries)


def _check_files(folder: Path, files: Mapping[str, str]) -> None:
    """Raises TreadleError for a listed file that is missing, changed, or outside of the folder."""
    for name, expected in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise TreadleError("the manifest names a file outside of its folder", path, _ACCEPTED)
        try:
            found = file_digest(path)
        except OSError as error:
            raise TreadleError(f"a file is missing: {error.strerror}", path, _ACCEPTED) from error
        if found != expected:
            raise TreadleError("the file is damaged: its digest differs from the manifest's", path, _ACCEPTED)
