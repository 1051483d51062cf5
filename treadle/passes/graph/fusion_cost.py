"""When a definition is computed where it is read, and when it is stored once.

Both ways are counted in scalar operations for each element of the definition. A byte that is read or written costs as
many operations as the target does in the time that its memory takes for a byte.  With E evaluations in all kernels,
of which each costs w operations, i bytes of inputs and o bytes of result:

    stored       w + bytes * (i + o + reads * o)
    at each use  E * w + bytes * reads * i

What a kernel reads again is mostly found in a cache, at an eighth of the price: of e evaluations in one kernel, reads
are 1 + (e - 1) / 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.ir import Operation

from treadle.dialects.graph import AtOp, ComputeOp, YieldOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.scalar import FmodOp
from treadle.passes.graph.fusion_group import Group
from treadle.passes.graph.properties import moves_data, shape_of, widens_data, worth_storing
from treadle.schedules.row_analysis import is_costly
from treadle.target import Target

_COSTLY = 10
"""Simple operations that a division, a root, an exponential and the like take, about."""
_POLYNOMIAL = 25
"""Those of the functions that are polynomials of several pieces, or two of the others."""
_GUARDED = 4
"""Those of a read under a predicate, of which a concatenation has one for each part: its address, a mask, a branch."""


def prologue_obstacle(compute: ComputeOp, groups: Sequence[Group], target: Target) -> str:
    """Why an injective compute is no prologue of the groups that read it, all of them; empty if it is one."""
    if moves_data(compute) or widens_data(compute):
        times = max(group.reads(compute.result).defined for group in groups)
        return f"its predicate would be tested {float(times):g} times" if worth_storing(compute, times) else ""
    if any(group.only_moves_for(compute.result) for group in groups):
        return "a prologue that computes would make asynchronous copies wait"
    each = [group.reads(compute.result).scheduled for group in groups]
    times = sum(each, start=Fraction(0))
    if times <= 1 or at_each_use(compute, each, target) <= stored(compute, each, target):
        return ""
    kernels = f" in {len(groups)} kernels" if len(groups) > 1 else ""
    return f"each element would be computed {float(times):g} times{kernels}, which costs more than storing it"


def at_each_use(compute: ComputeOp, times: Sequence[Fraction], target: Target) -> float:
    """The cost of computing each element so many times in each kernel, in operations an element."""
    moved = _reads(times) * bytes_read(compute)
    return float(sum(times)) * work(compute) + operations_per_byte(target) * moved


def stored(compute: ComputeOp, times: Sequence[Fraction], target: Target) -> float:
    """The cost of computing each element once, storing it, and reading it so many times in each kernel, likewise."""
    moved = bytes_read(compute) + (1 + _reads(times)) * byte_width(compute.type.get_element_type())
    return work(compute) + operations_per_byte(target) * moved


def _reads(times: Sequence[Fraction]) -> float:
    """How many reads from memory cost as much as reading an element so many times in each kernel."""
    return sum(1 + (float(each) - 1) / 8 if each > 1 else float(each) for each in times)


def operations_per_byte(target: Target) -> float:
    """Scalar operations in the time of one byte of memory traffic; of an fma, which peaks count twice, one."""
    return target.peak_f32 / 2 / target.peak_bandwidth


def work(compute: ComputeOp) -> int:
    """Scalar operations of one element; of its index arithmetic only what reads under a predicate need."""
    guarded = sum(at.predicate is not None for at in compute.reads())
    return _GUARDED * guarded + sum(_operations(op) for op in compute.body.walk() if _computes(op))


def _operations(op: Operation) -> int:
    if isinstance(op, math.TanhOp | math.ErfOp | math.PowFOp | math.TanOp | FmodOp):
        return _POLYNOMIAL
    return _COSTLY if is_costly(op) else 1


def bytes_read(compute: ComputeOp) -> float:
    """Bytes read for one element; of a small tensor that many elements share, its share."""
    total, volume = 0.0, prod(compute.shape) or 1
    for tensor in compute.tensors():
        assert isinstance(tensor.type, TensorType)
        reads = sum(at.source is tensor for at in compute.reads())
        share = min(reads, prod(shape_of(tensor)) / volume)
        total += byte_width(tensor.type.get_element_type()) * share
    return total


def _computes(op: Operation) -> bool:
    if isinstance(op, AtOp | YieldOp | arith.ConstantOp):
        return False
    return not isinstance(op.results[0].type, IndexType)


__all__ = ["at_each_use", "bytes_read", "operations_per_byte", "prologue_obstacle", "stored", "work"]
