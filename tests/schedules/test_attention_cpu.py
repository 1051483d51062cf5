"""The CPU's template of attention: compiled, beside the definition in float64; what it fits, and its limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import pytest
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp

from tests.helpers.limits import assert_within, limits
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from tests.schedules.attention_cases import SIZES, SMALL, Array, Shape, Sizes, arrays, attention
from tests.schedules.row_cases import tensor
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, FusedOp, MatmulOp
from treadle.dialects.graph.operation_count import count_operations
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.ir import Entry, tensor_type
from treadle.passes.graph.one_kernel import has_template
from treadle.schedules.template import Choices, Template
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.work.lowered import count_work
from treadle.target import Target

TEMPLATE = TEMPLATES["attention_cpu"]
TARGET = "cpu{vector_bytes=32 vector_registers=16 l2_bytes=524288}"
"""Vectors of 8 elements, printed for any machine."""
CPU = Target.parse(TARGET)
TILES: list[dict[str, Choice]] = [
    {},
    {"vectors": 1, "keys": 3, "rows": 5, "columns": 1},
    {"vectors": 3, "keys": 4, "rows": 4, "columns": 3},
    {"vectors": 2, "keys": 1, "rows": 1, "columns": 6},
    {"vectors": 1, "keys": 14, "rows": 14, "columns": 1},
]
"""Differences from the default."""


@dataclass(frozen=True)
class Case:
    """One attention and its schedule."""

    sizes: Sizes
    choices: Mapping[str, Choice]
    mask: Shape | None = None
    causal: bool = False
    guard: bool = False
    dtype: str = "float32"

    @property
    def name(self) -> str:
        flags = [word for word in ("causal", "guard") if getattr(self, word)]
        flags += [self.dtype] if self.dtype != "float32" else []
        mask = [] if self.mask is None else [f"mask {'x'.join(map(str, self.mask))}"]
        tile = [f"{name}={value}" for name, value in self.choices.items()]
        return " ".join([str(self.sizes), *flags, *mask, *tile])

    @property
    def op(self) -> AttentionOp:
        """The operator, whose operands belong to no program."""
        return attention(self.sizes, self.dtype, self.mask, causal=self.causal, guard=self.guard)

    @property
    def inputs(self) -> list[Array]:
        """Queries, keys, values and the mask if there is one."""
        return arrays([*self.sizes.shapes, *([] if self.mask is None else [self.mask])], self.dtype)

    def module(self) -> ModuleOp:
        """The scheduled program."""
        op = self.op
        names = ("q", "k", "v", "mask")[: len(op.operands)]
        entry = Entry({name: tensor_type(self.dtype, a.shape) for name, a in zip(names, self.inputs, strict=True)})
        whole = AttentionOp(
            *(entry[name] for name in names),
            scale=op.scale.value.data, causal=self.causal, guard=self.guard,
        )  # fmt: skip
        return scheduled(entry.module({"y": entry.add(whole)}), self.choices)

    def check(self, actual: Array, inputs: list[Array] | None = None) -> Array:
        """Compares a result with the definition's, which it returns."""
        op, inputs = self.op, inputs or self.inputs
        with np.errstate(all="ignore"):
            expected = limits(op, dict(zip(op.operands, inputs, strict=True)))
        assert_within(actual, expected, np.dtype(self.dtype), self.name)
        return expected.value


def scheduled(module: ModuleOp, choices: Choices, template: Template = TEMPLATE) -> ModuleOp:
    """The module's only group with a template's default schedule, but for some choices."""
    lower(treadle_context(), module, CPU, after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    (anchor,) = [op for op in fused.walk() if isinstance(op, AttentionOp)]
    knobs = {**template.default(anchor, CPU), **choices}
    template.check(anchor, knobs, CPU, "here")
    fused.schedule = UseAttr.get(template.name, knobs)
    return module


def cases() -> Iterator[Case]:
    """Every size, every other one with one of the masks that broadcast to it; with and without causality and guard, in
    several tiles."""
    for number, (sizes, tile) in enumerate(zip(SIZES, cycle(TILES), strict=False)):
        mask = sizes.masks[number // 2 % len(sizes.masks)] if number % 2 else None
        yield Case(sizes, tile, mask, causal=number % 3 > 0, guard=number % 4 > 1)
    ragged = Sizes((2,), 4, 2, 21, 37, 19, 27)
    for mask, tile in zip(ragged.masks, cycle(TILES), strict=False):
        yield Case(ragged, tile, mask, causal=len(mask) % 2 > 0)
    for case in (Case(sizes, tile) for sizes, tile in zip(SIZES[::4], cycle(TILES), strict=False)):
        yield replace(case, dtype="bfloat16", causal=case.sizes.m > 4)
    yield Case(ragged, {}, ragged.masks[0], causal=True, dtype="bfloat16")
    yield Case(Sizes((), 2, 1, 9, 21, 16, 24), {}, dtype="bfloat16")
    yield Case(ragged, TILES[1], ragged.masks[0], causal=True, dtype="float16")


CASES = {case.name: case for case in cases()}
MASKED = Case(Sizes((), 1, 1, 6, 20, 3, 3), {}, (6, 20))
EARLY = Case(Sizes((), 1, 1, 23, 3, 3, 3), {}, causal=True)
"""More queries than keys: causality hides all keys of the first rows."""
SPECIAL = Case(Sizes((), 1, 1, 5, 40, 2, 3), {}, (5, 40))
LONG = Case(Sizes((), 1, 1, 9, 600, 8, 8), {"vectors": 2})
"""Its scores exceed the stack's share of a kernel."""
OTHERS = [case for each in (MASKED, EARLY, SPECIAL, LONG) for case in (each, replace(each, guard=True))]


@pytest.fixture(scope="module")
def programs() -> dict[str, CompiledProgram]:
    everything = [*CASES.values(), *OTHERS]
    return compile_programs([_printed(case) for case in everything], TARGET)


def _printed(case: Case) -> PrintedProgram:
    return print_program(case.name, case.module(), TARGET, after="fuse")


@pytest.mark.parametrize("name", CASES)
def test_sizes_masks_and_tiles(name: str, programs: dict[str, CompiledProgram]) -> None:
    case = CASES[name]
    (actual,) = programs[name].run(case.inputs)
    case.check(actual)


@pytest.mark.parametrize("guard", [False, True])
def test_rows_without_a_score(guard: bool, programs: dict[str, CompiledProgram]) -> None:
    """As softmax gives them: NaN, or with the guard rows of zeros."""
    for case, rows in ((MASKED, slice(1)), (EARLY, slice(20))):
        case = replace(case, guard=guard)
        (actual,) = programs[case.name].run(case.inputs)
        case.check(actual)
        assert (actual[0, rows] == 0).all() if guard else np.isnan(actual[0, rows]).all()
        assert np.isfinite(actual[0, rows.stop :]).all()


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(value: float, guard: bool, programs: dict[str, CompiledProgram]) -> None:
    case = replace(SPECIAL, guard=guard)
    inputs = case.inputs
    inputs[3][1, 1], inputs[3][2, 39] = value, value
    (actual,) = programs[case.name].run(inputs)
    case.check(actual, inputs)


def test_large_scores_and_many_keys(programs: dict[str, CompiledProgram]) -> None:
    inputs = LONG.inputs
    inputs[0] *= np.float32(1000)
    (actual,) = programs[LONG.name].run(inputs)
    assert np.isfinite(LONG.check(actual, inputs)).all()


def test_what_it_fits() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        assert TEMPLATE.fits(attention(SMALL, dtype))
    op = attention(SMALL, "float64")
    assert not TEMPLATE.fits(op)
    assert not has_template(op, CPU), "it is decomposed"
    q, k, v = (tensor(*shape) for shape in SMALL.shapes)
    assert not TEMPLATE.fits(AttentionOp(q, k, v, tensor(5, 19, dtype="float64")))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 5, 0, 4, 4), "float32"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, DYNAMIC_INDEX, 4, 4, 4), "float32"))
    assert not TEMPLATE.fits(MatmulOp(tensor(3, 4), tensor(4, 5)))


def test_where_it_is_the_default() -> None:
    """With two vectors of queries, or one where only its scores stay in the cache; not where no scores do, nor for less
    than a vector of queries."""
    long = [(128, keys, vectors) for keys, vectors in ((1024, 2), (3900, 2), (4200, 1), (8000, 1), (8300, None))]
    for queries, keys, vectors in (*long, (9, 128, 2), (8, 128, 1), (7, 128, None), (1, 1024, None)):
        op = attention(Sizes((), 12, 12, queries, keys, 64, 64), "float32")
        assert TEMPLATE.has_default(op, CPU) == (vectors is not None)
        if vectors is not None:
            choices = TEMPLATE.default(op, CPU)
            assert choices["vectors"] == vectors
            TEMPLATE.check(op, choices, CPU, "here")


def test_candidates_are_different_kernels() -> None:
    op = attention(Sizes((), 1, 1, 9, 3, 4, 12), "float32")
    found = list(TEMPLATE.candidates(op, CPU))
    assert len({tuple(sorted(choices.items())) for choices in found}) == len(found)
    assert TEMPLATE.canonical(op, TEMPLATE.default(op, CPU), CPU) in found
    assert {choices["keys"] for choices in found} == {2, 3}
    assert {choices["vectors"] for choices in found} == {choices["columns"] for choices in found} == {1, 2}


@pytest.mark.parametrize("causal", [False, True])
def test_counted_work(causal: bool) -> None:
    """Vector operations times lanes, two for a multiplication and an addition: about those of the definition, beside
    the exponentials and what tiles compute of keys that causality hides."""
    case = Case(Sizes((1,), 12, 12, 128, 128, 64, 64), {}, causal=causal)
    module = case.module()
    lower(treadle_context(), module, CPU, after="fuse", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    work = count_work(kernel, CPU)
    counted = work.blocks * sum(body.executions * body.arithmetic for body in work.bodies) * 2 * CPU.lanes
    assert 1.0 < counted / count_operations(case.op) < 1.35
