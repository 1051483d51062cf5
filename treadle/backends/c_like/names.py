"""Names and comments: nothing from a model reaches the generated text unescaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeGuard

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, LocationAttr, MemRefType, ModuleOp, StringAttr
from xdsl.ir import Block, Operation, SSAValue, Use

from treadle.backends.c_like.scalars import constant_integer
from treadle.dialects.host import LaunchOp
from treadle.dialects.location import describe_nodes, fused_location
from treadle.passes.lower.identifiers import identifier


def comment_text(text: str) -> str:
    """`text` for the inside of `/* */`: one line of printable ASCII that cannot close or open a comment."""
    line = "".join(c if " " <= c <= "~" and c != "\\" else " " for c in text)
    return re.sub(r"\*(?=/)|/(?=\*)", lambda match: f"{match[0]} ", " ".join(line.split()))


class Names:
    """Gives names that differ from all names in the open scopes."""

    def __init__(self) -> None:
        self._scopes: list[set[str]] = [set()]

    def open(self) -> None:
        """Begins a scope inside the current one."""
        self._scopes.append(set())

    def close(self) -> None:
        """Ends the innermost scope: its names may be given again."""
        self._scopes.pop()

    def claim(self, hint: str | None, fallback: str = "x") -> str:
        """A name like `hint` (or `fallback`), taken until the innermost scope ends."""
        # The parser numbers what the text wrote twice; scopes make the numbers needless again.
        return self.claim_exact(re.sub(r"_\d+$", "", hint) if hint else fallback, fallback)

    def claim_exact(self, hint: str, fallback: str = "x") -> str:
        """As `claim`, but keeps a number at the hint's end."""
        base = identifier(hint, fallback)
        name, count = base, 0
        while any(name in scope for scope in self._scopes):
            count += 1
            name = f"{base}_{count}"
        self._scopes[-1].add(name)
        return name


# The comments above a kernel in the printed text: the nodes of the model that it computes, and how.

Nodes = Mapping[str, LocationAttr]
"""The nodes that kernels compute, by the kernels' symbols."""


def launched_nodes(module: ModuleOp) -> Nodes:
    """The nodes that each kernel computes in one of its launches."""
    locations: dict[str, list[LocationAttr]] = {}
    for op in module.walk():
        if isinstance(op, LaunchOp):
            locations.setdefault(op.kernel.string_value(), []).append(op.location)
    return {symbol: fused_location(found) for symbol, found in locations.items()}


def kernel_comments(kernel: Operation, nodes: LocationAttr) -> list[str]:
    """The lines above a kernel, for the inside of comments."""
    how = kernel.attributes.get("comment")
    texts = [describe_nodes(nodes), how.data if isinstance(how, StringAttr) else ""]
    return [comment_text(text) for text in texts if text]


# Names of index values that the IR leaves unnamed: for which buffer they are, and which loop moves them.
#
# ```c
# for (long m = 0; m < 128; m += 8) {
#     const long a_m = m * 48;                      // of A's address, what moves with m
#     for (long k = 0; k < 48; k++) {
#         for (long r = 0; r < 8; r++) {
#             const long a_r = r * 48 + k + a_m;    // of A's address, what moves with r: all of it
# ```
# A value that addresses several buffers, or none, is named by its own arithmetic: `thread / 8 * 4` is `thread_div8_x4`,
# and `block_offset` what is longer.

_SUFFIXES: Mapping[type[object], str] = {
    arith.MuliOp: "x", arith.ShLIOp: "shl",
    arith.DivUIOp: "div", arith.DivSIOp: "div", arith.FloorDivSIOp: "div", arith.ShRUIOp: "shr", arith.ShRSIOp: "shr",
    arith.RemUIOp: "mod", arith.RemSIOp: "mod",
}  # fmt: skip
_MOST_SUFFIXES = 2


class IndexNames:
    """Proposes names.

    names: those of the values that stand in the text so far, in the text's order
    """

    def __init__(self, names: Mapping[SSAValue, str]) -> None:
        self._names = names
        self._places: dict[SSAValue, int] = {}
        self._variables: dict[SSAValue, SSAValue] = {}
        """Of each value that was named here, the variable that moves it."""
        self._buffers: dict[SSAValue, frozenset[SSAValue]] = {}

    def propose(self, value: SSAValue) -> str:
        """A name for an index, which need not be free; the value gets it, or one like it."""
        assert isinstance(value.owner, Operation)
        variable = self._innermost(value.owner)
        if variable is None:
            return "n"
        self._variables[value] = variable
        buffers = self._addressed(value)
        if len(buffers) != 1:
            return _arithmetic(value, variable, self._names[variable])
        (buffer,) = buffers
        return f"{(self._names.get(buffer) or buffer.name_hint or 'buffer').lower()}_{self._names[variable]}"

    def _innermost(self, op: Operation) -> SSAValue | None:
        """Of the variables that an operation computes with, the one that was named last."""
        for name in islice(self._names, len(self._places), None):
            self._places[name] = len(self._places)
        return max(filter(None, map(self._variable, op.operands)), key=self._places.__getitem__, default=None)

    def _variable(self, value: SSAValue) -> SSAValue | None:
        if value in self._names:
            return self._variables.get(value, value)
        return self._innermost(value.owner) if _is_arithmetic(value.owner) else None

    def _addressed(self, value: SSAValue) -> frozenset[SSAValue]:
        """The buffers in whose addresses a value takes part."""
        found = self._buffers.get(value)
        if found is None:
            found = self._buffers[value] = frozenset[SSAValue]().union(*map(self._addressed_by, value.uses))
        return found

    def _addressed_by(self, use: Use) -> Iterable[SSAValue]:
        user = use.operation
        if _is_arithmetic(user):
            return self._addressed(user.results[0])
        # Indices follow the buffer that they are of; a value that is stored stands before it.
        before = reversed(user.operands[: use.index])
        return islice((operand for operand in before if isinstance(operand.type, MemRefType)), 1)


def _is_arithmetic(owner: Operation | Block) -> TypeGuard[Operation]:
    """Whether something is an operation of arith that gives an index."""
    return isinstance(owner, Operation) and owner.name.startswith("arith.") and owner.result_types == (IndexType(),)


def _arithmetic(value: SSAValue, variable: SSAValue, name: str) -> str:
    """`variable` and what is done to it; `..._offset` where it is added to something, or much is done."""
    suffixes: list[str] = []
    while value is not variable:
        suffix = _suffix(value.owner)
        if suffix is None or len(suffixes) == _MOST_SUFFIXES:
            return f"{name}_offset"
        suffixes.append(suffix)
        assert isinstance(value.owner, Operation)
        value = value.owner.operands[0]
    return name + "".join(reversed(suffixes))


def _suffix(owner: Operation | Block) -> str | None:
    """What an operation with a constant does to its first operand."""
    word = _SUFFIXES.get(type(owner)) if isinstance(owner, Operation) else None
    if word is None or not isinstance(owner, Operation):
        return None
    constant = constant_integer(owner.operands[1])
    return None if constant is None or constant < 0 else f"_{word}{constant}"
