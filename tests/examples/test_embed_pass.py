"""The example of a foreign pipeline does what its comments say."""

from __future__ import annotations

import re

import pytest

from examples.embed_pass import foreign_pipeline, main

NAMES = ("task-lower", "canonicalize", "loop-hoist-invariants", "cse")


def test_treadle_and_xdsl_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(each.name for each in foreign_pipeline().passes) == NAMES
    main()
    stages = re.split(r"^// (?:as written|after (?:.*))\n", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    written, lowered, folded, hoisted, merged = stages
    assert "task.for" in written and "task.for" not in lowered
    assert "scf.for" in lowered and "arith.constant 8" in lowered.split("scf.for")[1]
    assert "arith.constant 8" not in folded.split("scf.for")[1]
    assert "arith.muli %block" in folded.split("scf.for")[1]
    assert hoisted.split("scf.for")[0].count("arith.muli %block") == 2
    assert merged.count("arith.muli %block") == 1
