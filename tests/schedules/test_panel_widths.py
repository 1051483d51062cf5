"""Products by the CPU's template with panels of each width: compiled, beside float64, for two sizes of registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from tests.helpers.graphs import Graph
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import ConvOp, FusedOp, MatmulOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.errors import TreadleError
from treadle.passes.graph.graph_pack_weights import GraphPackWeightsPass
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.register_tile import MOST_VECTORS, default_vectors, most_rows
from treadle.schedules.template import Template
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_cpu import equal_panels
from treadle.target import KIB, Target
from treadle.target.host import lacks, needs_of

Array = NDArray[Any]
TARGET_TEXTS = ("avx512", "avx2")
WIDTHS = range(1, MOST_VECTORS + 1)
TEMPLATE: Template = TEMPLATES["matmul_cpu"]
HEIGHTS = [
    ("avx512", (14, 14, 9, 7, 5, 4)),
    ("avx2", (14, 6, 4, 2, 2, 1)),
    ("sse2", (14, 6, 4, 2, 2, 1)),
    ("neon", (14, 14, 9, 6, 5, 4)),
]
LANES = (("avx512", 16), ("avx2", 8), ("sse2", 4), ("neon", 4))
TYPES: Mapping[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A product, its tile, and where its right operand comes from.

    panels: the vectors of the panels that B is laid out in; None where it is an input
    around: whether B is negated before, and the product after
    """

    vectors: int
    rows: int
    shape: tuple[int, int, int]
    type: str = "f32"
    batch: tuple[int, ...] = ()
    pack: bool = False
    panels: int | None = None
    around: bool = False
    passes: int = 1
    tiles: int = 1
    """Of a chunk."""

    def operands(self) -> tuple[Array, Array]:
        """A and B."""
        m, k, n = self.shape
        rng = np.random.default_rng(m + k + n)
        shapes = (*self.batch, m, k), ((k, n) if self.panels else (*self.batch, k, n))
        a, b = (rng.uniform(0.5, 1.5, shape).astype(TYPES[self.type]) for shape in shapes)
        return a, b

    def inputs(self) -> tuple[Array, ...]:
        """What @main takes."""
        a, b = self.operands()
        return (a,) if self.panels else (a, b)

    def expected(self) -> Array:
        """The product in float64, or longer."""
        a, b = (x.astype(np.longdouble if self.type == "f64" else np.float64) for x in self.operands())
        return a @ b

    def scheduled(self, target: Target) -> ModuleOp:
        """The module whose group has the tile."""
        inputs = self.inputs()
        graph = Graph(*inputs)
        b = graph.constant(self.operands()[1]) if self.panels else graph[1]
        if self.around:
            b = graph.add(UnaryOp("neg", b))
        product = graph.add(MatmulOp(graph[0], b))
        module = graph.module(graph.add(UnaryOp("neg", product)) if self.around else product)
        if self.panels:
            GraphPackWeightsPass(width=self.panels * target.lanes).apply(treadle_context(), module)
        lower(treadle_context(), module, target, after="graph", to="fuse")
        (group,) = [op for op in module.walk() if isinstance(op, FusedOp) and is_product(op)]
        knobs = {"rows": self.rows, "vectors": self.vectors, "chunk": self.rows * self.tiles}
        knobs |= {"pack": self.pack, "passes": self.passes}
        group.schedule = UseAttr.get("matmul_cpu", knobs)
        return module


def is_product(group: FusedOp) -> bool:
    return isinstance(anchor_of(group), MatmulOp)


@cache
def cases(text: str) -> Mapping[str, Case]:
    """Whole and partial panels and tiles of each width, and what may surround them, the latter in turn."""
    target, found = Target.parse(text), list[Case]()
    for vectors in WIDTHS:
        most, width = most_rows(target, vectors), vectors * target.lanes
        even = vectors % 2 == 0
        for number, columns in enumerate((1, width - 1, width, width + 1, 2 * width + target.lanes)):
            rows = (most, 1, most, max(most - 1, 1), most)[number]
            if vectors in (1, 4) or (number + vectors) % 2:
                found.append(Case(vectors, rows, (rows + 1, 19, columns), pack=bool(number % 2)))
        found.append(Case(vectors, most, (most, 1, width + 3)))
        found.append(Case(vectors, most, (most + 1, 7, width + 5), batch=(2, 3), pack=even))
        found += list(of_types(vectors, most, width)) if vectors in (1, 3) else []
        found += [
            Case(vectors, most, (most + 1, 9, n), panels=vectors) for n in ((5, 2 * width + 1) if even else (width,))
        ]
        found.append(Case(vectors, most, (most + 1, 9, width + 2), panels=vectors, pack=True))
        found.append(Case(vectors, most, (most + 1, 9, width + 2), pack=not even, around=True))
        found += list(in_passes(vectors, most, width)) if vectors in (2, 5) else []
    return {str(case): case for case in found}


def in_passes(vectors: int, most: int, width: int) -> Iterator[Case]:
    """Chunks of several tiles that use one part of K after the other."""
    rows = max(most - 1, 1)
    for pack in (True, False):
        yield Case(vectors, rows, (5 * rows - 1, 192, width + 5), pack=pack, passes=3, tiles=2)
        yield Case(vectors, rows, (3 * rows, 199, width + 1), pack=pack, passes=3, tiles=2)
        yield Case(vectors, rows, (2 * rows, 128, width), batch=(2,), pack=pack, passes=2, tiles=2, around=True)
    yield Case(vectors, rows, (3 * rows, 384, width + 1), panels=vectors, passes=6, tiles=3)


def of_types(vectors: int, most: int, width: int) -> Iterator[Case]:
    """Of the types that the C compiler makes vectors of, in small tiles: it takes long for large ones. Panels of one
    vector are used in passes, wider ones at once."""
    rows = min(most, 3)
    for type in ("f64", "f16", "bf16"):
        if vectors == 1:
            yield Case(vectors, rows, (2 * rows + 1, 192, width + 5), type=type, passes=3, tiles=3)
        else:
            yield Case(vectors, rows, (rows + 2, 33, width + 5), type=type)


@cache
def programs(text: str) -> Mapping[str, CompiledProgram]:
    """All cases, compiled in one call of the compiler."""
    return compile_programs([_printed(name, case, text) for name, case in cases(text).items()], text)


def _printed(name: str, case: Case, text: str) -> PrintedProgram:
    return print_program(name, case.scheduled(Target.parse(text)), text, after="fuse")


@pytest.mark.parametrize("vectors", WIDTHS)
@pytest.mark.parametrize("text", TARGET_TEXTS)
def test_products_of_each_width_are_those_in_float64(text: str, vectors: int) -> None:
    missing = lacks(needs_of(Target.parse(text)))
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    chosen = {name: case for name, case in cases(text).items() if case.vectors == vectors}
    assert chosen
    for name, case in chosen.items():
        (actual,) = programs(text)[name].run(case.inputs())
        assert actual.dtype == TYPES[case.type]
        summed = 2.0**-53 if case.type == "f64" else 2.0**-24
        # The rounding of the result, and that of the sums: all terms are positive.
        bound = float(ml_dtypes.finfo(TYPES[case.type]).eps) / 2 * 1.01 + case.shape[1] * summed
        expected = case.expected()
        error = np.abs(actual.astype(expected.dtype) - expected) / np.abs(expected)
        assert float(error.max()) <= bound, name


@pytest.mark.parametrize("text", TARGET_TEXTS)
def test_passes_add_in_the_order_of_a_single_one(text: str) -> None:
    """Bit by bit, of random numbers whose sums depend on the order, in f32: of other types the C compiler decides which
    products it fuses with their sums."""
    missing = lacks(needs_of(Target.parse(text)))
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    pairs = [(case, replace(case, passes=1)) for case in in_passes(2, 4, 2 * Target.parse(text).lanes)]
    found = compile_programs(
        [_printed(f"{n}, {case.passes}", case, text) for n, pair in enumerate(pairs) for case in pair], text
    )
    for n, (case, single) in enumerate(pairs):
        rng = np.random.default_rng(n)
        inputs = [(rng.standard_normal(a.shape) * 100).astype(a.dtype) for a in case.inputs()]
        (actual,), (expected,) = (found[f"{n}, {each.passes}"].run(inputs) for each in (case, single))
        assert actual.tobytes() == expected.tobytes(), case


def test_passes_are_parts_that_are_not_too_short() -> None:
    target = Target.parse("avx512")

    def passes(m: int, k: int) -> set[Choice]:
        module = Case(1, 1, (m, k, 100)).scheduled(target)
        (of,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
        found = {choices["passes"] for choices in TEMPLATE.candidates(of, target)}
        assert set(TEMPLATE.values(of, target)["passes"]) == found
        return found

    assert passes(30, 768) == {1, 6}
    assert passes(30, 761) == {1, 6}, "the last part is shorter"
    assert passes(30, 131) == {1, 2}
    assert passes(30, 127) == {1}
    assert passes(1, 768) == {1}, "one tile uses no part of the panel twice"


def default_passes(module: ModuleOp, target: Target) -> Choice:
    (of,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    return TEMPLATE.default(of, target)["passes"]


def test_parts_of_panels_fit_the_first_cache_by_default() -> None:
    target = Target.parse("avx512")

    def passes(m: int, k: int, panels: int | None, target: Target = target) -> Choice:
        return default_passes(Case(panels or 1, 1, (m, k, 96), panels=panels).scheduled(target), target)

    assert passes(64, 768, 3) == 4, "192 terms of 192 bytes are three quarters of 48 KiB"
    assert passes(64, 3072, 3) == 16
    assert passes(64, 192, 3) == 1, "the panel fits"
    assert passes(64, 769, 3) == 1, "equal parts are too short"
    assert passes(4, 768, 3) == 1, "a chunk of one tile uses no part twice"
    assert passes(64, 768, None) == 1, "the right operand lies in no panels"
    assert passes(64, 768, 3, replace(target, l1_bytes=32 * KIB)) == 1
    assert passes(64, 768, 3, replace(target, l1_bytes=64 * KIB)) == 3


@pytest.mark.parametrize(("m", "k", "chunk"), [(64, 768, 64), (256, 768, 256), (512, 768, 256), (512, 3072, 64)])
def test_rows_of_a_chunk_stay_in_the_second_cache(m: int, k: int, chunk: int) -> None:
    """As many of A as take two fifths of it, in even chunks, where B is larger; with 2 MiB 273 of 768 elements."""
    target = replace(Target.parse("avx512"), cores=2, l2_bytes=2048 * KIB)
    of = plain_product(m, k, 4800, target)
    assert TEMPLATE.default(of, target)["chunk"] == chunk
    assert TEMPLATE.default(of, replace(target, l2_bytes=1 << 30))["chunk"] == m


def plain_product(m: int, k: int, n: int, target: Target) -> MatmulOp:
    """Of two inputs, with nothing around."""
    graph = Graph(np.zeros((m, k), np.float32), np.zeros((k, n), np.float32))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, target, after="graph", to="fuse")
    (found,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    return found


def test_parts_of_panels_are_whole_taps_of_a_convolution() -> None:
    """Of 16 channels in a vector, 3 x 3 taps and 16 vectors: 144 terms are the taps of one, 128 and 192 end within."""
    target = Target.parse("avx512")
    graph = Graph(np.zeros((1, 256, 14, 14), np.float32))
    weights = graph.constant(np.random.default_rng(0).standard_normal((256, 256, 3, 3)).astype(np.float32))
    module = graph.module(graph.add(ConvOp(graph[0], weights, [2, 2], [1, 1, 1, 1], [1, 1], 1)))
    lower(treadle_context(), module, target, to="fuse")
    assert default_passes(module, target) == 2304 // 144


@pytest.mark.parametrize(("text", "most"), HEIGHTS)
def test_a_tile_of_each_width_fits_the_registers(text: str, most: tuple[int, ...]) -> None:
    target = Target.parse(text)
    assert tuple(most_rows(target, vectors) for vectors in WIDTHS) == most
    broadcast = target.vector_bytes < 64  # an operand in memory in AVX-512 code
    for vectors, rows in zip(WIDTHS, most, strict=True):
        assert rows * vectors + vectors + broadcast <= target.vector_registers or rows == 1


def anchor(panels: int | None, target: Target, columns: int = 100) -> MatmulOp:
    """A product of 13 rows."""
    module = Case(panels or 1, 1, (13, 9, columns), panels=panels).scheduled(target)
    (found,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    return found


@pytest.mark.parametrize("panels", WIDTHS)
@pytest.mark.parametrize("text", TARGET_TEXTS)
def test_panels_in_memory_decide_the_width(text: str, panels: int) -> None:
    target = Target.parse(text)
    of = anchor(panels, target)
    assert {choices["vectors"] for choices in TEMPLATE.candidates(of, target)} == {panels}
    default = TEMPLATE.default(of, target)
    TEMPLATE.check(of, default, target, "here")
    assert TEMPLATE.canonical(of, default, target)["vectors"] == default["vectors"] == panels
    other = panels % MOST_VECTORS + 1
    says = f"lies in memory as panels of {panels * target.lanes} columns, not of {other * target.lanes}"
    with pytest.raises(TreadleError, match=f"{says}; accepted: vectors = {panels}"):
        TEMPLATE.check(of, {**default, "rows": 1, "chunk": 13, "vectors": other}, target, "here")


@pytest.mark.parametrize(("columns", "widest"), [(1, 1), (16, 1), (17, 2), (48, 3), (100, 4)])
def test_an_input_has_panels_of_up_to_four_vectors_that_it_fills(columns: int, widest: int) -> None:
    target = Target.parse("avx512")
    found = {choices["vectors"] for choices in TEMPLATE.candidates(anchor(None, target, columns), target)}
    assert found == set(range(1, widest + 1))


@pytest.mark.parametrize(
    ("text", "columns", "depth", "vectors"),
    [
        *(("avx512", columns, 512, 4) for columns in (64, 128, 120, 256, 512, 1024, 2048)),
        *(("avx512", columns, 512, 3) for columns in (48, 96, 160, 192, 768, 1000)),
        *(("avx512", 256, depth, vectors) for depth, vectors in ((64, 3), (127, 3), (128, 4))),
        ("avx512", 64, 16, 4),
        *(
            (text, columns, 512, vectors)
            for text, lanes in LANES
            for columns, vectors in ((1, 1), (lanes, 1), (2 * lanes, 2))
        ),
        *((text, 256, 512, 2) for text in ("avx2", "sse2", "neon")),
    ],
)
def test_a_weight_has_panels_of_equal_width(text: str, columns: int, depth: int, vectors: int) -> None:
    """No wider than the matrix; where three vectors would leave a narrower last panel and four do not, and sums have
    many terms, of four."""
    target = Target.parse(text)
    assert default_vectors(target, columns, depth) == vectors
    graph = Graph(np.ones((2, depth), np.float32))
    module = graph.module(graph.add(MatmulOp(graph[0], graph.constant(np.ones((depth, columns), np.float32)))))
    GraphPackWeightsPass(target=text).apply(treadle_context(), module)
    (of,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    assert TEMPLATE.default(of, target)["vectors"] == vectors


@pytest.mark.parametrize(
    ("columns", "panels", "widths"),
    [(128, None, (2, 4)), (160, None, (2,)), (112, None, ()), (120, None, ()), (96, None, ()), (128, 3, ())],
)
def test_equal_panels_take_the_place_of_those_with_a_narrower_last_one(
    columns: int, panels: int | None, widths: tuple[int, ...]
) -> None:
    """Of two vectors or more, unless memory decides the width, or the panels of three are equal; 13 rows are two tiles
    of 7."""
    target = Target.parse("avx512")
    given = {"rows": 8, "vectors": 3, "chunk": 128, "pack": True, "passes": 1}
    found = equal_panels(anchor(panels, target, columns), given, target)
    assert found == [{**given, "rows": 7, "vectors": vectors, "chunk": 133} for vectors in widths]


def test_rows_beyond_the_registers_are_rejected() -> None:
    target = Target.parse("avx2")
    choices = {"rows": 5, "vectors": 3, "chunk": 5, "pack": False, "passes": 1}
    with pytest.raises(TreadleError, match="5 rows by 3 vectors has 1 rows too many for 16 registers; accepted: at m"):
        TEMPLATE.check(anchor(None, target), choices, target, "here")


def test_a_constant_in_panels_of_no_whole_vectors_is_read_with_any_width() -> None:
    target = Target.parse("avx512")
    case = Case(1, 1, (13, 9, 50))
    graph = Graph(case.inputs()[0])
    module = graph.module(graph.add(MatmulOp(graph[0], graph.constant(case.operands()[1]))))
    GraphPackWeightsPass(width=20).apply(treadle_context(), module)
    (of,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    assert {choices["vectors"] for choices in TEMPLATE.candidates(of, target)} == {1, 2, 3, 4}
