"""Injective, bijective, index-only, how often elements are read; inverse maps against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import TensorType, f32
from xdsl.dialects.test import TestOp as AnyOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint

from treadle.dialects.graph import (
    AtOp,
    BinaryOp,
    BroadcastOp,
    ComputeOp,
    ConcatOp,
    ConvOp,
    MatmulOp,
    Operator,
    PadOp,
    ReductionOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    definition,
)
from treadle.passes.graph.definition_analysis import (
    bijection,
    element_index,
    emit_inverse,
    is_bijective_in,
    is_injective,
    moves_data,
    operand_variables,
    read_points,
)
from treadle.passes.graph.inline_compute import inline_compute
from treadle.passes.graph.simplify_body import simplify_body


def tensor(*shape: int) -> SSAValue:
    return AnyOp(result_types=[TensorType(f32, shape)]).results[0]


def defined(op: Operator) -> ComputeOp:
    return definition(op)


def forward_map(compute: ComputeOp, x: SSAValue) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Result index -> operand index, by evaluating the index expressions everywhere."""
    where = element_index(compute, x)
    assert where is not None
    return {
        index: tuple(e.evaluate(dict(zip(compute.body.block.args, index, strict=True))) for e in where)
        for index in itertools.product(*map(range, compute.shape))
    }


def check_against_brute_force(compute: ComputeOp, x: SSAValue) -> bool:
    """Asserts that a proof is true and its inverse right; whether there was a proof."""
    found = bijection(compute, x)
    if found is None:
        return False
    inverse = found.inverse(operand_variables(x))
    forward = forward_map(compute, x)
    assert isinstance(x.type, TensorType)
    assert sorted(forward.values()) == sorted(itertools.product(*map(range, x.type.get_shape())))
    for result, operand in forward.items():
        values = {("operand", d): i for d, i in enumerate(operand)}
        assert tuple(e.evaluate(values) for e in inverse) == result
    return True


BIJECTIVE: dict[str, tuple[Callable[[SSAValue], Operator], tuple[int, ...]]] = {
    "identity": (lambda x: UnaryOp("exp", x), (3, 4)),
    "permutation": (lambda x: TransposeOp(x, (2, 0, 1)), (2, 3, 4)),
    "reshape": (lambda x: ReshapeOp(x, (2, 50)), (100,)),
    "unaligned reshape": (lambda x: ReshapeOp(x, (8, 3)), (6, 4)),
    "reversal": (lambda x: SliceOp(x, [99], [100], [-1]), (100,)),
    "reversed dimension": (lambda x: SliceOp(x, [0, 4], [4, 5], [1, -1]), (4, 5)),
    "unit dimensions": (lambda x: ReshapeOp(x, (1, 4, 1, 3)), (4, 1, 3)),
    "scalar": (lambda x: ReshapeOp(x, (1, 1)), ()),
}


@pytest.mark.parametrize("name", BIJECTIVE)
def test_bijective(name: str):
    build, shape = BIJECTIVE[name]
    x = tensor(*shape)
    compute = defined(build(x))
    assert is_injective(compute) and is_bijective_in(compute, x)
    assert check_against_brute_force(compute, x)


INJECTIVE_ONLY: dict[str, tuple[Callable[[SSAValue], Operator], tuple[int, ...]]] = {
    "broadcast": (lambda x: BroadcastOp(x, (4, 3)), (3,)),
    "part": (lambda x: SliceOp(x, [0], [50], [2]), (100,)),
    "padding": (lambda x: PadOp("constant", x, tensor(), [1, 1]), (4,)),
    "read twice": (lambda x: ConcatOp([x, x], 0), (4,)),
}


@pytest.mark.parametrize("name", INJECTIVE_ONLY)
def test_injective_but_not_bijective(name: str):
    build, shape = INJECTIVE_ONLY[name]
    x = tensor(*shape)
    compute = defined(build(x))
    assert is_injective(compute) and not is_bijective_in(compute, x)


def test_transposed_sum_reads_two_different_elements():
    x = tensor(4, 4)
    transposed = defined(TransposeOp(x, (1, 0)))
    both = defined(BinaryOp("add", x, transposed.result))
    assert is_bijective_in(both, x)
    inline_compute(transposed, both)
    assert not is_bijective_in(both, x)


def test_reductions_are_not_injective():
    x, w = tensor(4, 8), tensor(8, 3)
    for op in (MatmulOp(x, w), ReductionOp("add", x, [1], False)):
        assert not is_injective(defined(op)) and not is_bijective_in(defined(op), x)


def test_what_merely_moves_data():
    x = tensor(4, 8)
    assert moves_data(defined(TransposeOp(x, (1, 0))))
    assert moves_data(defined(BroadcastOp(x, (3, 4, 8))))
    assert not moves_data(defined(UnaryOp("exp", x)))
    assert not moves_data(defined(ConcatOp([x, x], 0)))
    assert not moves_data(defined(ReductionOp("add", x, [1], False)))
    assert not moves_data(defined(PadOp("constant", x, tensor(), [1, 0, 1, 0])))  # its `else` is a read


def test_points_that_read_a_tensor():
    a, b, x, w = tensor(4, 8), tensor(8, 3), tensor(1, 2, 6, 6), tensor(2, 1, 3, 3)
    product = defined(MatmulOp(a, b))
    assert (read_points(product, a), read_points(product, b)) == (4 * 8 * 3, 8 * 3 * 4)
    depthwise = defined(ConvOp(x, w, [1, 1], [0, 0, 0, 0], [1, 1], 2))
    assert read_points(depthwise, x) == 2 * 4 * 4 * 9
    assert read_points(defined(UnaryOp("exp", a)), a) == 4 * 8


def test_the_inverse_is_written_as_operations():
    x = tensor(100)
    compute = defined(ReshapeOp(x, (2, 50)))
    read = next(op for op in compute.body.block.ops if isinstance(op, AtOp))
    written = emit_inverse(compute, x, [read.indices[0]], InsertPoint.before(read))
    assert written is not None
    assert [str(v.owner.name) for v in written] == ["arith.divui", "arith.remui"]  # pyright: ignore


def test_symbolic_extents_are_not_proved():
    x = tensor(4)
    compute = defined(UnaryOp("exp", x))
    symbolic = AnyOp(result_types=[TensorType(f32, [-1])]).results[0]
    compute.reads()[0].operands[0] = symbolic
    assert bijection(compute, symbolic) is None


def splits(volume: int) -> st.SearchStrategy[list[int]]:
    """Shapes of a volume."""
    if volume == 1:
        return st.lists(st.just(1), max_size=2)
    divisors = [d for d in range(1, volume + 1) if volume % d == 0]
    return st.sampled_from(divisors).flatmap(
        lambda d: splits(volume // d).map(lambda rest: [d, *rest]) if d > 1 else st.just([1, volume])
    )


@st.composite
def chains(draw: st.DrawFn) -> tuple[ComputeOp, SSAValue]:
    """Reshapes, transposes, reversals and shortened slices of a small tensor, inlined into one definition."""
    shape = draw(splits(draw(st.sampled_from([6, 12, 24, 36, 60]))))
    x = value = tensor(*shape)
    last: ComputeOp | None = None
    for _ in range(draw(st.integers(1, 4))):
        compute = definition(draw(_mover(value)))
        if last is not None:
            inline_compute(last, compute)
        else:
            simplify_body(compute)
        last, value = compute, compute.result
    assert last is not None
    return last, x


@st.composite
def _mover(draw: st.DrawFn, value: SSAValue) -> Operator:
    assert isinstance(value.type, TensorType)
    shape = value.type.get_shape()
    kind = draw(st.sampled_from(["reshape", "transpose", "reverse", "shorten"]))
    if kind == "reshape":
        return ReshapeOp(value, draw(splits(prod(shape))))
    if kind == "transpose":
        return TransposeOp(value, draw(st.permutations(range(len(shape)))))
    if kind == "shorten" and draw(st.integers(0, 3)) == 0:
        return SliceOp(value, [0] * len(shape), [max(1, e - 1) for e in shape], [1] * len(shape))
    down = [draw(st.booleans()) for _ in shape]
    return SliceOp(
        value,
        [e - 1 if d else 0 for d, e in zip(down, shape, strict=True)],
        list(shape),
        [-1 if d else 1 for d in down],
    )


@settings(max_examples=200)
@given(chains())
def test_chains_against_brute_force(chain: tuple[ComputeOp, SSAValue]):
    check_against_brute_force(*chain)


@settings(max_examples=100)
@given(st.data())
def test_a_reshape_a_transpose_and_a_reversal_are_always_proved(data: st.DataObject):
    shape = data.draw(splits(24))
    x = tensor(*shape)
    first = definition(SliceOp(x, [e - 1 for e in shape], shape, [-1] * len(shape)))
    second = definition(TransposeOp(first.result, data.draw(st.permutations(range(len(shape))))))
    inline_compute(first, second)
    third = definition(ReshapeOp(second.result, data.draw(splits(24))))
    inline_compute(second, third)
    assert check_against_brute_force(third, x)
