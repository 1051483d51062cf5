"""Thread-block swizzle: products on CUDA cores whose blocks go down some rows of tiles before they go right."""

from __future__ import annotations

import re

import numpy as np
import pytest

import treadle
from tests.helpers.graphs import random
from tests.schedules.test_templates import GPU, Shape, check, product
from treadle import ir
from treadle.dialects.graph import MatmulOp
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Task
from treadle.schedules.search.predict import predicted_seconds
from treadle.schedules.search.programs import template_programs
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of

SMALL = {"warps": (1, 1), "repeats": (1, 1), "thread": (2, 2)}
"""A tile of 8 x 16: products of some hundred elements have many rows of blocks."""
TEMPLATE = TEMPLATES["matmul_simt"]


@pytest.mark.parametrize(
    "shapes",
    [((64, 9), (9, 48)), ((150, 9), (9, 40)), ((20, 9), (9, 40)), ((3, 70, 5), (3, 5, 33)), ((128, 9), (9, 8))],
)
def test_products_are_the_same(shapes: tuple[Shape, Shape]) -> None:
    check("matmul_simt", product(shapes), {**SMALL, "split_k": 1, "group": 8})


def test_slices_are_added_up() -> None:
    check("matmul_simt", product(((100, 600), (600, 40))), {**SMALL, "split_k": 3, "group": 8})


def test_a_schedule_that_does_not_say_is_one_of_no_group() -> None:
    anchor = product(((4096, 64), (64, 4096)))
    default = TEMPLATE.default(anchor, GPU)
    assert "group" not in default
    texts = [
        str(TEMPLATE.build(product(((4096, 64), (64, 4096))), choices, GPU, "k"))
        for choices in (default, default | {"group": 1}, default | {"group": 8})
    ]
    assert texts[0] == texts[1] != texts[2]


def test_no_search_tries_groups() -> None:
    anchor = product(((4096, 64), (64, 4096)))
    space, default = TEMPLATE.space(anchor, GPU), TEMPLATE.default(anchor, GPU)
    assert len(space) <= 200 and not any("group" in choices for choices in space)
    assert default in space and default | {"group": 8} in space and default | {"group": 2} not in space
    task = Task(anchor, GPU, tuple(template_programs(anchor, GPU)))
    assert "group" not in task.candidate(UseAttr.get("matmul_simt", default)).decisions
    with pytest.raises(TreadleError, match="task: no search tries other values of 'group'; accepted: 1"):
        task.candidate(UseAttr.get("matmul_simt", default | {"group": 8}))


def test_a_prediction_tells_no_group() -> None:
    """Why searches do not try them: it does not know which blocks share what L2 has."""
    anchor = product(((4096, 4096), (4096, 4096)))
    default = TEMPLATE.default(anchor, GPU)
    uses = (UseAttr.get("matmul_simt", default | choices) for choices in ({}, {"group": 8}))
    once, grouped = (predicted_seconds(work_of(Group(anchor), use, GPU), GPU) for use in uses)
    assert once == grouped


def test_on_the_emulator() -> None:
    """Ten rows of blocks: a group of eight, and one of two."""
    a, b = random(160, 40), random(40, 100, seed=1)
    entry = ir.Entry({"a": ir.tensor_type("float32", a.shape), "b": ir.tensor_type("float32", b.shape)})
    module = entry.module({"y": entry.add(MatmulOp(entry["a"], entry["b"]))})
    ir.lower(module, "sm_80", to="schedule")
    text = ir.print_text(module)
    use = '#schedule.use<"matmul_simt", {warps = [1, 1], repeats = [1, 1], thread = [4, 4], block_k = 8, '
    use += 'min_blocks_per_sm = 1, a_order = "k", b_order = "n", a_vector = 4, b_vector = 4, split_k = 1, group = 8}>'
    text, count = re.subn("#schedule.use<.*?>", use, text)
    assert count == 1
    with treadle.compile(ir.parse(text), "sm_80", after="schedule", device="emulator") as model:
        (y,) = model(a, b)
        (kernel,) = (path.read_text() for path in model.folder.rglob("matmul.cu"))
    np.testing.assert_allclose(y, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
    assert "block < 32;" in kernel and "block % 8 + block / 32 * 8 : block % 2 + 8" in kernel
