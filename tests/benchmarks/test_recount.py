"""Works of records are counted anew; what was measured stays as it is."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.recount import recounted
from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import MatmulOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.schedules.search.trials import work_record
from treadle.schedules.work.lowered import count_work
from treadle.target import Target
from treadle.tuning.tasks import tasks_of

CPU = Target.parse("cpu")


def test_a_record_gets_todays_work_of_its_candidate() -> None:
    """The default candidate's is that of the kernel which the compiler writes by itself."""
    graph = Graph(np.zeros((8, 64), np.float32), np.zeros((64, 96), np.float32))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, CPU, after="graph", to="fuse")
    (task,) = tasks_of(module, CPU)
    lower(treadle_context(), module, CPU, after="fuse", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    decisions = dict(task.default.decisions)
    record = {"program": task.default.program, "decisions": decisions, "round": 0, "us": 41.5, "work": {"blocks": 7}}
    failed = {"program": task.default.program, "decisions": decisions, "round": 0, "error": "it crashed"}
    text = f"{json.dumps(record)}\n{json.dumps(failed)}\n"
    first, second = map(json.loads, recounted(text, task).splitlines())
    assert first == record | {"work": work_record(count_work(kernel, CPU))}
    assert second == failed
