"""The cuda half of an artifact: CUDA text, its cubins, and the launches that run them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute

from treadle.backends.cuda.cache import CubinCache
from treadle.backends.cuda.compiler import HEADER, Cubin, Unit, compile_cubins
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.file_names import file_names
from treadle.backends.program import Program
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.errors import TreadleError
from treadle.knobs import load_knobs
from treadle.target import Target

_BATCH = 4 * (os.cpu_count() or 1)

Tell = Callable[[str, float], None]


def write_kernels(
    module: ModuleOp, program: Program, target: Target, folder: Path, tell: Tell
) -> tuple[Mapping[str, Any], ...]:
    """Prints and compiles a lowered module into `folder`; the launches, as `open_artifact` reads them.

    `tell(what, part)` is called with the part (0 to 1) that is done. Raises what the printer and NVRTC raise.
    """
    tell("printing CUDA", 0.0)
    units = print_kernels(module)
    names = file_names([unit.name for unit in units])
    text = folder / "kernels"
    text.mkdir()
    shutil.copyfile(HEADER, text / HEADER.name)
    for unit, name in zip(units, names, strict=True):
        (text / f"{name}.cu").write_text(unit.text)
    image_of: dict[str, str] = {}
    for cubin, name in zip(_compiled(units, target, tell), names, strict=True):
        (text / f"{name}.cubin").write_bytes(cubin.image)
        image_of |= dict.fromkeys(cubin.resources, f"kernels/{name}.cubin")
    kernels = {op.sym_name.data: op for op in module.walk() if isinstance(op, KernelOp)}
    return tuple(
        _launch(launch.kernel, kernels, image_of) | {"buffers": [[b.kind, b.index] for b in launch.buffers]}
        for launch in program.launches
    )


def _compiled(units: list[Unit], target: Target, tell: Tell) -> list[Cubin]:
    """The units' cubins, compiled in batches so that progress can be told between them."""
    cache = CubinCache(load_knobs().cache_dir / "cubins")
    cubins: list[Cubin] = []
    for start in range(0, len(units), _BATCH):
        tell(f"compiling CUDA ({start} of {len(units)} kernels)", start / len(units))
        cubins += compile_cubins(units[start : start + _BATCH], target, cache=cache)
    return cubins


def _launch(name: str, kernels: Mapping[str, KernelOp], image_of: Mapping[str, str]) -> dict[str, Any]:
    kernel, image = kernels.get(name), image_of.get(name)
    if kernel is None or image is None:
        raise TreadleError(f"@main launches '{name}', which no unit defines", "cuda target", image_of)
    return {
        "kernel": name,
        "image": image,
        "grid": list(kernel.grid_shape),
        "block": list(kernel.block_shape),
        "dynamic_shared": kernel.shared_bytes(dynamic=True),
        "types": [_type(argument.type) for argument in kernel.body.block.args],
    }


def _type(type: Attribute) -> list[Any]:
    """What a kernel takes a buffer for: NumPy's name of the elements' type, and their number."""
    if not isinstance(type, MemRefType):
        raise TreadleError(f"a kernel's argument of type {type}", "cuda target", "memrefs")
    return [numpy_dtype(type.element_type).name, prod(type.get_shape())]
