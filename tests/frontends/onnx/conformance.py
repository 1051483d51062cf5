"""ONNX's own suite as compiled C: a table by operator in docs/conformance.md.

python -m tests.frontends.onnx.conformance [--only REGEX]

Node tests are compiled many at a time, as in `test_node_conformance_compiled.py`, and compared as there; light models,
simple ones, and those that PyTorch exported go through ONNX's runner and `treadle.onnx_backend`. Exits with 1 if a case
fails that `expected_failures.py` does not list.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner
from xdsl.dialects.builtin import ModuleOp

from tests.frontends.onnx.expected_failures import EXPECTED, reason_of
from tests.frontends.onnx.node_cases import CASES, assert_expected, data_of, model_of
from tests.helpers.environment import keep_onnx_models_in
from tests.helpers.limits import assert_within
from tests.helpers.program_batch import C, ProgramBatch
from treadle import onnx_backend
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.frontends.onnx.loader import graphs_of
from treadle.tools.oracle import Definition

TABLE = Path(__file__).parents[3] / "docs" / "conformance.md"
SUITES = {
    "Node": "node tests",
    "RealModel": "light models",
    "SimpleModel": "simple models",
    "PyTorchConvertedModel": "layers of PyTorch",
    "PyTorchOperatorModel": "operators of PyTorch",
}
"""Titles of ONNX's suites."""


@dataclass(frozen=True)
class Result:
    """What a case came to: `error` is None if it passed."""

    suite: str
    name: str
    operators: frozenset[str]
    error: str | None

    @property
    def expected(self) -> bool:
        """Whether it is as the list of failures has it."""
        return (self.error is None) == (reason_of(self.name) is None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suite and writes the table; 1 if a result is not the expected one."""
    parser = argparse.ArgumentParser(description="ONNX's suite as compiled C")
    parser.add_argument("--only", type=re.compile, help="run the names that match; then no table is written")
    args = parser.parse_args(arguments)
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes its own expectations, some of them with overflows
        results = [*_of_nodes(args.only), *_of_models(args.only)]
    for result in results:
        if not result.expected:
            print(f"{result.suite}: {result.name}: {result.error or 'passes, and is listed as a failure'}")
    passed = sum(result.error is None for result in results)
    print(f"{passed} of {len(results)} cases pass, in {time.monotonic() - began:.0f} s")
    if args.only is None:
        TABLE.write_text(document(results))
    return int(not all(result.expected for result in results))


def _of_nodes(only: re.Pattern[str] | None) -> Iterator[Result]:
    cases = [case for case in CASES if only is None or only.search(case.name)]
    makers = {
        f"{case.name}.{number}": partial(_imported, model)
        for case in cases
        for number, (model, _, _) in enumerate([] if reason_of(case.name) else data_of(case))
    }
    batch = ProgramBatch(makers, C)
    for case in cases:
        yield Result("Node", case.name, frozenset(_operators(model_of(case))), _error_of(case, batch))


def _imported(model: ModelProto) -> ModuleOp:
    return import_model(model.SerializeToString())


def _error_of(case: TestCase, batch: ProgramBatch[Any, Any]) -> str | None:
    try:
        if reason_of(case.name):
            import_model(model_of(case).SerializeToString())
            return None
        for number, (model, inputs, expected) in enumerate(data_of(case)):
            assert_expected(case, model, inputs, batch[f"{case.name}.{number}"].run(inputs), expected)
    except (TreadleError, AssertionError) as error:
        return _line(error)
    return None


def _of_models(only: re.Pattern[str] | None) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        keep_onnx_models_in(folder)
        runner = Runner(onnx_backend.TreadleBackend, __name__)
        for title, cases in runner.test_cases.items():
            suite = title.removeprefix("OnnxBackend").removesuffix("Test")
            if suite not in SUITES:
                continue
            names = unittest.defaultTestLoader.getTestCaseNames(cases)
            for name in (n for n in names if n.endswith("_cpu") and (only is None or only.search(n))):
                error = _run(cases(name))
                model = runner._test_items[suite][name].proto[0]
                if error is not None and isinstance(model, ModelProto) and _is_classifier(model):
                    error = _error_of_logits(model)
                yield Result(suite, name.removesuffix("_cpu"), frozenset(_operators(model)), error)


def _run(case: unittest.TestCase) -> str | None:
    try:
        getattr(case, case._testMethodName)()
    except Exception as error:
        return _line(error)
    return None


def _is_classifier(model: ModelProto) -> bool:
    return model.graph.node[-1].op_type == "Softmax"


def _error_of_logits(model: ModelProto) -> str | None:
    """Of a classifier, whose softmax a rounding may decide: whether each logit is within its limit of the imported
    graph, and the probabilities are those of the logits.

    VGG-19's equal weights give equal logits of 4e31, and float32 has none within 2e24 of them. ONNX's tolerance is for
    probabilities of 0.001, of which a rounding of one logit makes 0. The mean of the errors says nothing there: all
    logits are one number, with one error.
    """
    cut = ModelProto()
    cut.CopyFrom(model)
    softmax, (entry,) = cut.graph.node[-1], (each for each in cut.graph.input if not _is_weight(cut, each.name))
    assert softmax.op_type == "Softmax"
    cut.graph.output.append(helper.make_empty_tensor_value_info(softmax.input[0]))
    x = Runner.generate_dummy_data(entry)
    try:
        probabilities, logits = onnx_backend.run_model(cut, [x])
        expected = Definition(import_model(cut.SerializeToString()), [x]).outputs()
        assert_within(logits, expected[softmax.input[0]][0], np.float32, "logits")
        weights = np.exp(logits.astype(np.float64) - logits.max())
        np.testing.assert_allclose(probabilities, weights / weights.sum(), rtol=1e-6, atol=1e-30)
    except (TreadleError, AssertionError) as error:
        return _line(error)
    return None


def _is_weight(model: ModelProto, name: str) -> bool:
    return any(weight.name == name for weight in model.graph.initializer)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _operators(model: ModelProto | NodeProto | None) -> set[str]:
    """The operators of a case, those in bodies of loops and functions included."""
    found: set[str] = set()
    if not isinstance(model, ModelProto):
        return found
    pending = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while pending:
        node = pending.pop()
        found.add(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")
        pending += [inner for graph in graphs_of(node) for inner in graph.node]
    return found


HEAD = """# Conformance

`make conformance` writes this page: what `onnx.backend.test` holds, compiled to C and run. Node tests are compared
within ONNX's tolerances, those of 16-bit floats within the limits of
[ADR 0024](adr/0024-limits-from-the-imported-graph.md). So are the logits of a classifier that misses ONNX's tolerances,
and its probabilities with the softmax of these: the weights of `vgg19` are all alike, its logits 4e31, and neighbours
of them in float32 2e24 apart, so that a rounding of one of them decides between the probabilities 0.001 and 0.
`treadle.onnx_backend` is ONNX's interface of backends, which `onnx.backend.test.runner.Runner` takes.
"""


def document(results: Sequence[Result]) -> str:
    """The page: the suites, what is refused and why, and each operator."""
    lines = [HEAD, *_suites(results), ""]
    lines += ["## What does not pass", "", *_reasons(results), "", "## Operators", ""]
    lines += ["Cases of all suites in which an operator occurs.", "", *_by_operator(results), ""]
    return "\n".join(lines)


def _suites(results: Sequence[Result]) -> Iterable[str]:
    yield from ("| suite | cases | pass |", "|---|---|---|")
    for suite, title in SUITES.items():
        yield _row(title, [result for result in results if result.suite == suite])


def _reasons(results: Sequence[Result]) -> Iterable[str]:
    yield from ("| reason | cases | |", "|---|---|---|")
    for reason in EXPECTED:
        names = [f"`{r.name.removeprefix('test_')}`" for r in results if reason_of(r.name) == reason]
        yield f"| {reason} | {len(names)} | {', '.join(names)} |"


def _by_operator(results: Sequence[Result]) -> Iterable[str]:
    yield from ("| operator | cases | pass |", "|---|---|---|")
    for operator in sorted({operator for result in results for operator in result.operators}):
        yield _row(f"`{operator}`", [result for result in results if operator in result.operators])


def _row(title: str, results: Sequence[Result]) -> str:
    return f"| {title} | {len(results)} | {sum(result.error is None for result in results)} |"


if __name__ == "__main__":
    sys.exit(main())
