"""README's table beside other runtimes: its numbers are those of the files that it names, and it shows what is lost."""

from __future__ import annotations

import json
from statistics import median

from docs.build.peers import GROUPS, RESULTS, peers_table


def test_numbers_are_those_of_the_files() -> None:
    results = json.loads((RESULTS / "cpu_models-2026-11-25.json").read_text())["results"]
    (minilm,) = (each for each in results if each["model"] == "minilm")
    (group,) = (each for each in GROUPS if each.file == "cpu_models-2026-11-25.json")
    row = group.read({"results": results}, "minilm", "MiniLM")
    assert row.own == f"{median(minilm['ms']['treadle']):.1f} ms" and "OpenVINO" in row.peer
    assert abs(row.speed - median(minilm["ms"]["openvino"]) / median(minilm["ms"]["treadle"])) < 0.05


def test_tokens_are_compared_with_the_fastest() -> None:
    (group,) = (each for each in GROUPS if "bf16 steps" in each.rows)
    sides = {"Treadle": 10.0, "OpenVINO": 20.0, "llama.cpp": 5.0}
    results = [{"kind": "bf16", "threads": 2, "side": side, "steps": [n, n + 1, n - 1]} for side, n in sides.items()]
    results.append({"kind": "bf16", "threads": 1, "side": "llama.cpp", "steps": [90.0]})
    row = group.read({"results": results}, "bf16 steps", "a token")
    assert (row.own, row.peer, row.speed) == ("10 tokens/s", "20 tokens/s, OpenVINO", 0.5)


def test_losses_are_shown() -> None:
    ends = [line.strip("| ").rpartition(" | ")[2] for line in peers_table().splitlines()]
    speeds = [float(end) for end in ends if end[:1].isdigit()]
    assert len(speeds) > 20 and sum(speed < 1 for speed in speeds) >= 6
