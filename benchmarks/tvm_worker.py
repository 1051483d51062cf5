"""TVM's MetaSchedule in a process of its own, which `benchmarks/tvm_peer.py` tells what to do.

It is run by a Python that has TVM, and knows nothing of this project. Requests and replies are one JSON object a line:

    {"do": "tune", "operator": "C2D", "constants": [1], "trials": 64, "seconds": 60.0, "seed": 0}
    {"trials": 64, "seconds": 41.5}
    {"do": "run", "inputs": "inputs.npz", "output": "output.npy"}
    {}
    {"do": "time", "count": 100}
    {"seconds": 0.0125}

The first line, without a request, names the versions: {"tvm": "0.27.0", "cost_model": "xgb"}. A request that fails is
answered with {"error": "..."}. What TVM itself prints goes to stderr.

The operators are those of `tvm.s_tir.meta_schedule.testing.te_workload`, with which the paper was measured: channels
last. Constants are parameters whose layout TVM may choose: the search leaves their packing out of its times, and so
does "time"; "run" packs them first.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import numpy as np

_PER_ROUND = 64
"""Candidates of a round of the search, TVM's default."""
Request = Mapping[str, Any]


def _module(name: str) -> Any:
    return importlib.import_module(name)


def build(module: Any, target: Any, parameters: Any) -> Any:
    """What builds a candidate: TVM's own function without its import of the tensor intrinsics of all targets, which
    takes longer than the 30 seconds that a build may take, in each process anew."""
    del parameters
    transform = importlib.import_module("tvm.s_tir.transform")
    bare = transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    return importlib.import_module("tvm.driver").build(bare, target=target)


@dataclass(frozen=True)
class Best:
    """The best schedule of an operator, built twice: for its parameters, and for packed constants.

    shapes: of the parameters of the second, the result's last
    """

    packs: Any
    packed: Any
    """A module, for its timer: a call from Python takes longer than the smallest kernels."""
    shapes: list[list[int]]


class Worker:
    """Answers requests, with so many threads of this machine's processor. ImportError without TVM."""

    def __init__(self, threads: int):
        os.environ["TVM_NUM_THREADS"] = str(threads)  # noqa: TID251 - of TVM, for the processes that it starts
        self._tvm, self._schedule = _module("tvm"), _module("tvm.s_tir.meta_schedule")
        _module("tvm.s_tir.tensor_intrin")  # for half a minute: not in the seconds of the first search
        processor = _module("tvm.target.codegen").llvm_get_system_cpu()
        self._target = self._tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": threads})
        self._threads = threads
        self.cost_model = "xgb" if find_spec("xgboost") else "random"
        self._best: Best | None = None
        self._arguments: list[Any] = []

    def greeting(self) -> dict[str, Any]:
        """The versions."""
        return {"tvm": self._tvm.__version__, "cost_model": self.cost_model, "target": str(self._target)}

    def tune(self, request: Request) -> dict[str, Any]:
        """Searches until the trials or the seconds are over, and builds the best."""
        workloads = _module("tvm.s_tir.meta_schedule.testing.te_workload")
        function = workloads.create_te_workload(request["operator"], 0)
        if request["constants"]:
            function = function.with_attr("layout_free_buffers", request["constants"])
        start = time.monotonic()
        database = self._searched(function, request, start + request["seconds"])
        seconds = time.monotonic() - start
        schedule = self._schedule.tir_integration.compile_tir(database, function, self._target)
        if schedule is None:
            raise RuntimeError(f"no candidate of {request['operator']} could be run")
        self._best = self._built(schedule.mod)
        draw = np.random.default_rng(0).standard_normal
        self._arguments = [self._tensor(draw(shape).astype(np.float32)) for shape in self._best.shapes]
        return {"trials": len(database.get_all_tuning_records()), "seconds": seconds}

    def run(self, request: Request) -> dict[str, Any]:
        """The best schedule's result for the inputs, as files."""
        best = self._found()
        with np.load(request["inputs"]) as inputs:
            given = [self._tensor(np.ascontiguousarray(each)) for each in inputs.values()]
        result = self._tensor(np.zeros(best.shapes[-1], np.float32))
        best.packs(*given, result)
        np.save(request["output"], result.numpy())
        return {}

    def time(self, request: Request) -> dict[str, Any]:
        """The seconds of so many runs, without those of a call from Python."""
        count, timer = request["count"], self._found().packed.time_evaluator
        found = timer("main", self._tvm.cpu(), number=count, repeat=1)(*self._arguments)
        return {"seconds": found.mean * count}

    def _searched(self, function: Any, request: Request, end: float) -> Any:
        """The database of a search."""
        ms, over = self._schedule, list[bool]()

        def apply(_: object, *results: object) -> None:
            del results
            if time.monotonic() > end:
                over.append(True)
                raise TimeoutError

        callbacks = [
            ms.measure_callback.AddToDatabase(),
            ms.measure_callback.RemoveBuildArtifact(),
            ms.measure_callback.UpdateCostModel(),
            _module("tvm.ir.utils").derived_object(
                type("Deadline", (ms.measure_callback.PyMeasureCallback,), {"apply": apply})
            )(),
        ]
        database = ms.database.MemoryDatabase()
        with TemporaryDirectory() as folder:
            try:
                ms.tune_tir(
                    function, self._target, folder, request["trials"],
                    num_trials_per_iter=min(_PER_ROUND, request["trials"]),
                    builder=ms.builder.LocalBuilder(max_workers=self._threads, f_build=build),
                    database=database, cost_model=self.cost_model, measure_callbacks=callbacks,
                    num_tuning_cores=self._threads, seed=request["seed"],
                )  # fmt: skip
            except Exception:  # the callback's comes back through C++, as another type
                if not over:
                    raise
        return database

    def _built(self, module: Any) -> Best:
        transform = _module("tvm.s_tir.transform").RemoveWeightLayoutRewriteBlock
        packed = transform(skip_tensor_rewrite=False)(module)
        parameters = self._schedule.arg_info.ArgInfo.from_prim_func(packed["main"])
        shapes = [[int(extent) for extent in each.shape] for each in parameters]
        packs, bare = (self._tvm.compile(each, target=self._target) for each in (module, packed))
        return Best(packs["main"], bare.mod, shapes)

    def _tensor(self, array: Any) -> Any:
        return self._tvm.runtime.tensor(array, self._tvm.cpu())

    def _found(self) -> Best:
        if self._best is None:
            raise RuntimeError("nothing was tuned")
        return self._best


def serve(requests: TextIO, replies: TextIO, threads: int) -> None:
    """Answers requests until they end."""

    def reply(answer: Callable[[], dict[str, Any]]) -> None:
        try:
            found = answer()
        except Exception as error:  # whatever TVM raises: the other side says it
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"}
        print(json.dumps(found), file=replies, flush=True)

    try:
        worker = Worker(threads)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=replies, flush=True)
        return
    print(json.dumps(worker.greeting()), file=replies, flush=True)
    does = {"tune": worker.tune, "run": worker.run, "time": worker.time}
    for line in requests:
        request = json.loads(line)
        reply(lambda request=request: does[request["do"]](request))


if __name__ == "__main__":
    # What TVM prints must not come between the replies.
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, own, int(sys.argv[1]))
