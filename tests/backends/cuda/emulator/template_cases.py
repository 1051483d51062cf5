"""The anchors that each GPU template must schedule whatever their extents: primes, ones, less than a tile, whole tiles.

A template is chosen by force, so that what is left to another one by default is covered, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from xdsl.dialects.builtin import i32

from tests.schedules import attention_cases, row_cases
from tests.schedules.row_cases import Shape, tensor
from tests.schedules.tensor_cores import SHAPES
from treadle.dialects.graph import (
    ArgReductionOp,
    BinaryOp,
    ConvOp,
    MatmulOp,
    Operator,
    PoolOp,
    ReductionOp,
    TransposeOp,
    UnaryOp,
    definition,
)
from treadle.schedules.template import Anchor

AnchorOf = Callable[[str], Anchor]
"""An anchor of a dtype, whose operands belong to no program."""

HALVES = ("float16", "bfloat16")
FLOATS = ("float32", *HALVES, "float64")
INTEGERS = ("int8", "int16", "int32", "int64")
DTYPES = (*FLOATS, *INTEGERS)
TRUTHS = "bool"
"""Of these there are movements and elementwise operators only."""


@dataclass(frozen=True)
class Coverage:
    """What a template is tried on: each case in each dtype, as far as the template fits.

    Integers have no averages and no functions: their cases are others of the same shapes.
    """

    dtypes: tuple[str, ...]
    cases: tuple[AnchorOf, ...]


def _operator(build: Callable[[str], Operator], dtype: str) -> Anchor:
    return definition(build(dtype))


def _operators(builds: Sequence[Callable[[str], Operator]]) -> tuple[AnchorOf, ...]:
    return tuple(partial(_operator, build) for build in builds)


PRODUCTS: list[tuple[Shape, Shape]] = [
    *SHAPES,
    *(((m, k), (k, n)) for m, k, n in ((1, 3, 4099), (65, 1, 67), (128, 16, 128), (127, 20, 36), (4100, 5, 1))),
    ((3, 2039), (2039, 7)),
    ((70, 9), (5, 9, 20)),
    *(((m, k), (k, n)) for m, k, n in ((33, 517, 65), (64, 1024, 64), (5, 771, 130))),
    ((2, 31, 600), (2, 600, 17)),
    ((18, 520), (3, 520, 24)),
]
"""Those of many terms are split."""

REDUCTIONS: list[tuple[str, Shape, tuple[int, ...]]] = [
    *(("add", (rows, terms), (1,)) for rows, terms in ((1, 32), (1, 37), (3, 64), (7, 131), (129, 33), (2, 2039))),
    *(("max", (rows, terms), (1,)) for rows, terms in ((1, 127), (5, 128), (31, 61), (2, 300), (1, 4099))),
    *(("min", (terms, rows), (0,)) for terms, rows in ((32, 1), (67, 3), (41, 16), (37, 31), (129, 67), (64, 300))),
    *(("add", (terms, rows), (0,)) for terms, rows in ((53, 7), (512, 9), (100, 128))),
    *(("add", shape, (2, 3)) for shape in ((1, 1, 7, 7), (2, 3, 5, 7), (1, 64, 8, 8), (3, 17, 1, 37))),
    *(("max", shape, (1,)) for shape in ((2, 43, 1), (1, 33, 5), (3, 47, 20))),
    *(("add", shape, (0, 2)) for shape in ((3, 1, 11), (13, 5, 3), (2, 33, 64))),
    ("mul", (2, 33), (1,)),
    ("add", (67,), (0,)),
    ("add", (10007,), (0,)),
]

FEW_ROWS: list[tuple[Shape, Shape]] = [
    *(each for each in PRODUCTS if each[0][-2] <= 64),
    *(((m, k), (k, n)) for m, k, n in ((1, 4096, 24), (2, 72, 264), (4, 1100, 40), (6, 520, 8), (8, 31, 127))),
]

SMALL_PRODUCTS: list[tuple[Shape, Shape]] = [((1, 64), (64, 37)), ((2, 2, 65), (2, 65, 3)), ((104, 26), (26, 1))]
"""Products of few elements, which are reductions."""

TRANSPOSES: list[tuple[Shape, list[int]]] = [
    *((shape, [1, 0]) for shape in ((32, 32), (31, 33), (8, 129), (64, 8), (97, 101), (100, 36), (256, 40))),
    *((shape, [1, 0]) for shape in ((8, 8), (11, 13), (16, 9), (23, 64), (65, 66), (33, 32), (127, 8), (2039, 11))),
    *((shape, [0, 2, 3, 1]) for shape in ((1, 8, 5, 7), (2, 16, 14, 14), (3, 33, 1, 9), (2, 64, 7, 7), (1, 24, 8, 8))),
    *((shape, [0, 3, 1, 2]) for shape in ((2, 6, 6, 24), (1, 13, 1, 17), (3, 4, 4, 32), (1, 7, 7, 64))),
    *((shape, [0, 2, 3, 1]) for shape in ((2, 20, 3, 16), (1, 33, 2, 8))),
    *((shape, [0, 2, 1]) for shape in ((1, 8, 31), (5, 17, 19), (3, 32, 64))),
    ((9, 2, 40), [2, 1, 0]),
    ((5, 11, 13), [2, 0, 1]),
    ((13, 3, 10), [1, 2, 0]),
]

Window = tuple[str, Shape, int, int, int]
"""What, the input's shape, window, step, padding."""
WINDOWS: list[Window] = [
    *(("max", (2, 4, h, w), 3, 2, 1) for h, w in ((33, 31), (34, 40), (65, 16), (40, 57))),
    *(("avg", (2, 4, h, w), 3, 2, 0) for h, w in ((35, 33), (36, 42), (67, 18), (42, 59))),
    *(("max", (1, 16, h, w), 2, 2, 0) for h, w in ((24, 48), (26, 46), (23, 62), (64, 17))),
    *(("depthwise", (1, 8, h, w), 3, 1, 1) for h, w in ((16, 17), (19, 14), (31, 13), (64, 7), (18, 18), (2, 131))),
    *(("depthwise", (2, 6, h, w), 5, 2, 2) for h, w in ((40, 23), (31, 31), (64, 12), (17, 61))),
    *(("grouped", (1, 8, h, w), 3, 1, 1) for h, w in ((17, 17), (16, 32), (29, 9), (5, 97), (64, 8))),
    *(("grouped", (2, 8, h, w), 3, 3, 0) for h, w in ((67, 34), (48, 49), (40, 70))),
    *(("max", (1, 1, h, w), 3, 1, 1) for h, w in ((2, 2053), (2053, 1), (47, 53))),
]


def window(case: Window, dtype: str) -> Operator:
    """A pooling or a convolution by groups of one or of two channels."""
    kind, shape, size, step, pad = case
    if dtype in INTEGERS:
        kind = "max"
    image = tensor(*shape, dtype=dtype)
    if kind in ("max", "avg"):
        return PoolOp(kind, image, [size] * 2, [step] * 2, [pad] * 4, [1, 1])
    groups = shape[1] if kind == "depthwise" else shape[1] // 2
    weights = tensor(shape[1], shape[1] // groups, size, size, dtype=dtype)
    return ConvOp(image, weights, [step] * 2, [pad] * 4, [1, 1], groups)


POINTWISE: list[Shape] = [
    *((n,) for n in (1, 2, 3, 7, 31, 32, 33, 64, 127, 255, 1024, 4099)),
    *((3, 5, 7), (16, 49), (2, 3, 4, 5), (33, 32), (128, 100), (1, 17, 1), (300, 8), (31, 31), (1, 1), (1, 1, 1, 1)),
]


def _unary(shape: Shape, dtype: str) -> Operator:
    kind = "tanh" if dtype in FLOATS else "not" if dtype == TRUTHS else "neg"
    return UnaryOp(kind, tensor(*shape, dtype=dtype))


def _broadcast(shape: Shape, dtype: str) -> Operator:
    return BinaryOp("and" if dtype == TRUTHS else "mul", tensor(*shape, dtype=dtype), tensor(*shape[-1:], dtype=dtype))


def _reduction(kind: str, shape: Shape, dims: tuple[int, ...], dtype: str) -> Operator:
    kind = "add" if kind == "mul" and dtype in INTEGERS else kind
    return ReductionOp(kind, tensor(*shape, dtype=dtype), dims, keep=False)


def _row(case: row_cases.Case, dtype: str) -> Anchor:
    name, shape, dim = case
    if dtype in INTEGERS:
        return definition(ArgReductionOp("max", tensor(*shape, dtype=dtype), dim, keep=False))
    return row_cases.build((name, shape, dim), dtype)


def _few_terms(shape: Shape, dtype: str) -> Operator:
    """Sums of a few elements; of truths there are none."""
    return _unary(shape, dtype) if dtype == TRUTHS else _reduction("add", shape, (1,), dtype)


def _transpose(shape: Shape, permutation: list[int], dtype: str) -> Operator:
    return TransposeOp(tensor(*shape, dtype=dtype), permutation)


RULED_PRODUCTS: list[tuple[Shape, Shape]] = [
    ((3, 4), (4, 5)),
    ((1, 1), (1, 1)),
    ((5, 3), (2, 3, 4)),
    ((17, 31), (31, 1)),
]
"""Products as one thread an element computes them, of integers above all."""

_RULES: list[Callable[[str], Operator]] = [
    *(partial(_unary, shape) for shape in POINTWISE),
    *(partial(_broadcast, shape) for shape in ((40, 64), (3, 7), (5, 12, 16), (1, 1), (2039, 2))),
    *(partial(_transpose, shape, [1, 0]) for shape in ((4, 64), (1, 7), (64, 5))),
    *(partial(_few_terms, shape) for shape in ((300, 5), (1, 1), (7, 31))),
]


def _attention(n: int, dtype: str) -> Anchor:
    """The n-th sizes."""
    return _masked(n, attention_cases.SIZES[n], dtype)


def _masked(n: int, sizes: attention_cases.Sizes, dtype: str) -> Anchor:
    """Masks of every broadcast, none, causality and a guard take turns. Of integers there is no attention, but
    something that its templates must leave alone."""
    if dtype in INTEGERS:
        return _product(((1, 1), (1, 1)), dtype)
    mask = (*sizes.masks, None)[n % 9]
    return attention_cases.attention(sizes, dtype, mask, causal=n % 3 == 1, guard=n % 4 == 0)


ATTENTIONS: tuple[AnchorOf, ...] = tuple(partial(_attention, n) for n in range(len(attention_cases.SIZES)))


def _few_queries(n: int, dtype: str) -> Anchor:
    """The n-th sizes with up to eight queries a head, and heads of multiples of eight elements."""
    sizes = attention_cases.SIZES[n]
    few = replace(sizes, m=min(sizes.m, 8), n=3 * sizes.n + n, d=8 * (1 + n % 16), e=8 * (1 + 5 * n % 16))
    return _masked(n, few, dtype)


FEW_QUERIES: tuple[AnchorOf, ...] = tuple(partial(_few_queries, n) for n in range(len(attention_cases.SIZES)))


def _product(shapes: tuple[Shape, Shape], dtype: str) -> Anchor:
    a, b = shapes
    if dtype == TRUTHS:
        return definition(_unary(a, dtype))
    return MatmulOp(tensor(*a, dtype=dtype), tensor(*b, dtype=dtype))


def _byte_product(shapes: tuple[Shape, Shape], dtype: str) -> Anchor:
    a, b = (tensor(*shape, dtype=dtype) for shape in shapes)
    return MatmulOp(a, b, sums=i32 if dtype == "int8" else None)


def _products(shapes: Sequence[tuple[Shape, Shape]]) -> tuple[AnchorOf, ...]:
    return tuple(partial(_product, each) for each in shapes)


COVERED: dict[str, Coverage] = {
    "attention_cuda": Coverage(("float32", *HALVES), ATTENTIONS),
    "attention_mma": Coverage(HALVES, ATTENTIONS),
    "attention_decode_mma": Coverage(HALVES, FEW_QUERIES),
    "matmul_simt": Coverage(FLOATS, _products(PRODUCTS)),
    "matmul_mma": Coverage(HALVES, _products(PRODUCTS)),
    "matmul_rows_mma": Coverage(HALVES, _products(FEW_ROWS)),
    "matmul_tf32": Coverage(("float32",), _products(PRODUCTS)),
    "matmul_int8": Coverage(("int8",), tuple(partial(_byte_product, each) for each in PRODUCTS)),
    "reduce_cuda": Coverage(
        DTYPES, (*_operators([partial(_reduction, *each) for each in REDUCTIONS]), *_products(SMALL_PRODUCTS))
    ),
    "row_cuda": Coverage(DTYPES, tuple(partial(_row, case) for case in row_cases.CASES)),
    "window_cuda": Coverage(DTYPES, _operators([partial(window, each) for each in WINDOWS])),
    "transpose_cuda": Coverage((*DTYPES, TRUTHS), _operators([partial(_transpose, *each) for each in TRANSPOSES])),
    "generic_cuda": Coverage((*DTYPES, TRUTHS), (*_operators(_RULES), *_products(RULED_PRODUCTS))),
}
