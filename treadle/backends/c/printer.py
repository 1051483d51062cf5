"""Kernels and the host program as C text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import IO

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.target import Target

from treadle.backends.c.compiler import Unit
from treadle.backends.c.executor import ENTRY
from treadle.backends.c.language import CLanguage
from treadle.backends.c_like import Lines, Names, Nodes, StatementPrinter, comment_text, kernel_comments, launched_nodes
from treadle.backends.c_like.folding import written_buffers
from treadle.backends.program import numbered_constants
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.host import BufferOp, DispatchOp, IfOp, LaunchOp, LoopOp
from treadle.dialects.location import NamesNodes, describe_nodes
from treadle.dialects.loop import MultiplyTilesOp
from treadle.errors import TreadleError
from treadle.index.reader import index_bits
from treadle.passes.lower.identifiers import kernel_identifier
from treadle.shapes.decision_tree import Leaf, Tree

# The functions of launches as C: treadle_run, and one for each function that a loop or a branch calls.

PARAMETERS = (
    "struct treadle_pool *pool, void *const *inputs, void *const *outputs,\n"
    "                 void *const *constants, char *arena"
)
"""What each function of a program takes. Of a function that is called, inputs and outputs are its caller's buffers, and
the arena is a part of its caller's; the constants are those of the whole program."""


class HostFunction:
    """Prints the launches of one function, and its loops and branches.

    kernels:   by their symbols
    names:     the C names of kernels
    functions: the C names of the functions that loops and branches call
    """

    def __init__(
        self,
        function: func.FuncOp,
        kernels: Mapping[str, func.FuncOp],
        names: Mapping[str, str],
        functions: Mapping[str, str],
        constants: Mapping[SSAValue, int],
    ):
        self._function, self._kernels, self._names, self._functions = function, kernels, names, functions
        self._buffers = _buffer_texts(function, constants)

    def lines(self) -> list[str]:
        """The statements of its body."""
        found: list[str] = []
        for op in self._function.body.block.ops:
            if isinstance(op, LaunchOp):
                found += self._launch(op, "    ")
            elif isinstance(op, DispatchOp):
                found += self._dispatch(op, op.tree.data, "    ")
            elif isinstance(op, LoopOp):
                found += self._loop(op)
            elif isinstance(op, IfOp):
                found += self._branch(op)
        return found

    def _launch(self, launch: LaunchOp, indent: str) -> list[str]:
        symbol, kernels = launch.kernel.string_value(), self._kernels
        if symbol not in kernels:
            accepted = ", ".join(f"@{name}" for name in kernels) or "a module lowered for the cpu target"
            where = f"@{self._function.sym_name.data}"
            raise TreadleError(f"launch of @{symbol}, which is no C kernel", where, accepted)
        args = f"(void *const[]){{{', '.join(self._of(launch.buffers))}}}"
        grid = kernels[symbol].attributes.get("grid")
        blocks = grid.value.data if isinstance(grid, IntegerAttr) else 1
        return [*_comment(launch, indent), f"{indent}treadle_pool_run(pool, {self._names[symbol]}, {args}, {blocks});"]

    def _dispatch(self, op: DispatchOp, tree: Tree[int], indent: str) -> list[str]:
        """A tree as branches."""
        if isinstance(tree, Leaf):
            launch = list(op.launches.block.ops)[tree.kernel]
            assert isinstance(launch, LaunchOp)
            return self._launch(launch, indent)
        extent = f"*(const int64_t *)({self._buffers[op.extents[tree.symbol]]})"
        left, right = (self._dispatch(op, side, f"{indent}    ") for side in (tree.left, tree.right))
        return [f"{indent}if ({extent} <= {tree.at_most}) {{", *left, f"{indent}}} else {{", *right, f"{indent}}}"]

    def _loop(self, op: LoopOp) -> list[str]:
        """Three arrays of addresses: where the state is, where it is written next, and where after that."""
        counter, count = self._buffers[op.counter], len(op.final)
        inputs = ["counter", *(f"now[{n}]" for n in range(count)), *self._of(op.read)]
        # Buffers are flat by now: only their sizes say how long a row is.
        times = 1 if op.times is None else op.times.value.data
        rows = [
            f"(char *)({text}) + *counter * {_bytes(value) // times}L"
            for text, value in zip(self._of(op.rows), op.rows, strict=True)
        ]
        outputs = [*(["again"] if op.again else []), *(f"next[{n}]" for n in range(count)), *rows]
        return [
            *_comment(op, "    "),
            "    {",
            *(_addresses(*each) for each in (("now", self._of(op.initial)), ("next", self._of(op.final)))),
            _addresses("after", self._of(op.spare)),
            f"        int64_t *counter = (int64_t *)({counter});",
            *self._head(op),
            f"            void *const given[] = {{{', '.join(inputs)}}};",
            f"            void *const made[] = {{{', '.join(outputs) or 'counter'}}};",
            f"            {self._call(op.body.string_value(), op.arena, 'given', 'made')}",
            f"            for (int n = 0; n < {count}; ++n) {{",
            "                void *const free = after[n];",
            "                after[n] = now[n] = next[n];",
            "                next[n] = free;",
            "            }",
            "        }",
            *self._copies(op),
            "    }",
        ]

    def _head(self, op: LoopOp) -> list[str]:
        tests = self._of(op.tests)
        limits = [f"        const int64_t limit = *(const int64_t *)({text});" for text in tests[:1]]
        if op.times is not None:
            end = f"*counter < {op.times.value.data}L{' && *counter < limit' if limits else ''}"
            return [*limits, f"        for (*counter = 0; {end}; ++*counter) {{"]
        going = tests[1]
        (again,) = self._of(op.again)
        return [
            *limits,
            f"        unsigned char *again = (unsigned char *)({again});",
            f"        *again = *(const unsigned char *)({going});",
            "        for (*counter = 0; *counter < limit && *again; ++*counter) {",
        ]

    def _copies(self, op: LoopOp) -> list[str]:
        """The state that an odd or an even number of iterations left elsewhere."""
        return [
            f"        if (now[{n}] != {text}) __builtin_memcpy({text}, now[{n}], {_bytes(value)});"
            for n, (text, value) in enumerate(zip(self._of(op.final), op.final, strict=True))
        ]

    def _branch(self, op: IfOp) -> list[str]:
        calls = [self._call(name.string_value(), op.arena, "given", "made") for name in (op.then, op.otherwise)]
        condition = f"*(const unsigned char *)({self._buffers[op.condition]})"
        return [
            *_comment(op, "    "),
            "    {",
            _addresses("given", self._of(op.read), "void *const"),
            _addresses("made", self._of(op.final), "void *const"),
            f"        if ({condition}) {calls[0]}",
            f"        else {calls[1]}",
            "    }",
        ]

    def _call(self, symbol: str, arena: SSAValue, given: str, made: str) -> str:
        if symbol not in self._functions:
            where, accepted = f"@{self._function.sym_name.data}", [f"@{name}" for name in self._functions]
            raise TreadleError(f"a call of @{symbol}, which is no function of launches", where, accepted)
        return f"{self._functions[symbol]}(pool, {given}, {made}, constants, {self._buffers[arena]});"

    def _of(self, values: Sequence[SSAValue]) -> list[str]:
        return [self._buffers[value] for value in values]


def _comment(op: NamesNodes, indent: str) -> list[str]:
    nodes = comment_text(describe_nodes(op.location))
    return [f"{indent}/* {nodes} */"] if nodes else []


def _addresses(name: str, texts: Sequence[str], type: str = "void *") -> str:
    return f"        {type}{'' if type.endswith('*') else ' '}{name}[] = {{{', '.join(texts) or '0'}}};"


def _bytes(value: SSAValue) -> int:
    type = value.type
    assert isinstance(type, MemRefType)
    return prod(type.get_shape()) * byte_width(type.get_element_type())


def _buffer_texts(function: Operation, constants: Mapping[SSAValue, int]) -> dict[SSAValue, str]:
    texts: dict[SSAValue, str] = {}
    for op in function.walk():
        if not isinstance(op, BufferOp):
            continue
        position = 0 if op.position is None else op.position.value.data
        match op.kind.data:
            case "constant":
                texts[op.buffer] = f"constants[{constants[op.buffer]}]"
            case "arena":
                texts[op.buffer] = f"arena + {position}"
            case "zeroed":
                texts[op.buffer] = f"zeroed + {position}"
            case kind:
                texts[op.buffer] = f"{kind}s[{position}]"
    return texts


def print_kernels(module: ModuleOp) -> list[Unit]:
    """One translation unit for each kernel: each `func.func` that takes buffers, a worker and a number of workers."""
    names, nodes = kernel_names(module), launched_nodes(module)
    return [_print_kernel(kernel, names, nodes)[0] for kernel in _kernels(module)]


def print_with_lines(module: ModuleOp) -> dict[str, tuple[str, Lines]]:
    """For each kernel's symbol its text, as `print_kernels` gives it, and which lines of it its operations are in."""
    names, nodes = kernel_names(module), launched_nodes(module)
    printed = ((kernel.sym_name.data, *_print_kernel(kernel, names, nodes)) for kernel in _kernels(module))
    return {symbol: (unit.text, lines()) for symbol, unit, lines in printed}


def print_kernel(kernel: func.FuncOp) -> str:
    """The text of one kernel, as `print_kernels` prints it in a module of that kernel alone."""
    symbol = kernel.sym_name.data
    return _print_kernel(kernel, {symbol: kernel_identifier(symbol)}, {})[0].text


def _print_kernel(kernel: func.FuncOp, names: Mapping[str, str], nodes: Nodes) -> tuple[Unit, Callable[[], Lines]]:
    """The text of one kernel, `void NAME(void *const *args, long worker, long workers)`, and what finds its lines."""
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
    unit = Unit(name, "\n".join([*head, *comments, *code]), "\n".join([*head, *code]))
    return unit, partial(printer.lines_of, len(head) + len(comments) + (2 if on_unit else 1))


def print_host(module: ModuleOp) -> Unit:
    """The unit with `treadle_run`: the launches of @main in program order, and the functions that loops and branches
    call.

    `inputs` and `outputs` are numbered as the buffers say, `constants` in the order of the module's constant buffers.
    """
    taken = Names()
    names = kernel_names(module, taken)
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
        body = [*_zeroed(function), *HostFunction(function, kernels, names, called, constants).lines()]
        name = called.get(function.sym_name.data)
        head = f"void {ENTRY}" if name is None else f"static void {name}"
        lines += [f"{head}({PARAMETERS}) {{", *body, "}", ""]
    return Unit(ENTRY, "\n".join(lines))


def _zeroed(function: func.FuncOp) -> list[str]:
    """The memory that is zero between a function's launches: each caller's own, since several may run at once."""
    buffers = [op for op in function.walk() if isinstance(op, BufferOp) and op.kind.data == "zeroed"]
    size = max(((op.position.value.data if op.position else 0) + _bytes(op.buffer) for op in buffers), default=0)
    return [f"    static _Thread_local char zeroed[{size}] __attribute__((aligned(64)));"] if size else []


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


def kernel_names(module: ModuleOp, names: Names | None = None) -> dict[str, str]:
    """C names of the kernels by symbol, all different."""
    names = Names() if names is None else names
    return {
        op.sym_name.data: names.claim_exact(kernel_identifier(op.sym_name.data), "kernel") for op in _kernels(module)
    }


# The text target `c`: what `treadle-opt -t c` prints.

ACCEPTED = "a module that a CPU's stages have lowered, as treadle-opt --pipeline cpu --to lower writes it"


@dataclass(frozen=True)
class CTarget(Target):
    """All translation units of a module after `loop-to-c`, one after the other, the host program last."""

    name = "c"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Writes the text; raises TreadleError for what cannot be printed."""
        units = print_kernels(module)
        if not units:
            raise TreadleError("no kernel to print", "target 'c'", ACCEPTED)
        if has_host(module):
            units.append(print_host(module))
        output.write("\n".join(unit.text for unit in units))
