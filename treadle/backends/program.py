"""A planned module as plain values: what a backend needs to allocate, upload and launch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import memref, vector
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntegerAttr, IntegerType, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue, Use
from xdsl.traits import SymbolTable

from treadle.backends.interface import BufferKind, BufferRef, TensorSpec
from treadle.dialects.graph.append import states_of
from treadle.dialects.graph.attributes import BlobAttr, InlineAttr
from treadle.dialects.graph.constant import ConstantOp, constant_array
from treadle.dialects.graph.dtypes import byte_width, numpy_dtype
from treadle.dialects.host import BufferOp, DispatchOp, LaunchOp
from treadle.errors import TreadleError
from treadle.shapes.decision_tree import Dispatch
from treadle.shapes.dim import Dim, parse_dim
from treadle.shapes.states import State

# Which constants a call reads a part of: where data decide the addresses, as of the rows of an embedding.

_LOADS = (memref.LoadOp, vector.LoadOp)


def sparse_reads(buffer: BufferOp, module: ModuleOp) -> bool:
    """Whether all that the launches of a lowered module do with a buffer is to load from addresses that depend on what
    was loaded before. A buffer that nobody reads is not."""
    uses = list(buffer.buffer.uses)
    return bool(uses) and all(_is_sparse(use, module) for use in uses)


def _is_sparse(use: Use, module: ModuleOp) -> bool:
    if not isinstance(use.operation, LaunchOp):
        return False
    kernel = SymbolTable.lookup_symbol(module, use.operation.kernel)
    if kernel is None or not kernel.regions or not kernel.regions[0].blocks:
        return False
    reads = [each.operation for each in kernel.regions[0].block.args[use.index].uses]
    return bool(reads) and all(isinstance(each, _LOADS) and _is_indirect(each.indices) for each in reads)


def _is_indirect(indices: Collection[SSAValue]) -> bool:
    """Whether a value on the way to an address was loaded."""
    waiting, seen = list(indices), set[Operation]()
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, Block) or owner in seen:
            continue
        if isinstance(owner, _LOADS):
            return True
        seen.add(owner)
        waiting += owner.operands
        ends = [region.block.last_op for region in owner.regions]
        waiting += [value for end in ends if end is not None for value in end.operands]
    return False


_PLANNED = "a module after the pass memory-plan"


@dataclass(frozen=True)
class ProgramConstant:
    """A constant buffer: the attribute that holds or names its values, and the tensor that they are.

    sparse: data decide which of its elements a call reads
    """

    value: BlobAttr | InlineAttr
    type: TensorType[Attribute]
    sparse: bool = False

    def array(self) -> NDArray[np.generic]:
        """The values, read-only; a large constant comes from the store. TreadleError if it is not there."""
        return constant_array(ConstantOp(self.value, self.type))


@dataclass(frozen=True)
class ProgramLaunch:
    """One kernel, by its symbol, and the buffers that it is given in the order of its arguments."""

    kernel: str
    buffers: tuple[BufferRef, ...]


@dataclass(frozen=True)
class Program:
    """The contents of the planned @main. `arena_bytes` is the size of the memory that temporaries share, `zeroed_bytes`
    of the memory that must be zero before the first launch, and that each launch leaves zero.

    Of a model whose shapes change: its `symbols`, the `extents` that its last inputs hold, and the extents of each
    dimension of its other inputs and of its outputs (empty where all are static).
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[ProgramConstant, ...]
    """Of @main and of what it calls, in the order of their `host.buffer` operations, by which printers number them."""
    arena_bytes: int
    launches: tuple[ProgramLaunch, ...]
    """Those of @main; not what loops and branches run."""
    zeroed_bytes: int = 0
    dispatches: tuple[Dispatch, ...] = ()
    """Where a call runs one of several launches."""
    symbols: tuple[Dim, ...] = ()
    extents: tuple[str, ...] = ()
    input_extents: tuple[tuple[str, ...], ...] = ()
    output_extents: tuple[tuple[str, ...], ...] = ()
    found: tuple[str, ...] = ()
    """Symbols of `output_extents` that depend on data: the last outputs are their values."""
    states: tuple[State, ...] = ()
    """What is kept between calls."""


def read_program(module: ModuleOp) -> Program:
    """The program that a module holds after memory-plan; later passes may have lowered its kernels.

    Inputs and outputs without names are called `input0`, `output0`, .... TreadleError if @main is missing or
    was not planned.
    """
    main = planned_main(module)
    arena = main.attributes.get("arena_bytes")
    if not isinstance(arena, IntegerAttr):
        raise TreadleError("@main has no arena_bytes", "read_program", _PLANNED)
    constants: list[ProgramConstant] = []
    references: dict[SSAValue, BufferRef] = {}
    launches: list[ProgramLaunch] = []
    dispatches: list[Dispatch] = []
    zeroed_bytes = 0
    for op in constant_buffers(module):
        references[op.buffer] = BufferRef("constant", len(constants))
        constants.append(_constant(op, module))
    for op in main.body.block.ops:
        if isinstance(op, BufferOp) and op.value is None:
            references[op.buffer] = buffer_reference(op)
            if op.kind.data == "zeroed":
                size = prod(op.type.get_shape()) * byte_width(op.type.get_element_type())
                zeroed_bytes = max(zeroed_bytes, references[op.buffer].index + size)
        elif isinstance(op, LaunchOp):
            launches.append(_launch(op, references))
        elif isinstance(op, DispatchOp):
            own = [_launch(inner, references) for inner in op.launches.block.ops if isinstance(inner, LaunchOp)]
            inputs = tuple(references[extent].index for extent in op.extents)
            dispatches.append(Dispatch(len(launches), len(own), inputs, op.tree.data))
            launches += own
    inputs, outputs = (_specs(main, kind) for kind in ("input", "output"))
    return Program(
        inputs, outputs, tuple(constants), arena.value.data, tuple(launches), zeroed_bytes, tuple(dispatches),
        symbols=tuple(parse_dim(text) for text in _texts(main.attributes.get("symbols"))),
        extents=_texts(main.attributes.get("extents")),
        input_extents=_dimensions(main.attributes.get("input_extents")),
        output_extents=_dimensions(main.attributes.get("output_extents")),
        found=_texts(main.attributes.get("found")),
        states=tuple(
            State(each.argument.data, each.result.data, bool(each.in_place.value.data)) for each in states_of(main)
        ),
    )  # fmt: skip


def _launch(op: LaunchOp, references: Mapping[SSAValue, BufferRef]) -> ProgramLaunch:
    return ProgramLaunch(op.kernel.string_value(), tuple(references[buffer] for buffer in op.buffers))


def planned_main(module: ModuleOp) -> FuncOp:
    """The module's @main; TreadleError if it has none."""
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main" and op.body.blocks:
            return op
    raise TreadleError("the module has no function @main", accepted="func.func @main with a body")


def constant_buffers(module: ModuleOp) -> list[BufferOp]:
    """The constants of all functions of launches, in the order by which programs number them."""
    functions = [op for op in module.body.block.ops if isinstance(op, FuncOp) and op.body.blocks]
    found = [op for function in functions for op in function.body.block.ops if isinstance(op, BufferOp)]
    return [op for op in found if op.value is not None]


def numbered_constants(module: ModuleOp) -> dict[SSAValue, int]:
    """The number of each constant buffer."""
    return {op.buffer: number for number, op in enumerate(constant_buffers(module))}


def buffer_reference(op: BufferOp) -> BufferRef:
    """What a buffer that is no constant refers to."""
    assert op.position is not None
    return BufferRef(cast(BufferKind, op.kind.data), op.position.value.data)


def _constant(op: BufferOp, module: ModuleOp) -> ProgramConstant:
    assert op.value is not None
    type = TensorType(op.type.get_element_type(), op.type.get_shape())
    return ProgramConstant(op.value, type, sparse_reads(op, module))


def _specs(main: FuncOp, kind: str) -> tuple[TensorSpec, ...]:
    types = _elements(main, f"{kind}_types")
    if types is None:
        raise TreadleError(f"@main has no {kind}_types", "read_program", _PLANNED)
    given = _elements(main, f"{kind}_names")
    names = [f"{kind}{n}" for n in range(len(types))] if given is None else [_text(name) for name in given]
    if len(names) != len(types):
        reason = f"{len(names)} {kind}_names for {len(types)} {kind}s"
        raise TreadleError(reason, "@main", f"{len(types)} names")
    tensors = [cast("TensorType[Attribute]", type) for type in types]
    return tuple(
        TensorSpec(name, t.get_shape(), numpy_dtype(t.get_element_type()), n in dense_tensors(main, f"{kind}s"))
        for n, (name, t) in enumerate(zip(names, tensors, strict=True))
    )


def dense_tensors(main: FuncOp, which: str) -> Collection[int]:
    """The numbers of the `inputs` or `outputs` of @main that hold the elements of a call alone
    (`loop-dense-arguments`)."""
    given = main.attributes.get(f"dense_{which}")
    if not isinstance(given, DenseArrayBase):
        return ()
    return set(cast("DenseArrayBase[IntegerType]", given).get_values())


def _elements(main: FuncOp, name: str) -> Sequence[Attribute] | None:
    attribute = main.attributes.get(name)
    return attribute.data if isinstance(attribute, ArrayAttr) else None


def _dimensions(attribute: Attribute | None) -> tuple[tuple[str, ...], ...]:
    """The extents of tensors' dimensions; none of a tensor whose extents are all numbers."""
    listed = [_texts(each) for each in attribute.data] if isinstance(attribute, ArrayAttr) else []
    return tuple(() if all(text.isdigit() for text in texts) else texts for texts in listed)


def _texts(attribute: Attribute | None) -> tuple[str, ...]:
    return tuple(map(_text, attribute.data)) if isinstance(attribute, ArrayAttr) else ()


def _text(attribute: Attribute) -> str:
    return attribute.data if isinstance(attribute, StringAttr) else str(attribute)
