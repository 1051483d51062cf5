"""Limits as errors that a search can count: of each template which limit, what it takes, and how much there is."""

from __future__ import annotations

import pickle
import random

import pytest

from tests.schedules.test_templates import CPU, GPU, defined, product, reduction, tensor
from treadle.dialects.graph import AttentionOp, PoolOp, SoftmaxOp, TransposeOp, UnaryOp
from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Task
from treadle.schedules.search.programs import template_programs
from treadle.schedules.search.rejections import survey
from treadle.schedules.template import Anchor, LimitError, check_divides, check_limit, check_limits
from treadle.schedules.templates import TEMPLATES

ANCHORS: dict[str, Anchor] = {
    "even": product(((512, 64), (64, 512))),
    "ragged": product(((500, 300), (300, 700))),
    "half": product(((500, 300), (300, 700)), "float16"),
    "odd": product(((500, 301), (301, 701)), "float16"),
    "narrow": product(((500, 300), (300, 32)), "float16"),
    "exp": defined(UnaryOp("exp", tensor(3, 5))),
    "softmax": defined(SoftmaxOp(tensor(9, 1003), 1)),
    "transpose": defined(TransposeOp(tensor(33, 30), [1, 0])),
    "pool": defined(PoolOp("max", tensor(1, 8, 17, 17), [3, 3], [1, 1], [1] * 4, [1, 1])),
    "sum": reduction(("add", (4096, 300), (1,), "float32")),
    "attention": AttentionOp(*(tensor(12, 128, 64, dtype="float16") for _ in range(3))),
    "few queries": AttentionOp(*(tensor(12, n, 128, dtype="float16") for n in (4, 4096, 4096))),
    "wide attention": AttentionOp(*(tensor(12, 128, 256) for _ in range(3))),
    "long attention": AttentionOp(*(tensor(12, 4000, 64) for _ in range(3))),
}
SIMT: dict[str, Choice] = {
    "warps": (2, 2), "repeats": (1, 1), "thread": (4, 4), "block_k": 8, "min_blocks_per_sm": 1, "a_order": "k",
    "b_order": "n", "a_vector": 4, "b_vector": 4, "split_k": 1,
}  # fmt: skip
MMA: dict[str, Choice] = {"block": (64, 64), "warps": (2, 2), "block_k": 32, "stages": 2, "group": 8, "split_k": 1}
FLASH: dict[str, Choice] = {"rows": 64, "columns": 64, "warps": 4, "parts": 1, "stages": 2}

CASES: list[tuple[str, str, dict[str, Choice], str, int, int]] = [
    ("matmul_cpu", "even", {"rows": 8, "vectors": 4, "chunk": 8, "pack": True, "passes": 1}, "rows of a tile", 8, 7),
    ("matmul_cpu", "even", {"rows": 3, "vectors": 1, "chunk": 7, "pack": True, "passes": 1},
     "rows of a chunk's tiles", 9, 7),
    ("matmul_cpu", "even", {"rows": 4, "vectors": 1, "chunk": 8, "pack": True, "passes": 8}, "passes", 8, 1),
    ("attention_cpu", "wide attention", {"vectors": 4, "keys": 8}, "keys of a tile", 8, 7),
    ("attention_cpu", "wide attention", {"rows": 10, "columns": 3}, "rows of a tile", 10, 9),
    ("attention_cpu", "long attention", {"vectors": 6, "keys": 4}, "bytes of scores and queries",
     4 * 6 * 16 * (4000 + 64), 1 << 20),
    ("row_cpu", "softmax", {"across": "rows", "lanes": 32, "rows": 1, "cache_row": True},
     "cached elements of each value", 32 * 1003, 16384 + 32),
    ("generic_cuda", "exp", {"vector": 4, "threads": 32, "repeats": 1}, "elements of vectors", 16, 15),
    ("transpose_cuda", "transpose", {"read_vector": 4, "write_vector": 1},
     "elements of vectors along the operand", 32, 30),
    ("transpose_cuda", "transpose", {"read_vector": 1, "write_vector": 4},
     "elements of vectors along the result", 36, 33),
    ("window_cuda", "pool", {"vector": 4, "threads": 128, "windows": 1}, "consecutive elements of an access", 4, 1),
    ("row_cuda", "softmax", {"parts": 64, "rows": 32, "lanes": "columns", "vector": 1, "cache_row": False},
     "threads", 2048, 1024),
    ("row_cuda", "softmax", {"parts": 64, "rows": 1, "lanes": "columns", "vector": 4, "cache_row": False},
     "columns of vectors", 1004, 1003),
    ("row_cuda", "softmax", {"parts": 4, "rows": 1, "lanes": "columns", "vector": 1, "cache_row": False},
     "threads of whole warps", 32, 4),
    ("attention_cuda", "attention", {"rows": 4, "columns": 16, "threads": 64, "lanes": 8}, "rows at once", 8, 4),
    ("attention_cuda", "attention", {"rows": 8, "columns": 16, "threads": 256, "lanes": 32},
     "keys that the lanes of a row need", 32, 16),
    ("attention_mma", "attention", FLASH | {"rows": 16}, "rows that a warp needs", 16, 4),
    ("attention_mma", "attention", FLASH | {"warps": 1}, "rows of a warp", 64, 32),
    ("attention_mma", "attention", FLASH | {"columns": 32, "parts": 4}, "keys that a warp needs", 16, 8),
    ("attention_mma", "attention", FLASH | {"parts": 4}, "threads", 512, 256),
    ("attention_decode_mma", "few queries", {"keys": 32}, "registers a thread", 282, 255),
    ("matmul_mma", "half", MMA | {"block": (64, 32), "warps": (2, 4)}, "elements that a warp needs", 512, 256),
    ("matmul_mma", "half", MMA | {"block": (128, 64), "warps": (1, 4)},
     "elements along the longer side of a warp's tile", 128, 32),
    ("matmul_mma", "half", MMA | {"block": (64, 32)}, "columns that a wide product's tile needs", 33, 32),
    ("matmul_mma", "narrow", MMA | {"block": (64, 128)}, "columns of a narrow product's tile", 128, 64),
    ("matmul_mma", "half", MMA | {"block": (128, 128), "split_k": 3},
     "accumulators a thread that are added up", 128, 64),
    ("matmul_mma", "half", MMA | {"split_k": 20}, "slices along K", 20, 10),
    ("matmul_mma", "half", MMA | {"block_k": 64, "stages": 4}, "bytes along K in all stages", 512, 384),
    ("matmul_mma", "odd", MMA | {"fragments": 2},
     "sets of fragments beside elements that are copied through registers", 2, 1),
    ("matmul_tf32", "ragged", MMA | {"block": (128, 256), "warps": (2, 4)}, "terms of tiles that overhang", 32, 16),
    ("matmul_simt", "even", SIMT | {"min_blocks_per_sm": 2}, "accumulators that several blocks need", 64, 16),
    ("matmul_simt", "ragged", SIMT | {"warps": (4, 2), "repeats": (2, 2), "min_blocks_per_sm": 2},
     "registers a thread of several blocks", 129, 128),
    ("matmul_simt", "even", SIMT | {"warps": (2, 4), "thread": (2, 2)},
     "elements of A's tile that all threads copy", 256, 128),
    ("matmul_simt", "even", SIMT | {"split_k": 40}, "slices along K", 40, 8),
]  # fmt: skip


@pytest.mark.parametrize(("template", "anchor", "choices", "what", "used", "allowed"), CASES)
def test_a_limit_has_its_name_and_its_numbers(
    template: str, anchor: str, choices: dict[str, Choice], what: str, used: int, allowed: int
) -> None:
    of, target = TEMPLATES[template], CPU if template.endswith("_cpu") else GPU
    default = of.default(ANCHORS[anchor], target)
    with pytest.raises(LimitError) as caught:
        of.check(ANCHORS[anchor], default | choices, target, "here")
    error = caught.value
    assert (error.what, error.used, error.allowed, error.where) == (what, used, allowed, "here")
    assert error.message.startswith(template)


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_combination_that_is_rejected_exceeds_a_limit(name: str) -> None:
    """No template rejects by prose, whose candidates could be counted by no limit and would have no margin."""
    template, generator = TEMPLATES[name], random.Random(0)
    target = CPU if template.kind == "cpu" else GPU
    for anchor in filter(template.fits, ANCHORS.values()):
        for _ in range(200):
            choices = {knob.name: generator.choice(knob.values) for knob in template.knobs}
            try:
                template.limits(anchor, choices, target)
            except TreadleError as error:
                assert isinstance(error, LimitError)
                assert error.used > error.allowed


def test_a_ledger_counts_templates_by_limit_and_margin() -> None:
    """A task's replay, through a program of the template, loses neither."""
    anchor = ANCHORS["even"]
    rejected = survey(Task(anchor, CPU, tuple(template_programs(anchor, CPU))), most=60).rejected
    (limit,) = [each for each in rejected if each.limit == "rows of a chunk's tiles"]
    assert {each.limit for each in rejected} <= {"rows of a chunk's tiles", "rows of a tile"}
    rows, chunk = limit.closest.decisions["rows"], limit.closest.decisions["chunk"]
    assert isinstance(rows, int)
    assert isinstance(chunk, int)
    assert limit.margin == (rows - chunk % rows) / chunk


def test_an_error_travels_between_processes() -> None:
    with pytest.raises(LimitError) as caught:
        check_limit("threads", 9, 4, "here", "it is too wide")
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 what was written here
    assert (type(copy), str(copy)) == (LimitError, "here: it is too wide; accepted: at most 4")
    assert (copy.what, copy.used, copy.allowed) == ("threads", 9, 4)


def test_helpers_reject_what_exceeds_and_nothing_else() -> None:
    check_limit("threads", 4, 4)
    check_limits("a tile", [("threads", 4, 4)], GPU)
    check_divides("elements", 4, 8, "vectors overrun", "2")
    with pytest.raises(LimitError, match="it takes 5 threads, 1 too many"):
        check_limit("threads", 5, 4)
    with pytest.raises(LimitError) as caught:
        check_limits("a tile", [("threads", 4, 4), ("bytes", 9, 6)], GPU)
    assert str(caught.value) == "a tile takes 9 bytes, 3 too many; accepted: at most 6 on sm_80"
    with pytest.raises(LimitError) as caught:
        check_divides("elements", 4, 9, "vectors overrun", "3")
    assert (caught.value.used, caught.value.allowed, str(caught.value)) == (12, 9, "vectors overrun; accepted: 3")
