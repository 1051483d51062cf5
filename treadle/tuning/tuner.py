"""The search over all groups of a model: each round tunes the group with the largest expected gain."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf

from treadle.errors import TreadleError
from treadle.passes.schedule.construct import is_worth_it
from treadle.schedules.joint import Adaption
from treadle.schedules.search.candidate import Candidate, CostModel, Measured
from treadle.schedules.search.database import PREDICTED, Database, Record, Room, Schedule
from treadle.schedules.search.database_files import digest_of
from treadle.schedules.search.learned import Learned
from treadle.schedules.search.trials import Trial, seconds_beside
from treadle.tuning.candidates import Built, Printed, build_all, print_all, print_each
from treadle.tuning.group_search import LEAST_GAIN, Group, GroupSearch, Options, RooflineGap, least_seconds
from treadle.tuning.in_model import Ratio, Timed, verdicts
from treadle.tuning.measure import Comparison, Measurer, Timing
from treadle.tuning.tasks import GroupTask, schedule_of
from treadle.tuning.workers import OutOfTimeError, Workers, endless

MEASURED = 8
"""Candidates that are built and timed in a round."""
_ROUND_SECONDS = 2.0
_CONFIRM_SECONDS = 6.0
_FIRST_BATCH, _BATCH = 2, 8
"""Defaults that are built together; of the first ones, whatever time there is, one is timed."""
_OF_DEFAULTS = 0.5
"""The part of a search's time that defaults may take: what they leave out are the groups with the least time."""

_PART = 32
"""Candidates that are predicted in less than a second."""

Show = Callable[[Sequence[Group], Group | None], None]
"""Called after each change, with all groups and the one that is being tuned."""


class Tuner:
    """Tunes the groups of one module for this machine's processor.

    workers: build candidates; functions and arguments travel to other processes
    measurer: times them, on a machine of the workers' kind
    model: ranks candidates; it learns from the database's records, then from each round
    """

    def __init__(
        self,
        tasks: Sequence[GroupTask],
        database: Database,
        options: Options,
        workers: Workers,
        measurer: Measurer,
        show: Show = lambda groups, current: None,
        model: CostModel | None = None,
    ):
        target = workers.machine.target
        self._model: CostModel = Learned() if model is None else model
        self.adaption = Adaption()
        self.groups = [Group(task, workers.machine.hardware, self._search(task, workers, options)) for task in tasks]
        self._target, self._database, self._options = target, database, options
        self._workers, self._measurer, self._show = workers, measurer, show
        self._room = Room(database.folder)
        self._hardware = workers.machine.hardware
        self._start = time.monotonic() if options.started is None else options.started
        self._round_seconds = 0.0  # that the last one took: the next one is not begun unless they are left
        self._build_seconds = 0.5  # that the last candidate took

    def run(self) -> list[Group]:
        """Searches until the time is up or all candidates were tried. Each result is written to the database at once.

        The search begins where the database's records of an interrupted one end. Groups whose default was not timed
        stay without times.
        """
        with self._room:
            self._database.keep_target(self._hardware, self._target)
            known = self._database.measured_works(self._hardware)
            self._model.learn({digest_of(name): records for name, records in known.items()}, self._target)
            for group in self.groups:
                self._resume(group)
            waiting = self._defaults(self._untimed(), _OF_DEFAULTS * self._left())
            while self._left() > self._round_seconds and self._more_trials():
                group = max(self.groups, key=lambda each: each.expected_gain)
                if group.expected_gain > 0:
                    self._round(group)
                elif waiting:
                    waiting = self._defaults(waiting, 0.0)
                else:
                    break
            for group in self.groups:
                self._confirm(group)
        return self.groups

    def _untimed(self) -> list[Group]:
        """The groups whose default was not timed, those first that take most of the model's time by the roofline."""
        found = [group for group in self.groups if group.default_seconds is None]
        return sorted(found, key=lambda each: -each.task.count * least_seconds(each.task, self._target))

    def _defaults(self, waiting: Sequence[Group], kept: float) -> Sequence[Group]:
        """Times default schedules until no more than `kept` seconds are left, in any case some of the first group; the
        groups that are left."""
        while waiting and (self._left() > kept or all(group.default_seconds is None for group in self.groups)):
            begun = any(group.default_seconds is not None for group in self.groups)
            batch = waiting[: _BATCH if begun else _FIRST_BATCH]
            left = self._left if begun else endless  # without any time there is no search
            try:
                texts = print_each(self._workers, [(group.task, group.default) for group in batch], left)
                builds = build_all(self._workers, texts, left)
                for group, text, build in zip(batch, texts, builds, strict=True):
                    if self._left() > 0 or (group is batch[0] and not begun):
                        self._first(group, text, build)
            except OutOfTimeError:
                break
            waiting = waiting[len(batch) :]
        self._set_roofline_gap()
        return waiting

    def confirm_in_model(self, timed: Timed) -> None:
        """Drops the schedules that are not faster in the whole model."""
        chosen, end = sorted(filter(_is_kept, self.groups), key=_gained), self._start + self._options.seconds
        found = verdicts([each.task for each in chosen], timed, lambda: end - time.monotonic())
        for group in chosen:
            group.in_model = found[group.task.digest]
            if not group.in_model.kept:
                group.best, group.best_seconds, group.confirmed = group.default, group.default_seconds, False
            self._keep(group)

    def remeasure(self, schedules: Sequence[Candidate]) -> list[Group]:
        """Times one schedule of each group together with the default, and writes the faster one to the database.

        Nothing is searched. Groups that the time does not suffice for stay without times. TreadleError for a default
        that cannot be timed.
        """
        with self._room:
            for group, schedule in zip(self.groups, schedules, strict=True):
                if self._left() > 0:
                    self._remeasure(group, schedule)
        return self.groups

    def _remeasure(self, group: Group, schedule: Candidate) -> None:
        self._show(self.groups, group)
        task = group.task.search
        is_default = task.replay(schedule) == task.replay(group.default)
        default, *others = self._compared(group, [group.default] if is_default else [group.default, schedule])
        if default.seconds is None:
            raise TreadleError(f"the default schedule cannot be timed: {default.error}", f"group {group.task}")
        group.best, group.default_seconds, group.best_seconds = group.default, default.seconds, default.seconds
        group.confirmed = False
        for timing in others:
            group.dropped = timing.error
            group.confirmed = _is_faster(timing, default)
            if group.confirmed:
                group.best, group.best_seconds = schedule, timing.seconds
        self._keep(group)
        self._show(self.groups, group)

    def _search(self, task: GroupTask, workers: Workers, options: Options) -> GroupSearch:
        return GroupSearch(task, workers, self._model, options.strategy, options.seed, self._left, self.adaption)

    def _left(self) -> float:
        """Seconds left, without those that the final timings will take."""
        waiting = sum(g.confirmed is None and g.best is not None and g.best != g.default for g in self.groups)
        last = (0.5 + 2 * self._build_seconds) * waiting
        return self._options.seconds - self._options.reserved - (time.monotonic() - self._start) - last

    def _more_trials(self) -> bool:
        most = self._options.trials
        return most is None or sum(group.trials for group in self.groups) < most

    def _resume(self, group: Group) -> None:
        """Restores a group's state from the records of an earlier search, and completes a round that was cut off."""
        key, task = (group.task.digest, self._hardware, group.task.texts), group.task.search
        trials = self._database.trials(*key)
        group.search.explored.ledgers |= self._database.ledgers(*key)
        known = [trial for trial in trials if task.has_samples_of(Candidate(trial.program, trial.decisions))]
        for number in range(max((trial.round for trial in known), default=-1) + 1):
            trials = [trial for trial in known if trial.round == number]
            if number == 0 and trials:
                self._absorb_default(group, trials[0])
            elif group.default_seconds is not None and trials and len(trials) < trials[0].of:
                self._round(group, trials)
            elif group.default_seconds is not None:
                self._absorb(group, trials)

    def _set_roofline_gap(self) -> None:
        """Tells groups their roofline_gap. Those of a ranged model have times of several calls, and stay without."""
        timed = [(each, each.default_seconds) for each in self.groups if each.default_seconds and not each.task.points]
        roofline_gap = RooflineGap.of([(group.task, seconds) for group, seconds in timed])
        for group, seconds in timed:
            group.roofline_gap = roofline_gap(group.task, seconds)

    def _first(self, group: Group, text: Printed, build: Built) -> None:
        """Times the default schedule, which gives the group's part of the model's time."""
        self._show(self.groups, group)
        (timing,) = self._measure(group.task, [build], _ROUND_SECONDS / 4)
        if timing.seconds is None:
            raise TreadleError(f"the default schedule cannot be timed: {timing.error}", f"group {group.task}")
        predicted = None if text.work is None else self._model.seconds([text.work], self._target)[0]
        trial = _trial(text, (0, 1), timing, None, predicted)
        self._remember(group, [trial])
        self._absorb_default(group, trial)

    def _round(self, group: Group, known: Sequence[Trial] = ()) -> None:
        """Draws candidates, times the most promising ones together with the best one so far, and keeps the fastest.

        known: the first trials of the round, if a killed search has recorded them and not the rest
        A round that the time does not suffice for leaves nothing.
        """
        try:
            proposed = group.search.propose(MEASURED)
            group.is_exhausted = not proposed
            self._timed_round(group, proposed, known)
        except OutOfTimeError:
            group.is_exhausted = True

    def _timed_round(
        self, group: Group, proposed: Sequence[tuple[Printed, float | None]], known: Sequence[Trial] = ()
    ) -> None:
        """Times candidates together with the best one so far."""
        self._show(self.groups, group)
        begin = time.monotonic()
        assert group.best is not None
        number = (group.rounds + 1, len(proposed))
        tried = {Candidate(trial.program, trial.decisions) for trial in known}
        order = [each for each in proposed if each[0].candidate not in tried]
        texts = group.search.predictions.texts([group.best]) + [text for text, _ in order]
        builds = build_all(self._workers, texts, self._left) if order else []
        self._build_seconds = (time.monotonic() - begin) / max(len(builds), 1)
        group.built += len(builds)
        reference, *timings = self._measure(group.task, builds, _ROUND_SECONDS) if builds else [Timing()]
        trials = [
            _trial(text, number, timing, reference.seconds, predicted)
            for timing, (text, predicted) in zip(timings, order, strict=True)
        ]
        self._remember(group, trials)
        before = group.best
        self._absorb(group, [*known, *trials])
        if group.best is not before and group.gains[-1] > LEAST_GAIN:
            self._keep(group)
        self._round_seconds = time.monotonic() - begin
        self._show(self.groups, group)

    def _absorb_default(self, group: Group, trial: Trial) -> None:
        group.trials += 1
        if trial.us is not None:
            group.default_seconds = group.best_seconds = trial.us * 1e-6
            group.best = group.default
        group.search.learn([Measured(group.default, group.default_seconds, trial.work)])

    def _absorb(self, group: Group, trials: Sequence[Trial]) -> None:
        """Updates the best schedule by the times of a round, new or recorded."""
        before = group.best_seconds
        assert before is not None
        results = [_measured(trial, before) for trial in trials]
        for each in results:
            if each.seconds is not None and each.seconds < (group.best_seconds or before):
                group.best = each.candidate
                group.best_seconds, group.confirmed = each.seconds, None
        group.search.learn(results)
        group.trials += len(trials)
        group.failures += sum(trial.error is not None for trial in trials)
        group.gains.append(1 - (group.best_seconds or before) / before)
        group.rounds += 1

    def _confirm(self, group: Group) -> None:
        """Times the default and the best schedule together, longer than before: the best one is dropped unless it is
        faster."""
        if group.best is None or group.best == group.default or group.default_seconds is None:
            return
        self._show(self.groups, group)
        default, best = self._compared(group, [group.default, group.best])
        group.confirmed = _is_faster(best, default)
        if group.confirmed:
            group.default_seconds, group.best_seconds = default.seconds, best.seconds
        else:
            group.best, group.best_seconds = group.default, group.default_seconds
        self._keep(group)

    def _compared(self, group: Group, schedules: Sequence[Candidate]) -> list[Timing]:
        """Times schedules together, longer than in a round."""
        builds = build_all(self._workers, print_all(self._workers, group.task, schedules))
        return self._measure(group.task, builds, _CONFIRM_SECONDS)

    def _keep(self, group: Group) -> None:
        assert group.best is not None
        self._write(group, schedule_of(group.task, group.best))

    def _write(self, group: Group, schedule: Schedule) -> None:
        """Puts a group's schedule into the database, with its times."""
        assert group.best_seconds is not None and group.default_seconds is not None
        record = Record(
            us=round(group.best_seconds * 1e6, 2),
            default_us=round(group.default_seconds * 1e6, 2),
            target=self._target.name,
            hardware=self._hardware,
            compiler=self._workers.machine.compiler,
            sources=self._workers.machine.kernels,
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            in_model="" if group.in_model is None else group.in_model.text,
            how=self._options.how,
        )
        self._database.write(group.task.program.module, group.task.digest, schedule, record)

    def _measure(self, task: GroupTask, builds: Sequence[Built], seconds: float) -> list[Timing]:
        """Times libraries while nothing else runs: builds have ended."""
        ready = [each for each in builds if each.error is None]
        found = {id(each): Timing(error=each.error) for each in builds if each.error is not None}
        if ready:
            comparison = Comparison(
                task.text, tuple(each.library for each in ready), max(each.arena_bytes for each in ready),
                task.inputs, task.outputs, task.constants, self._options.threads, seconds, task.extents or (),
                self._target.kind,
            )  # fmt: skip
            found |= {id(b): timing for b, timing in zip(ready, self._measurer.measure(comparison), strict=True)}
        return [found[id(each)] for each in builds]

    def _remember(self, group: Group, trials: Sequence[Trial]) -> None:
        task = group.task
        self._database.add_trials(
            task.digest, task.label, self._hardware, trials, self._room, task.texts, group.search.counted
        )
        results = [_measured(trial, group.best_seconds) for trial in trials]
        timed = [(each.work, self._of_kernel(group, each)) for each in results if each.work and each.seconds]
        self._model.learn({task.digest: timed}, self._target)

    def _of_kernel(self, group: Group, result: Measured) -> float:
        """What a cost model learns of a kernel that was timed: its seconds."""
        del group
        assert result.seconds is not None
        return result.seconds


class PredictedTuner(Tuner):
    """Keeps schedules that are predicted to be faster, for a GPU that is not here: nothing is built or timed.

    Groups share the seconds evenly, those first that take most of the model's time by the roofline. The spaces of
    templates are enumerated, then a strategy proposes. A group keeps its entry where there was no time, or where that
    was measured.
    """

    _until = inf

    def run(self) -> list[Group]:
        """Each result is written to the database at once."""
        self._database.keep_target(self._hardware, self._target)
        groups, end = self._untimed(), self._start + self._options.seconds
        for number, group in enumerate(groups):
            now = time.monotonic()
            self._until = now + (end - now) / (len(groups) - number)
            with suppress(OutOfTimeError):
                self._predict(group)
        return self.groups

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _predict(self, group: Group) -> None:
        self._show(self.groups, group)
        predictions = group.search.predictions
        (default,) = predictions([group.default])
        if default is None:
            why = predictions.error(group.default)
            raise TreadleError(f"the default schedule cannot be predicted: {why}", f"group {group.task}")
        group.best, group.default_seconds, group.best_seconds = group.default, default, default
        group.confirmed, group.is_predicted = False, True
        with suppress(OutOfTimeError):  # what was predicted by then counts
            templates = group.task.search.of_templates()
            for first in range(0, len(templates), _PART):
                predictions(templates[first : first + _PART])
            group.search.propose(MEASURED)
        for candidate, seconds in self._worth_it(group, default):
            if print_all(self._workers, group.task, [candidate])[0].error is None:  # whatever time is left
                group.best, group.best_seconds, group.confirmed = candidate, seconds, True
                break
        if group.confirmed and not self._is_measured(group):
            self._keep(group)
        self._show(self.groups, group)

    def _worth_it(self, group: Group, default: float) -> list[tuple[Candidate, float]]:
        """The candidates that would be taken for their predicted seconds, the fastest first."""
        known = group.search.predictions.known
        times = zip(known, group.search.predictions(known), strict=True)
        found = [(each, seconds) for each, seconds in times if seconds is not None and is_worth_it(seconds, default)]
        return sorted(found, key=lambda each: each[1])

    def _is_measured(self, group: Group) -> bool:
        entry = self._database.find(group.task.digest, self._hardware)
        return entry is not None and entry.record.how != PREDICTED


def _is_kept(group: Group) -> bool:
    return group.confirmed is True


def _gained(group: Group) -> float:
    """Seconds of all equal groups together that the best schedule takes less than the default, each alone."""
    return group.task.count * ((group.default_seconds or 0.0) - (group.best_seconds or 0.0))


def _trial(
    text: Printed, number: tuple[int, int], timing: Timing, reference: float | None, predicted: float | None
) -> Trial:
    """A trial of a round, given by its number and that of its trials."""
    us, reference_us, predicted_us = (
        None if seconds is None else round(seconds * 1e6, 2) for seconds in (timing.seconds, reference, predicted)
    )
    candidate, (round_, of) = text.candidate, number
    return Trial(
        candidate.program, candidate.decisions, round_, us, reference_us, predicted_us, timing.error, of, text.work
    )


def _measured(trial: Trial, best: float | None) -> Measured:
    """A trial's time relative to the best schedule's in the same run: the machine may have become slower since the
    first one."""
    return Measured(Candidate(trial.program, trial.decisions), seconds_beside(trial, best), trial.work)


def _is_faster(one: Timing, default: Timing) -> bool:
    """Whether a schedule is faster than the default by more than two runs of one kernel differ, and by more than their
    ratio wavers from round to round."""
    if one.seconds is None or default.seconds is None or one.seconds >= (1 - LEAST_GAIN) * default.seconds:
        return False
    return not one.rounds or Ratio.of(default.rounds, one.rounds).least > 1


__all__ = ["MEASURED", "PredictedTuner", "Show", "Tuner"]
