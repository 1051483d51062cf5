"""The compiler behind the execution provider: a process that answers the requests of `provider/compiler_client.h`.

| request | what follows it | answer, behind messages for the log and an error |
|---|---|---|
| `options` | options | nothing |
| `partition` | a folder, options | the parts that are taken: model, if calls may need it, libraries, weights, nodes |
| `compile` | a folder, a model in it, whether shapes are compiled alone, inputs, calls, options | libraries, weights, \
whether so from now on |

A message is its length, eight bytes, and fields of text that end with a zero byte each; options are names and values.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx import ModelProto

from treadle.api import compile as compile_model
from treadle.backends.c.open_artifact import LIBRARY
from treadle.backends.c.static_library import bound_library
from treadle.errors import TreadleError
from treadle.onnxruntime.partition import Graph, Part
from treadle.onnxruntime.plans import Form, Plan, compile_widest, static_plan
from treadle.plugins.loader import load_plugins
from treadle.schedules.search.database_files import open_database
from treadle.shapes.dim import Dim, parse_dim
from treadle.target.options import parse_construction, parse_convolution, parse_precision, parse_weights

OPTIONS = ("precision", "weights", "convolution", "database", "construct", "shapes")
"""The provider's options beside `threads`: arguments of `treadle.compile`, and ranges of open dimensions."""
_INFO, _WARNING = 1, 2
_IDLE_SECONDS = 60.0
_LENGTH = struct.Struct("<Q")


class _Fields:
    """The fields of a request, in order."""

    def __init__(self, data: bytes):
        self._fields = iter(data.decode(errors="surrogateescape").split("\0")[:-1])

    def text(self) -> str:
        return next(self._fields)

    def number(self) -> int:
        return int(self.text())

    def options(self) -> dict[str, str]:
        """All that is left."""
        return dict(zip(self._fields, self._fields, strict=True))


def check_options(options: Mapping[str, str]) -> None:
    """TreadleError for a name that there is not, and for a value that is none of an option's."""
    for name in options:
        if name not in OPTIONS:
            raise TreadleError(f"there is no option '{name}'", "TreadleExecutionProvider", ("threads", *OPTIONS))
    parse_precision(options.get("precision", "f32"))
    parse_weights(options.get("weights"))
    parse_convolution(options.get("convolution"), "cpu")
    parse_construction(options.get("construct"))
    if "database" in options:
        open_database(Path(options["database"]).resolve())
    _ranges(options)


@dataclass
class _Answer:
    """Messages for ONNX Runtime's log, each with its severity, and the fields behind them."""

    messages: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    fields: list[object] = field(default_factory=list[object])
    error: str = ""

    def log(self, severity: int, text: str) -> None:
        self.messages.append((severity, f"Treadle: {text}"))

    def __bytes__(self) -> bytes:
        shown = [each for message in self.messages for each in message]
        words = [len(self.messages), *shown, self.error, *([] if self.error else self.fields)]
        return b"".join(str(word).replace("\0", " ").encode(errors="surrogateescape") + b"\0" for word in words)


@dataclass(frozen=True)
class Compiled:
    """What a model was compiled to: paths of the kernels and of the functions that call them, and of the weights."""

    kernels: Path
    functions: Path
    weights: Path | None

    @property
    def fields(self) -> list[object]:
        return [self.kernels, self.functions, self.weights or ""]


def compiled(model: Path, plan: Plan, options: Mapping[str, str]) -> Compiled:
    """Compiles a model, or takes it from the cache; TreadleError, too, for what the provider could not call."""
    arguments: dict[str, Any] = {name: value for name, value in options.items() if name != "shapes"}
    with compile_model(model, shapes=plan.shapes, threads=1, **arguments) as made:
        functions, weights = bound_library(made.artifact)
        return Compiled(made.artifact.folder / LIBRARY, functions, weights)


def partition(folder: Path, options: Mapping[str, str], answer: _Answer) -> None:
    """Finds the parts of the graph in a folder that are compiled, compiles those of known shapes, and leaves what
    cannot be compiled after all to others, with a message."""
    ranges = _ranges(options)
    parent = folder / "parent.onnx"
    if parent.exists():
        alone = Graph(folder, parent.name)
        if not alone.refused(alone.reports()):
            return answer.fields.append(0)  # it is taken as a whole, with this graph
    graph = Graph(folder)
    reports = graph.reports()
    for text in graph.refused(reports):
        answer.log(_INFO, f"left to other providers: {text}")
    taken = {position for position, report in reports.items() if report.supported}
    made: dict[tuple[int, ...], Compiled | None] = {}
    while failed := _failed(graph, graph.parts(taken, reports), ranges, options, made, answer):
        taken -= failed
    parts = graph.parts(taken, reports)
    answer.fields.append(len(parts))
    for part in parts:
        (folder / _file(part)).write_bytes(part.model.SerializeToString())  # others may have had its name
        found = made[part.positions]
        libraries = ["", "", ""] if found is None else found.fields
        answer.fields += ["" if part.is_static else _file(part), *libraries, len(part.positions), *part.positions]


def _failed(
    graph: Graph, parts: Sequence[Part], ranges: Mapping[str, Dim], options: Mapping[str, str],
    made: dict[tuple[int, ...], Compiled | None], answer: _Answer,
) -> set[int]:  # fmt: skip
    """Compiles the parts that are not in `made` yet, None for one whose shapes are open. The nodes of the first that
    fails which are not to be taken: the one that the error names, else all of them."""
    for part in parts:
        if part.positions in made:
            continue
        path = graph.folder / _file(part)
        path.write_bytes(part.model.SerializeToString())
        try:
            plan = _plan(part.model, ranges)
            made[part.positions] = None if plan is None else compiled(path, plan, options)
        except TreadleError as error:
            named = {n for n in part.positions if str(error.where).startswith(graph.where(n))}
            count = len(named or part.positions)
            answer.log(_WARNING, f"{count} nodes are left to other providers, which cannot be compiled: {error}")
            return named or set(part.positions)
    return set()


def _file(part: Part) -> str:
    return f"part-{part.positions[0]}-{len(part.positions)}.onnx"


def _plan(model: ModelProto, ranges: Mapping[str, Dim]) -> Plan | None:
    """The shapes of the inputs, with ranges for open dimensions; None if some have none."""
    shapes: dict[str, tuple[int | Dim | str, ...]] = {}
    for entry in model.graph.input:
        tensor = entry.type.tensor_type
        extents = [d.dim_value if d.HasField("dim_value") else ranges.get(d.dim_param) for d in tensor.shape.dim]
        if not tensor.HasField("shape") or None in extents:
            return None
        shapes[entry.name] = tuple(extent for extent in extents if extent is not None)
    return Plan(shapes)


def _ranges(options: Mapping[str, str]) -> dict[str, Dim]:
    """The option `shapes`, such as `batch=1..8 seq=1..512`."""
    parts = (part.partition("=") for part in options.get("shapes", "").split())
    return {name: parse_dim(extents, name) for name, _, extents in parts}


def compile_calls(
    model: Path, names: Sequence[str], calls: Sequence[Sequence[tuple[int, ...]]], each_alone: bool,
    options: Mapping[str, str], answer: _Answer,
) -> None:  # fmt: skip
    """Compiles for the last of these calls, and for others beside it where shapes have changed.

    names: of the inputs whose shapes the calls have
    """
    graph = Graph(model.parent, model.name).model.graph
    inputs = {entry.name: entry for entry in graph.input}
    labels = {
        name: [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in e.type.tensor_type.shape.dim]
        for name, e in inputs.items()
    }
    forms: list[Form] = [{n: s for n, s in zip(names, call, strict=True) if n in inputs} for call in calls]

    def make(plan: Plan) -> Compiled:
        return compiled(model, plan, options)

    if each_alone:
        found, why_alone = make(static_plan(forms[-1])), None
    else:
        found, why_alone = compile_widest(forms, labels, make)
    if why_alone is not None:
        answer.log(_WARNING, why_alone)
    answer.fields += [*found.fields, int(each_alone or why_alone is not None)]


def answered(data: bytes) -> bytes:
    """The answer to a request."""
    fields, answer = _Fields(data), _Answer()
    try:
        kind = fields.text()
        if kind == "options":
            check_options(fields.options())
        elif kind == "partition":
            folder = Path(fields.text())
            partition(folder, fields.options(), answer)
        else:
            folder = Path(fields.text())
            model, each_alone = folder / fields.text(), fields.text() == "1"
            names = [fields.text() for _ in range(fields.number())]
            calls = [[_shape(fields) for _ in names] for _ in range(fields.number())]
            compile_calls(model, names, calls, each_alone, fields.options(), answer)
    except TreadleError as error:
        answer.error = f"Treadle: {error}"
    except Exception as error:  # whatever it is, the session has to know
        answer.error = f"Treadle: {type(error).__name__}: {error}"
    return bytes(answer)


def _shape(fields: _Fields) -> tuple[int, ...]:
    return tuple(fields.number() for _ in range(fields.number()))


def _requests(connection: socket.socket) -> Iterator[bytes]:
    """The requests until the other end closes, or asks nothing for a while."""
    connection.settimeout(_IDLE_SECONDS)
    while len(head := _received(connection, _LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        yield _received(connection, size)


def _received(connection: socket.socket, size: int) -> bytes:
    """So many bytes; fewer at the end."""
    data = bytearray()
    try:
        while len(data) < size and (chunk := connection.recv(size - len(data))):
            data += chunk
    except TimeoutError:
        return b""
    return bytes(data)


def serve(connection: socket.socket, answer: Callable[[bytes], bytes] = answered) -> None:
    """Answers requests until there are no more."""
    for request in _requests(connection):
        data = answer(request)
        connection.settimeout(None)
        connection.sendall(_LENGTH.pack(len(data)) + data)
        connection.settimeout(_IDLE_SECONDS)


def main() -> None:
    """The process: its standard input is the socket, and what is printed goes to the standard error output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host's: it decides whether it ends
    connection = socket.socket(fileno=os.dup(0))
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    load_plugins()
    serve(connection)
