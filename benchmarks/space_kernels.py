"""Every schedule of an anchor's space as a kernel that is ready to be loaded, compiled in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from xdsl.parser import Parser

from benchmarks.schedule_cases import Case, group_of
from treadle.artifact.manifest import BufferMap
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.driver import Shape3
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.cuda.write_artifact import buffer_maps
from treadle.backends.interface import BufferRef
from treadle.backends.program import read_program
from treadle.compiler.pipeline import lower
from treadle.dialects.cuda import KernelOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.errors import TreadleError
from treadle.target import Target


@dataclass(frozen=True)
class SpaceKernel:
    """One schedule: its choices, its cubin, how it is launched. Bytes; registers of a thread.

    buffers: in the order of the kernel's arguments; arena, zeroed: bytes of the memory that they may lie in
    error: why there is no kernel, in which case nothing else counts
    """

    choices: Mapping[str, Choice]
    image: bytes = b""
    name: str = ""
    grid: Shape3 = (1, 1, 1)
    block: Shape3 = (1, 1, 1)
    buffers: tuple[BufferRef, ...] = ()
    dynamic_shared: int = 0
    maps: tuple[BufferMap, ...] = ()
    registers: int = 0
    spills: int = 0
    arena: int = 0
    zeroed: int = 0
    error: str | None = None


def kernel_of(text: str, template: str, target_name: str, choices: Mapping[str, Choice]) -> SpaceKernel:
    """Compiles one schedule of a group, which is given as text since modules do not travel between processes."""
    target, context = Target.parse(target_name), treadle_context()
    module = Parser(context, text).parse_module()
    group_of(module).schedule = UseAttr.get(template, dict(choices))
    try:
        lower(context, module, target, after="schedule")
        (kernel,) = [op for op in module.walk() if isinstance(op, KernelOp)]
        program = read_program(module)
        (unit,), (planned,) = print_kernels(module), program.launches
        cubin = compile_cubin(unit, target)
    except TreadleError as error:
        return SpaceKernel(choices, error=str(error))
    used = cubin.resources[unit.name]
    return SpaceKernel(
        choices, cubin.image, unit.name, _shape(kernel.grid_shape), _shape(kernel.block_shape), planned.buffers,
        kernel.shared_bytes(dynamic=True), buffer_maps(kernel), used.registers,
        used.spill_store_bytes + used.spill_load_bytes, program.arena_bytes, program.zeroed_bytes,
    )  # fmt: skip


def space_kernels(case: Case, target: Target, workers: int) -> Iterator[SpaceKernel]:
    """The default schedule of a case first, then all others of its space, as they get ready in this order.

    workers: processes that compile; without any, this one does
    """
    default = case.default(target)
    others = [choices for choices in case.space(target) if choices != default.knobs()]
    every: Sequence[Mapping[str, Choice]] = [default.knobs(), *others]
    make = partial(kernel_of, case.text(), default.template.data, target.name)
    if not workers:
        yield from map(make, every)
        return
    with ProcessPoolExecutor(min(workers, len(every)), get_context("spawn")) as pool:
        yield from pool.map(make, every, chunksize=2)


def _shape(extents: Sequence[int]) -> Shape3:
    x, y, z = extents
    return x, y, z
