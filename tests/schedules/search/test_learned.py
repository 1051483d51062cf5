"""A model that learns by what factor another one errs: better on kernels that it has not seen, the same each time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies
from numpy.typing import NDArray

from treadle.schedules.search import learned
from treadle.schedules.search.learned import LEAST_RECORDS, Learned, features
from treadle.schedules.search.predict import cpu_seconds
from treadle.schedules.search.trials import work_of_record, work_record
from treadle.schedules.work.cpu_work import Body, Reuse, Work
from treadle.target import KIB, Target

CPU = Target.parse("cpu")


def drawn(random: Random) -> Work:
    """A kernel of a tile, at random."""
    blocks, depth = random.choice([1, 3, 24, 200]), random.choice([16.0, 100.0, 1000.0])
    tile, vectors = random.choice([1.0, 4.0, 12.0]), random.choice([1.0, 2.0])
    fold = Body(depth, tile * vectors, tile + vectors, 0.0, 1.0)
    store = Body(1.0, 0.0, 0.0, tile * vectors)
    capacity = random.choice([4.0, 40.0, 400.0]) * KIB
    bytes = depth * (tile + 16 * vectors) * 4 * blocks
    return Work(blocks, 1, (store, fold), (Reuse(0.0, bytes), Reuse(capacity, bytes / 8)), blocks / 2)


def measured(work: Work) -> float:
    """What the analytic model does not know of this machine: small tiles wait, and reuse beyond 32 KiB costs more."""
    fold = work.bodies[1]
    factor = (3.0 if fold.arithmetic < 4 else 1.0) * (2.0 if work.reuse[1].capacity > 32 * KIB else 0.7)
    return cpu_seconds(work, CPU) * factor


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    return np.argsort(np.argsort(values)).astype(np.float64)


def agreement(model: Learned, works: Sequence[Work]) -> float:
    """The rank correlation of predicted and measured times."""
    predicted = ranks(list(model.seconds(works, CPU)))
    return float(np.corrcoef(predicted, ranks(list(map(measured, works))))[0, 1])


@pytest.fixture(scope="module")
def works() -> list[Work]:
    random = Random(0)
    return [drawn(random) for _ in range(300)]


@pytest.fixture(scope="module")
def fitted(works: list[Work]) -> Learned:
    model = Learned()
    model.learn({"group": [(work, measured(work)) for work in works[:200]]}, CPU)
    return model


def test_it_corrects_the_analytic_model(works: list[Work], fitted: Learned) -> None:
    """Rank correlation on 100 kernels of which it has seen none."""
    unseen = [work for work in works[200:] if work not in works[:200]]
    assert fitted.is_fitted
    assert len(unseen) > 20
    assert agreement(Learned(), unseen) < 0.9
    assert agreement(fitted, unseen) > 0.98


def test_the_order_of_records_does_not_matter(works: list[Work], fitted: Learned) -> None:
    other = Learned()
    shuffled = works[:200]
    Random(1).shuffle(shuffled)
    for start in range(0, 200, 100):
        other.learn({"group": [(work, measured(work)) for work in shuffled[start : start + 100]]}, CPU)
    assert other.seconds(works, CPU) == fitted.seconds(works, CPU)


def test_it_begins_as_the_analytic_model(works: list[Work]) -> None:
    model, few = Learned(), works[: LEAST_RECORDS - 1]
    model.learn({"group": [(work, measured(work)) for work in few]}, CPU)
    assert not model.is_fitted
    assert model.seconds(works, CPU) == [cpu_seconds(work, CPU) for work in works]
    assert list(model.seconds([], CPU)) == []


def test_without_scikit_learn_it_stays_that(works: list[Work], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "find_spec", lambda name: None)
    model = Learned()
    model.learn({"group": [(work, measured(work)) for work in works]}, CPU)
    assert not learned.can_learn()
    assert not model.is_fitted
    assert model.seconds(works[:3], CPU) == [cpu_seconds(work, CPU) for work in works[:3]]


def in_groups(works: Sequence[Work]) -> dict[str, list[tuple[Work, float]]]:
    """Ten groups of kernels of one number of blocks each, which all take a half to 16 times as long as `measured`."""
    groups: dict[str, list[tuple[Work, float]]] = {}
    for n, work in enumerate(works):
        number = n % 10
        blocks = replace(work, blocks=number + 2, share=1 + number / 2)
        groups.setdefault(str(number), []).append((blocks, measured(blocks) * 2 ** (number * 7 % 6 - 1)))
    return groups


def test_what_a_group_has_in_common_is_not_learned(works: list[Work]) -> None:
    """The order within groups that it has not seen, whose times differ by a factor as those of the others do."""
    groups = in_groups(works)
    seen, unseen = dict(list(groups.items())[:7]), dict(list(groups.items())[7:])
    by_group, together = Learned(), Learned()
    by_group.learn(seen, CPU)
    together.learn({"all": [record for records in seen.values() for record in records]}, CPU)
    for records in unseen.values():
        each = [work for work, _ in records]
        assert agreement(by_group, each) > 0.97
        assert agreement(by_group, each) > agreement(together, each)


def test_predictions_keep_the_scale_of_most_groups(works: list[Work]) -> None:
    model = Learned()
    model.learn({str(n): [(w, 5 * measured(w)) for w in works[n * 50 : n * 50 + 50]] for n in range(3)}, CPU)
    predicted = model.seconds(works[150:], CPU)
    ratios = [p / measured(work) for p, work in zip(predicted, works[150:], strict=True)]
    assert float(np.median(ratios)) == pytest.approx(5, rel=0.2)


def test_groups_of_one_record_teach_nothing(works: list[Work], fitted: Learned) -> None:
    """Of such records there are any number when a search begins: each group's default."""
    alone, both = Learned(), Learned()
    defaults = {str(n): [(work, measured(work) * (n + 1))] for n, work in enumerate(works[200:])}
    alone.learn(defaults, CPU)
    assert not alone.is_fitted
    both.learn({"group": [(work, measured(work)) for work in works[:200]]} | defaults, CPU)
    assert both.seconds(works, CPU) == fitted.seconds(works, CPU)


@given(strategies.integers(0, 2**32))
def test_a_record_gives_the_same_features(seed: int) -> None:
    """Up to the six digits that are kept, and through JSON."""
    work = drawn(Random(seed))
    read = work_of_record(json.loads(json.dumps(work_record(work))))
    assert len(features(work, CPU)) == 41
    np.testing.assert_allclose(features(read, CPU), features(work, CPU), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "change", [{"reuse": []}, {"blocks": None}, {"bodies": [["x"]]}, {"bodies": [[768, 32, 6, 0, 1]]}, {"share": "x"}]
)
def test_what_is_no_work_is_rejected(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        work_of_record(work_record(drawn(Random(0))) | change)
