"""Kernels as CUDA C++ text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, MemRefType, ModuleOp
from xdsl.utils.target import Target

from treadle.backends.c_like import Lines, Names, Nodes, StatementPrinter, kernel_comments, launched_nodes
from treadle.backends.c_like.folding import read_buffers, written_buffers
from treadle.backends.cuda.compiler import HEADER_NAME, HOPPER_HEADER_NAME, Unit
from treadle.backends.cuda.hopper_language import definitions, is_of_hopper
from treadle.backends.cuda.language import CudaLanguage
from treadle.dialects.cuda import KernelOp
from treadle.errors import TreadleError
from treadle.index.reader import index_bits
from treadle.passes.lower.identifiers import identifier


def print_kernels(module: ModuleOp) -> list[Unit]:
    """One translation unit for each `cuda.kernel`, named after it."""
    nodes = launched_nodes(module)
    return [_print_kernel(op, nodes)[0] for op in module.walk() if isinstance(op, KernelOp)]


def print_with_lines(module: ModuleOp) -> dict[str, tuple[str, Lines]]:
    """For each kernel's symbol its text, as `print_kernels` gives it, and which lines of it its operations are in."""
    nodes = launched_nodes(module)
    printed = (_print_kernel(op, nodes) for op in module.walk() if isinstance(op, KernelOp))
    return {unit.name: (unit.text, lines()) for unit, lines in printed}


def print_kernel(kernel: KernelOp) -> str:
    """The text of one kernel, as `print_kernels` prints it in a module without launches."""
    return _print_kernel(kernel, {})[0].text


def _print_kernel(kernel: KernelOp, nodes: Nodes) -> tuple[Unit, Callable[[], Lines]]:
    """The text of one kernel: an `extern "C" __global__` function of its buffers, in the order of its arguments; and
    what finds its lines.

    Raises TreadleError for a kernel named like a keyword, and for operations that the printer does not know.
    """
    name = kernel.sym_name.data
    if identifier(name) != name:
        raise TreadleError(f"kernel name '{name}'", "CUDA printer", f"a free name like '{identifier(name)}'")
    block = kernel.body.block
    names = Names()
    language = CudaLanguage(wide=index_bits(kernel, f"@{name}") > 32, names=names)
    printer = StatementPrinter(language, names, block)
    written = written_buffers(block)
    handed_on = written & read_buffers(block)
    parameters: list[str] = []
    for argument in block.args:
        type = argument.type
        if not isinstance(type, MemRefType):
            parameters.append(f"{printer.language.type_name(type)} {printer.parameter(argument, 'n')}")
            continue
        const = "" if argument in written else "const "
        # Other blocks' writes may become visible at every barrier, which `__restrict__` would exclude.
        restrict = "" if argument in handed_on else "__restrict__ "
        element = printer.language.memory_type(type.element_type)
        parameters.append(f"{const}{element} *{restrict}{printer.parameter(argument, 'buffer')}")
    for op in kernel.tensor_maps:
        parameters.append(f"const __grid_constant__ treadle_tensor_map {printer.parameter(op.result, 'map')}")
    signature = f'extern "C" __global__ void {_cluster(kernel)}__launch_bounds__({_bounds(kernel)}) {name}('
    comments = [f"// {text}" for text in kernel_comments(kernel, nodes.get(name, kernel.location))]
    header = HOPPER_HEADER_NAME if is_of_hopper(kernel) else HEADER_NAME
    head = [f'#include "{header}"', "", *definitions(kernel)]
    code = [f"{signature}{', '.join(parameters)}) {{", *printer.print_body(), "}", ""]
    unit = Unit(name, "\n".join([*head, *comments, *code]), "\n".join([*head, *code]))
    return unit, partial(printer.lines_of, len(head) + len(comments) + 1)


def _bounds(kernel: KernelOp) -> str:
    """The arguments of `__launch_bounds__`: threads of a block and, where given, blocks of a multiprocessor."""
    blocks = kernel.attributes.get("min_blocks_per_sm")
    return f"{kernel.threads}, {blocks.value.data}" if isinstance(blocks, IntegerAttr) else str(kernel.threads)


def _cluster(kernel: KernelOp) -> str:
    """What says of how many blocks a cluster is: an ordinary launch has them then."""
    blocks = kernel.attributes.get("cluster")
    return f"__cluster_dims__({blocks.value.data}, 1, 1) " if isinstance(blocks, IntegerAttr) else ""


# The text target `cuda`: what `treadle-opt -t cuda` prints.

ACCEPTED = "a module that a GPU's stages have lowered, as treadle-opt --pipeline sm_80 --to lower writes it"


@dataclass(frozen=True)
class CudaTarget(Target):
    """All translation units of a module after `loop-to-cuda`, one after the other."""

    name = "cuda"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Writes the text; raises TreadleError for what cannot be printed."""
        units = print_kernels(module)
        if not units:
            raise TreadleError("no cuda.kernel to print", "target 'cuda'", ACCEPTED)
        output.write("\n".join(unit.text for unit in units))
