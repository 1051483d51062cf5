"""What a program adds to Treadle, or replaces in it, before it compiles: templates, rules and converters of its own.

Their code decides what a model becomes, as Treadle's does, so that the keys of caches contain a digest of it. A digest
is of the files as they are when the code is defined: what is edited afterwards is not what runs. Processes that build
candidates of a search import the same files (`additions`, `add`).
"""

from __future__ import annotations

import hashlib
import pickle
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias

from treadle.errors import TreadleError

_PACKAGE = "treadle"
_MAIN, _MAIN_ELSEWHERE = "__main__", "__mp_main__"
"""The module of a program, and what other processes call it, as those of `multiprocessing` do."""
_digests: dict[object, str] = {}
"""By a class or function from outside: the digest of its sources."""
_added: dict[str, FunctionType] = {}
_registries: dict[str, tuple[MutableMapping[str, Any], dict[str, object]]] = {}
"""By their modules: registries, and what each holds of Treadle's own."""


def note_source(defined: type | Callable[..., Any]) -> None:
    """Takes the digest of a definition's sources, if it is none of Treadle's. Called as it is defined."""
    if not _is_own(defined):
        _digests[defined] = _source_digest(defined.__module__)


def note_added(what: str, defined: FunctionType) -> None:
    """Notes that a function from outside was registered for good, under a name."""
    if not _is_own(defined):
        note_source(defined)
        _added[what] = defined


def watch(module: str, registry: MutableMapping[str, Any]) -> None:
    """Has a later state of a module's registry be part of the digest, by what it differs in from its state now."""
    _registries[module] = registry, dict(registry)


@dataclass(frozen=True)
class Sources:
    """The Python files of an imported module's package, by a digest; in another process, of those that it has there."""

    module: str
    digest: str

    @classmethod
    def of(cls, module: str) -> Sources:
        """As the files are now; imports the module if that has not happened."""
        import_module(module)
        return cls(module, _source_digest(module))

    def __reduce__(self) -> tuple[Callable[[str], Sources], tuple[str]]:
        return Sources.of, (self.module,)


def extensions_digest() -> str:
    """A digest of what was added, replaced, removed or put elsewhere; empty if that is nothing."""
    found = [f"{what} {_digests[defined]}" for what, defined in _added.items()]
    for registry, own in _registries.values():
        if list(registry.items()) != list(own.items()):
            found += [f"{name} {_described(name, entry, own)}" for name, entry in registry.items()]
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else ""


def _described(name: str, entry: object, own: Mapping[str, object]) -> str:
    """An entry of a registry: its sources, and what tells it from other instances of its class."""
    if own.get(name) is entry:
        return _PACKAGE
    state: dict[str, object] = getattr(entry, "__dict__", {})
    shown = [(k, _sources(v) if isinstance(v, FunctionType | type) else repr(v)) for k, v in sorted(state.items())]
    return f"{_sources(type(entry))} {shown!r}"


def _sources(defined: type | FunctionType) -> str:
    """A name, and the digests of the sources of a definition and of its base classes."""
    if not _is_own(defined) and defined not in _digests:
        note_source(defined)
    parts: tuple[object, ...] = defined.__mro__ if isinstance(defined, type) else (defined,)
    digests = [_digests[each] for each in parts if each in _digests]
    module = _MAIN if defined.__module__ == _MAIN_ELSEWHERE else defined.__module__
    return f"{module}.{defined.__qualname__} {' '.join(digests) or _PACKAGE}"


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


# The same additions in another process, such as one that builds candidates of a search.


@dataclass(frozen=True)
class Additions:
    """What a process has added to Treadle.

    digest: of it; modules: those that define it, to be imported
    main: the file of the program and its package, if the program itself defines some of it
    entries: the registries as they are, pickled, without Treadle's own entries
    """

    digest: str
    modules: tuple[str, ...] = ()
    main: tuple[str, str] | None = None
    entries: bytes = b""


_Entries: TypeAlias = list[tuple[str, object]]
"""Of a registry, in order; None stands for Treadle's own of that name."""


def additions() -> Additions:
    """What this process has added. TreadleError for what no other process can import: code without a file, as in a
    notebook, and functions and classes inside of functions."""
    digest = extensions_digest()
    if not digest:
        return Additions("")
    from_outside = list(_from_outside())
    modules = sorted({each.__module__ for _, each in from_outside} - {_MAIN, _MAIN_ELSEWHERE})
    for name, each in from_outside:
        if "<" in each.__qualname__ or getattr(sys.modules.get(each.__module__), "__file__", None) is None:
            message = f"{each.__qualname__} of {each.__module__} cannot be imported by other processes"
            raise TreadleError(message, name, "a definition at the top of a module that has a file")
    main = sys.modules[_MAIN]
    is_in_main = any(each.__module__ in (_MAIN, _MAIN_ELSEWHERE) for _, each in from_outside)
    where = (str(Path(str(main.__file__)).absolute()), str(main.__package__ or "")) if is_in_main else None
    entries = {
        module: [(name, None if own.get(name) is entry else entry) for name, entry in registry.items()]
        for module, (registry, own) in _registries.items()
    }
    try:
        pickled = pickle.dumps(entries)
    except Exception as error:  # whatever an entry holds
        raise TreadleError(f"it cannot be handed to other processes: {error}", "an extension") from error
    return Additions(digest, tuple(modules), where, pickled)


def add(given: Additions) -> None:
    """Makes another process's additions here. TreadleError if they cannot be imported, or have other sources here."""
    if extensions_digest() == given.digest:
        return
    try:
        if given.main is not None:
            _import_main(*given.main)
        for name in given.modules:
            import_module(name)
        entries = pickle.loads(given.entries) if given.entries else dict[str, _Entries]()  # noqa: S301  # as calls come
        for module in entries:
            import_module(module)
    except (Exception, SystemExit) as error:  # whatever importing runs
        message = f"what the program added to Treadle cannot be imported: {type(error).__name__}: {error}"
        raise TreadleError(message, "a worker", 'modules that a worker has, `if __name__ == "__main__":`') from error
    for module, (registry, own) in _registries.items():
        kept = entries.get(module, [(name, None) for name in own])
        registry.clear()
        registry.update((name, own[name] if entry is None else entry) for name, entry in kept)
    if extensions_digest() != given.digest:
        raise TreadleError("what the program added to Treadle has other sources", "a worker", "the same files")


def _from_outside() -> Iterator[tuple[str, type | FunctionType]]:
    """The classes and functions from outside that are registered, each with its name there."""
    yield from _added.items()
    for registry, own in _registries.values():
        for name, entry in registry.items():
            if own.get(name) is not entry:
                state: dict[str, object] = getattr(entry, "__dict__", {})
                held = (each for each in state.values() if isinstance(each, FunctionType | type))
                found: list[type | FunctionType] = [type(entry), *held]
                yield from ((name, each) for each in found if each in _digests)


def _import_main(file: str, package: str) -> None:
    """Imports the file of a program as a module, under which its classes are found."""
    if getattr(sys.modules[_MAIN], "__file__", None) == file:
        return
    spec = spec_from_file_location(_MAIN_ELSEWHERE, file, loader=SourceFileLoader(_MAIN_ELSEWHERE, file))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    module.__package__ = package
    sys.modules[_MAIN] = sys.modules[_MAIN_ELSEWHERE] = module
    spec.loader.exec_module(module)
