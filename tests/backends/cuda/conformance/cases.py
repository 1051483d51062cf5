"""The table: every function of treadle_cuda.h, and of CUDA that kernels call, by its name, with its one case."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tests.backends.cuda.conformance.case import Case
from tests.backends.cuda.conformance.conversion_cases import CONVERSION_CASES
from tests.backends.cuda.conformance.double_cases import DOUBLE_CASES
from tests.backends.cuda.conformance.function_cases import FUNCTION_CASES
from tests.backends.cuda.conformance.matrix_cases import MATRIX_CASES
from tests.backends.cuda.conformance.scalar_cases import SCALAR_CASES
from tests.backends.cuda.conformance.small_float_cases import SMALL_FLOAT_CASES
from tests.backends.cuda.conformance.vector_cases import VECTOR_CASES
from tests.backends.cuda.conformance.warp_cases import WARP_CASES

CASES: Mapping[str, Case] = {
    **FUNCTION_CASES, **SCALAR_CASES, **DOUBLE_CASES, **CONVERSION_CASES, **VECTOR_CASES, **WARP_CASES, **MATRIX_CASES,
    **SMALL_FLOAT_CASES,
}  # fmt: skip

_SIGNS = {"+": "_plus", "-": "_minus", "*": "_times", "/": "_over", "=": "_assign"}

# What two registers of bits are as floats; products of tf32 take them so.
_PRELUDE = """#include "treadle_cuda.h"
template <int N> inline treadle_vec<float, N> floats(const treadle_vec<unsigned, N> &bits) {
  treadle_vec<float, N> r;
  for (int n = 0; n < N; ++n) r.v[n] = __uint_as_float(bits.v[n]);
  return r;
}
"""


def kernel_of(function: str) -> str:
    """The name of the kernel that calls `function`."""
    return "case_" + re.sub(r"[-+*/=]", lambda sign: _SIGNS[sign.group()], function)


def all_kernels() -> str:
    """One CUDA text with the kernels of all cases, so that every runner compiles once."""
    return kernels_of(CASES)


def kernels_of(functions: Iterable[str]) -> str:
    """One CUDA text with the kernels of some cases."""
    return _PRELUDE + "".join(CASES[function].text(kernel_of(function)) for function in functions)
