"""The worked examples of CONTRIBUTING.md that are whole files: a pass and a template."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from xdsl.passes import ModulePass

from tests.helpers.graphs import Graph, random
from treadle import ir
from treadle.dialects.graph import ComputeOp, UnaryOp
from treadle.dialects.graph.definition import definition
from treadle.schedules.template import Template
from treadle.target import Target

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
RELU_TWICE = """
func.func @twice(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = graph.unary "relu" %x : (tensor<8xf32>) -> tensor<8xf32>
  %b = graph.unary "relu" %a : (tensor<8xf32>) -> tensor<8xf32>
  func.return %b : tensor<8xf32>
}"""


def example(section: str, count: int) -> dict[str, Any]:
    """The names that a section's first blocks of Python define, as one file."""
    part = TEXT[TEXT.index(f"## {section}\n") :]
    blocks = re.findall(r"^   ```python\n(.*?)^   ```", part, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile("from __future__ import annotations\n" + dedent("".join(blocks[:count])), "example", "exec"), names)
    return names


def test_the_pass() -> None:
    kind: type[ModulePass] = example("Add a pass", 1)["GraphDropDoubleReluPass"]
    module = ir.parse(RELU_TWICE)
    kind().apply(ir.context(), module)
    assert ir.print_text(module).count('graph.unary "relu"') == 1


@pytest.mark.parametrize("shape", [(8, 8), (130, 127)])
def test_the_template(shape: tuple[int, ...]) -> None:
    template: Template = example("Add a template", 2)["FlatCpu"]()
    target = Target.parse("avx2")
    graph = Graph(random(*shape))
    anchor = definition(UnaryOp("exp", graph[0]))
    assert isinstance(anchor, ComputeOp) and template.fits(anchor)
    kernel = template.build(anchor, template.default(anchor, target), target, "flat")
    kernel.verify()
    assert kernel.sym_name.data == "flat"
