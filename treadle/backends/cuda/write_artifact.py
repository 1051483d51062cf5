"""The cuda half of an artifact: CUDA text, its cubins, and the launches that run them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute, SSAValue

from treadle.artifact.manifest import BufferMap, KernelLaunch, Shape3
from treadle.artifact.store import store_of
from treadle.backends.cuda.compiler import HEADER, HEADER_NAME, HOPPER_HEADER_NAME, Cubin, Unit, compile_cubins
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.interface import KERNEL_SPECIFIERS, c_definition, file_names, kernel_interface
from treadle.backends.program import Program, ProgramLaunch
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.support.progress import Progress
from treadle.target import Target

_BATCH = 4 * (os.cpu_count() or 1)


def write_kernels(
    module: ModuleOp, program: Program, target: Target, folder: Path, progress: Progress, *, cubins: bool = True
) -> tuple[KernelLaunch, ...]:
    """Prints a lowered module into `folder`, and compiles it unless `cubins` is False; its launches.

    `progress` is called with the fraction of this that is done. Raises what the printer and NVRTC raise.
    """
    progress("printing CUDA", 0.0)
    units, launches = printed_launches(module, program)
    names = _file_names(units)
    text = folder / "kernels"
    text.mkdir()
    names_of_headers = [HEADER_NAME, *([HOPPER_HEADER_NAME] if any(launch.maps for launch in launches) else [])]
    for name in names_of_headers:
        shutil.copyfile(HEADER.with_name(name), text / name)
    for unit in units:
        (text / f"{names[unit.name]}.cu").write_text(unit.text)
    if not cubins:
        return launches
    for unit, cubin in zip(units, _compiled(units, target, progress), strict=True):
        (text / f"{names[unit.name]}.cubin").write_bytes(cubin.image)
    return launches


def printed_launches(module: ModuleOp, program: Program) -> tuple[tuple[Unit, ...], tuple[KernelLaunch, ...]]:
    """The kernels of a lowered module as units, and their launches. Raises what the printer raises."""
    printed = print_kernels(module)
    names = _file_names(printed)
    kernels = {op.sym_name.data: op for op in module.walk() if isinstance(op, KernelOp)}
    launches = tuple(_launch(launch, kernels, names) for launch in program.launches)
    return tuple(_described(printed, launches)), launches


def _file_names(units: Sequence[Unit]) -> dict[str, str]:
    return dict(zip((unit.name for unit in units), file_names([unit.name for unit in units]), strict=True))


def _described(units: Sequence[Unit], launches: Sequence[KernelLaunch]) -> list[Unit]:
    """The units of the kernels that are launched, each with its interface as a text in the cubin."""
    texts = {launch.kernel: c_definition(kernel_interface(launch), KERNEL_SPECIFIERS) for launch in launches}
    return [_with_interface(unit, texts[unit.name]) if unit.name in texts else unit for unit in units]


def _with_interface(unit: Unit, interface: str) -> Unit:
    addition = f'\nextern "C" {{ {interface} }}\n'
    return Unit(unit.name, f"{unit.text}{addition}", None if unit.code is None else f"{unit.code}{addition}")


def _compiled(units: Sequence[Unit], target: Target, progress: Progress) -> list[Cubin]:
    """The units' cubins, compiled in batches so that progress is reported between them."""
    cache = store_of(load_environment())
    cubins: list[Cubin] = []
    for start in range(0, len(units), _BATCH):
        progress(f"compiling CUDA ({start} of {len(units)} kernels)", start / len(units))
        cubins += compile_cubins(units[start : start + _BATCH], target, cache=cache)
    return cubins


def _launch(launch: ProgramLaunch, kernels: Mapping[str, KernelOp], names: Mapping[str, str]) -> KernelLaunch:
    kernel = kernels.get(launch.kernel)
    if kernel is None:
        raise TreadleError(f"@main launches '{launch.kernel}', which no unit defines", "cuda target", kernels)
    return KernelLaunch(
        kernel=launch.kernel,
        image=f"kernels/{names[launch.kernel]}.cubin",
        grid=_three(kernel.grid_shape),
        block=_three(kernel.block_shape),
        dynamic_shared=kernel.shared_bytes(dynamic=True),
        buffers=tuple((buffer.kind, buffer.index) for buffer in launch.buffers),
        types=tuple(_type(argument.type) for argument in kernel.body.block.args),
        maps=buffer_maps(kernel),
    )


def buffer_maps(kernel: KernelOp) -> tuple[BufferMap, ...]:
    """The tensor maps that a launch of a kernel makes."""
    arguments: list[SSAValue] = [*kernel.body.block.args]
    return tuple(BufferMap(arguments.index(op.buffer), op.map) for op in kernel.tensor_maps)


def _three(shape: Sequence[int]) -> Shape3:
    x, y, z = shape
    return x, y, z


def _type(type: Attribute) -> tuple[str, int]:
    """The type of a kernel's buffer: NumPy's name of the elements' type, and their number."""
    if not isinstance(type, MemRefType):
        raise TreadleError(f"a kernel's argument of type {type}", "cuda target", "memrefs")
    return numpy_dtype(type.element_type).name, prod(type.get_shape())
