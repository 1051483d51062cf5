"""The work of candidates, recorded, is what is counted on their lowered kernels."""

from __future__ import annotations

import dataclasses

import pytest
from xdsl.dialects.builtin import TensorType

from tests.schedules.work.works import (
    CPU_CASES,
    FEW_BITS_CASES,
    GPU_CASES,
    WARPGROUP_CASES,
    candidates,
    on_kernel,
    tasks,
)
from treadle.dialects.graph import ComputeOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.schedules.gpu_time import GpuWork, gpu_seconds
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.predict import cpu_seconds
from treadle.schedules.template import Anchor, Choices
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.generic_cpu import GenericCpu
from treadle.schedules.work.cpu_work import Work
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.target import Target

EACH = 1
"""Random candidates of each program."""


APPROXIMATE = {
    "product of tiles": 0.001,
    "convolution of tiles": 0.02,
    "depthwise convolution": 0.02,
    "attention_decode_cpu": 0.01,
}
"""By how much predicted times of CPUs may differ from those of the kernels, where tiles overhang: of attention of
few queries those where causality ends the keys of a block. In all other cases they are equal, on GPUs with every
count."""


@pytest.mark.parametrize(("name", "is_gpu"), [(n, True) for n in GPU_CASES] + [(n, False) for n in CPU_CASES])
def test_as_on_kernels(name: str, is_gpu: bool) -> None:
    target, found = tasks(name, is_gpu=is_gpu)
    for task in found:
        group = Group(task.search.anchor)
        for candidate, replayed in candidates(task, EACH, name):
            work, counted = work_of(group, replayed, target), on_kernel(task, candidate, target)
            if is_gpu:
                assert dataclasses.asdict(work) == pytest.approx(dataclasses.asdict(counted)), candidate
            tolerance = None if is_gpu else APPROXIMATE.get(name, APPROXIMATE.get(candidate.program))
            assert seconds(work, target) == pytest.approx(seconds(counted, target), rel=tolerance), candidate


def seconds(work: Work | GpuWork, target: Target) -> float:
    """The predicted time."""
    return cpu_seconds(work, target) if isinstance(work, Work) else gpu_seconds(work, target)


@pytest.mark.parametrize("name", FEW_BITS_CASES)
def test_products_by_weights_of_few_bits_as_on_kernels(name: str) -> None:
    target, (task,) = tasks(name, is_gpu=True)
    for warps, ahead in (((1, 8), 2), ((1, 4), 1), ((4, 2), 4)):
        candidate = Candidate("matmul_rows_mma", {"warps": warps, "ahead": ahead})
        replayed = task.search.replay(candidate)
        work, counted = work_of(Group(task.search.anchor), replayed, target), on_kernel(task, candidate, target)
        assert isinstance(replayed, UseAttr) and dataclasses.asdict(work) == pytest.approx(dataclasses.asdict(counted))


@pytest.mark.parametrize("name", WARPGROUP_CASES)
def test_kernels_of_warpgroups_have_a_time(name: str) -> None:
    target, found = tasks(name, is_gpu=True)
    for task in found:
        for _, replayed in candidates(task, EACH, name):
            if isinstance(replayed, UseAttr) and TEMPLATES[replayed.template.data].least_capability == 90:
                assert 1e-6 < seconds(work_of(Group(task.search.anchor), replayed, target), target) < 1e-3


def test_every_template_is_predicted() -> None:
    """The cases above have candidates of every one."""
    seen: set[str] = set()
    for is_gpu, cases in ((True, {**GPU_CASES, **WARPGROUP_CASES}), (False, CPU_CASES)):
        for name in cases:
            for task in tasks(name, is_gpu=is_gpu)[1]:
                uses = [use for _, use in candidates(task, EACH, name) if isinstance(use, UseAttr)]
                seen |= {use.template.data for use in uses}
    assert seen == set(TEMPLATES)


class OwnBuilder(GenericCpu):
    """A template of an extension that knows nothing of recorders."""

    name = "own_builder"

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, ComputeOp)
        b = KernelBuilder([at.type for at in anchor.tensors() if isinstance(at.type, TensorType)], anchor.type)
        return b.kernel(name, anchor.tensors(), anchor.type, 1, 1, "nothing")


def test_a_template_with_a_builder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not predicted, and leaves no kernel behind."""
    target, (task,) = tasks("pointwise", is_gpu=False)
    anchor = task.search.anchor
    monkeypatch.setitem(TEMPLATES, "own_builder", OwnBuilder())
    uses = [len(list(operand.uses)) for operand in anchor.operands]
    with pytest.raises(TreadleError, match="kernel_builder"):
        work_of(Group(anchor), UseAttr.get("own_builder", {"run": 16, "rows": 1}), target)
    assert [len(list(operand.uses)) for operand in anchor.operands] == uses
