"""What launches did and when: recorded while a model is called, and written as a Chrome trace, which Perfetto opens."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import nextafter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from treadle.errors import TreadleError
from treadle.support.progress import Progress, no_progress

EVENTS = 1 << 16
"""Places of a ring by default: 2.6 MB. A launch takes up to four a thread, and one."""

_NANO = 1_000_000_000


def now() -> int:
    """Nanoseconds of the clock by which pools stamp their events."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def most_events(threads: int) -> int:
    """Events of the largest launch of a pool (`SHARES` of runtime/pool.c)."""
    return 4 * threads + 1


@dataclass(frozen=True)
class Span:
    """Something that took from `start` to `end`, in nanoseconds."""

    name: str
    start: int
    end: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.start) / _NANO


@dataclass(frozen=True)
class Share:
    """A part of a launch that one worker computed: `worker` 0 is the thread that called."""

    worker: int
    start: int
    end: int


@dataclass(frozen=True)
class TracedLaunch:
    """A launch of a kernel, and who computed which part of it; nanoseconds.

    call:   the number of the call, from 0
    nodes:  the nodes of the model that it computes, as text; empty where they are not known
    shares: in the order of time; none of a launch on a GPU
    workers: how many there were
    """

    call: int
    kernel: str
    nodes: str
    start: int
    end: int
    shares: tuple[Share, ...] = ()
    workers: int = 1

    @property
    def seconds(self) -> float:
        """From its start to the end of its last share."""
        return (self.end - self.start) / _NANO

    @property
    def busy(self) -> tuple[float, ...]:
        """Seconds that each worker computed in it."""
        return tuple(sum(s.end - s.start for s in self.shares if s.worker == n) / _NANO for n in range(self.workers))

    @property
    def waited(self) -> float:
        """Seconds that its workers had nothing of it to compute, all together."""
        return max(self.workers * self.seconds - sum(self.busy), 0.0) if self.shares else 0.0

    def waits(self) -> Iterator[tuple[int, int, int]]:
        """When a worker computed nothing of it: the worker, from, to."""
        for worker in range(self.workers if self.shares else 0):
            last = self.start
            for share in (each for each in self.shares if each.worker == worker):
                if share.start > last:
                    yield worker, last, share.start
                last = share.end
            if self.end > last:
                yield worker, last, self.end


@dataclass(frozen=True)
class _Call:
    """A call, and which of its recorder's launches it made: those behind number `before`, up to `after`."""

    start: int
    end: int
    before: int
    after: int


@dataclass(frozen=True)
class _Recorded:
    """A launch as it was recorded; `kernel` is its address in a library, or its name."""

    number: int
    kernel: int | str
    start: int
    end: int
    shares: tuple[Share, ...] = ()


_EVENT = np.dtype(
    [("start", "f8"), ("end", "f8"), ("launch", "i8"), ("kernel", "u8"), ("worker", "i4"), ("share", "i4")]
)
_HEAD = np.dtype([("count", "u8"), ("launches", "i8"), ("capacity", "i8")])


class Recorder:
    """Records the launches of a program, the newest `events` events: in a ring that a pool's threads write (`struct
    treadle_trace`), or given by a GPU's executor. The caller has the program's lock."""

    def __init__(self, events: int):
        self._memory = np.zeros(_HEAD.itemsize + events * _EVENT.itemsize, np.uint8)
        self._head = self._memory[: _HEAD.itemsize].view(_HEAD)
        self._events = self._memory[_HEAD.itemsize :].view(_EVENT)
        self._head["capacity"] = events
        self._given: deque[_Recorded] = deque(maxlen=events)
        self._calls: list[_Call] = []

    @property
    def _launches(self) -> int:
        return int(self._head["launches"][0])

    def record(self, trace: Callable[[int | None], None], call: Callable[[], None]) -> None:
        """Makes a call; `trace` tells the pool where its ring is, and None at the end."""
        before, start = self._launches, now()
        trace(self._memory.__array_interface__["data"][0])
        try:
            call()
        finally:
            trace(None)
            self._calls.append(_Call(start, now(), before, self._launches))

    def give(self, start: int, end: int, launches: Iterable[tuple[str, int, int]]) -> None:
        """A call that a GPU's executor timed: its launches' kernels, with start and end."""
        before = self._launches
        for kernel, first, last in launches:
            self._head["launches"] += 1
            self._head["count"] += 1
            self._given.append(_Recorded(self._launches, kernel, first, last))
        self._calls.append(_Call(start, end, before, self._launches))

    def calls(self) -> list[_Call]:
        """The calls so far."""
        return self._calls

    def recorded(self) -> tuple[list[_Recorded], int]:
        """The launches all of whose events are there, in order, and how many events are not."""
        count, capacity = int(self._head["count"][0]), len(self._events)
        if self._given:
            return list(self._given), count - len(self._given)
        first = max(count - capacity, 0)
        found: list[_Recorded] = []
        kept = 0
        for number in range(first, count):
            event = self._events[number % capacity]
            shares = int(event["share"])
            if event["worker"] != -1 or number - shares < first:
                continue
            own = (self._events[n % capacity] for n in range(number - shares, number))
            given = [_share(each) for each in own if each["launch"] == event["launch"] and each["worker"] >= 0]
            ordered = tuple(sorted(given, key=lambda share: share.start))
            start, end = _nanoseconds(event["start"]), _nanoseconds(event["end"])
            found.append(_Recorded(int(event["launch"]), int(event["kernel"]), start, end, ordered))
            kept += shares + 1
        return found, count - kept


def _share(event: Any) -> Share:
    return Share(int(event["worker"]), _nanoseconds(event["start"]), _nanoseconds(event["end"]))


def _nanoseconds(seconds: float) -> int:
    return round(float(seconds) * _NANO)


@dataclass(frozen=True)
class LaunchNames:
    """What launches are called.

    kernels: the name of each kernel, by what is recorded of it
    nodes:   the nodes of each kernel's launches
    ordered: those of each launch of a call, where every call makes the same
    """

    kernels: Mapping[int | str, str]
    nodes: Mapping[str, str]
    ordered: Sequence[str] = ()

    def kernel(self, recorded: int | str) -> str:
        """The kernel's name."""
        return self.kernels.get(recorded, recorded if isinstance(recorded, str) else f"kernel at {recorded:#x}")

    def of(self, recorded: int | str, position: int, launches: int) -> str:
        """The nodes of the launch at a position of a call that makes so many."""
        if len(self.ordered) == launches:
            return self.ordered[position]
        return self.nodes.get(self.kernel(recorded), "")


@dataclass
class Timeline:
    """The calls of a model while it was traced (`CompiledModel.trace`), in memory until they are saved.

    ```python
    with model.trace() as timeline:
        model(x)
    timeline.save("t.json")              # ui.perfetto.dev and chrome://tracing open it
    slowest = max(timeline.launches, key=lambda launch: launch.waited)
    ```
    Tracing begins when it is made, and ends with `stop` or the end of a `with`. What a timeline holds can be read then.
    """

    recorder: Recorder
    workers: int
    """Threads of a call; 0 on a GPU."""
    names: Callable[[], LaunchNames]
    """Asked once, at the end."""
    finish: Callable[[], None]
    """Ends the recording."""
    title: str = "model"
    dropped: int = 0
    """Events that had no room, the oldest: their launches are not in `launches`."""
    tracks: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    """What else is shown, by the name of its track, such as the passes of the compiler."""
    _launches: tuple[TracedLaunch, ...] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the recording, after a call that is running; a second time it does nothing."""
        if self._launches is None:
            self.finish()
            self._launches = self._read()

    @property
    def launches(self) -> tuple[TracedLaunch, ...]:
        """The launches of all calls, in order; TreadleError before the end of the recording."""
        if self._launches is None:
            raise TreadleError("the timeline is still recorded", "Timeline", "`stop()`, or the end of the `with`")
        return self._launches

    @property
    def calls(self) -> list[Span]:
        """The calls, in order."""
        return [Span(f"call {n}", call.start, call.end) for n, call in enumerate(self.recorder.calls())]

    def document(self) -> dict[str, Any]:
        """The trace in Chrome's format, as the objects of its JSON; times are microseconds from the first event on."""
        launched = [*_launch_events(self), *_worker_events(self)] if self.launches or self.calls else []
        events = [*launched, *_track_events(self.tracks)]
        first = min((event.span.start for event in events), default=0)
        ordered = sorted(events, key=lambda event: (event.pid, event.tid, event.span.start, -event.span.end))
        return {
            "traceEvents": [*_labels(self), *(event.json(first) for event in ordered)],
            "displayTimeUnit": "ms",
            "otherData": {"events dropped": self.dropped, "workers": self.workers},
        }

    def text(self) -> str:
        """The JSON of `document`."""
        return json.dumps(self.document(), separators=(",", ":")) + "\n"

    def save(self, path: str | Path) -> None:
        """Writes the trace; TreadleError where the file cannot be written, and before the end of the recording."""
        text = self.text()
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            accepted = "a file in a folder that can be written"
            raise TreadleError(f"cannot write: {error.strerror or error}", path, accepted) from error

    def _read(self) -> tuple[TracedLaunch, ...]:
        recorded, self.dropped = self.recorder.recorded()
        if not recorded:
            return ()
        names, calls, found = self.names(), self.recorder.calls(), list[TracedLaunch]()
        number = 0
        for each in recorded:
            while each.number > calls[number].after:
                number += 1
            call = calls[number]
            nodes = names.of(each.kernel, each.number - call.before - 1, call.after - call.before)
            kernel, workers = names.kernel(each.kernel), max(self.workers, 1)
            found.append(TracedLaunch(number, kernel, nodes, each.start, each.end, each.shares, workers))
        return tuple(found)


@dataclass(frozen=True)
class _Event:
    """A slice of a track."""

    pid: int
    tid: int
    category: str
    span: Span
    args: Mapping[str, object] = field(default_factory=dict[str, object])

    def json(self, first: int) -> dict[str, Any]:
        start, end = (self.span.start - first) / 1000, (self.span.end - first) / 1000
        duration = max(end - start, 0.0)
        # Readers add in doubles: the sum must not be beyond the start of the slice that follows.
        while duration and start + duration > end:
            duration = nextafter(duration, 0)
        return {
            "name": self.span.name, "cat": self.category, "ph": "X", "ts": start, "dur": duration,
            "pid": self.pid, "tid": self.tid, "args": dict(self.args),
        }  # fmt: skip


_RUN, _COMPILE = 1, 2
"""Numbers of the trace's processes."""


def _launch_events(timeline: Timeline) -> Iterator[_Event]:
    """Calls, and in them launches: track 0."""
    for call in timeline.calls:
        yield _Event(_RUN, 0, "call", call)
    on_device = not timeline.workers
    for launch in timeline.launches:
        args: dict[str, object] = {"nodes": launch.nodes}
        if launch.shares:
            args |= {
                "busy us": [round(1e6 * each, 3) for each in launch.busy],
                "waited us": round(1e6 * launch.waited, 3),
            }
        yield _Event(_RUN, int(on_device), "launch", Span(launch.kernel, launch.start, launch.end), args)


def _worker_events(timeline: Timeline) -> Iterator[_Event]:
    """What each worker did during launches: a track for each."""
    for launch in timeline.launches:
        for share in launch.shares:
            span = Span(launch.kernel, share.start, share.end)
            yield _Event(_RUN, share.worker + 1, "share", span, {"nodes": launch.nodes})
        for worker, start, end in launch.waits():
            yield _Event(_RUN, worker + 1, "wait", Span("wait", start, end), {"kernel": launch.kernel})


def _track_events(tracks: Mapping[str, Sequence[Span]]) -> Iterator[_Event]:
    for number, spans in enumerate(tracks.values()):
        for span in spans:
            yield _Event(_COMPILE, number, "compile", span)


def _labels(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """The names of processes and tracks."""
    named = {(_RUN, 0): "calls"}
    if timeline.workers:
        named |= {(_RUN, n + 1): f"worker {n}" + (" (the caller)" if n == 0 else "") for n in range(timeline.workers)}
    else:
        named[_RUN, 1] = "GPU"
    named |= {(_COMPILE, number): name for number, name in enumerate(timeline.tracks)}
    titles = {_RUN: timeline.title, _COMPILE: "compile"}
    for pid, tracks in groupby(named.items(), key=lambda each: each[0][0]):
        yield _label("process_name", pid, 0, titles[pid])
        for (_, tid), name in tracks:
            yield _label("thread_name", pid, tid, name)


def _label(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": name}}


def lanes(spans: Iterable[Span], name: str) -> dict[str, list[Span]]:
    """Tracks for spans some of which overlap: each goes to the first track that is free."""
    found: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: (each.start, each.end)):
        free = next((lane for lane in found if lane[-1].end <= span.start), None)
        if free is None:
            found.append([span])
        else:
            free.append(span)
    return {f"{name} {number}": lane for number, lane in enumerate(found)}


class CompileSteps:
    """What a compilation did, told by its progress and by the calls of compilers: called as `Progress` is."""

    def __init__(self, progress: Progress = no_progress):
        self._progress = progress
        self._steps: list[tuple[str, int]] = []
        self._calls: list[Span] = []

    def __call__(self, step: str, fraction: float) -> None:
        self._steps.append((step, now()))
        self._progress(step, fraction)

    def compiled(self, what: str, start: int, end: int) -> None:
        """A call of a compiler."""
        self._calls.append(Span(what, start, end))

    def tracks(self, end: int) -> dict[str, list[Span]]:
        """The steps, each of which lasts until the next one or the end, and the calls; none where nothing was
        compiled."""
        ends = [start for _, start in self._steps[1:]] + [end]
        steps = [Span(step, start, last) for (step, start), last in zip(self._steps, ends, strict=False)]
        return ({"passes and printing": steps} if steps else {}) | lanes(self._calls, "C compiler")
