"""What is installed: lower bounds that `make test-lowest` can take, and extras that the README explains."""

from __future__ import annotations

import tomllib

import pytest

from tests.lowest_versions import ROOT, lowest

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_dependency_has_a_lower_bound() -> None:
    assert lowest(["numpy>=1.26", "xdsl==0.74.0"]) == ["numpy==1.26", "xdsl==0.74.0"]
    assert len(lowest(PROJECT["dependencies"])) == len(PROJECT["dependencies"])
    with pytest.raises(ValueError, match="'rich' has no lower bound"):
        lowest(["rich"])


def test_the_readme_explains_every_extra() -> None:
    text = (ROOT / "README.md").read_text()
    assert {extra for extra in PROJECT["optional-dependencies"] if f"| `{extra}` |" in text} == {
        *PROJECT["optional-dependencies"]
    } - {"test"}
