"""Kernels as symbols: one `loop.func` for all kernels whose bodies are the same but for names."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.loop import FuncOp as LoopFuncOp
from treadle.dialects.loop import KernelOp
from treadle.passes.lower.identifiers import UniqueNames

Key = tuple[Hashable, ...]


def outline(kernels: Sequence[KernelOp], taken: Iterable[str] = ()) -> tuple[list[LoopFuncOp], list[str]]:
    """Moves the kernels' bodies into functions; gives these, and for each kernel the name of its function.

    A function is named after the first kernel that becomes it, with `_2`, `_3`, ... appended where that name
    is `taken` or belongs to another body. Its comment says how many differently commented kernels share it.
    """
    unique = UniqueNames(taken).unique
    functions: dict[Key, LoopFuncOp] = {}
    comments: dict[Key, list[str]] = {}
    names: list[str] = []
    for kernel in kernels:
        key = kernel_key(kernel)
        if key not in functions:
            functions[key] = _function(kernel, unique(kernel.sym_name.data))
        if kernel.comment is not None:
            comments.setdefault(key, []).append(kernel.comment.data)
        names.append(functions[key].sym_name.data)
    for key, said in comments.items():
        functions[key].comment = StringAttr(_joined(said))
    return list(functions.values()), names


def kernel_key(kernel: KernelOp) -> Key:
    """A key of what a kernel does, without its names: kernels with equal keys are equal programs."""
    shape = (kernel.grid.value.data, kernel.threads.value.data, kernel.min_blocks_per_sm, len(kernel.outputs))
    return (*shape, kernel.demands is None, _block_key(kernel.body.block, {}))


def _block_key(block: Block, numbers: dict[SSAValue, int]) -> Key:
    for arg in block.args:
        numbers[arg] = len(numbers)
    return (tuple(arg.type for arg in block.args), *(_op_key(op, numbers) for op in block.ops))


def _op_key(op: Operation, numbers: dict[SSAValue, int]) -> Key:
    operands = tuple(numbers[operand] for operand in op.operands)
    inside = tuple(_block_key(block, numbers) for region in op.regions for block in region.blocks)
    for result in op.results:
        numbers[result] = len(numbers)
    types = tuple(result.type for result in op.results)
    said = frozenset(op.attributes.items()), frozenset(op.properties.items())
    return (op.name, operands, types, said, inside)


def _function(kernel: KernelOp, name: str) -> LoopFuncOp:
    grid, threads, outputs = kernel.grid.value.data, kernel.threads.value.data, len(kernel.outputs)
    function = LoopFuncOp(name, grid, threads, kernel.detach_region(0), outputs=outputs)
    function.min_blocks_per_sm, function.operations = kernel.min_blocks_per_sm, kernel.operations
    function.partial = None if kernel.demands is None else UnitAttr()
    function.location = kernel.location
    return function


def _joined(comments: Sequence[str]) -> str:
    others = len(set(comments)) - 1
    return comments[0] if not others else f"{comments[0]} (and {others} more of the same program)"


__all__ = ["kernel_key", "outline"]
