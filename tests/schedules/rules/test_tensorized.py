"""The rule `tensorized`: tiles of any word on tensor cores, which other rules go on from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.emulated_batch import EmulatedProgram, PrintedKernels, compile_programs, print_program
from tests.helpers.graphs import Graph
from tests.helpers.program_batch import Backend, ProgramBatch
from tests.schedules.rules.scheduled import CPU, GPU, anchor, groups_of, take
from tests.schedules.tensor_cores import Array, sample
from treadle.backends.reference import evaluate_module
from treadle.dialects.graph import BinaryOp, ConvOp, MatmulOp, ReductionOp, UnaryOp
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.rules import Draft, Rule, fused, programs, staged, tensorized, tiled, unrolled
from treadle.schedules.rules.programs import drafts
from treadle.schedules.template import Anchor
from treadle.target import Target

AFTER: tuple[Rule, ...] = (staged("shared", ahead=True), unrolled)
WORDS = ("SSRRS", "SSSRRSRS", "SRSRRS")
Write = Callable[[Graph], SSAValue]


def layer(g: Graph) -> SSAValue:
    """A product, a row added to each of its rows, and relu."""
    return g.add(UnaryOp("relu", g.add(BinaryOp("add", g.add(MatmulOp(g[0], g[1])), g[2]))))


def product(g: Graph) -> SSAValue:
    """Of both inputs."""
    return g.add(MatmulOp(g[0], g[1]))


def convolution(g: Graph) -> SSAValue:
    """With a border, as an implicit product."""
    return g.add(ConvOp(g[0], g[1], [1, 1], [1] * 4, [1, 1], 1))


@dataclass(frozen=True)
class Case:
    """An operator and the shapes of its inputs; terms: that each element adds up."""

    shapes: tuple[tuple[int, ...], ...]
    write: Write
    terms: int
    dtype: str = "float16"

    def inputs(self) -> list[Array]:
        return [sample(shape, self.dtype, n) for n, shape in enumerate(self.shapes)]

    def evaluated(self, inputs: list[Array]) -> Array:
        """By the definition in float64."""
        graph = Graph(*(each.astype(np.float64) for each in inputs))
        (found,) = evaluate_module(graph.module(self.write(graph)), graph.inputs)
        return found

    def scheduled(self, word: str, seed: str) -> ModuleOp:
        """The last group by a draft of the rule that is finished, the last one of a run: asynchronous and unrolled."""
        graph = Graph(*self.inputs())
        module = graph.module(self.write(graph))
        group = groups_of(module, GPU)[-1]
        found = [d for d in drafts(anchor_of(group), GPU, [fused, tensorized(word), *AFTER], seed) if d.nest]
        take(module, group, found[-1], "p")
        module.verify()
        return module


CASES: Mapping[str, Case] = {
    "layer": Case(((50, 40), (40, 70), (70,)), layer, 40),
    "layer of bf16": Case(((33, 56), (56, 47), (47,)), layer, 56, "bfloat16"),
    "batched": Case(((3, 20, 24), (3, 24, 36)), product, 24),
    "batched rows": Case(((2, 35, 33), (33, 10)), product, 33),
    "convolution": Case(((1, 12, 9, 9), (20, 12, 3, 3)), convolution, 108),
    "long": Case(((20, 1024), (1024, 18)), product, 1024),
}
NAMES = [f"{name} {word}" for name in CASES for word in WORDS if word != "SRSRRS" or name == "long"]


@pytest.fixture(scope="module")
def compiled() -> ProgramBatch[PrintedKernels, EmulatedProgram]:
    def maker(name: str) -> Callable[[], ModuleOp]:
        case, _, word = name.rpartition(" ")
        return lambda: CASES[case].scheduled(word, name)

    makers = {name: maker(name) for name in NAMES}
    return ProgramBatch(makers, Backend(partial(print_program, after="schedule"), compile_programs), len(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_drawn_programs_compute_the_definition(
    compiled: ProgramBatch[PrintedKernels, EmulatedProgram], name: str
) -> None:
    """Sums in f32, and the result and what is added to it rounded to their type."""
    case = CASES[name.rpartition(" ")[0]]
    assert any("treadle_mma_" in unit.text for unit in compiled[name].printed.units)
    (actual,) = compiled[name].run(case.inputs())
    exact, magnitude = case.evaluated(case.inputs()), case.evaluated([np.abs(each) for each in case.inputs()])
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[case.dtype]
    allowed = (case.terms * 2.0**-24 + 2.01 * unit) * magnitude
    assert (np.abs(actual.astype(np.float64) - exact) <= allowed).all()


def halves(*shapes: tuple[int, ...], dtype: Any = np.float16) -> Anchor:
    graph = Graph(*(np.zeros(shape, dtype) for shape in shapes))
    (group,) = groups_of(graph.module(product(graph)), GPU)
    return anchor_of(group)


def test_the_program_is_the_docstring_s() -> None:
    of = halves((64, 64), (64, 64))
    after = tensorized("SSRRS")(Draft(of, GPU, workload_of(of)))
    assert [draft.is_complete for draft in after] == [False, True]
    lines = str(after[1]).splitlines()
    assert lines[-1] == (
        "schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2) mma(%i3, %j3, %k2)"
    )
    assert "%i0, %i1, %i2, %i3 = schedule.split %i by (%threads_i, %registers_i, 16)" in lines


def test_what_is_not_staged_is_no_program() -> None:
    of = halves((64, 64), (64, 64))
    assert programs(of, GPU, [tensorized("SSRRS")]) == ()
    found = programs(of, GPU, [tensorized("SSRRS"), *AFTER])
    assert found and all('in "shared"' in str(program) for program in found)


@pytest.mark.parametrize(
    ("of", "target"),
    [
        (anchor("GMM", GPU), GPU),
        (halves((64, 64), (64, 64), dtype=np.float64), GPU),
        (halves((64, 64), (64, 64)), Target.parse("sm_75")),
        (halves((64, 64), (64, 64)), CPU),
    ],
    ids=["f32", "f64", "sm_75", "cpu"],
)
def test_where_it_does_not_apply(of: Anchor, target: Target) -> None:
    assert tensorized("SSRRS")(Draft(of, target, workload_of(of))) == ()


def test_sums_are_no_products() -> None:
    graph = Graph(np.zeros((64, 64), np.float16))
    (group,) = groups_of(graph.module(graph.add(ReductionOp("add", graph[0], [1], keep=False))), GPU)
    assert not any("mma(" in str(program) for program in programs(anchor_of(group), GPU, [tensorized("SSRRS"), *AFTER]))


def test_slices_are_for_few_blocks_and_many_terms() -> None:
    found = {
        shapes: [str(program) for program in programs(halves(*shapes), GPU, [tensorized("SRSRRS"), *AFTER])]
        for shapes in (((64, 4096), (4096, 64)), ((4096, 64), (64, 4096)))
    }
    few, many = found.values()
    assert many == [] and few and all("block(%i0, %j0, %k0) thread(%i1, %j1) loop(%k1)" in text for text in few)


def test_vectors_are_16_bytes() -> None:
    """Of halves 8 at once, of doubles 2."""
    texts = {
        dtype: str(programs(halves((64, 64), (64, 64), dtype=dtype), GPU, [tiled("SSSRRSRS"), *AFTER])[-1])
        for dtype in (np.float16, np.float64)
    }
    assert '"vector" from [1, 2, 4, 8]' in texts[np.float16]
    assert '"vector" from [1, 2]' in texts[np.float64]


@pytest.mark.parametrize("word", ["STR", "RSS"])
def test_what_is_no_word(word: str) -> None:
    with pytest.raises(TreadleError, match=f"tensorized: no tiling is called '{word}'"):
        tensorized(word)
