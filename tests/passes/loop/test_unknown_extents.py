"""A kernel's required region on an extent that @main does not have is an error of the pass that reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.parser import Parser

from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.registry import parse_passes


def test_unknown_extents() -> None:
    text = (Path(__file__).parent / "loop-tail-tiles.mlir").read_text().split("// -----")[0]
    context = treadle_context()
    module = Parser(context, text.replace("< 0>", "< 7>")).parse_module()
    (own,) = parse_passes("loop-tail-tiles")
    with pytest.raises(
        TreadleError, match="a required region names extent number 7, and @main has 1; accepted: extents from"
    ):
        own.apply(context, module)
