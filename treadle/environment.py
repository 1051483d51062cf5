"""Every environment variable that Treadle reads, typed.

No other module touches ``os.environ``. ``load_environment()`` reads the variables anew at each call, so that a
test or a notebook may change a variable between two compilations; what it returns is frozen.

| variable            | field         | meaning                                                             |
|---------------------|---------------|---------------------------------------------------------------------|
| TREADLE_CACHE_DIR   | cache_dir     | compiled objects, constants, models (default: the user's cache folder) |
| TREADLE_CACHE_LIMIT | cache_limit   | bytes that it may take, such as 500MB or 20GB (default: 20GB)        |
| TREADLE_CC, CC      | c_compiler    | C compiler command, arguments allowed; TREADLE_CC wins               |
| TREADLE_CFLAGS      | c_flags       | more flags for the C compiler, after Treadle's own                   |
| TREADLE_NUM_THREADS | num_threads   | CPU threads a program uses (default: the cores this process may use) |
| TREADLE_CUDA_DRIVER | cuda_driver   | `bindings` or `pycuda` (default: cuda-bindings where installed)      |
| TREADLE_CUDA_GRAPH  | cuda_graph    | `off`: kernels are launched one by one, not as a graph (default: `on`) |
| TREADLE_TRACE_DIR   | trace_dir     | where the IR after each stage is written (default: nowhere)          |
| TREADLE_PLUGINS     | plugins       | `off`: installed plug-ins are not loaded (default: `on`)             |
| XDG_CACHE_HOME      | cache_dir     | the user's cache folder (default: ~/.cache, or ~/Library/Caches on macOS) |
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from treadle.errors import TreadleError

DEFAULT_CACHE_LIMIT = 20 * 10**9
"""Bytes: room for one model of several billion parameters, whose constants are kept as imported and as packed, or for
some hundred small models; and little of the disk of a machine that runs such models."""

_USERS_CACHE = "Library/Caches" if sys.platform == "darwin" else ".cache"
"""In a home, where XDG_CACHE_HOME does not say: the XDG Base Directory Specification; Apple's File System Guide."""

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for base, suffix in ((1000, "B"), (1024, "iB"))
    for power, prefix in enumerate("KMGT")
}


@dataclass(frozen=True)
class Environment:
    """The variables' values; see the module's table."""

    cache_dir: Path
    c_compiler: tuple[str, ...]
    """The C compiler's command line without flags; empty to search for one."""
    c_flags: tuple[str, ...]
    num_threads: int
    trace_dir: Path | None
    cache_limit: int
    """Bytes. The least recently used entries are evicted first."""
    cuda_driver: str | None = None
    """The binding to the GPU's driver; None for the one that is installed."""
    cuda_graph: bool = True
    """Whether a call on a GPU launches its kernels as one graph."""
    plugins: bool = True
    """Whether installed plug-ins are loaded."""


def load_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """The values of `variables` (default: this process's); TreadleError on a value that cannot be read."""
    env = os.environ if variables is None else variables
    trace_dir = _text(env, "TREADLE_TRACE_DIR")
    return Environment(
        cache_dir=_cache_dir(env),
        c_compiler=_words(env, "TREADLE_CC") or _words(env, "CC"),
        c_flags=_words(env, "TREADLE_CFLAGS"),
        num_threads=_positive_int(env, "TREADLE_NUM_THREADS", available_cores()),
        trace_dir=None if trace_dir is None else _expanded(trace_dir, "TREADLE_TRACE_DIR"),
        cache_limit=_bytes(env, "TREADLE_CACHE_LIMIT", DEFAULT_CACHE_LIMIT),
        cuda_driver=_one_of(env, "TREADLE_CUDA_DRIVER", ("bindings", "pycuda")),
        cuda_graph=_one_of(env, "TREADLE_CUDA_GRAPH", ("on", "off")) != "off",
        plugins=_one_of(env, "TREADLE_PLUGINS", ("on", "off")) != "off",
    )


def available_cores() -> int:
    """The number of cores that this process may run on (which may be fewer than the machine has)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _text(env: Mapping[str, str], name: str) -> str | None:
    value = env.get(name, "").strip()
    return value or None


def _one_of(env: Mapping[str, str], name: str, accepted: tuple[str, ...]) -> str | None:
    value = _text(env, name)
    if value is not None and value not in accepted:
        raise TreadleError(f"{value!r} is unknown", name, accepted)
    return value


def _cache_dir(env: Mapping[str, str]) -> Path:
    value = _text(env, "TREADLE_CACHE_DIR")
    if value is not None:
        return _expanded(value, "TREADLE_CACHE_DIR")
    given = Path(_text(env, "XDG_CACHE_HOME") or "")
    try:
        found = given if given.is_absolute() else _home(env) / _USERS_CACHE
    except RuntimeError:  # neither HOME nor an entry of this user in the system's table, as in many containers
        return temporary_cache_dir()
    return found / "treadle" if found.is_absolute() else temporary_cache_dir()


def _home(env: Mapping[str, str]) -> Path:
    """The user's home, relative where HOME is. RuntimeError if there is none."""
    return Path(env["HOME"]) if "HOME" in env else Path.home()


def temporary_cache_dir() -> Path:
    """The cache of a user without another one, in the system's folder of temporary files. OSError if there is none."""
    return Path(tempfile.gettempdir()) / f"treadle-cache-{os.geteuid()}"


def _expanded(value: str, name: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise TreadleError(f"{value!r} names no folder: {error}", name, "an absolute path") from error


def _words(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    value = _text(env, name)
    if value is None:
        return ()
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise TreadleError(f"cannot split {value!r} into words: {error}", name, "shell words") from error


def _bytes(env: Mapping[str, str], name: str, default: int) -> int:
    value = _text(env, name)
    if value is None:
        return default
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)", value, re.ASCII)
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if found is None or found[2].lower() not in units:
        raise TreadleError(f"{value!r} is not a number of bytes", name, "such as 500MB, 20GB, 1.5TB, or 2GiB")
    return int(float(found[1]) * units[found[2].lower()])


def _positive_int(env: Mapping[str, str], name: str, default: int) -> int:
    value = _text(env, name)
    if value is None:
        return default
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise TreadleError(f"{value!r} is not a number of threads", name, "a whole number from 1 upwards")
    return int(value)


def single_threaded() -> dict[str, str]:
    """This process's variables for another one, in which NumPy starts no threads.

    They spin for a tenth of a second after each product: a kernel that was timed right after its definition was
    computed took 1.8 times as long, in the median of 29 groups on two cores.
    """
    return os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def with_english_messages() -> dict[str, str]:
    """This process's variables for a compiler whose messages are read."""
    return os.environ | {"LC_ALL": "C"}
