"""The Python text of a kernel while it is written: names, lines, and the checks of accesses."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import prod
from typing import NoReturn, cast

import numpy as np
from xdsl.dialects.builtin import MemRefType, NoneAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from treadle.backends.reference.kernel_launch import is_of_launch
from treadle.backends.reference.kernel_scalars import literal
from treadle.dialects import loop, task
from treadle.errors import TreadleError


class KernelText:
    """Lines of Python, and what their names stand for. All names in the text are made here; none comes from the IR.

    names: of values; namespace: of objects that are no text; ops: the operations that messages name, by their numbers
    """

    def __init__(self, name: str, body: Block, outputs: int):
        self.kernel = name
        self.lines: list[str] = []
        self.names: dict[SSAValue, str] = {arg: f"v{n}" for n, arg in enumerate(body.args)}
        self.read_only = {arg for arg in body.args[: -2 - outputs] if not is_of_launch(arg.type)}
        self.namespace: dict[str, object] = {"np": np, "fault": self._fault, "unset": self.unset}
        self.ops: list[Operation] = []
        self._indent = 1
        self._serial = len(self.names)

    def describe(self, number: int) -> str:
        """An operation and the buffer that it touches, for messages."""
        op = self.ops[number]
        buffers = [v for v in (*op.operands, *op.results) if isinstance(v.type, MemRefType)]
        return " ".join([op.name, *(f"of %{b.name_hint or '?'}: {b.type}" for b in buffers)])

    @contextmanager
    def indented(self) -> Generator[None]:
        """Lines that are written inside belong to the statement above."""
        self._indent += 1
        yield
        self._indent -= 1

    def check_writable(self, op: Operation, buffer: SSAValue) -> None:
        """TreadleError for a store to a buffer that is only read."""
        if buffer in self.read_only:
            raise TreadleError(f"{op.name} to %{buffer.name_hint or '?'}, an input", f"kernel '{self.kernel}'")

    def checked_lanes(
        self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue], active: str, stride: int = 1
    ) -> str:
        """Writes the check of the active lanes, none of which may be; gives the flat offset of lane 0."""
        shape = self.shape(op, cast("MemRefType[Attribute]", buffer.type))
        names = [self.names[i] for i in indices]
        checks = [f"0 <= {i} < {extent}" for i, extent in zip(names[:-1], shape[:-1], strict=True)]
        checks += [f"0 <= {names[-1]} + {active}[{end}] * {stride} < {shape[-1]}" for end in (0, -1)]
        self.line(f"if {active} and not ({' and '.join(checks)}): fault({self.arguments(op, indices)})")
        return _offset(names, shape)

    def checked(self, op: Operation, buffer: SSAValue, indices: Sequence[SSAValue], lanes: str = "1") -> str:
        """Writes the check of an access to `lanes` elements of the last dimension; gives its flat offset."""
        shape = self.shape(op, cast("MemRefType[Attribute]", buffer.type))
        names = [self.names[i] for i in indices]
        extents = zip(names, shape, strict=True)
        checks = [f"0 <= {i} < {extent}" for i, extent in extents if literal(i) not in range(extent)]
        if lanes != "1":
            checks.append(f"{names[-1]} + {lanes} <= {shape[-1]}")
        if checks:
            self.line(f"if not ({' and '.join(checks)}): fault({self.arguments(op, indices)})")
        return _offset(names, shape)

    def offset_of(self, buffer: SSAValue, indices: Sequence[SSAValue]) -> str:
        """The flat offset of an element that was checked before."""
        return _offset([self.names[i] for i in indices], cast("MemRefType[Attribute]", buffer.type).get_shape())

    def shape(self, op: Operation, type: MemRefType[Attribute]) -> tuple[int, ...]:
        """A buffer's extents; TreadleError for one that is not row-major with static extents."""
        if not type.has_static_shape() or not isinstance(type.layout, NoneAttr | loop.SwizzleAttr):
            where = f"kernel '{self.kernel}'"
            raise TreadleError(f"{op.name} of {type}", where, "row-major buffers of static extents")
        return type.get_shape()

    def arguments(self, op: Operation, indices: Sequence[SSAValue]) -> str:
        """What `fault` and `unset` are called with: the operation's number, and the indices."""
        return ", ".join([str(self.number_of(op)), *(self.names[i] for i in indices)])

    def _fault(self, number: int, *indices: int) -> NoReturn:
        op = self.ops[number]
        accepted = "indices inside the buffer"
        if isinstance(op, task.ForOp):
            accepted = f"a worker of {op.mapping.data}: 0 to {op.mapping.data.workers - 1}"
        raise TreadleError(f"{self.describe(number)} at {list(indices)}", f"kernel '{self.kernel}'", accepted)

    def unset(self, number: int, *indices: int) -> NoReturn:
        """Raises TreadleError: a thread reads an element that was never stored."""
        message = f"{self.describe(number)} at {list(indices)} reads what nobody has stored"
        raise TreadleError(message, f"kernel '{self.kernel}'", "a store, and a barrier if another thread makes it")

    def number_of(self, op: Operation) -> int:
        """The number of the operation that is being written, by which messages name it."""
        if not self.ops or self.ops[-1] is not op:
            self.ops.append(op)
        return len(self.ops) - 1

    def assign(self, targets: Sequence[str], values: Sequence[str]) -> None:
        """Writes an assignment of several values at once."""
        if targets:
            self.line(f"{', '.join(targets)} = {', '.join(values)}")

    def bind(self, value: object) -> str:
        """A name in the text for an object that is no text."""
        name = f"g{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def define(self, value: SSAValue) -> str:
        """A new name for a value."""
        self.names[value] = self.fresh_name()
        return self.names[value]

    def fresh_name(self) -> str:
        """A name that nothing has yet."""
        self._serial += 1
        return f"v{self._serial}"

    def line(self, text: str) -> None:
        """Writes a line at the current indentation."""
        self.lines.append("  " * (self._indent - 1) + text)


def _offset(names: Sequence[str], shape: Sequence[int]) -> str:
    """The flat offset of an element of a row-major buffer."""
    start, terms = 0, list[str]()
    for n, i in enumerate(names):
        known, stride = literal(i), prod(shape[n + 1 :])
        if known is not None:
            start += known * stride
        else:
            terms.append(i if stride == 1 else f"{i} * {stride}")
    return " + ".join([*terms, str(start)] if start or not terms else terms)


__all__ = ["KernelText"]
