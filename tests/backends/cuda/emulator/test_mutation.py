"""The proof of the emulator's checks: barriers, waits and predicates are taken from kernels, and that is found.

A mutant counts as found by a finding, or by a launch that cannot go on; in a column of its own by a result that
differs from the kernel's, which is all that shows a predicate whose reads stay in the buffer, such as a
convolution's padding. An equivalent mutant is one that was proven to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from tests.backends.cuda.emulator.mutation.equivalence import REASONS
from tests.backends.cuda.emulator.mutation.kernels import SharedKernel, distinct, kernels_of
from tests.backends.cuda.emulator.mutation.record import silent, tables, verdicts_of
from tests.backends.cuda.emulator.mutation.verdict import Examined, Verdict, examine
from tests.helpers.bless import assert_golden
from tests.helpers.random_weights import with_random_weights
from tests.models.catalog import MODELS, require_model
from treadle.knobs import Knobs, available_cores

QUICK = ("ppocr_cls", "minilm")
"""The models whose kernels every run mutates, one of each structure; the rest takes minutes (`make slow-test`)."""

SHAPES = {
    "ppocrv4_rec": {"x": (1, 3, 48, 64)},
    "ppocrv4_det": {"x": (1, 3, 64, 64)},
    "minilm": {"input_ids": (1, 32), "attention_mask": (1, 32)},
}
"""Smaller inputs than the catalog's, where a model takes them."""

ACCEPTED = 0.95
"""The part of the mutants that are not equivalent that must be found."""

_HERE = Path(__file__).parent
_DOCUMENT = _HERE.parents[3] / "docs" / "emulator.md"
_BEGIN, _END = "<!-- mutants: recorded by tests/backends/cuda/emulator/test_mutation.py -->\n", "<!-- mutants end -->\n"


@pytest.fixture(scope="module")
def staged() -> SharedKernel:
    """A product in three stages of asynchronous copies, written by hand."""
    text = (_HERE.parent / "inputs" / "staged_matmul.cu").read_text()
    buffers = tuple((size, "float32") for size in (40 * 88, 88 * 36, 40 * 36))
    return SharedKernel("by hand", "staged_matmul", text, (9, 1, 1), (64, 1, 1), 0, buffers)


@pytest.fixture(scope="module")
def examine_models(
    staged: SharedKernel, emulator_knobs: Knobs, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[bool], list[Examined]]:
    """Examines the kernels of every model, or one of each structure of the quick ones; the same ones once."""

    @cache
    def run(every: bool) -> list[Examined]:
        folder = tmp_path_factory.mktemp("models")
        found = [kernel for name in (MODELS if every else QUICK) for kernel in _kernels(name, folder)]
        chosen = [staged, *distinct(found, numbers=every)]
        with ThreadPoolExecutor(available_cores()) as pool:
            return list(pool.map(lambda kernel: examine(kernel, emulator_knobs), chosen))

    return run


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "all"])
def examined(request: pytest.FixtureRequest, examine_models: Callable[[bool], list[Examined]]) -> list[Examined]:
    """Every mutant of the kernels of two models, or of all."""
    return examine_models(request.param)


def _kernels(name: str, folder: Path) -> list[SharedKernel]:
    model = require_model(name)
    path = model.path()
    if name.startswith("light_"):
        path = with_random_weights(path, folder / f"{name}.onnx")
    return kernels_of(name, path, SHAPES.get(name, model.input_shapes))


def test_nothing_is_found_in_the_kernels_themselves(examined: list[Examined]) -> None:
    assert [each.said for each in examined if each.said] == []


@pytest.mark.parametrize("kind", ["barrier removed", "barrier moved", "wait moved"])
def test_changed_barriers_and_waits_are_findings(examined: list[Examined], kind: str) -> None:
    verdicts = [verdict for verdict in verdicts_of(examined) if verdict.mutant.kind == kind]
    _assert_found(verdicts, ("finding",))


def test_dropped_predicates_are_findings_or_change_the_result(examined: list[Examined]) -> None:
    verdicts = [verdict for verdict in verdicts_of(examined) if verdict.mutant.kind == "predicate dropped"]
    _assert_found(verdicts, ("finding", "result"))


def test_equivalent_mutants_have_a_reason(examined: list[Examined]) -> None:
    equivalent = [verdict for verdict in verdicts_of(examined) if verdict.outcome == "equivalent"]
    assert equivalent and {verdict.detail for verdict in equivalent} <= set(REASONS)


@pytest.mark.slow
def test_the_record_is_up_to_date(examine_models: Callable[[bool], list[Examined]]) -> None:
    examined = examine_models(True)
    assert_golden(silent(examined), _HERE / "mutation" / "silent.txt")
    before, _, rest = _DOCUMENT.read_text().partition(_BEGIN)
    assert_golden(f"{before}{_BEGIN}\n{tables(examined)}\n{_END}{rest.partition(_END)[2]}", _DOCUMENT)


def _assert_found(verdicts: Sequence[Verdict], outcomes: tuple[str, ...]) -> None:
    different = [verdict for verdict in verdicts if verdict.outcome != "equivalent"]
    missed = [str(verdict) for verdict in different if verdict.outcome not in outcomes]
    assert different and len(missed) <= (1 - ACCEPTED) * len(different), "\n".join(missed)
