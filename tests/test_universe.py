"""What stock `xdsl-opt` finds: passes and text targets, whose errors are xDSL's diagnostics of one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from xdsl.utils.exceptions import DiagnosticException
from xdsl.xdsl_opt_main import xDSLOptMain

from treadle.passes.registry import PASSES
from treadle.tools.universe import TREADLE_UNIVERSE

RELU = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = graph.unary "relu" %x : (tensor<8xf32>) -> tensor<8xf32>
  func.return %y : tensor<8xf32>
}"""


def run(folder: Path, *arguments: str) -> None:
    path = folder / "m.mlir"
    path.write_text(RELU)
    xDSLOptMain(args=[str(path), *arguments]).run()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-t", "c"], "target 'c': no kernel to print; accepted: a module that a CPU's stages have lowered"),
        (["-t", "cuda"], "target 'cuda': no cuda.kernel to print; accepted: a module that a GPU's stages have lowered"),
        (["-p", "graph-fuse"], "graph.unary has not been replaced by its definition; accepted: graph.compute"),
    ],
)
def test_errors_are_diagnostics(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DiagnosticException) as error:
        run(tmp_path, *arguments)
    assert says in str(error.value)
    capsys.readouterr()
    run(tmp_path, *arguments, "--verify-diagnostics")
    assert says in capsys.readouterr().out


def test_passes_are_what_they_are() -> None:
    for name, factory in TREADLE_UNIVERSE.all_passes.items():
        kind = factory()
        (own,) = [each for each in kind.__mro__[1:] if each.__module__ == PASSES[name].partition(":")[0]]
        assert (kind.name, kind.__name__, dataclasses.fields(kind)) == (name, own.__name__, dataclasses.fields(own))
