"""What is a row computation, and why something is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import SSAValue

from tests.schedules.row_cases import layer_norm, rms_norm, softmax, tensor, variance
from treadle.dialects.graph import AtOp, ComputeOp, MatmulOp, PoolOp, ReductionOp, UnaryOp, definition
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of
from treadle.schedules.row_analysis import MOST_CACHED, Rows, analyse_rows, columns_are_contiguous, neighbouring_rows


def rows_of(compute: ComputeOp) -> Rows:
    found = analyse_rows(compute)
    assert isinstance(found, Rows), found
    return found


def test_softmax_along_the_last_dimension():
    rows = rows_of(softmax((4, 3, 8), 2, "float32"))
    assert (rows.inner, rows.outer, rows.rows, rows.columns) == ((2,), (0, 1), 12, 8)
    assert columns_are_contiguous(rows) and neighbouring_rows(rows) == 1


def test_softmax_along_a_middle_dimension():
    rows = rows_of(softmax((4, 3, 8), 1, "float32"))
    assert (rows.inner, rows.outer_extents, rows.columns) == ((1,), (4, 8), 3)
    assert not columns_are_contiguous(rows) and neighbouring_rows(rows) == 8


def test_layer_norm_over_two_dimensions():
    rows = rows_of(layer_norm((4, 1, 3, 8), 2, "float32"))
    assert (rows.inner, rows.extents, rows.rows, rows.columns) == ((2, 3), (3, 8), 4, 24)
    assert columns_are_contiguous(rows)


def test_one_element_a_row():
    rows = rows_of(variance((4, 9), 1, "float32"))
    assert (rows.inner, rows.rows, rows.columns, len(rows.reduces)) == ((), 4, 9, 2)


@pytest.mark.parametrize(
    ("compute", "reused"),
    [
        (softmax((4, 8), 1, "float32"), ["graph.at", "math.exp"]),
        (layer_norm((4, 8), 1, "float32"), ["graph.at"]),
        (rms_norm((4, 8), 1, "float32"), ["graph.at"]),
        (variance((4, 8), 1, "float32"), ["graph.at"]),
    ],
)
def test_what_is_reused(compute: ComputeOp, reused: list[str]):
    rows = rows_of(compute)
    owners = [rows.numbers.example(n).owner for n in rows.reused]
    assert sorted(owner.name for owner in owners if not isinstance(owner, SSAValue)) == reused  # pyright: ignore
    x = compute.tensors()[0]
    assert all(owner.source is x for owner in owners if isinstance(owner, AtOp))


def test_a_cached_row_is_read_once_and_a_longer_one_in_every_phase():
    cached, long = softmax((3, MOST_CACHED), 1, "float32"), softmax((3, MOST_CACHED + 1), 1, "float32")
    assert rows_of(cached).read_points(cached.tensors()[0]) == 3 * MOST_CACHED
    assert rows_of(long).read_points(long.tensors()[0]) == 3 * 3 * (MOST_CACHED + 1)


def test_parameters_are_read_for_every_row():
    compute = layer_norm((5, 8), 1, "float32")
    assert [rows_of(compute).read_points(tensor) for tensor in compute.tensors()] == [40, 40, 40]


def scaled_by(divisor: Sequence[int], kind: str = "add") -> ComputeOp:
    """`x[i, j] / sum(x[...])` for an 8 x 8 tensor; `divisor` says what the sum's indices are: output dimension 0
    or 1, or the reduction's index (2)."""
    x = tensor(8, 8)

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        def term(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            return inner.at(x, [[*index, k[0]][d] for d in divisor])

        return b.binary("div", b.at(x, index), b.reduce(kind, [8], term))

    return compute_of(TensorType(f32, [8, 8]), element)


def test_the_row_is_what_the_reductions_do_not_depend_on():
    """Both extents are 8; the indices of the sum tell which one is the row's."""
    assert rows_of(scaled_by((0, 2))).inner == (1,)
    assert rows_of(scaled_by((2, 1))).inner == (0,)


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (definition(UnaryOp("exp", tensor(4))), "it has no reduction"),
        (definition(ReductionOp("add", tensor(4, 8), [1], keep=True)), "its one reduction gives one element a row"),
        (rms_norm((4, 1), 1, "float32"), "its one reduction gives one element a row"),
        (definition(MatmulOp(tensor(4, 8), tensor(8, 8))), "its one reduction gives one element a row"),
        (definition(PoolOp("max", tensor(1, 1, 9, 9), [3, 3], [1, 1], [0] * 4, [1, 1])), "its one reduction gives"),
        (scaled_by((2, 2)), "the output has extents (8, 8) on which no reduction depends, and they run over (8,)"),
        (scaled_by((0, 1)), "its one reduction gives one element a row"),
        (softmax((0, 8), 1, "float32"), "the extents of tensor<0x8xf32> and of its reductions are not all known"),
    ],
)
def test_what_is_no_row_computation(compute: ComputeOp, reason: str):
    found = analyse_rows(compute)
    assert isinstance(found, str) and reason in found


def nested(kinds: tuple[int, int]) -> ComputeOp:
    """A sum over `kinds[0]` terms in a sum over `kinds[1]` terms, beside each other where the first is negative."""
    x = tensor(4, 6)

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        def inner_sum(inner: DefinitionBuilder, _: Sequence[Scalar]) -> Scalar:
            return inner.reduce("add", [abs(kinds[0])], lambda deep, k: deep.at(x, [index[0], k[0]]))

        outer = b.reduce("add", [kinds[1]], inner_sum if kinds[0] > 0 else lambda deep, k: deep.at(x, [index[0], k[0]]))
        return outer if kinds[0] > 0 else b.add(outer, inner_sum(b, []))

    return compute_of(TensorType(f32, [4]), element)


def test_reductions_of_reductions_and_of_other_extents():
    assert analyse_rows(nested((6, 6))) == "a reduction is computed inside another"
    assert analyse_rows(nested((-5, 6))) == "its reductions run over different extents: (5,), (6,)"
