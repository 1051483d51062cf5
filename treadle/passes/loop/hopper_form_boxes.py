"""hopper-form-boxes: copies of regions of a tensor become copies of boxes by tensor maps."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import is_pure
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.hopper import BulkCopyOp, TensorLoadOp, TensorMap, TensorMapOp, YieldOp
from treadle.dialects.location import location_of
from treadle.dialects.loop import FuncOp, KernelOp, LoadOp, SpaceAttr, swizzle_of, type_of
from treadle.errors import TreadleError
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, var
from treadle.index.reader import IndexReader, comparisons_in
from treadle.passes.loop.kernels import kernels_of
from treadle.passes.loop.loop_lower_copies import is_zero

ACCEPTED = "elements of one tensor, along its dimensions, and 0 beyond its ends"


@dataclass(frozen=True)
class HopperFormBoxesPass(ModulePass):
    """Turns each `hopper.bulk_copy` into a `hopper.tensor_load` by a map of the tensor that it reads.

    ```mlir
    hopper.bulk_copy to %tile[%stage, %c0, %c0] at %full[%stage] {
    ^bb0(%r : index, %c : index):
      %row = arith.addi %first, %r : index
      %inside = arith.cmpi slt, %row, %c100 : index
      %v = loop.load %A[%row, %c] where %inside else %zero : memref<100x64xf16>
      hopper.yield %v : f16
    } : memref<4x128x64xf16, ..., #loop.space<shared>>, memref<4x!hopper.mbarrier, #loop.space<shared>>
    ```
    becomes
    ```mlir
    %map = hopper.tensor_map %A extents [100, 64] strides [128] box [128, 64] swizzle 128 : memref<100x64xf16>
    hopper.tensor_load %map[%first, %c0] to %tile[%stage, %c0, %c0] at %full[%stage] : ...
    ```
    Dimensions along which the copy does not move become outer ones of a box of one element. What the region's predicate
    leaves out must be what lies beyond the tensor's ends, where a copy of a box writes 0. TreadleError for a region
    that computes, or whose elements are no box.
    """

    name = "hopper-form-boxes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            copies = [inner for inner in kernel.body.walk() if isinstance(inner, BulkCopyOp)]
            former = _Former(kernel)
            for copy in copies:
                former.replace(copy)


class _Former:
    """Makes the maps of one kernel, each once."""

    def __init__(self, kernel: KernelOp | FuncOp):
        self._kernel = kernel
        self._reader = IndexReader()
        self._maps: dict[tuple[SSAValue, TensorMap], SSAValue] = {}

    def replace(self, copy: BulkCopyOp) -> None:
        """Replaces one copy."""
        load = self._load(copy)
        starts, moved = self._dimensions(copy, load)
        self._check_predicate(copy, load)
        type = type_of(load.buffer)
        shape, size = type.get_shape(), byte_width(type.get_element_type())
        strides = [prod(shape[n + 1 :]) * size for n in range(len(shape))]
        # Where nothing moves and there is one element, no coordinate is needed.
        fixed = [n for n in range(len(shape)) if n not in moved and shape[n] > 1]
        order = [*fixed, *moved]
        if strides[order[-1]] != size:
            self._reject(copy, f"neighbours lie {strides[order[-1]]} bytes apart")
        swizzle = swizzle_of(type_of(copy.buffer))
        span = 0 if swizzle is None else type_of(copy.buffer).get_shape()[-1] * size
        map = TensorMap(
            str(type.get_element_type()),
            tuple(shape[n] for n in order),
            tuple(strides[n] for n in order[:-1]),
            (*(1 for _ in fixed), *copy.extents),
            span,
        )
        try:
            map.check()
        except TreadleError as error:
            self._reject(copy, error.message, str(error.accepted))
        emitter = IndexEmitter(InsertPoint.before(copy), location=copy.location)
        coordinates = [emitter.emit(starts[n]) for n in order]
        place = (copy.barrier, copy.place)
        made = TensorLoadOp(self._map(load.buffer, map), coordinates, copy.buffer, copy.indices, *place)
        made.location = copy.location
        Rewriter.replace_op(copy, made)

    def _load(self, copy: BulkCopyOp) -> LoadOp:
        load = copy.value.owner
        if not isinstance(load, LoadOp) or load.parent is not copy.body.block:
            self._reject(
                copy, f"its elements are computed by {load.name if isinstance(load, Operation) else 'a block'}"
            )
        if isinstance(type_of(load.buffer).memory_space, SpaceAttr) or not is_zero(load.otherwise):
            self._reject(copy, "its elements are not those of a tensor, or not 0 beyond it")
        others = [op for op in copy.body.block.ops if op is not load and not isinstance(op, YieldOp)]
        if not all(map(is_pure, others)):
            self._reject(copy, "its elements have side effects")
        return load

    def _dimensions(self, copy: BulkCopyOp, load: LoadOp) -> tuple[list[Expr], list[int]]:
        """Where the box begins along each dimension of the tensor; which dimension each argument moves along."""
        arguments = list(copy.body.block.args)
        moved: dict[SSAValue, int] = {}
        starts: list[Expr] = []
        for dimension, index in enumerate(load.indices):
            place = self._reader.read(index)
            inner = [argument for argument in arguments if argument in {v.key for v in place.vars()}]
            start = place.substitute({argument: const(0) for argument in inner})
            if len(inner) > 1 or (inner and (inner[0] in moved or place - start != _variable(place, inner[0]))):
                self._reject(copy, f"dimension {dimension} of the tensor is indexed by {place}")
            if inner:
                moved[inner[0]] = dimension
            starts.append(start)
        missing = [n for n, argument in enumerate(arguments) if argument not in moved]
        if missing:
            self._reject(copy, f"argument {missing[0]} moves along no dimension")
        return starts, [moved[argument] for argument in arguments]

    def _check_predicate(self, copy: BulkCopyOp, load: LoadOp) -> None:
        """Rejects a predicate that is false anywhere inside of the tensor."""
        if load.predicate is None:
            return
        shape = type_of(load.buffer).get_shape()
        places = [self._reader.read(index) for index in load.indices]
        ends = [place - extent for place, extent in zip(places, shape, strict=True)]
        for each in comparisons_in(self._reader, load.predicate):
            is_end = each.kind == "slt" and any(each.difference == end for end in ends)
            is_start = each.kind == "sge" and any(each.difference == place for place in places)
            if not is_end and not is_start and each.truth() is not True:
                self._reject(copy, f"elements are left out where {each.difference} {each.kind} 0 is false")

    def _map(self, buffer: SSAValue, map: TensorMap) -> SSAValue:
        known = (buffer, map)
        if known not in self._maps:
            made = TensorMapOp(buffer, map)
            made.location = self._kernel.location
            made.result.name_hint = f"map_{buffer.name_hint}" if buffer.name_hint else "map"
            Rewriter.insert_op(made, InsertPoint.at_start(self._kernel.body.block))
            self._maps[known] = made.result
        return self._maps[known]

    def _reject(self, copy: BulkCopyOp, why: str, accepted: str = ACCEPTED) -> NoReturn:
        where = location_of(copy) or f"@{self._kernel.sym_name.data}"
        raise TreadleError(f"a copy to %{copy.buffer.name_hint} is no box: {why}", where, accepted)


def _variable(place: Expr, argument: SSAValue) -> Expr:
    """The variable of an expression that stands for a value."""
    return next(var(v.key, *v.range) for v in place.vars() if v.key is argument)
