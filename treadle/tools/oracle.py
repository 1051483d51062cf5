"""The expected outputs of a model: its imported graph evaluated in float64, with a limit for each element's error. Both
are independent of the compiled code. ONNX Runtime, or ONNX's reference evaluator, which is independent of the import,
too, is compared with the same limits: where it exceeds them, the import is wrong, or it is.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from treadle.backends.reference.bound_module import bound_module
from treadle.backends.reference.bounded import Bounded
from treadle.backends.reference.perturbed import limited_by_samples
from treadle.backends.reference.run_module import bounded_within_extents
from treadle.compiler.request import is_ir_file, read_module
from treadle.dialects.graph.dtypes import is_float_dtype, numpy_dtype
from treadle.dialects.loop import FuncOp as LoopFuncOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.frontends.onnx.inputs import constant_inputs
from treadle.frontends.onnx.loader import load_model
from treadle.passes.graph.graph_quantize_weights import GraphQuantizeWeightsPass
from treadle.shapes.constants import Constants
from treadle.support.lazy import lazy_module
from treadle.target.options import CompileOptions, Precision, Weights

if TYPE_CHECKING:
    from onnx import reference
else:  # it imports an implementation of every operator
    reference = lazy_module("onnx.reference")

Array = NDArray[Any]
RUNTIME, EVALUATOR = "ONNX Runtime", "ONNX's reference evaluator"
Expected = Mapping[str, tuple[Bounded, np.dtype[Any]]]
"""The expected outputs by name: values with their limits, and the dtype."""

ACCEPTED_MEAN = 0.15
"""The accepted root mean square of errors, as a fraction of the limits: it finds errors that are everywhere, but within
the limit of each element."""
APPROXIMATION = 2.0**-21
"""The absolute error of ONNX Runtime's sigmoid, tanh, erf and gelu, which it computes by rational approximations that
are clamped (MLAS): no sigmoid of it is below 1e-8."""
_MANY = 32
"""The fewest elements of which the mean is significant."""
_CLOSE = 2.0**-12
"""The accepted relative error of elements without a limit, if no element has one."""
_ERRORS = 3
"""ONNX Runtime's log level: errors only."""


@dataclass(frozen=True)
class Comparison:
    """One output compared with its definition.

    absolute:  the largest difference
    worst:     the largest difference in parts of its element's limit
    mean:      the root mean square of all differences in parts of their limits
    undecided: elements without a limit: a comparison that they depend on may come out either way
    size:      elements
    """

    name: str
    absolute: float = 0.0
    worst: float = 0.0
    mean: float = 0.0
    undecided: int = 0
    size: int = 0
    problem: str = ""

    @property
    def agrees(self) -> bool:
        """Whether each element is within its limit, and the mean error is accepted."""
        together = self.mean <= ACCEPTED_MEAN or self.size < _MANY
        return not self.problem and self.worst <= 1.0 and together

    def __str__(self) -> str:
        verdict = "agrees" if self.agrees else f"DIFFERS{self.problem and ': '}{self.problem}"
        parts = f"at most {self.worst:.3g} of an element's limit, {self.mean:.3g} in the mean"
        undecided = f", {self.undecided} elements undecided" if self.undecided else ""
        return f"{self.name}: max abs error {self.absolute:.3g}, {parts}{undecided}: {verdict}"


@dataclass(frozen=True)
class Definition:
    """A model's imported graph with inputs for it."""

    module: ModuleOp
    inputs: Sequence[Array]
    precision: Precision = "f32"

    @classmethod
    def of_file(
        cls,
        path: Path,
        inputs: Mapping[str, Array],
        precision: Precision = "f32",
        constants: Constants | None = None,
        weights: Weights = CompileOptions.weights,
        states: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ) -> Definition:
        """The definition of a model in a file of ONNX or IR, its inputs by name, with its weights quantised as they are
        when it is compiled, and zeros of these shapes for states; raises what reading it raises.

        IR is its own definition as far as stage `schedule`: later stages have none but the kernels themselves.
        """
        if is_ir_file(path):
            module = with_names(read_module(path.read_text(), str(path)))
            _check_has_definitions(module, path)
        else:
            module = import_model(path, {**{name: array.shape for name, array in inputs.items()}, **states}, constants)
        GraphQuantizeWeightsPass(weights).apply(treadle_context(), module)
        types = zip(_names(module, "input_names"), _main(module).function_type.inputs.data, strict=False)
        given = [_zeros(type) if name in states else inputs[name] for name, type in types]
        return cls(module, given, precision)

    def named_inputs(self) -> dict[str, Array]:
        """The inputs by their names."""
        return dict(zip(_names(self.module, "input_names"), self.inputs, strict=True))

    def outputs(self, approximate: float = 0.0) -> Expected:
        """The expected outputs; `approximate` as in `bound_module`."""
        main = _main(self.module)
        dtypes = [
            numpy_dtype(type.get_element_type())
            for type in main.function_type.outputs.data
            if isinstance(type, TensorType)
        ]
        values = bound_module(self.module, self.inputs, self.precision, approximate=approximate)
        if self.precision == "f32":  # others are calibrated by a sample of their own
            values = limited_by_samples(self.module, self.inputs, values)
        results = bounded_within_extents(main, values)
        names = _names(self.module, "output_names")[: len(results)]
        return dict(zip(names, zip(results, dtypes, strict=False), strict=True))


class NoReferenceError(TreadleError):
    """ONNX Runtime, or ONNX's reference evaluator, is not installed, does not run a model, or takes no inputs of these
    types."""


Reference = Callable[[Path, Mapping[str, Array], Sequence[str]], dict[str, Array]]
"""Gives outputs of a model by name; NoReferenceError if it has none."""


def reference_outputs(path: Path, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """ONNX Runtime's outputs, by name; NoReferenceError if it gives none."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise NoReferenceError("ONNX Runtime is not installed", "--check", "pip install onnxruntime") from error
    options = runtime.SessionOptions()
    options.log_severity_level = _ERRORS
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        results = session.run(list(names), dict(inputs))
    except Exception as error:  # its exceptions have no common base but this
        raise _no_reference(RUNTIME, error, path) from error
    return dict(zip(names, results, strict=True))


def evaluator_outputs(path: Path, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """The outputs by ONNX's reference evaluator, by name; NoReferenceError if it gives none."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = reference.ReferenceEvaluator(str(path)).run(list(names), dict(inputs))
    except Exception as error:  # whatever an operator in Python raises
        raise _no_reference(EVALUATOR, error, path) from error
    return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}


def _no_reference(who: str, error: Exception, path: Path) -> NoReferenceError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return NoReferenceError(f"{who} does not run the model: {reason}", path)


@dataclass(frozen=True)
class Check:
    """A model's outputs, and those of `peer`, compared with its definition. `refusals` say why others have none.

    distances: where weights were quantised, how far each output is from the model with float weights: the root mean
        square of differences divided by that of the values. They are no part of the verdict.
    """

    own: Sequence[Comparison]
    reference: Sequence[Comparison] = ()
    refusals: Sequence[str] = ()
    peer: str = ""
    distances: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def agrees(self) -> bool:
        """Whether all that there are do."""
        return all(each.agrees for each in (*self.own, *self.reference))


def check_model(
    path: Path,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    precision: Precision = "f32",
    constants: Mapping[str, Array] = MappingProxyType({}),
    *,
    evaluator: bool = False,
    weights: Weights = CompileOptions.weights,
    states: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Check:
    """Outputs of a compiled model, and ONNX Runtime's for the same inputs, compared with the model's definition.

    constants: values of the inputs that the compiled model does not take, as `treadle.compile` was given them
    evaluator: whether ONNX's reference evaluator, which may take minutes for large convolutions, stands in where ONNX
        Runtime has no outputs
    weights: the definition has them quantised so; the peers are compared with the one that has floats
    states: the shapes of the inputs that the model keeps itself, which were zeros

    Neither has any where the file is IR. Raises what reading the model raises.
    """
    definition = Definition.of_file(path, inputs, precision, constants, states=states)
    expected = stored = definition.outputs()
    if weights != CompileOptions.weights:
        stored = Definition.of_file(path, inputs, precision, constants, weights, states).outputs()
    own, refusals = compare_all(outputs, stored), list[str]()
    distances = (
        {}
        if stored is expected
        else {name: _distance(outputs[name], expected[name][0]) for name in expected if name in outputs}
    )
    peers: list[tuple[str, Reference]] = [] if is_ir_file(path) else [(RUNTIME, reference_outputs)]
    if peers and evaluator:
        peers.append((EVALUATOR, evaluator_outputs))
    fed = definition.named_inputs() | (fed_constants(path, constants) if peers else {})
    for name, peer in peers:
        try:
            reference = compare_reference(path, fed, definition, expected, peer)
            return Check(own, reference, refusals, name, distances)
        except NoReferenceError as error:
            refusals.append(error.message)
    return Check(own, refusals=refusals, distances=distances)


def _zeros(type: Attribute) -> Array:
    assert isinstance(type, TensorType)
    return np.zeros(type.get_shape(), numpy_dtype(type.get_element_type()))


def _distance(output: Array, expected: Bounded) -> float:
    """The root mean square of differences, divided by that of the expected values."""
    exact = np.asarray(expected.value, np.float64)
    with np.errstate(all="ignore"):
        square = float(np.sum(np.square(output.astype(np.float64) - exact)))
        return math.sqrt(square / (float(np.sum(np.square(exact))) or 1.0)) if np.isfinite(square) else math.inf


def fed_constants(path: Path, constants: Mapping[str, Array]) -> dict[str, Array]:
    """What another runtime is given for inputs that are constants here: the values in the model's types."""
    return constant_inputs(load_model(path).graph, constants) if constants else {}


def _check_has_definitions(module: ModuleOp, path: Path) -> None:
    """TreadleError where operators have become kernels, and where extents are arguments."""
    if _main(module).attributes.get("symbols"):
        raise TreadleError("IR for a range of shapes is no definition of a call", path, "the .onnx file, with --shape")
    for op in module.walk():
        if isinstance(op, KernelOp | LoopFuncOp):
            raise TreadleError(f"{op.name} has no definition to compare with", path, "IR of a stage up to 'schedule'")


def compare_all(outputs: Mapping[str, Array], expected: Expected) -> list[Comparison]:
    """Each output compared with its expected values; not those that a compiled model keeps itself."""
    return [compare(name, outputs[name], *each) for name, each in expected.items() if name in outputs]


def compare_reference(
    path: Path, inputs: Mapping[str, Array], definition: Definition, expected: Expected, peer: Reference | None = None
) -> list[Comparison]:
    """The outputs of a peer, ONNX Runtime if none is named, compared with their expected values. If it exceeds the
    limits, they are computed again with ONNX Runtime's approximations allowed for.
    """
    outputs = (peer or reference_outputs)(path, inputs, list(expected))
    results = compare_all(outputs, expected)
    if all(each.agrees for each in results):
        return results
    return compare_all(outputs, definition.outputs(APPROXIMATION))


def compare(name: str, actual: Array, expected: Bounded, dtype: np.dtype[Any]) -> Comparison:
    """Compares an array with its expected values, within the limits of its elements.

    Integers and booleans must be equal where no rounding decides over them. Where the definition is not finite, the
    output must be the same, but for numbers that are near the type's largest.
    """
    if actual.shape != expected.shape or actual.dtype != dtype:
        problem = f"{actual.dtype}{list(actual.shape)}, the definition has {dtype}{list(expected.shape)}"
        return Comparison(name, math.inf, math.inf, math.inf, problem=problem)
    limits = expected.full_error
    undecided = ~np.isfinite(limits)
    if is_float_dtype(dtype):
        return _compare_floats(name, actual.astype(np.float64), expected, undecided)
    # Integers beyond 2**53 may differ where the floats next to them do not.
    floats = np.abs(actual.astype(np.float64) - expected.value.astype(np.float64))
    apart = np.where(actual == expected.value, 0.0, np.maximum(floats, 1.0))
    return _judged(name, apart[~undecided], limits[~undecided], apart[undecided])


def _compare_floats(name: str, actual: Array, expected: Bounded, undecided: Array) -> Comparison:
    finite = np.isfinite(expected.value)
    special = ~finite & ~undecided
    if not np.array_equal(actual[special], expected.value[special], equal_nan=True):
        problem = "other values where the definition is not finite"
        return Comparison(name, math.inf, math.inf, math.inf, int(undecided.sum()), actual.size, problem)
    counted = finite & ~undecided
    apart = np.abs(actual[counted] - expected.value[counted])
    if np.isnan(apart).any():
        problem = "NaN where the definition is finite"
        return Comparison(name, math.inf, math.inf, math.inf, int(undecided.sum()), actual.size, problem)
    with np.errstate(invalid="ignore"):
        parts = np.abs(actual[undecided] - expected.value[undecided]) / np.abs(expected.value[undecided])
    return _judged(name, apart, expected.full_error[counted], parts)


def _judged(name: str, apart: Array, limits: Array, undecided: Array) -> Comparison:
    """The verdict on errors and their limits; `undecided` are the errors, relative to their elements, without one.

    Where no element has a limit, they must be small all the same: else nothing would have been compared.
    """
    size = apart.size + undecided.size
    if apart.size == 0:
        far = undecided.size > 0 and not np.all(undecided <= _CLOSE)
        problem = "no element has a limit, and some are far from the definition" if far else ""
        return Comparison(name, undecided=undecided.size, size=size, problem=problem)
    with np.errstate(all="ignore"):
        parts = np.where(apart == 0, 0.0, apart / limits)
        mean = float(np.sqrt(np.mean(np.square(parts))))
    return Comparison(name, float(apart.max()), float(parts.max()), mean, undecided.size, size)


def _main(module: ModuleOp) -> FuncOp:
    return next(op for op in module.body.block.ops if isinstance(op, FuncOp) and op.sym_name.data == "main")


def _names(module: ModuleOp, attribute: str) -> list[str]:
    return [name.data for name in _main(module).attributes[attribute]]  # pyright: ignore


def with_names(module: ModuleOp) -> ModuleOp:
    """The module, whose inputs and outputs are called as a compiled model calls them where they have no names."""
    main = _main(module)
    end = main.body.block.last_op
    for kind, values in (("input", main.body.block.args), ("output", end.operands if end is not None else ())):
        names = ArrayAttr([StringAttr(f"{kind}{n}") for n in range(len(values))])
        main.attributes.setdefault(f"{kind}_names", names)
    return module


__all__ = [
    "Check", "Comparison", "Definition", "Expected", "NoReferenceError", "check_model", "compare", "compare_all",
    "compare_reference", "evaluator_outputs", "fed_constants", "reference_outputs", "with_names",
]  # fmt: skip
