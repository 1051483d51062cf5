"""What the command line says of a model's inputs before it is compiled: shapes, states and constants."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from treadle.errors import TreadleError
from treadle.runtime.inputs import number, read_inputs
from treadle.shapes.dim import Dim, parse_dim
from treadle.shapes.states import AUTO, States

Array = NDArray[Any]


def parse_states(arguments: Sequence[str]) -> States | None:
    """The states that `--states auto` or `--states past=present` mean; TreadleError for anything else."""
    if not arguments:
        return None
    if list(arguments) == [AUTO]:
        return AUTO
    pairs = [argument.partition("=") for argument in arguments]
    wrong = next(("".join(pair) for pair in pairs if not all(pair)), None)
    if wrong is not None:
        raise TreadleError(f"cannot read {wrong!r}", "--states", "auto, or INPUT=OUTPUT")
    return {name: output for name, _, output in pairs}


def read_constants(arguments: Sequence[str]) -> dict[str, Array]:
    """The constants among `sr=16000`, for commands that run nothing; TreadleError for a file, which is of a call."""
    constants: dict[str, Array] = {}
    for argument in arguments:
        name, _, value = argument.rpartition("=")
        if name and value and any(number(word) is None for word in value.split(",")):
            accepted = "a value that is the same in every call, such as sr=16000"
            raise TreadleError(f"{value!r} is no number", f"--input {name}", accepted)
        constants |= read_inputs([argument]).constants
    return constants


# Shapes, and how often they occur, on the command line.

_SHAPE_FORM = (
    "NAME=D0,D1,... with positive whole numbers, such as x=1,3,48,320, or ranges, such as x=1..8,3,48,32..2048:32 "
    "(multiples of 32), with a name where dimensions are equal, n:1..8; of a dimension by its name, w=32..2048"
)


_HISTOGRAM = 'an object of values and how often they occur, such as {"37": 120, "128": 44}'


def parse_shapes(arguments: Sequence[str]) -> dict[str, tuple[int | Dim | str, ...]]:
    """`["x=1,3,48,320"]` as `{"x": (1, 3, 48, 320)}`; a name may contain `=`. `x=n:1..8,3` has a range, the `Dim` named
    `n`, and so has `n=1..8`, which names a dimension; that of `x=1..8,3` has a name of its own, `x_0`. `x=n+1,3` has an
    extent that is computed.

    Raises TreadleError for anything else, and for a name given twice.
    """
    shapes: dict[str, tuple[int | Dim | str, ...]] = {}
    for argument in arguments:
        name, sign, extents = argument.rpartition("=")
        words = [word.strip() for word in extents.split(",")] if extents.strip() else []
        if not sign or not name:
            raise _unreadable(argument)
        if name in shapes:
            raise TreadleError(f"two shapes for input '{name}'", "--shape", "one shape an input")
        names = [_dimension(f"{name}_{n}") for n in range(len(words))] if len(words) != 1 else [name]
        shapes[name] = tuple(_extent(word, own, argument) for word, own in zip(words, names, strict=True))
    return shapes


def parse_weights(arguments: Sequence[str]) -> dict[str, dict[int, float]]:
    """`["seq=lengths.json"]` as how often each value of `seq` occurs: the file has `{"37": 120, "128": 44}`.

    TreadleError that names the file, for one that is anything else, and for a name given twice.
    """
    found: dict[str, dict[int, float]] = {}
    for argument in arguments:
        name, sign, path = argument.partition("=")
        if not sign or not name or not path:
            raise TreadleError(f"cannot read {argument!r}", "--weights", "SYMBOL=FILE.json")
        if name in found:
            raise TreadleError(f"two files for '{name}'", "--weights", "one file a symbol")
        found[name] = _histogram(Path(path))
    return found


def _histogram(path: Path) -> dict[int, float]:
    try:
        given: object = json.loads(path.read_text())
    except OSError as error:
        raise TreadleError(f"cannot read: {error.strerror}", path, _HISTOGRAM) from error
    except ValueError as error:
        raise TreadleError(f"is no JSON: {error}", path, _HISTOGRAM) from error
    if not isinstance(given, dict):
        raise TreadleError("is no object", path, _HISTOGRAM)
    found: dict[int, float] = {}
    for value, weight in cast("dict[str, object]", given).items():
        if not _is_number(value) or isinstance(weight, bool) or not isinstance(weight, int | float):
            raise TreadleError(f"{value!r} has the weight {weight!r}", path, _HISTOGRAM)
        found[int(value)] = float(weight)
    return found


def shapes_of_call(
    arguments: Sequence[str], inputs: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int | Dim | str, ...]]:
    """The shapes to compile for where inputs of these shapes are at hand, too: with a range, they are those of a call
    only. Raises as `parse_shapes`."""
    given = parse_shapes(arguments)
    has_range = any(isinstance(extent, Dim) for shape in given.values() for extent in shape)
    return given if has_range else {**inputs, **given}


def _extent(word: str, own: str, argument: str) -> int | Dim | str:
    """An extent, a range, whose name is `own` where it has none, or an expression of such."""
    if _is_number(word):
        return int(word)
    if _EXPRESSION.fullmatch(word):
        return word
    if ".." not in word:
        raise _unreadable(argument)
    return parse_dim(word, own if own.isidentifier() and own.isascii() else None)


_EXPRESSION = re.compile(r"[\w ()]*[A-Za-z_][\w ()]*[-+*/%][\w ()+*/%-]+", re.ASCII)


def _dimension(text: str) -> str:
    """A name of a dimension like a text."""
    return re.sub(r"\W|^(?=\d)", "_", text, flags=re.ASCII)


def _unreadable(argument: str) -> TreadleError:
    return TreadleError(f"cannot read the shape {argument!r}", "--shape", _SHAPE_FORM)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and int(word) > 0
