"""The proof of the emulator's checks: barriers, waits and predicates are taken from kernels, and that is found.

A mutant counts as found by a finding, or by a launch that cannot go on; in a column of its own by a result that
differs from the kernel's, which is all that shows a predicate whose reads stay in the buffer, such as a
convolution's padding. An equivalent mutant is one that was proven to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.backends.cuda.emulator.mutation.equivalence import REASONS
from tests.backends.cuda.emulator.mutation.kernels import SharedKernel, distinct, kernels_of
from tests.backends.cuda.emulator.mutation.mutants import pattern
from tests.backends.cuda.emulator.mutation.record import Summary, summary, tables
from tests.backends.cuda.emulator.mutation.verdict import Examined, Outcome, Verdict, examine_all, verdicts_of
from tests.helpers.bless import assert_golden
from tests.helpers.random_weights import with_random_weights
from tests.models.agreement import QUICK_ON_GPU
from tests.models.catalog import MODELS, require_model
from treadle.environment import Environment

STEP = 6
"""Of the quick model's kernels that are mutated differently every run takes every sixth: convolution, products and
reduction take part. All of every model takes minutes."""

EXAMINED = (
    "ppocrv4_rec", "ppocrv4_det", "ppocr_cls", "ddddocr_det", "minilm", "light_bvlc_alexnet", "light_resnet50",
)  # fmt: skip
"""The models whose kernels are all mutated. The catalog's other architectures have kernels of the same templates."""

SHAPES = {
    "ppocrv4_rec": {"x": (1, 3, 48, 64)},
    "ppocrv4_det": {"x": (1, 3, 64, 64)},
    "minilm": {"input_ids": (1, 32), "attention_mask": (1, 32)},
}
"""Smaller inputs than the catalog's, where a model takes them."""

ACCEPTED = 0.95
"""The part of the mutants that are not equivalent that must be found."""

_HERE = Path(__file__).parent
_RECORDED = _HERE / "mutation" / "recorded"
_DOCUMENT = _HERE.parents[3] / "docs" / "emulator.md"
_BEGIN = "<!-- mutants: recorded by tests/backends/cuda/emulator/test_mutation.py -->\n"
_END = "<!-- mutants end -->\n"


@pytest.fixture(scope="module")
def staged(emulator_environment: Environment) -> list[Examined]:
    """A product in three stages of asynchronous copies, written by hand."""
    text = (_HERE.parent / "inputs" / "staged_matmul.cu").read_text()
    buffers = tuple((size, "float32") for size in (40 * 88, 88 * 36, 40 * 36))
    kernel = SharedKernel("by hand", "staged_matmul", text, (9, 1, 1), (64, 1, 1), 0, buffers)
    return examine_all([kernel], emulator_environment)


@pytest.fixture(scope="module")
def examined(staged: list[Examined], emulator_environment: Environment) -> list[Examined]:
    """Mutants of kernels of all families."""
    name, shapes = QUICK_ON_GPU
    found = kernels_of(name, require_model(name).path(), shapes)
    chosen = distinct(found, lambda kernel: pattern(kernel.text))[::STEP]
    return [*staged, *examine_all(chosen, emulator_environment)]


def test_nothing_is_found_in_the_kernels_themselves(examined: list[Examined]) -> None:
    assert [each.said for each in examined if each.said] == []


@pytest.mark.parametrize("kind", ["barrier removed", "barrier moved", "wait moved"])
def test_changed_barriers_and_waits_are_findings(examined: list[Examined], kind: str) -> None:
    _assert_found([each for each in verdicts_of(examined) if each.mutant.kind == kind], ("finding",))


def test_dropped_predicates_are_findings_or_change_the_result(examined: list[Examined]) -> None:
    dropped = [each for each in verdicts_of(examined) if each.mutant.kind == "predicate dropped"]
    _assert_found(dropped, ("finding", "result"))


def test_equivalent_mutants_have_a_reason(examined: list[Examined]) -> None:
    equivalent = [verdict for verdict in verdicts_of(examined) if verdict.outcome == "equivalent"]
    assert equivalent and {verdict.detail for verdict in equivalent} <= set(REASONS)


def test_the_record_of_the_staged_kernel(staged: list[Examined]) -> None:
    assert_golden(summary(staged).text(), _RECORDED / "staged_matmul.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMINED)
def test_every_kernel_of_a_model(name: str, tmp_path: Path, emulator_environment: Environment) -> None:
    kernels = distinct(_kernels(name, tmp_path), lambda kernel: kernel.key)
    examined = examine_all(kernels, emulator_environment)
    assert [each.said for each in examined if each.said] == []
    predicates = [each for each in verdicts_of(examined) if each.mutant.kind == "predicate dropped"]
    _assert_found([each for each in verdicts_of(examined) if each not in predicates], ("finding",))
    _assert_found(predicates, ("finding", "result"))
    assert_golden(summary(examined).text(), _RECORDED / f"{name}.json")


def test_the_document_has_the_recorded_tables() -> None:
    recorded = {path.stem: Summary.parse(path.read_text()) for path in sorted(_RECORDED.glob("*.json"))}
    assert set(recorded) == {*EXAMINED, "staged_matmul"} and set(EXAMINED) <= set(MODELS)
    before, _, rest = _DOCUMENT.read_text().partition(_BEGIN)
    assert_golden(f"{before}{_BEGIN}\n{tables(recorded)}\n{_END}{rest.partition(_END)[2]}", _DOCUMENT)


def _kernels(name: str, folder: Path) -> list[SharedKernel]:
    model = require_model(name)
    path = model.path()
    if name.startswith("light_"):
        path = with_random_weights(path, folder / f"{name}.onnx")
    return kernels_of(name, path, SHAPES.get(name, model.input_shapes))


def _assert_found(verdicts: Sequence[Verdict], outcomes: tuple[Outcome, ...]) -> None:
    different = [verdict for verdict in verdicts if verdict.outcome != "equivalent"]
    missed = [str(verdict) for verdict in different if verdict.outcome not in outcomes]
    assert different and len(missed) <= (1 - ACCEPTED) * len(different), "\n".join(missed)
