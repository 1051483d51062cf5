"""Which inputs of a model are what its outputs were in the call before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import BlockArgument, SSAValue

from treadle.dialects.graph import StateAttr
from treadle.errors import TreadleError
from treadle.shapes.states import AUTO

_ACCEPTED = 'pairs such as {"past_key_values.0.key": "present.0.key"}, or "auto"'
_NAMES = (("past_key_values", "present"), ("past", "present"))
"""Beginnings of names of inputs and of their outputs: of Optimum and ORT GenAI, and of ORT's own exporters."""


def state_pairs(inputs: Sequence[str], outputs: Sequence[str], states: object) -> dict[str, str]:
    """The outputs of the states, by the names of the inputs, of a model's inputs and outputs.

    TreadleError for what is no `States`, for names that the model has not, for an output that two inputs would be, and
    for `AUTO` where no names are alike.
    """
    if states == AUTO:
        pairs = {name: output for name in inputs if (output := _output_of(name, outputs)) is not None}
        if not pairs:
            message = "no input is named like an output that it would be in the next call"
            raise TreadleError(message, "states", f"inputs such as past_key_values.0.key, or {_ACCEPTED}")
        return pairs
    if states is None:
        return {}
    entries = list(cast("Mapping[object, object]", states).items()) if isinstance(states, Mapping) else [(0, 0)]
    pairs = {name: output for name, output in entries if isinstance(name, str) and isinstance(output, str)}
    if len(pairs) < len(entries):
        raise TreadleError(f"states is {states!r}", "states", _ACCEPTED)
    for name, output in pairs.items():
        if name not in inputs:
            raise TreadleError(f"there is no input '{name}'", "states", list(inputs) or "no states")
        if output not in outputs:
            raise TreadleError(f"there is no output '{output}'", f"states['{name}']", list(outputs))
    twice = [output for output, count in Counter(pairs.values()).items() if count > 1]
    if twice:
        raise TreadleError(f"output '{twice[0]}' would be two states", "states", "one input for each output")
    return pairs


def _output_of(name: str, outputs: Sequence[str]) -> str | None:
    named = (end + name.removeprefix(begin) for begin, end in _NAMES if name.startswith(begin))
    return next((output for output in named if output in outputs), None)


def appendable(pairs: Mapping[str, str], operands: Sequence[Sequence[str]]) -> set[str]:
    """The inputs among states that one node reads, beside those that read shapes.

    operands: what each node reads, but for its shape
    """
    readers = Counter(name for names in operands for name in names)
    return {name for name in pairs if readers[name] == 1}


def states_attribute(
    pairs: Mapping[str, str], arguments: Mapping[str, SSAValue], outputs: Mapping[str, int], results: Sequence[SSAValue]
) -> ArrayAttr[StateAttr]:
    """The attribute of @main; TreadleError for a state whose two sides have different types."""
    found: list[StateAttr] = []
    for name, output in pairs.items():
        argument, result = arguments[name], results[outputs[output]]
        if argument.type != result.type:
            accepted = "a result of the input's type, or new elements behind the input's in one place alone"
            message = f"it is a {argument.type}, and output '{output}', which it is in the next call, a {result.type}"
            raise TreadleError(message, f"input '{name}'", accepted)
        assert isinstance(argument, BlockArgument)
        found.append(StateAttr.of(argument.index, outputs[output]))
    return ArrayAttr(found)


__all__ = ["appendable", "state_pairs", "states_attribute"]
