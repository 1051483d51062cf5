"""Products of 16-bit floats by the CPU's template, from a schedule written by hand: compiled, beside float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.parser import Parser

from tests.helpers.graphs import name_arguments
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from treadle.dialects.registry import treadle_context

Array = NDArray[Any]

M, K, N = 5, 700, 37
"""More terms than a type of 16 bits counts in ones; rows and columns that fill no tile."""
TYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
SCHEDULED = """
func.func @main(%a: tensor<{m}x{k}x{t}>, %b: tensor<{k}x{n}x{t}>) -> tensor<{m}x{n}x{t}> {{
  %y = graph.fused "product" {{
    %c = graph.matmul %a, %b : (tensor<{m}x{k}x{t}>, tensor<{k}x{n}x{t}>) -> tensor<{m}x{n}x{t}>
    graph.yield %c : tensor<{m}x{n}x{t}>
  }} schedule #schedule.use<"matmul_cpu", {choices}> : tensor<{m}x{n}x{t}>
  func.return %y : tensor<{m}x{n}x{t}>
}}
"""
CHOICES = "{{rows = 3, vectors = 2, chunk = {}, pack = {}, passes = {}}}"
"""With several passes, the sums wait in a buffer."""
CASES = {
    f"{name}, pack = {pack}, passes = {passes}": (name, CHOICES.format(chunk, pack, passes))
    for name, pack, (chunk, passes) in product(TYPES, ("true", "false"), ((3, 1), (6, 7)))
}


@pytest.fixture(scope="module")
def programs() -> dict[str, CompiledProgram]:
    return compile_programs([_printed(case, *each) for case, each in CASES.items()])


def _printed(case: str, type: str, choices: str) -> PrintedProgram:
    module = Parser(treadle_context(), SCHEDULED.format(m=M, k=K, n=N, t=type, choices=choices)).parse_module()
    name_arguments(module, 2, 1)
    return print_program(case, module, after="schedule")


@pytest.mark.parametrize("case", CASES)
def test_products_of_16_bits_are_summed_in_32(case: str, programs: dict[str, CompiledProgram]) -> None:
    dtype = TYPES[CASES[case][0]]
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 1.5, shape).astype(dtype) for shape in ((M, K), (K, N)))
    (actual,) = programs[case].run([a, b])
    expected = a.astype(np.float64) @ b.astype(np.float64)
    half_unit = float(ml_dtypes.finfo(dtype).eps) / 2
    # The rounding of the result, and that of 700 sums in float32.
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=half_unit * 1.01 + K * 2.0**-24, atol=0)
