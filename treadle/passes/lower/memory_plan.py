"""memory-plan: tensors become buffers, kernels become functions, and @main a list of launches."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    FunctionType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    TensorType,
    UnitAttr,
    i1,
    i8,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects import host
from treadle.dialects.graph import AppendOp, ConstantOp, StateAttr
from treadle.dialects.graph.append import STATES, is_in_place, states_of
from treadle.dialects.graph.control import ControlOp, IfOp, LoopOp, called, check_calls
from treadle.dialects.graph.dtypes import byte_width, is_supported
from treadle.dialects.host import BufferOp, LaunchOp
from treadle.dialects.host import DispatchOp as HostDispatchOp
from treadle.dialects.host import ReturnOp as EndOp
from treadle.dialects.location import location_of
from treadle.dialects.loop import DispatchOp, KernelOp, memref_of
from treadle.dialects.loop import FuncOp as LoopFuncOp
from treadle.errors import TreadleError
from treadle.passes.lower.append_kernel import append_kernel
from treadle.passes.lower.identifiers import UniqueNames
from treadle.passes.lower.launch_memory import Arena, LaunchMemory, LiveRange, plan_arena
from treadle.passes.lower.loop_to_c import copy_returned_values

# Results of kernels that are parts of another one's, and so need no copy.


@dataclass
class JoinedValues:
    """The values that are parts, each with the whole and its byte in that, which may be a part itself."""

    parts: dict[SSAValue, tuple[SSAValue, int]] = field(default_factory=dict[SSAValue, tuple[SSAValue, int]])

    @property
    def results(self) -> list[SSAValue]:
        """The values that are wholes, which no kernel has to write."""
        return list(dict.fromkeys(whole for whole, _ in self.parts.values()))

    def place(self, value: SSAValue) -> tuple[SSAValue, int]:
        """The whole that a value lies in, which is no part, and at which byte: itself, for most."""
        offset = 0
        while value in self.parts:
            value, more = self.parts[value]
            offset += more
        return value, offset


def joined_values(steps: Sequence[KernelOp | DispatchOp], returned: Sequence[SSAValue], alignment: int) -> JoinedValues:
    """The parts of what kernels join: only results of other kernels, which are not `returned`, at multiples of
    `alignment`, and each part of one whole only."""
    joined = JoinedValues()
    own = {value for step in steps for value in step.outputs}.difference(returned)
    for step in steps:
        offsets = step.offsets if isinstance(step, KernelOp) and step.required_regions is None else None
        if not isinstance(step, KernelOp) or offsets is None:
            continue
        whole = step.outputs[0]
        bytes_each = byte_width(whole.type.get_element_type())
        parts = {value: (whole, offset * bytes_each) for value, offset in zip(step.inputs, offsets, strict=True)}
        is_free = {whole, *parts} <= own and len(parts) == len(offsets) and joined.parts.keys().isdisjoint(parts)
        if is_free and all(byte % alignment == 0 for _, byte in parts.values()):
            joined.parts.update(parts)
    return joined


def nbytes(type: Attribute) -> int:
    """The bytes of a tensor, or of a buffer."""
    tensor = cast("TensorType[Attribute] | MemRefType[Attribute]", type)
    return prod(tensor.get_shape()) * byte_width(tensor.get_element_type())


# Kernels as symbols: one `loop.func` for all kernels whose bodies are the same but for names.

Key = tuple[Hashable, ...]


def outline(
    kernels: Sequence[KernelOp], taken: Iterable[str] = (), updating: Collection[KernelOp] = ()
) -> tuple[list[LoopFuncOp], list[str]]:
    """Moves the kernels' bodies into functions; gives these, and for each kernel the name of its function.

    updating: kernels that leave elements of their results as they are, which are read

    A function is named after the first kernel that becomes it, with `_2`, `_3`, ... appended where that name
    is `taken` or belongs to another body. Its comment says how many differently commented kernels share it.
    """
    unique = UniqueNames(taken).unique
    functions: dict[Key, LoopFuncOp] = {}
    comments: dict[Key, list[str]] = {}
    names: list[str] = []
    for kernel in kernels:
        key = (*kernel_key(kernel), kernel in updating)
        if key not in functions:
            functions[key] = _function(kernel, unique(kernel.sym_name.data))
            functions[key].updates = UnitAttr() if kernel in updating else None
        if kernel.comment is not None:
            comments.setdefault(key, []).append(kernel.comment.data)
        names.append(functions[key].sym_name.data)
    for key, said in comments.items():
        functions[key].comment = StringAttr(_joined(said))
    return list(functions.values()), names


def kernel_key(kernel: KernelOp) -> Key:
    """A key of what a kernel does, without its names: kernels with equal keys are equal programs."""
    shape = (kernel.grid.value.data, kernel.threads.value.data, kernel.min_blocks_per_sm, len(kernel.outputs))
    return (*shape, kernel.cluster, kernel.required_regions is None, _block_key(kernel.body.block, {}))


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
    function.cluster = kernel.cluster
    function.partial = None if kernel.required_regions is None else UnitAttr()
    function.location = kernel.location
    return function


def _joined(comments: Sequence[str]) -> str:
    others = len(set(comments)) - 1
    return comments[0] if not others else f"{comments[0]} (and {others} more of the same program)"


# Buffers of loops and branches: a loop's second state, its counter, and the arenas of what they call.


class ControlMemory:
    """The buffers that loops and branches have beside their operands and results, each while its operation runs.

    arenas: the bytes of the arena of each function that is called
    """

    def __init__(self, steps: Sequence[Operation], arenas: Mapping[str, int]):
        self._types = {step: _own_types(step, arenas) for step in steps if isinstance(step, ControlOp)}
        self._numbers = {step: number for number, step in enumerate(steps)}

    @property
    def live_ranges(self) -> list[LiveRange]:
        """Of each buffer."""
        return [
            LiveRange(nbytes(type), self._numbers[step], self._numbers[step])
            for step, types in self._types.items()
            for type in types
        ]

    def buffers(self, offsets: Iterator[int]) -> dict[Operation, list[BufferOp]]:
        """Each operation's buffers; `offsets` are those of the live ranges."""
        return {step: [BufferOp("arena", type, next(offsets)) for type in types] for step, types in self._types.items()}


def planned_control(op: ControlOp, buffers: Mapping[SSAValue, BufferOp], own: Sequence[BufferOp]) -> Operation:
    """The operation on buffers; `own` are those that `ControlMemory` gave it."""

    def of(values: Sequence[SSAValue]) -> list[SSAValue]:
        return [buffers[value].buffer for value in values]

    scratch: list[SSAValue] = [each.buffer for each in own]
    names = [function.sym_name.data for function in called(op)]
    if not isinstance(op, LoopOp):
        (arena,) = scratch
        planned: Operation = host.IfOp(
            buffers[op.condition].buffer, (names[0], names[1]), of(op.read), of(op.outputs), arena
        )
    else:
        count = len(op.carried)
        counter, arena, *again = scratch[count:]
        states = of(op.carried), of(op.outputs[:count]), scratch[:count]
        times = None if op.times is None else op.times.value.data
        own_values = (counter, again, arena)
        planned = host.LoopOp(names[0], times, of(op.tests), states, of(op.read), of(op.rows), own_values)
    planned.location = op.location
    return planned


def _own_types(op: ControlOp, arenas: Mapping[str, int]) -> list[MemRefType[Attribute]]:
    """A loop's spare state, its counter, its arena and its condition; a branch's arena."""
    arena = max(1, *(arenas[function.sym_name.data] for function in called(op)))
    if not isinstance(op, LoopOp):
        return [MemRefType(i8, [arena])]
    spare = [memref_of(value.type) for value in op.carried]  # pyright: ignore[reportArgumentType]
    again = [MemRefType(i1, [])] if op.has_condition else []
    return [*spare, MemRefType(i64, []), MemRefType(i8, [arena]), *again]


_Unit = KernelOp | LoopOp | IfOp
_Step = _Unit | DispatchOp


@dataclass(frozen=True)
class MemoryPlanPass(ModulePass):
    """Gives every tensor of @main a buffer, and every kernel a name that launches refer to.

    ```mlir
    func.func @main(%x : tensor<4xf32>) -> tensor<4xf32>
        attributes {input_names = ["x"], output_names = ["y"]} {
      %h = loop.kernel @relu ins(%A = %x : tensor<4xf32>) outs(%C : tensor<4xf32>) grid(..) threads(..) {..}
      %y = loop.kernel @relu ins(%A = %h : tensor<4xf32>) outs(%C : tensor<4xf32>) grid(..) threads(..) {..}
      func.return %y : tensor<4xf32>
    }
    ```
    becomes
    ```mlir
    loop.func @relu(%A : memref<4xf32>, %C : memref<4xf32>) grid(%b in 1) threads(%t in 1) {..}
    func.func @main() attributes {arena_bytes = 64 : i64, input_names = ["x"], output_names = ["y"],
                                  input_types = [tensor<4xf32>], output_types = [tensor<4xf32>]} {
      %x = host.buffer input 0 : memref<4xf32>
      %h = host.buffer arena 0 : memref<4xf32>
      %y = host.buffer output 0 : memref<4xf32>
      host.launch @relu(%x, %h) : memref<4xf32>, memref<4xf32>
      host.launch @relu(%h, %y) : memref<4xf32>, memref<4xf32>
      host.return
    }
    ```
    A value that is returned is written to its output's buffer; one that no kernel writes there (an argument, a
    constant, a value returned twice) is copied by a kernel of `copy_threads` threads. All other kernels' results share
    the arena, at multiples of `alignment` bytes. Of a kernel that only `joins` such results, they are parts of its own,
    and it is not launched, where each begins at such a multiple. What a kernel allocates for all of its blocks becomes
    arguments before that of its result: `device` buffers lie in the arena, too, during that launch alone; `zeroed` ones
    are `host.buffer zeroed`. Launches keep the kernels' order; those of a `loop.dispatch` are in one `host.dispatch`.
    Equal constants of a function are one buffer, and are numbered in the order of their buffers in the module. A
    function that a loop or a branch calls is planned as @main is; its arena, and the second state of a loop, are in the
    arena of its caller. A `graph.append` to a state becomes a kernel that stores the new elements where the state lies,
    and @main says so: `states = [#graph.state<1 -> 1 in_place>]`.
    """

    name = "memory-plan"
    alignment: int = 64
    copy_threads: int = 1

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """TreadleError for an alignment below 1, a module without @main, an operation in a function other
        than kernels, constants, loops and branches, and a symbolic dimension."""
        if self.alignment < 1 or self.copy_threads < 1:
            given = f"alignment={self.alignment} copy-threads={self.copy_threads}"
            raise TreadleError(f"impossible options {given}", "memory-plan", "numbers from 1 upwards")
        functions = _checked_functions(op)
        programs = [_Program(function, self.alignment, self.copy_threads) for function in functions]
        kernels = [kernel for program in programs for kernel in program.kernels]
        updating = {kernel for program in programs for kernel in program.updating}
        outlined, names = outline(kernels, [f.sym_name.data for f in functions], updating)
        Rewriter.insert_op(outlined, InsertPoint.at_start(op.body.block))
        symbols = dict(zip(kernels, names, strict=True))
        arenas: dict[str, int] = {}
        for program in programs:
            planned = program.planned(symbols, arenas)
            Rewriter.insert_op(planned, InsertPoint.before(program.function))
        for program in reversed(programs):
            Rewriter.erase_op(program.function)


class _Program:
    """A function on the way to its launches."""

    def __init__(self, function: FuncOp, alignment: int, copy_threads: int):
        end = function.body.block.last_op
        assert isinstance(end, ReturnOp)
        self.updating = _appends_in_place(function, copy_threads)
        copy_returned_values(end, copy_threads)
        steps = [o for o in function.body.block.ops if isinstance(o, KernelOp | DispatchOp | ControlOp)]
        writers = [step for step in steps if isinstance(step, KernelOp | DispatchOp)]
        self.function, self._end, self._alignment = function, end, alignment
        self._joined = joined_values(writers, end.operands, alignment)
        joins = self._joined.results
        self._steps = [step for step in steps if not isinstance(step, KernelOp) or step.outputs[0] not in joins]
        self._units = [unit for step in self._steps for unit in _units(step)]
        self._memory = LaunchMemory(self._units)

    @property
    def kernels(self) -> list[KernelOp]:
        return [unit for unit in self._units if isinstance(unit, KernelOp)]

    def planned(self, symbols: Mapping[KernelOp, str], arenas: dict[str, int]) -> FuncOp:
        """The function of launches; `arenas` has the bytes of those that it calls, and gets its own."""
        control = ControlMemory(self._units, arenas)
        scratch = [*self._memory.live_ranges, *control.live_ranges]
        buffers, arena = _plan_buffers(self.function, self._end, self._units, scratch, self._joined, self._alignment)
        offsets = iter(arena.offsets[len(arena.offsets) - len(scratch) :])
        own = self._memory.buffers(offsets)
        of_control = control.buffers(offsets)
        operations: list[Operation] = []
        for unit, extra in zip(self._units, own, strict=True):
            if isinstance(unit, KernelOp):
                operations.append(_launch(unit, symbols[unit], extra, buffers))
            else:
                operations.append(planned_control(unit, buffers, of_control[unit]))
        distinct = list(dict.fromkeys([*buffers.values(), *chain.from_iterable([*own, *of_control.values()])]))
        ops = _dispatched(self._steps, operations, buffers)
        arenas[self.function.sym_name.data] = arena.nbytes
        return _planned_main(self.function, self._end, [*distinct, *ops, EndOp()], arena.nbytes)


def _appends_in_place(function: FuncOp, threads: int) -> list[KernelOp]:
    """The kernels that replace appends to states; @main says which of its states they are."""
    kernels: list[KernelOp] = []
    kept: set[int] = set()
    for op in [op for op in function.body.block.ops if isinstance(op, AppendOp)]:
        if not is_in_place(op):
            accepted = "a state's argument that nothing else reads, and the result that it becomes; run graph-define"
            raise TreadleError("graph.append to no state of its own", _place(op), accepted)
        assert isinstance(op.past, BlockArgument)
        kept.add(op.past.index)
        kernels.append(append_kernel(op, "append", threads))
        Rewriter.replace_op(op, kernels[-1])
    if states := states_of(function):
        pairs = [(each.argument.data, each.result.data) for each in states]
        function.attributes[STATES] = ArrayAttr([StateAttr.of(*pair, pair[0] in kept) for pair in pairs])
    return kernels


def _launch(kernel: KernelOp, name: str, scratch: Sequence[BufferOp], buffers: Mapping[SSAValue, BufferOp]) -> LaunchOp:
    values, results = [buffers[v] for v in kernel.inputs], [buffers[v] for v in _results(kernel)]
    launch = LaunchOp(name, [op.buffer for op in (*values, *scratch, *results)])
    launch.location = kernel.location
    return launch


def _checked_functions(module: ModuleOp) -> list[FuncOp]:
    """@main and the functions that it calls, each behind those that it calls itself, after making sure that the pass
    can plan them."""
    mains = [f for f in module.body.block.ops if isinstance(f, FuncOp) and f.sym_name.data == "main"]
    if not mains or not mains[0].body.blocks:
        raise TreadleError("the module has no function @main", "memory-plan", "func.func @main with a body")
    check_calls(mains[0])
    functions = _callees_first(mains[0])
    for other in list(module.body.block.ops):
        if isinstance(other, FuncOp) and other not in functions and other.sym_visibility == StringAttr("private"):
            Rewriter.erase_op(other)  # what called it was not needed
        elif other not in functions:
            accepted = "a module that holds func.func @main only, and what loops and branches call"
            raise TreadleError(f"{other.name} beside @main", _place(other), accepted)
    for function in functions:
        _check_function(function)
    return functions


def _callees_first(function: FuncOp) -> list[FuncOp]:
    control = [op for op in function.body.block.ops if isinstance(op, ControlOp)]
    inner = [each for op in control for callee in called(op) for each in _callees_first(callee)]
    return list(dict.fromkeys([*inner, function]))


def _check_function(function: FuncOp) -> None:
    name = f"@{function.sym_name.data}"
    for op in function.body.block.ops:
        if not isinstance(op, AppendOp | KernelOp | DispatchOp | ConstantOp | ReturnOp | ControlOp):
            accepted = "loop.kernel, loop.dispatch, graph.append, graph.constant, graph.loop, graph.if, func.return"
            raise TreadleError(f"{op.name} is left in {name}", _place(op), accepted)
        for value in (*op.operands, *op.results):
            _check_type(value.type, op)
    for arg in function.body.block.args:
        _check_type(arg.type, function)
    if not isinstance(function.body.block.last_op, ReturnOp):
        raise TreadleError(f"{name} does not return", "memory-plan", "func.return at its end")


def _check_type(type: Attribute, op: Operation) -> None:
    if not isinstance(type, TensorType):
        raise TreadleError(f"{op.name} has a value of type {type}", _place(op), "tensors")
    if not type.has_static_shape():
        raise TreadleError(f"{op.name} has a symbolic dimension: {type}", _place(op), "static extents")
    if not is_supported(type.get_element_type()):
        raise TreadleError(f"{op.name} has elements that have no bytes: {type}", _place(op), "a number type")


def _place(op: Operation) -> str:
    found = location_of(op)
    return "memory-plan" if found is None else f"memory-plan, {found}"


def _plan_buffers(
    main: FuncOp,
    end: ReturnOp,
    units: Sequence[_Unit],
    scratch: Sequence[LiveRange],
    joined: JoinedValues,
    alignment: int,
) -> tuple[dict[SSAValue, BufferOp], Arena]:
    """The buffer of every tensor that a kernel reads or writes, and the arena, with the launches' own buffers last."""
    outputs = {value: n for n, value in enumerate(end.operands)}
    temporaries = [v for v in dict.fromkeys(v for unit in units for v in _results(unit)) if v not in outputs]
    wholes = list(dict.fromkeys(joined.place(value)[0] for value in temporaries))
    arena = plan_arena([*_live_ranges(units, wholes, joined), *scratch], alignment)
    starts = dict(zip(wholes, arena.offsets, strict=False))
    buffers: dict[SSAValue, BufferOp] = {}
    for n, arg in enumerate(main.body.block.args):
        if arg.uses:
            buffers[arg] = _buffer("input", arg, n)
    buffers |= _constant_buffers(main)
    for value in dict.fromkeys([*temporaries, *joined.results]):
        whole, offset = joined.place(value)
        buffers[value] = _buffer("arena", value, starts[whole] + offset)
    for value, n in outputs.items():
        buffers[value] = _buffer("output", value, n)
    return buffers, arena


def _units(step: _Step) -> Sequence[_Unit]:
    """What counts as a launch of its own: the step itself, or the kernels of which a dispatch runs one."""
    if not isinstance(step, DispatchOp):
        return [step]
    wrong = next((op for op in step.alternatives if not isinstance(op, KernelOp)), None)
    if wrong is not None:
        raise TreadleError(f"{wrong.name} is left in a dispatch", _place(wrong), "loop.kernel")
    return [op for op in step.alternatives if isinstance(op, KernelOp)]


def _results(unit: _Unit) -> Sequence[SSAValue]:
    """The values of the function that a kernel computes, those of the dispatch that it is in, or a loop gives."""
    dispatch = unit.parent_op()
    return dispatch.outputs if isinstance(dispatch, DispatchOp) else unit.outputs


def _dispatched(
    steps: Sequence[_Step], operations: Sequence[Operation], buffers: Mapping[SSAValue, BufferOp]
) -> list[Operation]:
    """The operations of each step, those of a dispatch in one of the program."""
    remaining, ops = iter(operations), list[Operation]()
    for step in steps:
        own = [next(remaining) for _ in _units(step)]
        if not isinstance(step, DispatchOp):
            ops += own
            continue
        dispatch = HostDispatchOp(step.tree, [buffers[e].buffer for e in step.extents], Region(Block(own)))
        dispatch.predicted, dispatch.location = step.predicted, step.location
        ops.append(dispatch)
    return ops


def _live_ranges(units: Sequence[_Unit], wholes: Sequence[SSAValue], joined: JoinedValues) -> list[LiveRange]:
    """Each temporary, with those that are joined to it, lives from the launch that writes it to the last that reads it.

    It shares no byte with what its last reader writes, nor with another result of its own kernel, because the blocks
    of a launch run in any order. The kernels of a dispatch count as launches one after another, all of which write its
    results: what only one of them uses shares memory with what only another does. A loop or a branch is one step, as
    long as which everything lives that is read before or behind it.
    """
    first, last = dict[SSAValue, int](), dict[SSAValue, int]()
    for step, unit in enumerate(units):
        for value in _results(unit):
            whole, _ = joined.place(value)
            first.setdefault(whole, step)
            last[whole] = step
    for step, unit in enumerate(units):
        read = unit.inputs if isinstance(unit, KernelOp) else unit.operands
        last.update((whole, step) for whole, _ in map(joined.place, read) if whole in first)
    return [LiveRange(nbytes(value.type), first[value], last[value]) for value in wholes]


def _constant_buffers(main: FuncOp) -> dict[SSAValue, BufferOp]:
    buffers: dict[SSAValue, BufferOp] = {}
    known: dict[tuple[Attribute, Attribute], BufferOp] = {}
    for op in main.body.block.ops:
        if not isinstance(op, ConstantOp) or not op.result.uses:
            continue
        type = memref_of(op.type)
        if (op.value, type) not in known:
            known[op.value, type] = BufferOp("constant", type, value=op.value)
            known[op.value, type].buffer.name_hint = op.result.name_hint
            known[op.value, type].location = op.location
        buffers[op.result] = known[op.value, type]
    return buffers


def _buffer(kind: str, value: SSAValue, position: int) -> BufferOp:
    op = BufferOp(kind, memref_of(cast("TensorType[Attribute]", value.type)), position)
    op.buffer.name_hint = value.name_hint
    return op


def _planned_main(main: FuncOp, end: ReturnOp, ops: Sequence[Operation], arena_bytes: int) -> FuncOp:
    planned = FuncOp(main.sym_name.data, FunctionType.from_lists([], []), Region(Block(ops)), main.sym_visibility)
    planned.location = main.location
    planned.attributes |= main.attributes
    planned.attributes["arena_bytes"] = IntegerAttr(arena_bytes, i64)
    planned.attributes["input_types"] = ArrayAttr(main.body.block.arg_types)
    planned.attributes["output_types"] = ArrayAttr([value.type for value in end.operands])
    return planned
