"""The mutator itself: which mutants a text has, and that a proof of equivalence can fail."""

from __future__ import annotations

import pytest

from tests.backends.cuda.emulator.mutation import equivalence
from tests.backends.cuda.emulator.mutation.kernels import SharedKernel
from tests.backends.cuda.emulator.mutation.mutants import Mutant, mutants
from tests.backends.cuda.emulator.mutation.verdict import Verdict, examine
from treadle.environment import Environment

HEAD = 'extern "C" __global__ void __launch_bounds__(32) k(const float *__restrict__ a, float *__restrict__ b) {'


def text_of(body: str) -> str:
    """A kernel with a tile in shared memory, one statement a line."""
    lines = ["__shared__ float tile[32];", "const int t = (int)threadIdx.x;", *body.strip().splitlines()]
    return "\n".join(['#include "treadle_cuda.h"', "", HEAD, *(f"    {line}" for line in lines), "}", ""])


def changed(mutant: Mutant) -> list[str]:
    """A mutant's statements behind the first two, without indentation."""
    return [line.removeprefix("    ") for line in mutant.text.splitlines()[5:-1]]


BARRIERS = """
tile[t] = a[t];
treadle_barrier();
const int u = 31 - t;
for (int n = 0; n < 2; n++) {
    b[t] = tile[u];
}
"""


def test_barriers_are_removed_and_moved_across_accesses() -> None:
    found = mutants(text_of(BARRIERS))
    assert [(mutant.kind, mutant.line, mutant.what) for mutant in found] == [
        ("barrier removed", 7, ""),
        ("barrier moved", 7, "moved before line 6"),
        ("barrier moved", 7, "moved behind line 11"),
    ]
    store, barrier, index, *loop = BARRIERS.strip().splitlines()
    assert [changed(mutant) for mutant in found] == [
        [store, index, *loop],
        [barrier, store, index, *loop],
        [store, index, *loop, barrier],
    ]


def test_a_barrier_does_not_come_to_stand_beside_another() -> None:
    body = "treadle_barrier();\ntile[t] = 1.0f;\ntreadle_barrier();\nb[t] = tile[31 - t];"
    assert [(mutant.kind, mutant.line, mutant.what) for mutant in mutants(text_of(body))] == [
        ("barrier removed", 6, ""),
        ("barrier removed", 8, ""),
        ("barrier moved", 8, "moved behind line 9"),
    ]


def test_waits_for_copies() -> None:
    body = """
treadle_cp_async_4(&tile[t], &a[t], t < 32 && t >= 0);
treadle_cp_async_commit();
treadle_cp_async_wait<0>();
treadle_barrier();
b[t] = tile[31 - t];
"""
    found = mutants(text_of(body))
    copy, commit, wait, barrier, store = body.strip().splitlines()
    waits = [changed(mutant) for mutant in found if mutant.kind == "wait moved"]
    assert waits == [
        [copy, commit, "treadle_cp_async_wait<1>();", barrier, store],
        [copy, commit, barrier, wait, store],
        [copy, wait, commit, barrier, store],
    ]
    copies = [changed(mutant)[0] for mutant in found if mutant.kind == "predicate dropped"]
    assert copies == ["treadle_cp_async_4(&tile[t], &a[t], t >= 0);", "treadle_cp_async_4(&tile[t], &a[t], t < 32);"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("b[t] = t < 3 && t > 1 ? a[t] : 0.0f;", ["b[t] = t > 1 ? a[t] : 0.0f;", "b[t] = t < 3 ? a[t] : 0.0f;"]),
        ("b[t] += (t < 3 ? a[t] : 0.0f) * 2.0f;", ["b[t] += (true ? a[t] : 0.0f) * 2.0f;"]),
        (
            "b[t] = t < 1 ? a[t] : t < 2 ? a[t + 1] : 0.0f;",
            ["b[t] = true ? a[t] : t < 2 ? a[t + 1] : 0.0f;", "b[t] = t < 1 ? a[t] : true ? a[t + 1] : 0.0f;"],
        ),
        ("if (t < 3 || t > 5) {\n    b[t] = 1.0f;\n}", ["if (true) {\n    b[t] = 1.0f;\n}"]),
        (
            "const bool p = t < 3;\nb[t] = p && t > 1 ? a[t] : 0.0f;",
            [
                "const bool p = t < 3;\nb[t] = t > 1 ? a[t] : 0.0f;",
                "const bool p = t < 3;\nb[t] = p ? a[t] : 0.0f;",
            ],
        ),
        (
            "const bool p = t < 3 && t > 1;\nb[t] = p ? a[t] : 0.0f;\nb[t + 1] = p ? a[t] : 0.0f;",
            [
                "const bool p = t > 1;\nb[t] = p ? a[t] : 0.0f;\nb[t + 1] = p ? a[t] : 0.0f;",
                "const bool p = t < 3;\nb[t] = p ? a[t] : 0.0f;\nb[t + 1] = p ? a[t] : 0.0f;",
            ],
        ),
        ("const float x = t < 3 ? 1.0f : 2.0f;\nif (x < 1.0f) {\n    t++;\n}", []),
    ],
)
def test_conjuncts_that_guard_memory_are_dropped_one_by_one(body: str, expected: list[str]) -> None:
    assert ["\n".join(changed(mutant)) for mutant in mutants(text_of(body))] == expected


def verdicts(body: str, environment: Environment) -> list[Verdict]:
    """The verdicts on a kernel with 32 inputs and outputs; nothing may be found in it as it stands."""
    buffers = ((32, "float32"), (32, "float32"))
    examined = examine(SharedKernel("here", "k", text_of(body), (1, 1, 1), (32, 1, 1), 0, buffers), environment)
    assert examined.said == ""
    return list(examined.verdicts)


@pytest.mark.parametrize(
    ("body", "outcome", "detail"),
    [
        ("b[t] = t < 32 ? a[t] : 0.0f;", "equivalent", equivalence.ALWAYS_HOLDS),
        ("b[t] = t < 31 ? a[t] : 0.0f;", "result", ""),
        ("b[t] = t < 31 ? a[t + 1] : 0.0f;", "finding", "bounds"),
        ("const float x = t < 31 ? a[t] : 0.0f;\nif (t != 31) {\n    b[t] = x;\n}", "equivalent", equivalence.UNUSED),
        ("const float x = t < 31 ? a[t + 1] : 0.0f;\nif (t != 31) {\n    b[t] = x;\n}", "finding", "bounds"),
        ("for (int n = 0; n < 0; n++) {\n    b[t] = t < 3 ? a[t] : 0.0f;\n}", "equivalent", equivalence.NEVER_ASKED),
        ("for (int n = 0; n < 0; n++) {\n    treadle_barrier();\n}", "equivalent", equivalence.NEVER_RUNS),
        ("treadle_barrier();", "missed", ""),
    ],
)
def test_verdicts(body: str, outcome: str, detail: str, emulator_environment: Environment) -> None:
    first = verdicts(body, emulator_environment)[0]
    assert (first.outcome, first.detail) == (outcome, detail)


def test_a_predicate_that_the_others_imply(emulator_environment: Environment) -> None:
    found = verdicts("b[t] = t < 20 && t < 10 ? a[t] : 0.0f;", emulator_environment)
    assert [(each.outcome, each.detail) for each in found] == [("equivalent", equivalence.IMPLIED), ("result", "")]
