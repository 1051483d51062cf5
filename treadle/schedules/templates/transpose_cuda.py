"""Data movement on a GPU whose reads and writes are consecutive along different dimensions: through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp, WholeOp, YieldOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.schedule import Choice
from treadle.dialects.task import Mapping, repeat, spatial
from treadle.schedules.access_analysis import TransposedReads, transposed_reads
from treadle.schedules.kernel_builder import Index, Predicate, all_of, kernel_builder, ssa_values
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_divides, number
from treadle.target import Target

_TILE = 32
_SHORTEST = 8
"""Elements of a sector: what is shorter along either direction wastes most of a tile."""
_LONGEST = 4


class TransposeCuda(Template):
    """A block moves a tile of 32 x 32 elements: it reads along the dimensions that are consecutive in the operand,
    transposes the tile in shared memory, and computes and writes along those that are consecutive in the result.

    Which dimensions these are follows from the reads' index maps, so that any permutation, slice or padding is
    covered. Reads that are consecutive along the result stay where they are. Source: M. Harris, "An Efficient Matrix
    Transpose in CUDA C/C++", NVIDIA 2013.
    """

    name: ClassVar[str] = "transpose_cuda"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("threads", (128, 256), "threads of a block"),
        Knob("read_vector", (1, 2, 4), "consecutive elements that a thread reads at once"),
        Knob("write_vector", (1, 2, 4), "consecutive elements that a thread writes at once"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if isinstance(anchor, WholeOp) or any(isinstance(op, ReduceOp) for op in anchor.body.walk()):
            return False
        transposed = transposed_reads(anchor)
        return transposed is not None and min(transposed.extent, transposed.suffix_extent) >= _SHORTEST

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        return {"threads": 256, **self.decided(anchor, target)}

    def decided(self, anchor: Anchor, target: Target) -> Choices:
        assert isinstance(anchor, ComputeOp)
        transposed = transposed_reads(anchor)
        assert transposed is not None
        longest = min(_LONGEST, target.vector_bytes // byte_width(anchor.type.get_element_type()))
        return {"read_vector": transposed.read_width(longest), "write_vector": transposed.write_width(longest)}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, ComputeOp)
        transposed = transposed_reads(anchor)
        assert transposed is not None
        for knob, where, extent in (
            ("read_vector", "operand", transposed.extent),
            ("write_vector", "result", transposed.suffix_extent),
        ):
            vector = number(choices, knob)
            check_divides(
                f"elements of vectors along the {where}",
                vector,
                extent,
                f"transpose_cuda: vectors of {vector} overrun {extent} elements along the {where} "
                f"by {-extent % vector}",
                accepted=f"a {knob} that divides {extent}",
            )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, ComputeOp)
        transposed = transposed_reads(anchor)
        assert transposed is not None
        return _TransposeBody(anchor, transposed, _Shape(choices)).build(name)


@dataclass(frozen=True)
class _Shape:
    """How a block's threads go over a tile: lines of 32 elements, `vector` of them by a thread."""

    choices: Choices

    @property
    def threads(self) -> int:
        return number(self.choices, "threads")

    def mapping(self, vector: int) -> Mapping:
        """Line, and first element in vectors."""
        wide = _TILE // vector
        high = min(self.threads // wide, _TILE)
        return repeat(_TILE // high, 1) * spatial(high, wide)


class _TransposeBody:
    """Writes the kernel of one movement."""

    def __init__(self, compute: ComputeOp, transposed: TransposedReads, shape: _Shape):
        self.compute, self.transposed, self.shape = compute, transposed, shape
        self.tensors = compute.tensors()
        self.b = kernel_builder(self.tensors, compute.type)
        self.values: dict[SSAValue, SSAValue] = dict(zip(self.tensors, self.b.inputs, strict=True))

    def build(self, name: str) -> KernelOp:
        b, transposed = self.b, self.transposed
        rows, columns = ceil(transposed.extent / _TILE), ceil(transposed.suffix_extent / _TILE)
        self.first_in = ((b.block // columns) % rows) * _TILE
        self.first_out = (b.block % columns) * _TILE
        self.others = (
            (b.block // (rows * columns)).delinearize(transposed.other_shape) if transposed.other_shape else []
        )
        # A bank more than a line, so that neighbours of a column lie in neighbouring banks.
        tiles = {at: self._tile(at) for at in transposed.reads}
        self._read(tiles)
        b.barrier()
        self._write(tiles)
        operators = self.compute.operators.data if self.compute.operators is not None else "movement"
        grid = prod(transposed.other_shape) * rows * columns
        comment = f"{operators} to {self.compute.type}"
        return b.kernel(name, self.tensors, self.compute.type, grid, self.shape.threads, comment)

    def _tile(self, at: AtOp) -> SSAValue:
        line = _TILE + max(1, 4 // byte_width(at.result.type))
        return self.b.alloc("tile", [_TILE, line], at.result.type, Space.SHARED)

    def _index(self, along: Index, suffix: Index) -> list[Index]:
        """The index of the result, from positions along the operand's and the result's consecutive dimensions."""
        transposed = self.transposed
        group, last = along.delinearize(transposed.group_shape), suffix.delinearize(transposed.suffix_shape)
        return [*self.others, *group, *last]

    def _read(self, tiles: dict[AtOp, SSAValue]) -> None:
        """Operands to the tiles, along the operands."""
        b, vector = self.b, number(self.shape.choices, "read_vector")
        with b.tasks(["o", "i"], self.shape.mapping(vector), b.thread, unroll=True) as (o, v):
            suffix, first = self.first_out + o, v * vector
            with b.when(self._inside(self.first_in + first, suffix)), b.loop("e", vector, unroll=True) as e:
                i = first + e
                values = dict(self.values)
                index = self._index(self.first_in + i, suffix)
                values.update(zip(self.compute.body.block.args, ssa_values(index), strict=True))
                for at, tile in tiles.items():
                    for op in _needed(at):
                        values[op.results[0]] = b.evaluated(op, values)
                    b.store(values[at.result], tile, [o, i])

    def _write(self, tiles: dict[AtOp, SSAValue]) -> None:
        """The tiles to the result, along the result."""
        b = self.b
        vector = number(self.shape.choices, "write_vector")
        with b.tasks(["i", "o"], self.shape.mapping(vector), b.thread, unroll=True) as (i, v):
            along, first = self.first_in + i, v * vector
            with b.when(self._inside(along, self.first_out + first)), b.loop("e", vector, unroll=True) as e:
                o = first + e
                index = self._index(along, self.first_out + o)
                values = dict(self.values)
                values.update(zip(self.compute.body.block.args, ssa_values(index), strict=True))
                self._element({at: b.load(tile, [o, i]) for at, tile in tiles.items()}, values, index)

    def _element(self, loaded: dict[AtOp, SSAValue], values: dict[SSAValue, SSAValue], index: Sequence[Index]) -> None:
        b = self.b
        for op in self.compute.body.block.ops:
            if isinstance(op, YieldOp):
                b.store(values[op.value], b.output, index)
            elif isinstance(op, AtOp) and op in loaded:
                values[op.result] = loaded[op]
            else:
                values[op.results[0]] = b.evaluated(op, values)

    def _inside(self, along: Index, suffix: Index) -> Predicate | None:
        """Whether a position is in the result; None where every one is."""
        transposed = self.transposed
        conditions = [along < transposed.extent] if transposed.extent % _TILE else []
        conditions += [suffix < transposed.suffix_extent] if transposed.suffix_extent % _TILE else []
        return all_of(conditions)


def _needed(at: AtOp) -> list[Operation]:
    """The operations of the definition that a read depends on, and the read, in order."""
    block = at.parent_block()
    assert block is not None
    needed: set[Operation] = {at}
    for op in reversed(list(block.ops)):
        if op in needed:
            needed |= {operand.owner for operand in op.operands if isinstance(operand.owner, Operation)}
    return [op for op in block.ops if op in needed]
