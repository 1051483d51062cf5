"""A database of tuned schedules: a folder of text files, one entry for each group and kind of hardware.

    tuned/intel-xeon-processor-2-cores/matmul_add_relu-84d92526536f.mlir     the group with its schedule, and its times
    tuned/intel-xeon-processor-2-cores/matmul_add_relu-84d92526536f.jsonl    every candidate that was measured
    tuned/intel-xeon-processor-2-cores/target.txt                            the target of both

A group is found by the digest in the file's name, which does not depend on the model that the group came from.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FloatAttr, ModuleOp, StringAttr, SymbolRefAttr, f64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser

from treadle.dialects.dispatch_tree import Prediction
from treadle.dialects.graph import FusedOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import DispatchAttr, ProgramOp, UseAttr
from treadle.errors import TOO_DEEP, TreadleError
from treadle.schedules.search.database_files import ACCEPTED, MOST_ENTRY_BYTES, DatabaseFiles, slug
from treadle.schedules.search.rejections import Ledger
from treadle.schedules.search.trials import Trial, read_ledgers, read_trials, real, seconds_of, trial_lines
from treadle.schedules.work.gpu_work import AnyWork
from treadle.shapes.decision_tree import Tree
from treadle.support.files import read_regular
from treadle.target import Target

# Files to which lines are appended, and which hold whole lines whatever happens: a killed writer, a full disk.

_RESERVED = 1 << 16
"""Bytes: some hundred lines, more than are appended at once."""
_ACCEPTED = "a database that can be written, with room on its disk"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _without_name(folder: Path) -> int:
    """Opens a new file in a folder that has no name; where the file system has none, one whose name is taken away."""
    try:
        return os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    path = folder / f".treadle-room-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    path.unlink()
    return descriptor


class Room:
    """Some room on a folder's disk, kept by a file without a name: it is gone with its process, however that ends.

    TreadleError if there is not even that.
    """

    def __init__(self, folder: Path):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = _without_name(folder)
            _write_all(self._descriptor, os.urandom(_RESERVED))  # a file system may keep no room for zeros
        except OSError as error:
            raise _cannot_write(folder, error) from error

    def release(self) -> bool:
        """Gives the room to others; whether there was some."""
        if self._descriptor is None:
            return False
        os.close(self._descriptor)
        self._descriptor = None
        return True

    def __enter__(self) -> Room:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def append_lines(path: Path, text: str, room: Room | None = None) -> None:
    """Appends lines in one write, after cutting off what a killed writer left of a line.

    On a full disk the room that was kept takes them. Either way TreadleError says that it is full; without room, the
    file stays as it was.
    """
    assert text.endswith("\n")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b", buffering=0, opener=_regular) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _append(file.fileno(), text.encode(), room)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _regular(path: str, flags: int) -> int:
    """Opens a file that is none but a regular one, without waiting for a FIFO's other end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return descriptor


def _append(descriptor: int, data: bytes, room: Room | None) -> None:
    end = _whole_lines(descriptor)
    try:
        _write_all(descriptor, data)
        return
    except OSError as error:
        os.ftruncate(descriptor, end)
        if error.errno not in _FULL or room is None or not room.release():
            raise
        full = error
    try:
        _write_all(descriptor, data)
    except OSError:
        os.ftruncate(descriptor, end)
        raise
    raise full


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes all of it, to the disk: some file systems find out only then that they are full."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def _whole_lines(descriptor: int) -> int:
    """The length of the file's whole lines, to which it is cut."""
    size = os.fstat(descriptor).st_size
    end = os.pread(descriptor, size, 0).rfind(b"\n") + 1
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def _cannot_write(path: Path, error: OSError) -> TreadleError:
    return TreadleError(f"cannot write: {error.strerror or error}", path, _ACCEPTED)


RECORD = "schedule.record"
PREDICTED = "predicted"
"""How times came about that no device was asked for."""
_OPTIONAL = ("in_model", "how")
"""Fields of a record that an entry may lack."""
TARGET = "target.txt"
"""The file of a hardware's folder that has the text of its target."""
_LABEL_LENGTH = 60


@dataclass(frozen=True)
class Record:
    """How an entry was measured: medians in microseconds, of one run that timed both schedules.

    target, hardware: what it was tuned for, and where; compiler: what compiled the kernels
    sources: the fingerprint of the sources that wrote them; date: ISO 8601
    in_model: what timing it in the whole model said, of a schedule that was kept or dropped; empty where it was not
    how: of a GPU's kernels, the device on which they were timed, or `PREDICTED`
    """

    us: float
    default_us: float
    target: str
    hardware: str
    compiler: str
    sources: str
    date: str
    in_model: str = ""
    how: str = ""


@dataclass(frozen=True)
class Dispatched:
    """Several schedules of a group of a ranged model, and the tree over extents that says which a call takes.

    predicted: what each of them takes at some points, and the best that was measured there
    """

    tree: Tree[int]
    kernels: tuple[UseAttr | ProgramOp, ...]
    predicted: tuple[Prediction, ...] = ()


Schedule: TypeAlias = UseAttr | ProgramOp | Dispatched


@dataclass(frozen=True)
class Entry:
    """A group's best known schedule: a template with its choices, or a program all of whose decisions are taken, or
    several of these.

    path: the file that it was read from
    symbols: the ranges that it was tuned for, as texts; none for a static group
    """

    path: Path
    schedule: Schedule
    record: Record
    symbols: tuple[str, ...] = ()


class Database(DatabaseFiles):
    """The entries of a folder. Reading one that is damaged raises TreadleError."""

    def find(self, digest: str, hardware: str) -> Entry | None:
        """The entry of a group; None if there is none."""
        path = self.path_of(digest, hardware)
        return None if path is None else read_entry(path)

    def write(self, module: ModuleOp, digest: str, schedule: Schedule, record: Record) -> Path:
        """Writes a group's schedule, atomically; the module is that of `group_program`.

        A program, all of whose decisions are taken, stands beside the function, and the group names it.
        """
        tuned = module.clone()
        (fused,) = [op for op in tuned.walk() if isinstance(op, FusedOp)]
        if isinstance(schedule, Dispatched):
            uses = [_placed(tuned, kernel, f"_{n}") for n, kernel in enumerate(schedule.kernels)]
            fused.schedule = DispatchAttr.get(schedule.tree, uses, schedule.predicted)
        else:
            fused.schedule = _placed(tuned, schedule)
        tuned.attributes[RECORD] = _attribute(record)
        folder = self.folder / slug(record.hardware)
        old = self.path_of(digest, record.hardware)
        path = folder / f"{slug(fused.label.data)[:_LABEL_LENGTH]}-{digest}.mlir" if old is None else old
        _write(path, str(tuned) + "\n")
        return path

    def add_trials(
        self,
        digest: str,
        label: str,
        hardware: str,
        trials: Sequence[Trial],
        room: Room | None = None,
        programs: Mapping[str, str] | None = None,
        ledgers: Mapping[str, Ledger] | None = None,
    ) -> None:
        """Appends measured candidates, a line each: all of them or none.

        room: for the last ones on a full disk; programs: the texts of those that are no template's
        ledgers: what was rejected when these were drawn, by the names of the draws
        """
        found = self.path_of(digest, hardware, ".jsonl")
        name = f"{slug(label)[:_LABEL_LENGTH]}-{digest}.jsonl"
        path = self.folder / slug(hardware) / name if found is None else found
        lines = trial_lines(path, trials, programs or {}, ledgers)
        if lines:
            append_lines(path, lines, room)

    def trials(self, digest: str, hardware: str, programs: Mapping[str, str] | None = None) -> list[Trial]:
        """Every candidate that was measured; with `programs`, without those whose program had another text."""
        path = self.path_of(digest, hardware, ".jsonl")
        return [] if path is None else list(read_trials(path, programs))

    def ledgers(self, digest: str, hardware: str, programs: Mapping[str, str] | None = None) -> dict[str, Ledger]:
        """What searches have rejected, by the names of their draws; `programs` as for `trials`."""
        path = self.path_of(digest, hardware, ".jsonl")
        return {} if path is None else read_ledgers(path, programs)

    def keep_target(self, hardware: str, target: Target) -> None:
        """Writes beside the records what they are records of, so that another machine can compare models on them."""
        path = self.folder / slug(hardware) / TARGET
        if not path.exists():
            _write(path, f"{target}\n")

    def target(self, hardware: str) -> Target | None:
        """The target of a folder's records; None where none is written. TreadleError for what is none."""
        path = self.folder / slug(hardware) / TARGET
        return Target.parse(_text(path).strip()) if path.exists() else None

    def measured_works(self, hardware: str) -> dict[str, list[tuple[AnyWork, float]]]:
        """The works and seconds (see `seconds_of`) of all measured candidates, by the names of their groups' files."""
        paths = sorted((self.folder / slug(hardware)).glob("*.jsonl"))
        return {path.stem: _timed_works(path) for path in paths}


def read_entry(path: Path) -> Entry:
    """Reads an entry; TreadleError that names the file if it is none."""
    module = read_module(path)
    groups = [op for op in module.walk() if isinstance(op, FusedOp)]
    record = module.attributes.get(RECORD)
    schedule = _schedule(module, groups[0]) if len(groups) == 1 else None
    if not isinstance(record, DictionaryAttr) or schedule is None:
        raise TreadleError(f"has no group with a schedule and a {RECORD}", path, ACCEPTED)
    return Entry(path, schedule, _record(record, path), _symbols(module))


def read_module(path: Path) -> ModuleOp:
    """The module of an entry; TreadleError that names the file if it holds none."""
    text = _text(path)
    try:
        module = Parser(treadle_context(), text, str(path)).parse_module()
        module.verify()
    except RecursionError as error:
        raise TreadleError("cannot read: it nests too deeply", path, TOO_DEEP) from error
    except Exception as error:  # what attributes and operations raise of values that nobody printed
        lines = [line for line in str(error).splitlines() if line.strip()] or ["no IR"]
        raise TreadleError(f"cannot read: {lines[-1].strip()}", path, ACCEPTED) from error
    return module


def _text(path: Path) -> str:
    try:
        return read_regular(path, MOST_ENTRY_BYTES, ACCEPTED).decode()
    except UnicodeDecodeError as error:
        raise TreadleError("cannot read: it is no text in UTF-8", path, ACCEPTED) from error


def _timed_works(path: Path) -> list[tuple[AnyWork, float]]:
    """The works and seconds of a group's candidates; none, and a warning on stderr, for what is no regular file."""
    try:
        timed = list(seconds_of(read_trials(path)))
    except TreadleError as error:
        print(f"warning: {error}", file=sys.stderr)
        return []
    return [(trial.work, seconds) for trial, seconds in timed if trial.work is not None and seconds]


def _placed(module: ModuleOp, schedule: UseAttr | ProgramOp, suffix: str = "") -> UseAttr | SymbolRefAttr:
    """A decision, or the symbol of a program that is put before a module's function, under its name and a suffix."""
    if isinstance(schedule, UseAttr):
        return schedule
    copy = schedule.clone()
    copy.sym_name = StringAttr(schedule.sym_name.data + suffix)
    module.body.block.insert_ops_before([copy], _first(module))
    return SymbolRefAttr(copy.sym_name.data)


def _schedule(module: ModuleOp, fused: FusedOp) -> Schedule | None:
    """What schedules the group: attributes, or the programs of the module that it names."""
    if not isinstance(fused.schedule, DispatchAttr):
        return _one(module, fused.schedule)
    kernels = [_one(module, each) for each in fused.schedule.alternatives.data]
    found = tuple(each for each in kernels if each is not None)
    complete = len(found) == len(kernels)
    return Dispatched(fused.schedule.tree.data, found, fused.schedule.predicted.data) if complete else None


def _one(module: ModuleOp, schedule: Attribute | None) -> UseAttr | ProgramOp | None:
    if not isinstance(schedule, SymbolRefAttr):
        return schedule if isinstance(schedule, UseAttr) else None
    programs = [op for op in module.body.block.ops if isinstance(op, ProgramOp)]
    return next((each for each in programs if each.sym_name.data == schedule.string_value()), None)


def _symbols(module: ModuleOp) -> tuple[str, ...]:
    """The ranges of the module's symbols."""
    given = [op.attributes.get("symbols") for op in module.body.block.ops if isinstance(op, FuncOp)]
    texts = given[0].data if given and isinstance(given[0], ArrayAttr) else ()
    return tuple(text.data for text in texts if isinstance(text, StringAttr))


def _first(module: ModuleOp) -> Operation:
    first = module.body.block.first_op
    assert first is not None, "a group's module has a function"
    return first


def _attribute(record: Record) -> DictionaryAttr:
    values: dict[str, Any] = {}
    for name, value in asdict(record).items():
        if name in _OPTIONAL and not value:
            continue
        values[name] = FloatAttr(value, f64) if isinstance(value, float) else StringAttr(value)
    return DictionaryAttr(values)


def _record(attribute: DictionaryAttr, path: Path) -> Record:
    values: dict[str, Any] = dict.fromkeys(_OPTIONAL, "")
    for name, value in attribute.data.items():
        values[name] = value.value.data if isinstance(value, FloatAttr) else getattr(value, "data", None)
    types = {name: float if name in ("us", "default_us") else str for name in Record.__dataclass_fields__}
    if set(values) != set(types) or any(not isinstance(values[name], kind) for name, kind in types.items()):
        raise TreadleError(f"its {RECORD} is not complete", path, ", ".join(types))
    for name in ("us", "default_us"):
        try:
            real(values[name])
        except ValueError as error:
            raise TreadleError(f"{name} of its {RECORD} is damaged: {error}", path, "microseconds") from error
    return Record(**values)


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
