"""Files that services read: they name commands, versions and requirements that stand elsewhere, and must agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

import treadle

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_workflow_runs_the_commands_of_the_makefile() -> None:
    job = read(".github/workflows/test.yml")["jobs"]["test"]
    commands = [step["run"].split()[:2] for step in job["steps"] if "run" in step]
    assert commands == [["make", "venv"], ["make", "test"], ["make", "test-packages"]]
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {command[1] for command in commands} <= set(targets)
    pythons = job["strategy"]["matrix"]["python"]
    assert f">={pythons[0]}" == PROJECT["project"]["requires-python"] and "3.13" in pythons


def test_the_forms_of_issues_ask_for_what_there_is() -> None:
    for name in ("bug", "feature"):
        form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
        assert {"name", "description", "body"} <= form.keys()
        assert len({each["id"] for each in form["body"]}) == len(form["body"])
    assert "treadle --version" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()


def test_the_citation_is_of_this_version_and_of_four_papers() -> None:
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == treadle.__version__ == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]
    assert len(citation["references"]) == 4
    assert all({"type", "title", "authors", "year"} <= each.keys() for each in citation["references"])


def test_style_is_checked_by_the_ruff_of_the_project() -> None:
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert [hook["entry"].split()[:2] for hook in hooks] == [["ruff", "check"], ["ruff", "format"]]
    wanted = {each for hook in hooks for each in hook["additional_dependencies"]}
    assert wanted <= set(PROJECT["project"]["optional-dependencies"]["test"])
