"""Lazy imports: the compiler takes a second to import, and a cached model needs none of it.

A module is named twice: for the type checker and the import rules, which see an ordinary import, and for its use.

```python
if TYPE_CHECKING:
    from treadle import artifact_writer
else:
    artifact_writer = lazy_module("treadle.compiler.artifact_writer")

artifact_writer.write_artifact(...)  # imports it
```
A module that only re-exports names of others uses `lazy_exports`. Tables whose entries are imported one by one have
`"module:name"`, and the type of the entries.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TypeVar

from treadle.errors import TreadleError

T = TypeVar("T")

_PROJECTS = {"ml_dtypes": "ml_dtypes", "google": "protobuf", "sklearn": "scikit-learn", "cuda": "cuda-bindings"}
"""By a package's name: that of the project to install, where it is another one."""


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        return getattr(_imported(self.__name__), name)


def lazy_module(name: str) -> ModuleType:
    """A module that is imported when an attribute of it is first read; each read sees the module as it is then."""
    return _LazyModule(name)


def lazy_exports(modules: Mapping[str, str]) -> Callable[[str], object]:
    """A `__getattr__` for a module that re-exports names of others, which it imports when one is first read.

    modules: the module of each name
    """

    def exported(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"no name '{name}'; accepted: {', '.join(modules)}", name=name)
        return getattr(_imported(modules[name]), name)

    return exported


def _imported(name: str) -> ModuleType:
    """A module of Treadle; TreadleError if a package that it needs is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        absent = (error.name or "").partition(".")[0]
        if absent in ("", "treadle"):
            raise
        message, accepted = f"the package '{absent}' is not installed", f"pip install {_PROJECTS.get(absent, absent)}"
        raise TreadleError(message, name, accepted) from error


def resolve_value(path: str, kind: type[T]) -> T:
    """The value at `module:name`; TypeError if it is not of that kind."""
    value = pkgutil.resolve_name(path)
    if not isinstance(value, kind):
        raise TypeError(f"{path} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def resolve_class(path: str, base: type[T]) -> type[T]:
    """The class at `module:name`; TypeError if it does not derive from `base`."""
    value = resolve_value(path, type)
    if not issubclass(value, base):
        raise TypeError(f"{path} is no {base.__name__}")
    return value
