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
from collections.abc import Sequence
from fractions import Fraction
from math import prod

from xdsl.dialects.builtin import TensorType

from treadle.dialects.graph import ComputeOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.passes.graph.compared_reads import is_compared, rounds
from treadle.passes.graph.definition_analysis import moves_data, shape_of, widens_data, worth_storing
from treadle.passes.graph.definition_size import work
from treadle.passes.graph.fusion_group import Group
from treadle.target import Target


def prologue_obstacle(compute: ComputeOp, groups: Sequence[Group], target: Target) -> str:
    """Why an injective compute is no prologue of the groups that read it, all of them; empty if it is one."""
    if moves_data(compute) or widens_data(compute):
        times = max(group.reads(compute.result).defined for group in groups)
        return f"its predicate would be tested {float(times):g} times" if worth_storing(compute, times) else ""
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


__all__ = ["at_each_use", "bytes_read", "operations_per_byte", "prologue_obstacle", "stored"]
