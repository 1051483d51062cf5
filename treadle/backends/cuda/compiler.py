"""CUDA C++ text to cubins through NVRTC, which needs neither a driver nor a GPU."""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from treadle.artifact.store import Store, digest
from treadle.backends.cuda.cubin import Resources, resources_of
from treadle.errors import TreadleError, TreadleWarning
from treadle.target import Target

HEADER_NAME = "treadle_cuda.h"
HEADER = Path(__file__).parent / "include" / HEADER_NAME
HOPPER_HEADER_NAME = "treadle_hopper.h"
"""Of kernels that use instructions of compute capability 9.0; it includes the other."""

# The hardware's limit of registers, explicitly: by default ptxas spills some to have more resident blocks.
_REGISTERS = "--maxrregcount=255"
# NVRTC's default, explicitly: a product that is added is rounded once, with the sum (docs/numerics.md).
_CONTRACTION = "--fmad=true"
_OPTIONS: tuple[str, ...] = ("--std=c++17", "-default-device", _REGISTERS, _CONTRACTION)
NVRTC_WHEELS = "pip install 'treadle[nvrtc]', which is 'cuda-bindings==13.0.*' and nvidia-cuda-nvrtc==13.0.88"
"""What installs NVRTC."""

_DIAGNOSTIC = re.compile(r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<message>.*)$", re.M)
_WARNING = re.compile(r"\bwarning\b|\(C7\d+\)|\binfo\b.*\bC7\d+\b", re.I)


@dataclass(frozen=True)
class Unit:
    """One translation unit: CUDA C++ text, which may include the headers of `include`, and a name for diagnostics."""

    name: str
    text: str
    code: str | None = None
    """The text without comments, if it is known: what is compiled depends on it alone, and so do keys of caches."""


@dataclass(frozen=True)
class Cubin:
    """A compiled unit."""

    image: bytes
    arch: str
    resources: Mapping[str, Resources]
    """By kernel name."""
    warnings: Sequence[str] = ()
    """What the assembler said of a successful run, such as C7510, that products of a warpgroup are not overlapped."""


def compile_cubin(
    unit: Unit,
    target: Target,
    *,
    options: Sequence[str] = (),
    cache: Store | None = None,
    header: str | None = None,
) -> Cubin:
    """Compiles `unit` for `target`.

    `options` are further NVRTC options; `header` is the text of `treadle_cuda.h`, by default this package's. With a
    `cache`, a unit that was compiled before from the same text, header, options, compiler and architecture is read
    from it.

    Raises `TreadleError` with the compiler's first message and the line of the text that it is about; when
    `target` is no GPU; and when the NVRTC wheels are absent.
    """
    if not target.is_cuda:
        raise TreadleError(f"target '{target.name}' is no GPU", where=unit.name, accepted="sm_80 and the like")
    all_options = (f"--gpu-architecture={target.name}", *_OPTIONS, *options)
    headers = {HEADER_NAME: _header(HEADER_NAME) if header is None else header}
    if f'#include "{HOPPER_HEADER_NAME}"' in unit.text:
        headers[HOPPER_HEADER_NAME] = _header(HOPPER_HEADER_NAME)
    if cache is None:
        return _compile(unit, headers, target.name, all_options)
    key = digest(nvrtc_version(), unit.text if unit.code is None else unit.code, *headers.values(), *all_options)
    stored = cache.fetch(
        "cubins", key, ".cubin", lambda path: _write(path, _compile(unit, headers, target.name, all_options))
    )
    return _decode(stored.read_bytes())


def compile_cubins(
    units: Sequence[Unit],
    target: Target,
    *,
    options: Sequence[str] = (),
    cache: Store | None = None,
    workers: int | None = None,
    header: str | None = None,
) -> list[Cubin]:
    """Compiles `units` on a pool of threads (NVRTC releases the interpreter's lock), in the given order.

    `workers` is the number of threads, by default about one a core. Raises what `compile_cubin` raises, for
    the first unit in order that fails.
    """

    def compile_one(unit: Unit) -> Cubin:
        return compile_cubin(unit, target, options=options, cache=cache, header=header)

    nvrtc_version()  # an error for missing wheels comes before threads are started
    with ThreadPoolExecutor(workers, thread_name_prefix="nvrtc") as pool:
        return list(pool.map(compile_one, units))


@cache
def nvrtc_version() -> str:
    """NVRTC's version, such as `13.0`. Raises `TreadleError` when the NVRTC wheels are absent."""
    nvrtc = _nvrtc()
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the binding is there, the library is not
        raise _absent(error) from error
    return f"{major}.{minor}"


def nvrtc_is_installed(what_else: str = "") -> bool:
    """Whether CUDA text can be compiled to cubins here. If not, and it is said what is done without it, warns so."""
    try:
        nvrtc_version()
    except TreadleError as error:
        if what_else:
            warnings.warn(f"{error.message}: {what_else}; {error.accepted}", TreadleWarning, stacklevel=3)
        return False
    return True


@cache
def _nvrtc() -> Any:
    """The binding to NVRTC, an optional dependency."""
    try:
        return importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise _absent(error) from error


def _absent(error: Exception) -> TreadleError:
    message = f"NVRTC, the compiler of CUDA text, is not installed ({str(error).splitlines()[0]})"
    return TreadleError(message, where="cuda compiler", accepted=NVRTC_WHEELS)


@cache
def _header(name: str) -> str:
    return HEADER.with_name(name).read_text()


def _compile(unit: Unit, headers: Mapping[str, str], arch: str, options: Sequence[str]) -> Cubin:
    nvrtc_version()
    nvrtc = _nvrtc()
    file_name = f"{unit.name}.cu"
    names, texts = [name.encode() for name in headers], [text.encode() for text in headers.values()]
    created = nvrtc.nvrtcCreateProgram(unit.text.encode(), file_name.encode(), len(names), texts, names)
    program = _checked(created, unit)
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _read(unit, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _diagnosis(unit, headers, str(status.name), log)
        image = _read(unit, program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    warned = tuple(line.strip() for line in log.rstrip("\0").splitlines() if _WARNING.search(line))
    return Cubin(image, arch, resources_of(image), warned)


def _checked(result: tuple[Any, ...], unit: Unit) -> Any:
    """The value that a call of the binding returned beside its status."""
    status, *values = result
    if status.value != 0:
        raise TreadleError(f"NVRTC failed with {status.name}", where=unit.name)
    return values[0] if values else None


def _read(unit: Unit, program: Any, size: Any, read: Any) -> bytes:
    """One of the texts or images that NVRTC returns by size and copy."""
    # The binding writes into the bytes that it is given.
    buffer = bytes(_checked(size(program), unit))
    _checked(read(program, buffer), unit)
    return buffer


def _diagnosis(unit: Unit, headers: Mapping[str, str], status: str, log: str) -> TreadleError:
    """NVRTC's first message, with the line of the text that it is about."""
    log = log.rstrip("\0").strip()
    found = _DIAGNOSTIC.search(log)
    if found is None:
        return TreadleError(f"NVRTC failed with {status}: {log}", where=unit.name)
    number = int(found["line"])
    lines = headers.get(found["file"], unit.text).splitlines()
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return TreadleError(f"{found['message']} in '{line}'", where=f"{found['file']}:{number}")


def _write(path: Path, cubin: Cubin) -> None:
    """Writes one line of JSON, then the image."""
    resources = {name: asdict(each) for name, each in cubin.resources.items()}
    about = {"arch": cubin.arch, "resources": resources, "warnings": list(cubin.warnings)}
    path.write_bytes(json.dumps(about, sort_keys=True).encode() + b"\n" + cubin.image)


def _decode(stored: bytes) -> Cubin:
    about, _, image = stored.partition(b"\n")
    fields = json.loads(about)
    resources = {name: Resources(**each) for name, each in fields["resources"].items()}
    return Cubin(image, fields["arch"], resources, fields.get("warnings", ()))
