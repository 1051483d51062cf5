"""Kernels and the host program as C text."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import func
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import Operation, SSAValue

from treadle.backends.c.compiler import Unit
from treadle.backends.c.executor import ENTRY
from treadle.backends.c.language import CLanguage
from treadle.backends.c_like import Names, Nodes, StatementPrinter, comment_text, kernel_comments, launched_nodes
from treadle.backends.c_like.folding import written_buffers
from treadle.decision_tree import Leaf, Tree
from treadle.dialects.host import BufferOp, DispatchOp, LaunchOp
from treadle.dialects.loop import MultiplyTilesOp
from treadle.dialects.model_nodes import describe_nodes
from treadle.errors import TreadleError
from treadle.index.width import index_bits
from treadle.passes.lower.identifiers import kernel_identifier

_HOST_SIGNATURE = (
    "void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs,\n"
    "                 void *const *constants, char *arena)"
)


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
    """The unit with `treadle_run`: the launches of @main in program order.

    `inputs` and `outputs` are numbered as the buffers say, `constants` in the order of @main's constant buffers.
    """
    names = _kernel_names(module)
    kernels = {kernel.sym_name.data: kernel for kernel in _kernels(module)}
    main = _host(module)
    declared = [f"void {names[symbol]}(void *const *args, long worker, long workers);" for symbol in kernels]
    lines = ["#include <stdint.h>", "", '#include "pool.h"', "", *declared, "", f"{_HOST_SIGNATURE} {{"]
    program = _HostProgram(main, kernels, names)
    return Unit(ENTRY, "\n".join([*lines, *program.lines(), "}", ""]))


class _HostProgram:
    """Prints the launches of @main."""

    def __init__(self, main: func.FuncOp, kernels: Mapping[str, func.FuncOp], names: Mapping[str, str]):
        self._main, self._kernels, self._names = main, kernels, names
        self._buffers = _buffer_texts(main)

    def lines(self) -> list[str]:
        found: list[str] = []
        for op in self._main.body.block.ops:
            if isinstance(op, LaunchOp):
                found += self._launch(op, "    ")
            elif isinstance(op, DispatchOp):
                found += self._dispatch(op, op.tree.data, "    ")
        return found

    def _launch(self, launch: LaunchOp, indent: str) -> list[str]:
        symbol, kernels = launch.kernel.string_value(), self._kernels
        if symbol not in kernels:
            accepted = ", ".join(f"@{name}" for name in kernels) or "a module lowered for the cpu target"
            raise TreadleError(f"launch of @{symbol}, which is no C kernel", f"@{self._main.sym_name.data}", accepted)
        arguments = ", ".join(self._buffers[buffer] for buffer in launch.buffers)
        args = f"(void *const[]){{{arguments}}}"
        grid = kernels[symbol].attributes.get("grid")
        blocks = grid.value.data if isinstance(grid, IntegerAttr) else 1
        nodes = comment_text(describe_nodes(launch.location))
        comment = [f"{indent}/* {nodes} */"] if nodes else []
        return [*comment, f"{indent}treadle_pool_run(pool, {self._names[symbol]}, {args}, {blocks});"]

    def _dispatch(self, op: DispatchOp, tree: Tree[int], indent: str) -> list[str]:
        """A tree as branches."""
        if isinstance(tree, Leaf):
            launch = list(op.launches.block.ops)[tree.kernel]
            assert isinstance(launch, LaunchOp)
            return self._launch(launch, indent)
        extent = f"*(const int64_t *)({self._buffers[op.extents[tree.symbol]]})"
        left, right = (self._dispatch(op, side, f"{indent}    ") for side in (tree.left, tree.right))
        return [f"{indent}if ({extent} <= {tree.at_most}) {{", *left, f"{indent}}} else {{", *right, f"{indent}}}"]


def has_host(module: ModuleOp) -> bool:
    """Whether the module has a host program beside its kernels."""
    return any(isinstance(op, func.FuncOp) and not _is_kernel(op) and op.body.blocks for op in module.ops)


def _buffer_texts(main: Operation) -> dict[SSAValue, str]:
    texts: dict[SSAValue, str] = {}
    constants = 0
    for op in main.walk():
        if not isinstance(op, BufferOp):
            continue
        position = 0 if op.position is None else op.position.value.data
        match op.kind.data:
            case "constant":
                texts[op.buffer] = f"constants[{constants}]"
                constants += 1
            case "arena":
                texts[op.buffer] = f"arena + {position}"
            case "zeroed":
                message = "the host program has no memory that is zero between launches"
                raise TreadleError(message, "C printer", "a GPU's kernels, whose blocks arrive at counters")
            case kind:
                texts[op.buffer] = f"{kind}s[{position}]"
    return texts


def _is_kernel(op: Operation) -> bool:
    if not isinstance(op, func.FuncOp) or not op.body.blocks:
        return False
    types = list(op.function_type.inputs.data)
    return types[-2:] == [IndexType(), IndexType()] and all(isinstance(t, MemRefType) for t in types[:-2])


def _kernels(module: ModuleOp) -> list[func.FuncOp]:
    return [op for op in module.ops if isinstance(op, func.FuncOp) and _is_kernel(op)]


def _host(module: ModuleOp) -> func.FuncOp:
    for op in module.ops:
        if isinstance(op, func.FuncOp) and not _is_kernel(op) and op.body.blocks:
            return op
    raise TreadleError("no host function", "C printer", "func.func @main of host.launch beside the kernels")


def _kernel_names(module: ModuleOp) -> dict[str, str]:
    """C names of the kernels by symbol, all different."""
    names = Names()
    return {
        op.sym_name.data: names.claim_exact(kernel_identifier(op.sym_name.data), "kernel") for op in _kernels(module)
    }
