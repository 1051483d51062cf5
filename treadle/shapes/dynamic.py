"""Calls of a model whose shapes change: checked extents, padded inputs, cropped outputs (docs/adr/0039, 0056).

A model with symbols is compiled for its largest shapes. (Those that depend on data are numbers that the program gives
beside its outputs: docs/adr/0047.) A call binds the symbols by the shapes of its inputs, and gives the kernels the
extents. What the program takes or gives densely has the call's shape; of other tensors, smaller inputs are copied into
buffers of the largest shape, and outputs are cut out of such.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from treadle.errors import TreadleError
from treadle.shapes.dim import Dim
from treadle.shapes.states import State, given_of, made_of

Array = NDArray[Any]
Values = Mapping[str, int]
_LONGEST = 1000
"""Characters of an expression."""

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


class Tensor(Protocol):
    """An input or an output, as the manifest has it: `extents` are expressions of symbols, or none."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def extents(self) -> tuple[str, ...]: ...
    @property
    def dense(self) -> bool: ...


class ExtentExpression:
    """An expression of symbols, such as `(w - 1) // 2 + 1`; ValueError for any other text."""

    def __init__(self, text: str, symbols: Sequence[str]):
        if len(text) > _LONGEST:
            raise ValueError(f"an expression of {len(text)} characters")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"{text!r} is no expression") from error
        self.text = text
        self._value = _compiled(tree, frozenset(symbols))

    def value(self, values: Values) -> int:
        """The extent where the symbols have these values."""
        return self._value(values)


def _compiled(node: ast.expr, symbols: frozenset[str]) -> Callable[[Values], int]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        number = node.value
        return lambda values: number
    if isinstance(node, ast.Name) and node.id in symbols:
        name = node.id
        return lambda values: values[name]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _compiled(node.operand, symbols)
        return lambda values: -inner(values)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        rule = _BINARY[type(node.op)]
        if isinstance(node.op, ast.FloorDiv | ast.Mod) and not _is_positive(node.right):
            raise ValueError("a divisor that is no positive number")
        left, right = _compiled(node.left, symbols), _compiled(node.right, symbols)
        return lambda values: rule(left(values), right(values))
    raise ValueError(f"{ast.unparse(node)!r} is neither a number, nor a symbol, nor +, -, *, // or % of them")


def _is_positive(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value > 0


class OutputExtents:
    """The extents of an output's dimensions, of which one may merge several."""

    def __init__(self, tensor: Tensor, symbols: Sequence[str]):
        self.shape = tensor.shape
        self.parts = [_parts(text, bound, symbols) for text, bound in zip(tensor.extents, tensor.shape, strict=True)]

    def cropped(self, array: Array, values: Values) -> Array:
        """The elements of the largest array that lie within the extents, C-contiguous; what is on a device cuts itself.

        TreadleError for an extent that is larger than its bound.
        """
        extents = [extent for dimension in self._extents(values) for extent in dimension]
        bounds = [bound for dimension in self.parts for _, bound in dimension]
        if not _is_on_host(array):
            return cast("Any", array).cropped(bounds, extents, self.shape_of(values))
        cut = array.reshape(bounds)[tuple(map(slice, extents))]
        return np.ascontiguousarray(cut).reshape(self.shape_of(values))

    def shape_of(self, values: Values) -> tuple[int, ...]:
        """The shape in a call; TreadleError for an extent that is larger than its bound."""
        return tuple(map(prod, self._extents(values)))

    def _extents(self, values: Values) -> list[list[int]]:
        """Those of the parts of each dimension."""
        found: list[list[int]] = []
        for dimension in self.parts:
            found.append([expression.value(values) for expression, _ in dimension])
            for extent, (expression, bound) in zip(found[-1], dimension, strict=True):
                if not 0 <= extent <= bound:
                    message = f"extent {expression.text} is {extent}, beyond {bound}"
                    raise TreadleError(message, "the artifact's manifest")
        return found


def _is_on_host(array: object) -> bool:
    return isinstance(array, np.ndarray)


def _parts(text: str, bound: int, symbols: Sequence[str]) -> list[tuple[ExtentExpression, int]]:
    """The factors of a dimension, each with its bound: `batch<=8, seq<=512`, or one of them alone."""
    parts: list[tuple[ExtentExpression, int]] = []
    for part in text.split(","):
        expression, sign, largest = part.partition("<=")
        parts.append((ExtentExpression(expression, symbols), int(largest) if sign else bound))
    if prod(largest for _, largest in parts) != bound:
        raise ValueError(f"the factors of {text!r} do not make {bound}")
    return parts


_Form = tuple[tuple[int, ...], np.dtype[Any]]
"""The shape and the type of an array."""


class DynamicCalls:
    """Turns calls of a model with symbols into runs of its program, whose tensors have their largest shapes.

    It keeps a buffer for each input that changes: calls take turns. Extents of states are no shapes of what a caller
    gives: `lengths` has them, which `advance` changes after a call. ValueError for a manifest that does not say what it
    needs: this is how manifests are checked.
    """

    def __init__(
        self,
        symbols: Sequence[Dim],
        extents: Sequence[str],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        found: Sequence[str] = (),
        states: Sequence[State] = (),
    ):
        """The symbols, the expressions of which the last inputs are the values, the program's tensors, the symbols of
        which the last outputs are the values, and the states among the tensors."""
        names = [*(symbol.name for symbol in symbols), *found]
        if len(set(names)) < len(names):
            raise ValueError("a symbol has two ranges")
        if len(inputs) < len(extents) or len(outputs) < len(found):
            raise ValueError("more extents than inputs, or than outputs")
        self.symbols = {symbol.name: symbol for symbol in symbols}
        given, made = inputs[: len(inputs) - len(extents)], outputs[: len(outputs) - len(found)]
        pairs = _states(states, given, made)
        self.inputs, self.outputs = given_of(given, states), made_of(made, states)
        self.found = tuple(found)
        for tensor in (*inputs[len(given) :], *outputs[len(made) :]):
            if tensor.shape or tensor.dtype != "int64":
                raise ValueError(f"'{tensor.name}' is an extent, and no int64")
        largest = {name: symbol.greatest for name, symbol in self.symbols.items()}
        self._derived = [(n, *each) for n, tensor in enumerate(self.inputs) for each in _derived(tensor, largest)]
        self._extents = [ExtentExpression(text, names) for text in extents]
        self.lengths_after = _lengths_after(pairs, self.inputs, self.symbols)
        self.lengths = dict[str, int]()
        self.rewind()
        self._outputs = [OutputExtents(tensor, names) if tensor.extents else None for tensor in self.outputs]
        self._check_bound()
        self._padded: dict[str, Array] = {}
        self._bound: tuple[list[_Form], dict[str, int]] | None = None
        self._last: _Call | None = None

    def _check_bound(self) -> None:
        """ValueError for an expression of a symbol that no call has a value for."""
        shown = {text for tensor in self.inputs for text in tensor.extents if text in self.symbols}
        values = {name: self.symbols[name].least for name in (*shown, *self.lengths_after)}
        inner = [*self._extents, *(extent for _, _, extent in self._derived), *self.lengths_after.values()]
        parts = [part for each in self._outputs if each for dimension in each.parts for part, _ in dimension]
        try:
            for extent in inner:
                extent.value(values)
            for extent in parts:
                extent.value({**values, **dict.fromkeys(self.found, 0)})
        except KeyError as error:
            raise ValueError(f"no input has the dimension {error} by itself, and no state") from error

    def bind(self, arrays: Sequence[Array]) -> Values:
        """The symbols' values by the inputs' shapes.

        TreadleError for a shape that does not fit, an extent out of range, and inputs that disagree.
        """
        forms = [(array.shape, array.dtype) for array in arrays]
        bound = self._bound
        if bound is None or bound[0] != forms:  # mostly those of the call before
            self._bound = bound = forms, self._values(arrays)
        for name, length in self.lengths.items():
            if length not in self.symbols[name]:
                message = f"there is no room behind {length} positions: {name} is {length}"
                raise TreadleError(message, "the states", f"{self._range(name)}; reset(), or rewind()")
        values = {**bound[1], **self.lengths} if self.lengths else bound[1]
        for number, dimension, extent in self._derived:
            if (given := arrays[number].shape[dimension]) != (wanted := extent.value(values)):
                message, where = f"dimension {dimension} is {given}", f"input '{self.inputs[number].name}'"
                raise TreadleError(message, where, f"{extent.text}, which is {wanted} in this call")
        return values

    def advance(self, values: Values) -> None:
        """The states' extents after a call with these values."""
        self.lengths.update({name: after.value(values) for name, after in self.lengths_after.items()})

    def rewind(self, lengths: Mapping[str, int] | None = None) -> None:
        """Shorter states, or all as short as they may be: TreadleError for a name that is no state's, and a length that
        it has not."""
        if lengths is None:
            self.lengths = {name: self.symbols[name].least for name in self.lengths_after}
            return
        for name, length in lengths.items():
            if name not in self.lengths:
                raise TreadleError(f"'{name}' is no extent of a state", "rewind", list(self.lengths) or "no lengths")
            if not self.symbols[name].least <= length <= self.lengths[name]:
                limits = f"{self.symbols[name].least} to {self.lengths[name]}"
                raise TreadleError(f"{name} is {self.lengths[name]}, and {length} is asked for", "rewind", limits)
        self.lengths.update(lengths)

    def _values(self, arrays: Sequence[Array]) -> dict[str, int]:
        values: dict[str, int] = {}
        found: dict[str, str] = {}
        for tensor, array in zip(self.inputs, arrays, strict=True):
            where = f"input '{tensor.name}'"
            wanted = tensor.extents or tuple(map(str, tensor.shape))
            fits = array.ndim == len(wanted) and array.dtype == np.dtype(tensor.dtype)
            for n, (text, extent) in enumerate(zip(wanted, array.shape, strict=False)):
                symbol = self.symbols.get(text)
                if symbol is None:
                    fits = fits and (not text.isdigit() or extent == int(text))
                    continue
                if not fits:
                    break
                if extent not in symbol:
                    message = f"dimension {n} ({symbol.name}) is {extent}"
                    raise TreadleError(message, where, self._range(text))
                if values.setdefault(text, extent) != extent:
                    message = f"dimension {n} ({symbol.name}) is {extent}, and {values[text]} in {found[text]}"
                    raise TreadleError(message, where, "one extent for each symbol")
                found.setdefault(text, where)
            if not fits:
                shape = ", ".join(map(str, array.shape))
                raise TreadleError(f"{array.dtype}[{shape}] given", where, self.described(tensor))
        return values

    def described(self, tensor: Tensor) -> str:
        """An input as a caller reads it, with the ranges of its dimensions."""
        extents = [self._range(text) if text in self.symbols else text for text in tensor.extents or tensor.shape]
        return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, extents))}]"

    def _range(self, name: str) -> str:
        symbol = self.symbols[name]
        step = f" in steps of {symbol.multiple}" if symbol.multiple > 1 else ""
        return f"{name} from {symbol.least} to {symbol.greatest}{step}"

    def arguments(self, arrays: Sequence[Array], values: Values) -> list[Array]:
        """What the program takes: inputs as they are, or in their largest shapes, then extents."""
        padded = [self._largest(tensor, array) for tensor, array in zip(self.inputs, arrays, strict=True)]
        return [*padded, *self._call(values).extents]

    def _largest(self, tensor: Tensor, array: Array) -> Array:
        if tensor.dense or array.shape == tensor.shape or not _is_on_host(array):  # a device pads itself
            return array
        if tensor.name not in self._padded:
            self._padded[tensor.name] = np.zeros(tensor.shape, tensor.dtype)
        buffer = self._padded[tensor.name]
        buffer[tuple(map(slice, array.shape))] = array
        return buffer

    def shapes(self, values: Values) -> Sequence[tuple[int, ...]]:
        """Those of the arrays that the program writes: of a call where it does so densely, else the largest."""
        return self._call(values).shapes

    def result_shapes(self, values: Values) -> Sequence[tuple[int, ...]]:
        """Those of the outputs of a call, whose extents do not depend on data."""
        pairs = zip(self._outputs, self.outputs, strict=True)
        return [each.shape_of(values) if each else tensor.shape for each, tensor in pairs]

    def _call(self, values: Values) -> _Call:
        """What is computed from the extents of a call, which is often that of the call before."""
        last = self._last
        if last is None or last.values != values:
            extents = [np.array(extent.value(values), np.int64) for extent in self._extents]
            pairs = zip(self._outputs, self.outputs, strict=True)
            shapes = [each.shape_of(values) if each and tensor.dense else tensor.shape for each, tensor in pairs]
            self._last = last = _Call(values, extents, [*shapes, *[()] * len(self.found)])
        return last

    def results(self, outputs: Sequence[Array], values: Values) -> list[Array]:
        """The outputs of the call's shapes; those that the program wrote densely may be the first elements of larger
        arrays."""
        count = len(self.outputs)
        numbers = (int(array.item()) for array in outputs[count:])
        known = {**values, **dict(zip(self.found, numbers, strict=True))}
        each = zip(self.outputs, self._outputs, outputs[:count], strict=True)
        return [_result(tensor, extents, array, known) for tensor, extents, array in each]


@dataclass(frozen=True)
class _Call:
    """The symbols' values, the program's extents, and the shapes of the arrays that it writes."""

    values: Values
    extents: Sequence[Array]
    shapes: Sequence[tuple[int, ...]]


def _result(tensor: Tensor, extents: OutputExtents | None, array: Array, values: Values) -> Array:
    if extents is None:
        return array
    if not tensor.dense:
        return extents.cropped(array, values)
    if array.shape != tensor.shape:
        return array
    shape = extents.shape_of(values)
    return array.reshape(-1)[: prod(shape)].reshape(shape)


def _states(
    states: Sequence[State], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """The tensors of states; ValueError for one that there is not, that is two states', or whose sides differ."""
    numbers = [state.argument for state in states], [state.result for state in states]
    for each, tensors in zip(numbers, (inputs, outputs), strict=True):
        if len(set(each)) < len(each) or any(n >= len(tensors) for n in each):
            raise ValueError(f"states {each} of {len(tensors)} tensors")
    pairs = [(inputs[state.argument], outputs[state.result]) for state in states]
    for a, b in pairs:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ValueError(f"'{a.name}' becomes '{b.name}', which has another shape or type")
    return pairs


def _lengths_after(
    states: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor], symbols: Mapping[str, Dim]
) -> dict[str, ExtentExpression]:
    """The symbols that are extents of states alone, and what each is after a call."""
    given = {text for tensor in inputs for text in tensor.extents}
    found: dict[str, ExtentExpression] = {}
    for argument, result in states:
        for text, after in zip(argument.extents, result.extents, strict=False):
            if text in symbols and text not in given:
                expression = ExtentExpression(after, list(symbols))
                if found.setdefault(text, expression).text != after:
                    raise ValueError(f"{text} is {found[text].text} and {after} after a call")
    return found


def _derived(tensor: Tensor, largest: Values) -> Iterator[tuple[int, ExtentExpression]]:
    """The dimensions of an input that are computed from symbols; ValueError for extents that do not fit its shape."""
    if not tensor.extents:
        return
    if len(tensor.extents) != len(tensor.shape):
        raise ValueError(f"input '{tensor.name}' has {len(tensor.extents)} extents, and {len(tensor.shape)} dimensions")
    for dimension, (text, bound) in enumerate(zip(tensor.extents, tensor.shape, strict=True)):
        extent = ExtentExpression(text, list(largest))
        if text not in largest and not text.isdigit():
            yield dimension, extent
        if extent.value(largest) != bound:
            raise ValueError(f"extent {text!r} of input '{tensor.name}' is not at most {bound}")
