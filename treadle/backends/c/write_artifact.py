"""The cpu half of an artifact: C text and the shared library made of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from treadle.backends.c.compiler import INCLUDE_DIRECTORIES, WASM, Unit, compile_objects, link, pool_unit
from treadle.backends.c.executor import ENTRY
from treadle.backends.c.open_artifact import LIBRARY
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.interface import SYMBOL, c_definition, file_names
from treadle.environment import available_cores
from treadle.errors import TreadleError
from treadle.support.progress import Progress
from treadle.target import INSTRUCTION_SETS, Target
from treadle.target.host import needs_of

_BATCHES_PER_CORE = 4


def write_kernels(
    module: ModuleOp, interface: str, target: Target, folder: Path, progress: Progress, meanwhile: Callable[[], None]
) -> str:
    """Prints and compiles a lowered module into `folder`; what the library needs of a machine.

    The library exports `interface`, which says what `treadle_run` expects. `progress` is called with the fraction of
    this that is done. `meanwhile` is called once, while the compiler runs. Raises what the printer and the compiler
    raise.
    """
    progress("printing C", 0.0)
    host = print_host(module)
    described = Unit(host.name, f"{host.text}\n{c_definition(interface, 'const')}\n")
    units = [*print_kernels(module), described]
    text = folder / "kernels"
    text.mkdir()
    for unit, name in zip(units, file_names([unit.name for unit in units]), strict=True):
        (text / f"{name}.c").write_text(unit.text)
    for directory in INCLUDE_DIRECTORIES:
        for path in (*directory.glob("*.h"), *directory.glob("*.c")):
            shutil.copyfile(path, text / path.name)
    _check_types(units, target)
    objects = _compiled([*units, pool_unit()], target, progress, meanwhile)
    shutil.copyfile(link(objects, target=target, interface=interface, exported=(ENTRY, SYMBOL)), folder / LIBRARY)
    return needs_of(target)


def _check_types(units: list[Unit], target: Target) -> None:
    """TreadleError for a type that C compilers do not have for the target."""
    architecture = INSTRUCTION_SETS[target.isa][0] if target.isa in INSTRUCTION_SETS else ""
    found = next((unit.name for unit in units if "_Float16" in (unit.code or unit.text)), None)
    if architecture == WASM and found is not None:
        accepted = "a model of f32, or --precision bf16; WebAssembly's C has no _Float16"
        raise TreadleError(f"'{found}' computes with float16", f"target {target.name}", accepted)


def _compiled(units: list[Unit], target: Target, progress: Progress, meanwhile: Callable[[], None]) -> list[Path]:
    """The units' objects, compiled in batches so that progress is reported between them."""
    size = available_cores() * _BATCHES_PER_CORE
    objects: list[Path] = []
    for start in range(0, len(units), size):
        progress(f"compiling C ({start} of {len(units)} units)", start / len(units))
        first = None if start else meanwhile
        objects += compile_objects(units[start : start + size], target=target, meanwhile=first)
    if not objects:
        raise TreadleError("the module has no kernels", "cpu target")
    return objects
