"""A database of tuned schedules: a folder of text files, one entry for each group and kind of hardware.

    tuned/intel-xeon-processor-2-cores/matmul_add_relu-84d92526536f.mlir     the group with its schedule, and its times
    tuned/intel-xeon-processor-2-cores/matmul_add_relu-84d92526536f.jsonl    every candidate that was measured

A group is found by the digest in the file's name, which does not depend on the model that the group came from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, ModuleOp, StringAttr, f64
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.dialects.graph import FusedOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.errors import TreadleError
from treadle.schedules.search.appended_lines import Room, append_lines
from treadle.schedules.search.database_files import DatabaseFiles, slug

RECORD = "schedule.record"
_LABEL_LENGTH = 60
_ACCEPTED = "a file that `treadle tune` wrote"


@dataclass(frozen=True)
class Record:
    """How an entry was measured: medians in microseconds, of one run that timed both schedules.

    target, hardware: what it was tuned for, and where; compiler: what compiled the kernels
    sources: the fingerprint of the package that built them; date: ISO 8601
    """

    us: float
    default_us: float
    target: str
    hardware: str
    compiler: str
    sources: str
    date: str


@dataclass(frozen=True)
class Entry:
    """A group's best known schedule. `path` is the file that it was read from."""

    path: Path
    use: UseAttr
    record: Record


@dataclass(frozen=True)
class Trial:
    """A candidate that was tried: its median time in microseconds, or the reason why there is none.

    round: 0 of the default schedule, then 1, 2, ...
    reference_us: the median of the best one so far, timed together with this one; predicted_us: the cost model's
    """

    template: str
    choices: Mapping[str, Choice]
    round: int = 0
    us: float | None = None
    reference_us: float | None = None
    predicted_us: float | None = None
    error: str | None = None


class Database(DatabaseFiles):
    """The entries of a folder. Reading one that is damaged raises TreadleError."""

    def find(self, digest: str, hardware: str) -> Entry | None:
        """The entry of a group; None if there is none."""
        path = self.path_of(digest, hardware)
        return None if path is None else read_entry(path)

    def write(self, module: ModuleOp, digest: str, use: UseAttr, record: Record) -> Path:
        """Writes a group's schedule, atomically; the program is that of `group_program`."""
        tuned = module.clone()
        (fused,) = [op for op in tuned.walk() if isinstance(op, FusedOp)]
        fused.schedule = use
        tuned.attributes[RECORD] = _attribute(record)
        folder = self.folder / slug(record.hardware)
        old = self.path_of(digest, record.hardware)
        path = folder / f"{slug(fused.label.data)[:_LABEL_LENGTH]}-{digest}.mlir" if old is None else old
        _write(path, str(tuned) + "\n")
        return path

    def add_trials(
        self, digest: str, label: str, hardware: str, trials: Sequence[Trial], room: Room | None = None
    ) -> None:
        """Appends measured candidates, a line each: all of them or none. `room` is for the last ones on a full disk."""
        found = self.path_of(digest, hardware, ".jsonl")
        name = f"{slug(label)[:_LABEL_LENGTH]}-{digest}.jsonl"
        path = self.folder / slug(hardware) / name if found is None else found
        lines = "".join(f"{json.dumps(_without_none(asdict(trial)))}\n" for trial in trials)
        if lines:
            append_lines(path, lines, room)

    def trials(self, digest: str, hardware: str) -> list[Trial]:
        """Every candidate that was measured, without lines that are incomplete because their writer was killed."""
        path = self.path_of(digest, hardware, ".jsonl")
        return [] if path is None else list(_read_trials(path))


def read_entry(path: Path) -> Entry:
    """Reads an entry; TreadleError that names the file if it is none."""
    try:
        module = Parser(treadle_context(), path.read_text(), str(path)).parse_module()
        module.verify()
    except OSError as error:
        raise TreadleError(f"cannot read: {error.strerror}", path, _ACCEPTED) from error
    except (ParseError, VerifyException, UnicodeDecodeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or ["no IR"]
        raise TreadleError(f"cannot read: {lines[-1].strip()}", path, _ACCEPTED) from error
    groups = [op for op in module.walk() if isinstance(op, FusedOp)]
    record = module.attributes.get(RECORD)
    use = groups[0].schedule if len(groups) == 1 else None
    if not isinstance(record, DictionaryAttr) or not isinstance(use, UseAttr):
        raise TreadleError(f"has no group with a schedule and a {RECORD}", path, _ACCEPTED)
    return Entry(path, use, _record(record, path))


def _attribute(record: Record) -> DictionaryAttr:
    values: dict[str, Any] = {}
    for name, value in asdict(record).items():
        values[name] = FloatAttr(value, f64) if isinstance(value, float) else StringAttr(value)
    return DictionaryAttr(values)


def _record(attribute: DictionaryAttr, path: Path) -> Record:
    values: dict[str, Any] = {}
    for name, value in attribute.data.items():
        values[name] = value.value.data if isinstance(value, FloatAttr) else getattr(value, "data", None)
    types = {name: float if name in ("us", "default_us") else str for name in Record.__dataclass_fields__}
    if set(values) != set(types) or any(not isinstance(values[name], kind) for name, kind in types.items()):
        raise TreadleError(f"its {RECORD} is not complete", path, ", ".join(types))
    return Record(**values)


def _read_trials(path: Path) -> Iterator[Trial]:
    for line in path.read_text(errors="replace").splitlines():
        try:
            yield _trial(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue


def _trial(found: Mapping[str, Any]) -> Trial:
    """A trial as JSON says it; ValueError, KeyError or the like for anything else."""
    choices = {name: _choice(value) for name, value in found["choices"].items()}
    times = (found.get(name) for name in ("us", "reference_us", "predicted_us"))
    us, reference, predicted = (None if time is None else float(time) for time in times)
    error = found.get("error")
    return Trial(
        str(found["template"]), choices, int(found["round"]), us, reference, predicted,
        None if error is None else str(error),
    )  # fmt: skip


def _choice(value: object) -> Choice:
    """The value of a knob in JSON; ValueError for anything else."""
    if isinstance(value, int | str):
        return value
    numbers = cast("list[object]", value) if isinstance(value, list) else []
    if not numbers or not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"{value!r} is no choice")
    return tuple(cast("list[int]", numbers))


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _write(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            scratch.write_text(text)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise TreadleError(f"cannot write: {error.strerror}", path, "a database that can be written") from error


__all__ = ["Database", "Entry", "Record", "Trial", "read_entry"]
