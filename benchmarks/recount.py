"""Counts anew the work of a database's measured candidates, whose times stay: cost models count more than they did.

    python -m benchmarks.recount resnet50.onnx benchmarks/records/random/resnet50

The work of every candidate of the model is counted for the target that stands beside its record, from the program that
the record names. One that is no longer legal loses its work, and models no longer learn from it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xdsl.parser import Parser

from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.errors import TreadleError
from treadle.schedules.search.database import Database
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.programs import replay
from treadle.schedules.search.trials import decisions_of_record, work_record
from treadle.schedules.work.cpu_work import Work
from treadle.shapes.dim import normalized
from treadle.target.options import CompileOptions
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
                path.write_text(recounted(path.read_text(), task))


def recounted(text: str, task: GroupTask) -> str:
    """The lines of a group's file with the works that are counted today."""
    search, forecast = task.search, Forecast(task.search)
    programs = dict(search.by_name)
    lines: list[str] = []
    for line in text.splitlines():
        found: dict[str, Any] = json.loads(line)
        if "text" in found:
            programs[found["program"]] = _program(found["text"])
        elif "work" in found:
            del found["work"]
            try:
                decisions = decisions_of_record(found["decisions"])
                replayed = replay(programs[found["program"]], decisions, search.anchor, search.target)
                work = forecast.work(replayed)
            except TreadleError:
                work = None
            found |= {"work": work_record(work)} if isinstance(work, Work) else {}
        lines.append(json.dumps(found) + "\n")
    return "".join(lines)


def _program(text: str) -> ProgramOp:
    (program,) = Parser(treadle_context(), text).parse_module().body.block.ops
    assert isinstance(program, ProgramOp)
    return program


if __name__ == "__main__":
    main()
