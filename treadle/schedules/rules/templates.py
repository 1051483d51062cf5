"""Templates as programs: one instruction that schedules all, a sample for each knob that is free."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from treadle.dialects.schedule import SampleOp
from treadle.schedules.default_template import is_allowed
from treadle.schedules.rules.draft import Draft
from treadle.schedules.search.programs import template_program
from treadle.schedules.template import Template, has_elements
from treadle.schedules.templates import TEMPLATES

_TENSOR_CORES = ("matmul_mma", "matmul_tf32", "matmul_int8", "attention_mma", "attention_decode_mma")


def templates(draft: Draft) -> Sequence[Draft]:
    """Every template that fits the anchor at its precision, and the draft as it is, for the rules that follow.

    ```mlir
    ```
    becomes that, and for a product on a GPU
    ```mlir
    %block = schedule.sample "block" from [[8, 128], [16, 64], ...]
    ...
    schedule.template "matmul_simt" {block = %block, ...}
    ```
    """
    if draft.instructions:
        return ()
    return [draft, *(_by_template(draft, template) for template in _fitting(draft))]


def tensor_cores(draft: Draft) -> Sequence[Draft]:
    """As `templates`, of those that compute on tensor cores.

    ```mlir
    ```
    becomes that, and for a product of float16
    ```mlir
    %block = schedule.sample "block" from [[16, 128], [32, 64], ...]
    ...
    schedule.template "matmul_mma" {block = %block, ...}
    ```
    """
    if draft.instructions:
        return ()
    found = [template for template in _fitting(draft) if template.name in _TENSOR_CORES]
    return [draft, *(_by_template(draft, template) for template in found)] if found else ()


def _fitting(draft: Draft) -> list[Template]:
    if not has_elements(draft.anchor):
        return []
    allowed = [each for each in TEMPLATES.values() if is_allowed(each, draft.anchor, draft.target)]
    return [template for template in allowed if template.fits(draft.anchor)]


def _by_template(draft: Draft, template: Template) -> Draft:
    knobs: list[tuple[str, SSAValue]] = []
    for sample in template_program(template, draft.anchor, draft.target).samples:
        assert isinstance(sample, SampleOp)
        draft, param = draft.sample(sample.label.data, sample.support)
        knobs.append((sample.label.data, param))
    return draft.template(template.name, knobs)


__all__ = ["templates", "tensor_cores"]
