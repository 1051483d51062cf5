"""Kernels and the host program as C text."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import func
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp
from xdsl.ir import Operation

from treadle.backends.c.compiler import Unit
from treadle.backends.c.executor import ENTRY
from treadle.backends.c.host_program import PARAMETERS, HostFunction
from treadle.backends.c.language import CLanguage
from treadle.backends.c_like import Names, Nodes, StatementPrinter, kernel_comments, launched_nodes
from treadle.backends.c_like.folding import written_buffers
from treadle.backends.program import numbered_constants
from treadle.dialects.loop import MultiplyTilesOp
from treadle.errors import TreadleError
from treadle.index.reader import index_bits
from treadle.passes.lower.identifiers import kernel_identifier


def print_kernels(module: ModuleOp) -> list[Unit]:
    """One translation unit for each kernel: each `func.func` that takes buffers, a worker and a number of workers."""
    names, nodes = _kernel_names(module), launched_nodes(module)
    return [_print_kernel(kernel, names, nodes) for kernel in _kernels(module)]


def print_kernel(kernel: func.FuncOp) -> str:
    """The text of one kernel, as `print_kernels` prints it in a module of that kernel alone."""
    symbol = kernel.sym_name.data
    return _print_kernel(kernel, {symbol: kernel_identifier(symbol)}, {}).text


def _print_kernel(kernel: func.FuncOp, names: Mapping[str, str], nodes: Nodes) -> Unit:
    """The text of one kernel: `void NAME(void *const *args, long worker, long workers)`."""
    symbol = kernel.sym_name.data
    name = names[symbol]
    block = kernel.body.block
    index_bits(kernel, f"@{symbol}")  # `long` holds 64
    *buffers, worker, workers = block.args
    language = CLanguage()
    printer = StatementPrinter(language, Names(), block)
    for value, fixed in ((worker, "worker"), (workers, "workers")):
        printer.values.names[value] = fixed
    printer.values.positive.add(workers)
    written = written_buffers(block)
    for position, buffer in enumerate(buffers):
        assert isinstance(buffer.type, MemRefType)
        if not any(True for _ in buffer.uses):
            continue
        const = "" if buffer in written else "const "
        element = language.argument_type(buffer.type.element_type)
        given = printer.parameter(buffer, "buffer")
        printer.line(f"{const}{element} *restrict {given} = args[{position}];")
    comments = [f"/* {text} */" for text in kernel_comments(kernel, nodes.get(symbol, kernel.location))]
    on_unit = any(isinstance(op, MultiplyTilesOp) for op in block.walk())
    head = [f'#include "{"treadle_tiles.h" if on_unit else "treadle.h"}"', ""]
    body = printer.print_body()
    if on_unit:
        body = ["    treadle_tiles_begin();", *body, "    treadle_tiles_end();"]
    code = [f"void {name}(void *const *args, long worker, long workers) {{", *body, "}", ""]
    return Unit(name, "\n".join([*head, *comments, *code]), "\n".join([*head, *code]))


def print_host(module: ModuleOp) -> Unit:
    """The unit with `treadle_run`: the launches of @main in program order, and the functions that loops and branches
    call.

    `inputs` and `outputs` are numbered as the buffers say, `constants` in the order of the module's constant buffers.
    """
    taken = Names()
    names = _kernel_names(module, taken)
    kernels = {kernel.sym_name.data: kernel for kernel in _kernels(module)}
    hosts = _hosts(module)
    called = {
        each.sym_name.data: taken.claim_exact(kernel_identifier(each.sym_name.data), "function") for each in hosts[1:]
    }
    constants = numbered_constants(module)
    declared = [f"void {names[symbol]}(void *const *args, long worker, long workers);" for symbol in kernels]
    lines = ["#include <stdint.h>", "", '#include "pool.h"', "", *declared, ""]
    lines += [f"static void {name}({PARAMETERS});" for name in called.values()]
    for function in hosts[::-1]:
        body = HostFunction(function, kernels, names, called, constants).lines()
        name = called.get(function.sym_name.data)
        head = f"void {ENTRY}" if name is None else f"static void {name}"
        lines += [f"{head}({PARAMETERS}) {{", *body, "}", ""]
    return Unit(ENTRY, "\n".join(lines))


def has_host(module: ModuleOp) -> bool:
    """Whether the module has a host program beside its kernels."""
    return any(isinstance(op, func.FuncOp) and not _is_kernel(op) and op.body.blocks for op in module.ops)


def _is_kernel(op: Operation) -> bool:
    if not isinstance(op, func.FuncOp) or not op.body.blocks:
        return False
    types = list(op.function_type.inputs.data)
    return types[-2:] == [IndexType(), IndexType()] and all(isinstance(t, MemRefType) for t in types[:-2])


def _kernels(module: ModuleOp) -> list[func.FuncOp]:
    return [op for op in module.ops if isinstance(op, func.FuncOp) and _is_kernel(op)]


def _hosts(module: ModuleOp) -> list[func.FuncOp]:
    """The functions of launches: @main, or else the only one, then those that it calls."""
    found = [op for op in module.ops if isinstance(op, func.FuncOp) and not _is_kernel(op) and op.body.blocks]
    if not found:
        raise TreadleError("no host function", "C printer", "func.func @main of host.launch beside the kernels")
    return sorted(found, key=lambda function: function.sym_name.data != "main")


def _kernel_names(module: ModuleOp, names: Names | None = None) -> dict[str, str]:
    """C names of the kernels by symbol, all different."""
    names = Names() if names is None else names
    return {
        op.sym_name.data: names.claim_exact(kernel_identifier(op.sym_name.data), "kernel") for op in _kernels(module)
    }
