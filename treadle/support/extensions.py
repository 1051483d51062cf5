"""What a program adds to Treadle, or replaces in it, before it compiles: templates of its own, converters of its own.

Their code decides what a model becomes, as Treadle's does, so that the keys of caches contain a digest of it. A digest
is of the files as they are when the code is defined: what is edited afterwards is not what runs.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_PACKAGE = "treadle"
_digests: dict[object, str] = {}
"""By a class or function from outside: the digest of its sources."""
_added: list[str] = []
_registries: list[tuple[Mapping[str, object], dict[str, object]]] = []
"""Registries, and what each holds of Treadle's own."""


def note_source(defined: type | Callable[..., Any]) -> None:
    """Takes the digest of a definition's sources, if it is none of Treadle's. Called as it is defined."""
    if not _is_own(defined):
        _digests[defined] = _source_digest(defined.__module__)


def note_added(what: str, defined: Callable[..., Any]) -> None:
    """Notes that a function from outside was registered for good, under a name."""
    if not _is_own(defined):
        note_source(defined)
        _added.append(f"{what} {_digests[defined]}")


def watch(registry: Mapping[str, object]) -> None:
    """Has a registry's later state be part of the digest, by what it differs in from what it holds now."""
    _registries.append((registry, dict(registry)))


def extensions_digest() -> str:
    """A digest of what was added, replaced, removed or put elsewhere; empty if that is nothing."""
    found = list(_added)
    for registry, own in _registries:
        if list(registry.items()) != list(own.items()):
            found += [f"{name} {_described(name, entry, own)}" for name, entry in registry.items()]
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else ""


def _described(name: str, entry: object, own: Mapping[str, object]) -> str:
    """An entry of a registry: its sources, and what tells it from other instances of its class."""
    if own.get(name) is entry:
        return _PACKAGE
    kind = type(entry)
    if not _is_own(kind) and kind not in _digests:
        note_source(kind)
    state: dict[str, object] = getattr(entry, "__dict__", {})
    return f"{kind.__module__}.{kind.__qualname__} {_digests.get(kind, _PACKAGE)} {sorted(state.items())!r}"


def _is_own(defined: type | Callable[..., Any]) -> bool:
    return defined.__module__.partition(".")[0] == _PACKAGE


def _source_digest(module: str) -> str:
    """A digest of the Python files of a module's package, or of its folder; of code without a file, as in a notebook,
    something that occurs only once."""
    top = sys.modules.get(module.partition(".")[0])
    file = getattr(top, "__file__", None)
    if file is None or not Path(file).is_file():
        return secrets.token_hex(16)
    folder = Path(file).parent
    found = folder.rglob("*.py") if hasattr(top, "__path__") else folder.glob("*.py")
    hasher = hashlib.sha256()
    try:
        for path in sorted(each for each in {*found, Path(file)} if each.is_file()):
            hasher.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()};".encode())
    except OSError:
        return secrets.token_hex(16)
    return hasher.hexdigest()
