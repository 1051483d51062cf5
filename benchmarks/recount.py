"""Counts anew the work of a database's measured candidates, whose times stay: cost models count more than they did.

    python -m benchmarks.recount resnet50.onnx benchmarks/records/random/resnet50

Every candidate of the model is lowered again for the target that stands beside its record, from the program that the
record names. One that is no longer legal loses its work, and models no longer learn from it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.database import Database
from treadle.schedules.search.trials import decisions_of_record, work_record
from treadle.shapes.dim import normalized
from treadle.target.options import CompileOptions
from treadle.tuning.candidates import printed
from treadle.tuning.model import tasks_of_model
from treadle.tuning.tasks import GroupTask


def main(words: Sequence[str] | None = None) -> None:
    """Rewrites the records of a model's groups."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("database", type=Path)
    chosen = arguments.parse_args(words)
    database = Database(chosen.database)
    for hardware in database.measured():
        target = database.target(hardware)
        if target is None:
            raise TreadleError(f"the records of {hardware} do not say what target it is", chosen.database, "target.txt")
        for task in tasks_of_model(chosen.model, target, normalized(None), CompileOptions()):
            path = database.path_of(task.digest, hardware, ".jsonl")
            if path is not None:
                path.write_text(recounted(path.read_text(), task, str(target)))


def recounted(text: str, task: GroupTask, target: str) -> str:
    """The lines of a group's file with the works that are counted today."""
    programs = {name: str(program) for name, program in task.search.by_name.items()}
    lines: list[str] = []
    for line in text.splitlines():
        found: dict[str, Any] = json.loads(line)
        if "text" in found:
            programs[found["program"]] = found["text"]
        elif "work" in found:
            candidate = Candidate(found["program"], decisions_of_record(found["decisions"]))
            work = printed(task.text, programs, candidate, target).work
            del found["work"]
            found |= {} if work is None else {"work": work_record(work)}
        lines.append(json.dumps(found) + "\n")
    return "".join(lines)


if __name__ == "__main__":
    main()
