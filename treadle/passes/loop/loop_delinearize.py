"""loop-delinearize: a loop over a linear number whose digits are used becomes a loop per digit."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop import FuncOp, KernelOp
from treadle.index.algebra import divisor_chain, divisors_of
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import constant_index, kernels_of, loops_in, trip_count

# The divisors of the quotients and remainders in a kernel's index arithmetic.

DIVISIONS = (arith.DivUIOp, arith.RemUIOp, arith.FloorDivSIOp, arith.DivSIOp, arith.RemSIOp)
_ARITHMETIC = (*DIVISIONS, arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.ConstantOp)


def index_divisors(kernel: KernelOp | FuncOp) -> dict[Hashable, set[int]]:
    """What `divisors_of` gives for each value that a kernel's indices are computed from, after simplification."""
    operations = list(kernel.body.block.walk())
    if not any(isinstance(op, DIVISIONS) for op in operations):
        return {}
    reader = IndexReader()
    return divisors_of(reader.read(operand) for operand in _used_indices(operations))


def _used_indices(operations: Iterable[Operation]) -> Iterable[SSAValue]:
    """The indices that something other than index arithmetic uses."""
    seen: set[SSAValue] = set()
    for op in operations:
        if isinstance(op, _ARITHMETIC):
            continue
        for operand in op.operands:
            if operand not in seen and isinstance(operand.type, IndexType):
                seen.add(operand)
                yield operand


index = IndexType()


@dataclass(frozen=True)
class LoopDelinearizePass(ModulePass):
    """Splits loops at the divisors of the quotients and remainders that they take of their variables.

    ```mlir
    scf.for %k = %c0 to %c18 step %c1 {
      %ic = arith.divui %k, %c9 : index
      %tap = arith.remui %k, %c9 : index
      "use"(%ic, %tap) : (index, index) -> ()
    }
    ```
    becomes
    ```mlir
    scf.for %k0 = %c0 to %c2 step %c1 {
      %0 = arith.muli %k0, %c9 : index
      scf.for %k1 = %c0 to %c9 step %c1 {
        %k = arith.addi %0, %k1 : index
        %ic = arith.divui %k, %c9 : index
        ...
    ```
    where `loop-simplify-index` finds that `%ic` is `%k0` and `%tap` is `%k1`. The order of iterations,
    carried values and the loop's attributes stay. Loops that run once are replaced by their bodies; loops that
    do not start at 0 in steps of 1, or that `loop.vector` marks, are not split.
    """

    name = "loop-delinearize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            delinearize_kernel(kernel)


def delinearize_kernel(kernel: KernelOp | FuncOp) -> None:
    """Removes the single-trip loops of one kernel, and splits the others by the divisors that it uses."""
    for loop in list(loops_in(kernel.body.block)):
        if trip_count(loop) == 1:
            _inline_single_trip(loop)
    divisors = index_divisors(kernel)
    if not divisors:
        return
    for loop in list(loops_in(kernel.body.block)):
        trips = _splittable_trips(loop)
        whole = (d for d in divisors.get(loop.body.block.args[0], ()) if d < trips and trips % d == 0)
        chain = divisor_chain(whole)
        if chain:
            split_loop(loop, trips, chain)


def split_loop(loop: scf.ForOp, trips: int, chain: Sequence[int]) -> None:
    """Replaces a loop over [0, trips) by a nest with one level per digit.

    chain: at least one divisor of `trips`, ascending, each a multiple of the one before
    """
    strides = [*reversed(chain), 1]
    extents = [whole // part for whole, part in zip([trips, *strides], strides, strict=False)]
    constants = _constants_before(loop, (*extents, *strides))
    name = loop.body.block.args[0].name_hint
    point, carried, base = InsertPoint.before(loop), list(loop.iter_args), None
    outer: scf.ForOp | None = None
    for level, (stride, extent) in enumerate(zip(strides[:-1], extents[:-1], strict=True)):
        block = Block(arg_types=[index, *(value.type for value in carried)])
        _copy_names(loop, block, None if name is None else f"{name}{level}")
        nest = _level(loop, constants, extent, carried, block, point)
        _close(loop, nest, outer)
        point, carried, outer = InsertPoint.at_end(block), list(block.args[1:]), nest
        digit = _inserted(arith.MuliOp(block.args[0], constants[stride]), point, loop)
        base = digit if base is None else _inserted(arith.AddiOp(base, digit), point, loop)
    assert base is not None and outer is not None, "a chain has at least one divisor"
    body = loop.body.block
    loop.body.detach_block(body)
    _recompose(body, base, loop, None if name is None else f"{name}{len(chain)}")
    _close(loop, _level(loop, constants, extents[-1], carried, body, point), outer)
    loop.detach()
    loop.erase()


def _inline_single_trip(loop: scf.ForOp) -> None:
    """Replaces a loop that runs once by its body."""
    body = loop.body.block
    end = body.last_op
    assert isinstance(end, scf.YieldOp), "a loop's body ends with scf.yield"
    Rewriter.inline_block(body, InsertPoint.before(loop), [loop.lb, *loop.iter_args])
    values = list(end.arguments)
    Rewriter.erase_op(end)
    Rewriter.replace_op(loop, [], values)


def _splittable_trips(loop: scf.ForOp) -> int:
    """The trip count of a loop that may be split; 0 for others."""
    if "loop.vector" in loop.attributes or constant_index(loop.lb) != 0 or constant_index(loop.step) != 1:
        return 0
    return trip_count(loop) or 0


def _constants_before(loop: scf.ForOp, values: Iterable[int]) -> dict[int, SSAValue]:
    """Constants in front of a loop, each once; the loop's own bounds give 0 and 1."""
    known = {0: loop.lb, 1: loop.step}
    for value in values:
        if value not in known:
            op = arith.ConstantOp(IntegerAttr(value, index))
            known[value] = _inserted(op, InsertPoint.before(loop), loop)
            op.result.name_hint = f"c{value}"
    return known


def _level(
    loop: scf.ForOp,
    constants: Mapping[int, SSAValue],
    extent: int,
    carried: Sequence[SSAValue],
    block: Block,
    point: InsertPoint,
) -> scf.ForOp:
    """One loop of the nest that replaces `loop`, inserted at `point`."""
    level = scf.ForOp(constants[0], constants[extent], constants[1], carried, Region(block))
    level.location = loop.location
    level.attributes |= loop.attributes
    for new, old in zip(level.res, loop.res, strict=True):
        new.name_hint = old.name_hint
    Rewriter.insert_op(level, point)
    return level


def _close(loop: scf.ForOp, level: scf.ForOp, outer: scf.ForOp | None) -> None:
    """Makes the enclosing level yield the values carried by this one; the outermost replaces the loop's results."""
    if outer is None:
        for old, new in zip(loop.res, level.res, strict=True):
            old.replace_all_uses_with(new)
        return
    _append_end(scf.YieldOp(*level.res), outer, loop)


def _append_end(end: scf.YieldOp, level: scf.ForOp, source: Operation) -> None:
    end.location = source.location
    level.body.block.add_op(end)


def _recompose(body: Block, base: SSAValue, loop: scf.ForOp, digit_name: str | None) -> None:
    """Makes the body's variable the last digit, and what it was the sum of `base` and that digit."""
    digit = body.args[0]
    first = body.first_op
    assert first is not None, "a loop's body ends with scf.yield"
    whole = arith.AddiOp(base, digit)
    whole.location = loop.location
    name = digit.name_hint
    digit.replace_uses_with_if(whole.result, lambda use: use.operation is not whole)
    Rewriter.insert_op(whole, InsertPoint.before(first))
    whole.result.name_hint, digit.name_hint = name, digit_name


def _copy_names(loop: scf.ForOp, block: Block, variable: str | None) -> None:
    block.args[0].name_hint = variable
    for new, old in zip(block.args[1:], loop.body.block.args[1:], strict=True):
        new.name_hint = old.name_hint


def _inserted(op: Operation, point: InsertPoint, source: Operation) -> SSAValue:
    op.location = source.location
    Rewriter.insert_op(op, point)
    return op.results[0]
