"""Task mappings as values: the paper's tables, the laws of composition, the cover proof, the text form."""

from __future__ import annotations

import itertools
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.dialects.task.mapping import Mapping, custom, parse_mapping, prove_cover, repeat, replicate, spatial
from treadle.errors import TreadleError


def grids(rank: int) -> st.SearchStrategy[Mapping]:
    """One repeat or spatial part with any order."""
    return st.builds(
        lambda make, dims, order: make(*dims, order=order),
        st.sampled_from([repeat, spatial]),
        st.lists(st.integers(1, 3), min_size=rank, max_size=rank),
        st.permutations(range(rank)),
    )


def swizzles(rank: int) -> st.SearchStrategy[Mapping]:
    """A custom cover: row s of an n by n grid visited at a rotated column (rank 2), or a reversal."""
    if rank == 2:
        return st.integers(1, 4).map(lambda n: custom((n, n), n, lambda w, s: (s, (w + s) % n), steps=n))
    return st.integers(1, 5).map(
        lambda n: custom((n,) + (1,) * (rank - 1), n, lambda w, s: (n - 1 - w, *[0] * (rank - 1)))
    )


def mappings(rank: int, max_parts: int = 3) -> st.SearchStrategy[Mapping]:
    """Compositions of covers."""
    part = st.one_of(grids(rank), swizzles(rank))

    def compose(parts: list[Mapping]) -> Mapping:
        return Mapping(tuple(itertools.chain.from_iterable(p.parts for p in parts)))

    return st.lists(part, min_size=1, max_size=max_parts).map(compose)


RANKED = st.integers(1, 3).flatmap(mappings)
PAIRS = st.integers(1, 3).flatmap(lambda r: st.tuples(mappings(r, 2), mappings(r, 2)))
TRIPLES = st.integers(1, 2).flatmap(lambda r: st.tuples(mappings(r, 1), mappings(r, 1), mappings(r, 1)))


def test_figure_8() -> None:
    assert repeat(4, 1)(0) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert all(spatial(16, 8)(w) == [(w // 8, w % 8)] for w in range(128))
    m = repeat(4, 1) * spatial(16, 8)
    assert (m.shape, m.workers) == ((64, 8), 128)
    assert all(m(w) == [(w // 8 + 16 * i, w % 8) for i in range(4)] for w in range(128))


def test_figure_11() -> None:
    assert repeat(2, 2)(0) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [spatial(2, 2)(w) for w in range(4)] == [[(w // 2, w % 2)] for w in range(4)]


def test_figure_12() -> None:
    a, b = repeat(1, 3) * spatial(2, 2), spatial(2, 2) * repeat(1, 3)
    assert (a.shape, a.workers) == (b.shape, b.workers) == ((2, 6), 4)
    assert a(1) == [(0, 1), (0, 3), (0, 5)]
    assert b(1) == [(0, 3), (0, 4), (0, 5)]
    c = spatial(2) * repeat(2) * spatial(2)
    assert (c.shape, c.workers) == ((8,), 4)
    assert c(3) == [(5,), (7,)]
    d = repeat(1, 2) * repeat(2, 1)
    assert d(0) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert d(0) == repeat(2, 2, order=(1, 0))(0)


def test_cuda_core_matmul_of_section_5_1_2() -> None:
    m = spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)
    assert (m.shape, m.workers, len(m(0))) == ((128, 128), 256, 64)
    assert prove_cover(m) is None


@settings(max_examples=60)
@given(TRIPLES)
def test_composition_is_associative(fs: tuple[Mapping, Mapping, Mapping]) -> None:
    f, g, h = fs
    left, right = (f * g) * h, f * (g * h)
    assert left == right
    assert all(left(w) == right(w) for w in range(left.workers))


@settings(max_examples=60)
@given(PAIRS)
def test_composition_follows_the_formula(pair: tuple[Mapping, Mapping]) -> None:
    f, g = pair
    m = f * g
    assert m.workers == f.workers * g.workers
    assert m.shape == tuple(a * b for a, b in zip(f.shape, g.shape, strict=True))
    for w in range(m.workers):
        expected = [
            tuple(a * d + b for a, d, b in zip(t1, g.shape, t2, strict=True))
            for t1 in f(w // g.workers)
            for t2 in g(w % g.workers)
        ]
        assert m(w) == expected


@settings(max_examples=60)
@given(RANKED)
def test_covers_cover(m: Mapping) -> None:
    assert prove_cover(m) is None
    done = [t for w in range(m.workers) for t in m(w)]
    assert len(done) == prod(m.shape)
    assert set(done) == set(itertools.product(*map(range, m.shape)))


@settings(max_examples=100)
@given(RANKED, st.integers(0, 3))
def test_text_round_trip(m: Mapping, replicas: int) -> None:
    m = m * replicate(replicas) if replicas else m
    assert parse_mapping(str(m)) == m
    assert str(parse_mapping(str(m))) == str(m)


def test_text_form() -> None:
    m = repeat(4, 2, order=(1, 0)) * replicate(2) * custom((4, 4), 4, lambda w, s: (s, (w + s) % 4), steps=4)
    assert str(m) == (
        "repeat(4, 2, order = (1, 0)) * replicate(2) * custom(4, 4, workers = 4, steps = 4, map = (s, (w + s) mod 4))"
    )
    assert m.shape == (16, 8)


def test_replication_is_intended() -> None:
    m = spatial(2, 2) * replicate(3) * repeat(1, 2)
    assert (m.shape, m.workers) == ((2, 4), 12)
    assert m(0) == m(1) == m(2) == [(0, 0), (0, 1)]
    assert prove_cover(m) is None
    assert str(prove_cover(replicate(2) * custom((4,), 2, lambda w, s: (w,)))) == "task (2,) is missed"


@pytest.mark.parametrize(
    ("mapping", "failure"),
    [
        (custom((4,), 2, lambda w, s: (w,)), "task (2,) is missed"),
        (custom((2,), 4, lambda w, s: (w % 2,)), "task (0,) is done twice, by workers 0 and 2"),
        (custom((2,), 1, lambda w, s: (s // 2,), steps=4), "task (0,) is done twice, by worker 0"),
        (custom((4,), 4, lambda w, s: (w + 1,)), "task (4,) of worker 3 lies outside the shape (4,)"),
        (repeat(2) * custom((2,), 1, lambda w, s: (0,)), "task (1,) is missed"),
        (
            custom((2,), 4, lambda w, s: (w % 2,)) * replicate(2),
            "task (0,) is done twice, by workers 0 and 4",
        ),
    ],
)
def test_cover_failures_name_the_task(mapping: Mapping, failure: str) -> None:
    assert str(prove_cover(mapping)) == failure


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("repeat(4", "task mapping 'repeat(4' has the end; accepted: ')'"),
        (
            "repeat(4) spatial(2)",
            "task mapping 'repeat(4) spatial(2)' has 'spatial'; accepted: '*' or the end",
        ),
        ("rotate(4)", "has 'rotate'; accepted: repeat, spatial, replicate, custom"),
        ("repeat(a)", "has 'a'; accepted: an integer"),
        ("repeat(0)", "repeat(0); accepted: one or more positive sizes"),
        ("repeat(2, 2, order = (0, 0))", "order (0, 0); accepted: a permutation of 0 to 1"),
        ("repeat(2, order = (w))", "has an expression for an integer; accepted: integers"),
        ("repeat(2) * spatial(2, 2)", "composes 1 with 2 dimensions; accepted: mappings of one rank"),
        ("custom(2, map = (w))", "custom mapping without workers; accepted: workers = N, map = (...)"),
        (
            "custom(2, workers = 2, map = (w, s))",
            "2 coordinates of a 1-dimensional shape; accepted: 1 coordinates",
        ),
        (
            "custom(2, workers = 2, map = (w floordiv 0))",
            "divides by 0; accepted: a positive integer as divisor",
        ),
        ("replicate(2, 2)", "replicate with 2 sizes; accepted: one number of workers"),
    ],
)
def test_bad_text_is_named(text: str, message: str) -> None:
    with pytest.raises(TreadleError) as caught:
        parse_mapping(text)
    assert message in str(caught.value)


def test_worker_out_of_range() -> None:
    with pytest.raises(TreadleError, match=r"worker 4 of spatial\(2, 2\); accepted: 0 to 3"):
        spatial(2, 2)(4)


def test_function_that_is_not_affine() -> None:
    with pytest.raises(TreadleError, match="accepted: a positive integer as divisor"):
        custom((4,), 4, lambda w, s: (w % w,))
