"""What a call computes at some stage: each tensor's value by the interpreter, and how far it is from float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from treadle.backends.reference.bound_module import bounded_results
from treadle.backends.reference.bounded import ARITHMETIC, Bounded, Running
from treadle.backends.reference.run_module import arguments, find_function, last_uses, module_values
from treadle.compiler.request import read_module
from treadle.dialects.graph import ComputeOp, FusedOp, YieldOp
from treadle.dialects.graph.arithmetic import Exact
from treadle.dialects.graph.compute import yielded, yielded_values
from treadle.dialects.graph.dtypes import is_float_dtype
from treadle.dialects.graph.evaluate import evaluate_elements, evaluate_results
from treadle.dialects.host import LaunchOp
from treadle.dialects.loop import FuncOp as LoopFuncOp
from treadle.dialects.loop import KernelOp
from treadle.errors import TreadleError
from treadle.passes.entry import ENTRY
from treadle.passes.schedule.schedule_instantiate import operations_of
from treadle.tools.bisect_search import INTERPRETED
from treadle.tools.explore_record import Documents, IndexedText, Json, indexed

Array = NDArray[Any]
Observe = Callable[[SSAValue, Array, Bounded], None]
"""Called with a tensor, its value in the declared types, and in float64 with limits; also with each scalar of a
definition, whose values are those for all elements."""

_FIRST = 8
"""Elements that are shown."""
_BINS = 24


@dataclass
class Evaluator:
    """Values of the texts of a compile, for the same inputs of @main.

    scheduled: the number of the text whose groups the kernels compute; its f64 values are those that kernels' are
        compared with
    most: the operations up to which kernels are interpreted
    """

    documents: Documents
    inputs: Sequence[Array]
    scheduled: int
    most: int = INTERPRETED
    _groups: dict[str, Bounded] | TreadleError | None = field(default=None, init=False)

    def numbers(self, text: int) -> Json:
        """The document `numbers-N`: by the numbers of `values-N` what a tensor holds, and why others are missing."""
        try:
            return {"values": dict(self._summaries(text))}
        except TreadleError as error:
            return {"values": {}, "note": f"not evaluated: {error}"}

    def _summaries(self, text: int) -> Iterator[tuple[str, Json]]:
        if self._has_kernels(text):
            self._of_groups()  # what is too much to interpret need not be read
        module, found = self._module(text)
        numbers = {value: str(number) for number, value in enumerate(found.values)}
        if _is_of_graphs(module):
            seen: dict[str, Json] = {}

            def observe(value: SSAValue, array: Array, exact: Bounded) -> None:
                if value in numbers:
                    seen[numbers[value]] = summary(array, exact)

            walk_values(find_function(module, ENTRY).body.block, self.inputs, observe)
            yield from seen.items()
            return
        groups = self._of_groups()
        for value, array in module_values(module, self.inputs).items():
            number = numbers[value]
            exact = groups.get(found.names[int(number)])
            fits = exact is not None and exact.value.size == array.size
            yield number, summary(array, _reshaped(exact, array.shape) if exact is not None and fits else None)

    def _has_kernels(self, text: int) -> bool:
        """Whether a value of a text is a kernel's, or an argument of one."""
        kinds = self.documents.get(f"values-{text}")["OP"]
        return any(str(kind).rpartition(" ")[2] in (KernelOp.name, LoopFuncOp.name) for kind in kinds)

    def _module(self, text: int) -> tuple[ModuleOp, IndexedText]:
        """A text as a module, whose values have the text's numbers."""
        said = self.documents.get(f"text-{text}")["text"]
        module = read_module(said, f"text {text}")
        found = indexed(module)
        if found.text != said:
            raise TreadleError("the text is printed otherwise once it was read", f"text {text}")
        return module, found

    def _of_groups(self) -> Mapping[str, Bounded]:
        """The f64 values of the groups' results, by name; TreadleError where kernels are too much to interpret."""
        if self._groups is None:
            try:
                self._groups = self._values_of_groups()
            except TreadleError as error:
                self._groups = error
        if isinstance(self._groups, TreadleError):
            raise self._groups
        return self._groups

    def _values_of_groups(self) -> dict[str, Bounded]:
        module, found = self._module(self.scheduled)
        operations = sum(operations_of(op) for op in module.walk() if isinstance(op, FusedOp))
        if operations > self.most:
            message = f"its kernels do {operations} operations a call"
            raise TreadleError(message, "the interpreter", f"up to {self.most}; the IR up to stage 'schedule'")
        names = dict(zip(found.values, found.names, strict=True))
        groups: dict[str, Bounded] = {}

        def observe(value: SSAValue, array: Array, exact: Bounded) -> None:
            if isinstance(value.owner, FusedOp):
                groups[names[value]] = exact

        walk_values(find_function(module, ENTRY).body.block, self.inputs, observe)
        return groups


def walk_values(block: Block, inputs: Sequence[Array], observe: Observe) -> None:
    """Evaluates @main's block of operators and groups in the declared types and in float64 at once. Arrays are dropped
    after their last use. TreadleError as `evaluate_module`."""
    given = arguments(block, inputs)
    _walk(block, {value: (array, Bounded.of(array)) for value, array in given.items()}, observe)


Pair = tuple[Array, Bounded]


def _walk(block: Block, env: dict[SSAValue, Pair], observe: Observe) -> None:
    for value in block.args:
        if value in env:
            observe(value, *env[value])
    dying = last_uses(block)
    for op in block.ops:
        if isinstance(op, ReturnOp | YieldOp):
            continue
        for value, pair in zip(op.results, _evaluated(op, env, observe), strict=True):
            env[value] = pair
            observe(value, *pair)
        for value in dying.get(op, ()):
            env.pop(value, None)


def _evaluated(op: Operation, env: dict[SSAValue, Pair], observe: Observe) -> Sequence[Pair]:
    if isinstance(op, FusedOp):
        inner = {value: env[value] for each in op.walk() for value in each.operands if value in env}
        results = yielded_values(op.body)
        kept: dict[SSAValue, Pair] = {}

        def keep(value: SSAValue, array: Array, exact: Bounded) -> None:
            if value in results:
                kept[value] = (array, exact)
            observe(value, array, exact)

        _walk(op.body.block, inner, keep)
        return [kept[value] for value in results]
    if isinstance(op, ComputeOp):
        return [_elements(op, env, observe)]
    read = {value for inner in op.walk() for value in inner.operands if value in env}
    arrays = evaluate_results(op, {value: env[value][0] for value in read})
    return list(zip(arrays, bounded_results(op, {value: env[value][1] for value in read}), strict=True))


def _elements(op: ComputeOp, env: Mapping[SSAValue, Pair], observe: Observe) -> Pair:
    """The value of a definition; those of its scalars, each for all elements, are observed as well."""
    arrays = evaluate_elements(Exact(), op, {value: env[value][0] for value in op.tensors()})
    exact = evaluate_elements(Running(ARITHMETIC), op, {value: env[value][1] for value in op.tensors()})
    for value, array in arrays.items():
        observe(value, array, exact[value])
    result = yielded(op.body)
    if result not in arrays:  # an empty tensor
        (array,) = evaluate_results(op, {value: env[value][0] for value in op.tensors()})
        return array, Bounded.of(array)
    return arrays[result], exact[result].rooted(op.results[0])


def _is_of_graphs(module: ModuleOp) -> bool:
    """Whether no group has become a kernel. TreadleError of what the last pass leaves."""
    ops = [op for op in module.walk() if isinstance(op, KernelOp | LoopFuncOp | LaunchOp)]
    if any(isinstance(op, LaunchOp) for op in ops) and not any(isinstance(op, LoopFuncOp) for op in ops):
        raise TreadleError("only the compiled code runs what the last pass leaves", "the interpreter")
    return not ops


def _reshaped(exact: Bounded, shape: tuple[int, ...]) -> Bounded:
    return Bounded(exact.value.reshape(shape), exact.full_error.reshape(shape))


# An array in a few words.


def summary(array: Array, exact: Bounded | None) -> Json:
    """Shape, type, the range of the finite elements, the first ones, a histogram, and errors against `exact`."""
    found: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
    found["first"] = [_text(each) for each in array.reshape(-1)[:_FIRST]]
    wide = array.astype(np.float64).reshape(-1)
    finite = wide[np.isfinite(wide)]
    if finite.size:
        found |= {"min": _text(finite.min()), "max": _text(finite.max()), "mean": _text(finite.mean())}
        found["deviation"] = _text(finite.std())
        if finite.size > 1 and finite.min() < finite.max():
            found["histogram"] = [int(count) for count in np.histogram(finite, _BINS)[0]]
    if finite.size < wide.size:
        found["other"] = f"{int(np.isnan(wide).sum())} NaN, {int(np.isinf(wide).sum())} infinite"
    if exact is not None:
        found["error"] = _error(array, exact)
    return found


def _error(array: Array, exact: Bounded) -> str:
    """How far an array is from float64, in words."""
    if exact.exact and np.array_equal(array, exact.value.astype(array.dtype), equal_nan=True):
        return "none: exact"
    both = np.isfinite(exact.value) & np.isfinite(array.astype(np.float64))
    apart = np.abs(array.astype(np.float64) - np.where(both, exact.value, 0))[both]
    if not is_float_dtype(array.dtype):
        return f"{int((apart > 0).sum())} of {array.size} elements differ"
    if not apart.size:
        return "no element is finite in both"
    limits = exact.full_error[both]
    rms = float(np.sqrt(np.mean(np.square(apart))))
    said = f"at most {apart.max():.3g}, {rms:.3g} in the root mean square"
    with np.errstate(all="ignore"):
        parts = np.where(apart == 0, 0.0, apart / limits)
    decided = np.isfinite(limits)
    return f"{said}; at most {parts[decided].max():.3g} of an element's limit" if decided.any() else said


def _text(number: Any) -> str:
    value = number.item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


__all__ = ["Evaluator", "summary", "walk_values"]
