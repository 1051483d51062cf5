"""When a definition is computed where it is read, and when it is stored once.

Both ways are counted in scalar operations for each element of the definition. A byte that is read or written costs as
many operations as the target computes while its memory moves one byte.  With E evaluations in all kernels, of which
each costs w operations, i bytes of inputs and o bytes of result:

    stored       w + bytes * (i + o + reads * o)
    at each use  E * w + bytes * reads * i

What a kernel reads again mostly hits a cache, at an eighth of the cost: e evaluations in one kernel count as
1 + (e - 1) / 8 reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import prod

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ConstantOp, MatmulOp, ReduceOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.dtypes import byte_width, is_float
from treadle.dialects.graph.extents import enclosing_function, extent_below, extents_of
from treadle.passes.graph.definition_analysis import (
    moves_data,
    reads_by_user,
    shape_of,
    widens_data,
    work,
    worth_storing,
)
from treadle.passes.graph.fusion_group import Group, tensors_of
from treadle.target import Target

# Tensors whose elements a definition compares with each other: they are stored, and not computed at each read.
#
# Compilers contract products and sums, and vectorise functions, in one place otherwise than in another, so that the
# same expression of the same element may be rounded in two ways. Then no element would equal the largest one of them.

_EXACT_OF_FLOATS = (
    arith.NegfOp, arith.MaximumfOp, arith.MinimumfOp, arith.MaxnumfOp, arith.MinnumfOp, arith.SelectOp, arith.CmpfOp,
    arith.ExtFOp, arith.ConstantOp, math.AbsFOp, math.CeilOp, math.FloorOp, math.TruncOp, math.RoundEvenOp,
    math.CopySignOp, AtOp,
)  # fmt: skip


def rounds(compute: ComputeOp) -> bool:
    """Whether a definition has arithmetic of floats whose rounding may depend on what is around it."""
    return any(
        is_float(result.type) and not isinstance(op, _EXACT_OF_FLOATS) and not _folds_exactly(op)
        for op in compute.body.walk()
        for result in op.results
    )


def is_compared(value: SSAValue) -> bool:
    """Whether elements of a tensor, or what follows from them without rounding, are compared with each other by a
    definition that reads it."""
    for user in reads_by_user(value):
        if not isinstance(user, ComputeOp):
            continue
        if _compares(user, value) or (not rounds(user) and is_compared(user.result)):
            return True
    return False


def _folds_exactly(op: Operation) -> bool:
    return isinstance(op, ReduceOp) and op.kind.data in ("max", "min")


def _compares(reader: ComputeOp, tensor: SSAValue) -> bool:
    comparisons = (op for op in reader.body.walk() if isinstance(op, arith.CmpfOp) and op.lhs is not op.rhs)
    return any(all(tensor in _tensors_of(side) for side in (op.lhs, op.rhs)) for op in comparisons)


def _tensors_of(scalar: SSAValue) -> set[SSAValue]:
    """The tensors on whose elements a scalar of a definition depends by its value."""
    found: set[SSAValue] = set()
    waiting, seen = [scalar], set[SSAValue]()
    while waiting:
        value = waiting.pop()
        if value in seen or not isinstance(value.owner, Operation):
            continue
        seen.add(value)
        waiting.extend(_sources(value.owner))
        if isinstance(value.owner, AtOp):
            found.add(value.owner.source)
    return found


def _sources(op: Operation) -> Iterator[SSAValue]:
    if isinstance(op, ReduceOp):
        yield yielded(op.body)
    elif isinstance(op, AtOp):
        if op.otherwise is not None:
            yield op.otherwise
    else:
        yield from op.operands


def prologue_obstacle(compute: ComputeOp, groups: Sequence[Group], target: Target) -> str:
    """Why an injective compute is no prologue of the groups that read it, all of them; empty if it is one."""
    if ends_sums(compute, groups, target):
        return ""
    if moves_data(compute) or widens_data(compute):
        times = max(group.reads(compute.result).defined for group in groups)
        return f"its predicate would be tested {float(times):g} times" if worth_storing(compute, times) else ""
    if _is_dequantised(compute):
        return ""
    if any(group.only_moves_for(compute.result) for group in groups):
        return "a prologue that computes would make asynchronous copies wait"
    if rounds(compute) and is_compared(compute.result):
        return "its elements are compared with each other, and would be rounded at each read"
    each = [group.reads(compute.result).scheduled for group in groups]
    times = sum(each, start=Fraction(0))
    if times <= 1 or at_each_use(compute, each, target) <= stored(compute, each, target):
        return ""
    kernels = f" in {len(groups)} kernels" if len(groups) > 1 else ""
    return f"each element would be computed {float(times):g} times{kernels}, which costs more than storing it"


def _is_dequantised(compute: ComputeOp) -> bool:
    """Whether a definition only widens constants: stored, it would be written and read anew by each call, of one row,
    too, for which there are its constants."""
    sources = {at.source for at in compute.reads()}
    if not sources or not all(isinstance(source.owner, ConstantOp) for source in sources):
        return False
    return bytes_read(compute) < byte_width(compute.type.get_element_type())


def ends_sums(compute: ComputeOp, groups: Sequence[Group], target: Target) -> bool:
    """Whether a compute is a mask of 0 beyond an extent along the dimension that matrix products sum over, where their
    loops end on a CPU (`loop-clamp-reductions`): then its predicate is not tested at all."""
    read, main = yielded(compute.body).owner, enclosing_function(compute)
    if target.is_cuda or main is None or not isinstance(read, AtOp) or not _is_zero(read.otherwise):
        return False
    test = None if read.predicate is None else read.predicate.owner
    if not isinstance(test, arith.CmpiOp) or arith.CMPI_COMPARISON_OPERATIONS[test.predicate.value.data] != "slt":
        return False
    if extent_below(test.rhs, extents_of(main)) is None:
        return False
    return all(_sums_over(group, compute, test.lhs) for group in groups)


def _sums_over(group: Group, compute: ComputeOp, index: SSAValue) -> bool:
    """Whether a group reads a compute as an operand of its matrix product alone, which sums over one of its indices."""
    anchor, indices = group.anchor, compute.body.block.args
    if any(compute.result in tensors_of(op) for op in group.members() if op is not anchor):
        return False
    if not isinstance(anchor, MatmulOp):
        return False
    read = [d for operand, d in ((anchor.a, -1), (anchor.b, -2)) if operand is compute.result]
    return all(index is indices[d] for d in read)


def _is_zero(value: SSAValue | None) -> bool:
    op = None if value is None else value.owner
    return isinstance(op, arith.ConstantOp) and isinstance(op.value, FloatAttr) and op.value.value.data == 0


def at_each_use(compute: ComputeOp, times: Sequence[Fraction], target: Target) -> float:
    """The cost, in operations an element, of computing each element `times` times in each kernel."""
    moved = _reads(times) * bytes_read(compute)
    return float(sum(times)) * work(compute) + operations_per_byte(target) * moved


def stored(compute: ComputeOp, times: Sequence[Fraction], target: Target) -> float:
    """The cost, in operations an element, of computing each element once, storing it, and reading it `times` times in
    each kernel."""
    moved = bytes_read(compute) + (1 + _reads(times)) * byte_width(compute.type.get_element_type())
    return work(compute) + operations_per_byte(target) * moved


def _reads(times: Sequence[Fraction]) -> float:
    """How many reads from memory cost as much as reading an element `times` times in each kernel, mostly from
    caches."""
    return sum(1 + (float(each) - 1) / 8 if each > 1 else float(each) for each in times)


def operations_per_byte(target: Target) -> float:
    """Scalar operations that the target computes while it moves one byte; an fma, which peaks count twice, is one."""
    return target.peak_f32 / 2 / target.peak_bandwidth


def bytes_read(compute: ComputeOp) -> float:
    """Bytes read for one element; a tensor smaller than the result counts with its bytes divided by the result's
    elements."""
    total, volume = 0.0, prod(compute.shape) or 1
    for tensor, reads in Counter(at.source for at in compute.reads()).items():
        assert isinstance(tensor.type, TensorType)
        share = min(reads, prod(shape_of(tensor)) / volume)
        total += byte_width(tensor.type.get_element_type()) * share
    return total
