"""What a search decides and what it decides about: candidates of a task, and the two things that a search is made of.

    task = Task(anchor, target, programs)                  # the programs that may schedule the anchor
    candidate = Candidate("matmul_cpu", {"rows": 4, ...})  # one of them, with a decision for each of its samples
    task.replay(candidate)                                 # what a kernel is written from; TreadleError if illegal

A `Strategy` proposes candidates and is told what became of them; a `CostModel` predicts times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from treadle.dialects.schedule import Choice, ProgramOp, UseAttr, choice_text
from treadle.errors import TreadleError
from treadle.schedules.nest.workload import Workload, workload_of
from treadle.schedules.search.programs import Replayed, replay
from treadle.schedules.search.sampler import Sampler
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.work.gpu_work import AnyWork
from treadle.target import Target

_RECENT = 4096
"""Values of candidates that are kept: those of one proposal, for which several ask."""


@dataclass(frozen=True)
class Candidate:
    """A schedule program and what its samples take. It travels between processes, and is a key of dictionaries.

    program: the symbol of a program of the task; decisions: by the names of its samples
    """

    program: str
    decisions: Mapping[str, Choice]

    @cached_property
    def _hash(self) -> int:
        return hash((self.program, tuple(sorted(self.decisions.items()))))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Candidate], tuple[str, Mapping[str, Choice]]]:
        # Without the hash: another process has another one of the same text.
        return Candidate, (self.program, self.decisions)

    def __str__(self) -> str:
        taken = ", ".join(f"{name} = {choice_text(value)}" for name, value in self.decisions.items())
        return f"@{self.program} {{{taken}}}"


@dataclass(frozen=True, eq=False)
class Task:
    """An anchor to be scheduled for a target, and the programs that do it.

    programs: in the order in which they are tried; nobody changes them. TreadleError if two have one name.
    """

    anchor: Anchor
    target: Target
    programs: tuple[ProgramOp, ...] = ()

    def __post_init__(self) -> None:
        names = [program.sym_name.data for program in self.programs]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise TreadleError(f"two schedule programs are called @{twice[0]}", "task", "a name for each")

    @cached_property
    def _recent(self) -> dict[Candidate, Replayed]:
        """What was replayed last."""
        return {}

    @cached_property
    def by_name(self) -> Mapping[str, ProgramOp]:
        """The programs by their symbols."""
        return {program.sym_name.data: program for program in self.programs}

    @cached_property
    def samplers(self) -> Mapping[str, Sampler]:
        """The decisions of each program."""
        try:
            extents = self.workload.extents
        except TreadleError:  # several reductions: no nest schedules them, which replaying says
            extents = ()
        return {name: Sampler(program, extents) for name, program in self.by_name.items()}

    @cached_property
    def workload(self) -> Workload:
        """What the anchor asks of a nest. Raises what `workload_of` raises."""
        return workload_of(self.anchor)

    def replay(self, candidate: Candidate) -> Replayed:
        """What the candidate's kernel is written from, the same value for all candidates that give the same kernel.

        TreadleError for a candidate that is not legal: LimitError where a limit is exceeded.
        """
        found = self._recent.get(candidate)
        if found is None:
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            found = self._recent[candidate] = self._replayed(candidate)
        return found

    def _replayed(self, candidate: Candidate) -> Replayed:
        program = self.by_name.get(candidate.program)
        if program is None:
            raise TreadleError(f"there is no schedule program @{candidate.program}", "task", list(self.by_name))
        workload = self.workload if program.template is None else None
        replayed = replay(program, candidate.decisions, self.anchor, self.target, workload)
        if not isinstance(replayed, UseAttr):
            return replayed
        template = TEMPLATES[replayed.template.data]
        canonical = template.canonical(self.anchor, replayed.knobs(), self.target)
        return UseAttr.get(template.name, {name: canonical[name] for name in replayed.knobs()})

    def has_samples_of(self, candidate: Candidate) -> bool:
        """Whether the candidate decides just the samples of a program of the task; one that was recorded before a
        template got another knob does not."""
        sampler = self.samplers.get(candidate.program)
        return sampler is not None and set(sampler.labels) == set(candidate.decisions)

    def distinct(
        self, known: Iterable[Candidate] = (), rejected: Callable[[Candidate, TreadleError], None] | None = None
    ) -> list[Candidate]:
        """A candidate for each kernel that the programs give, in their order, without those of `known` ones.

        rejected: is called with each candidate that is not legal
        """
        seen = {self.replay(candidate) for candidate in known}
        found: list[Candidate] = []
        for program in self.programs:
            for candidate, kernel in self._legal(program, rejected):
                if kernel not in seen:
                    seen.add(kernel)
                    found.append(candidate)
        return found

    def of_templates(self) -> list[Candidate]:
        """A candidate for each kernel that the templates give, in the order of their programs."""
        whole = tuple(program for program in self.programs if program.template is not None)
        return Task(self.anchor, self.target, whole).distinct()

    def _legal(
        self, program: ProgramOp, rejected: Callable[[Candidate, TreadleError], None] | None = None
    ) -> Iterator[tuple[Candidate, Replayed]]:
        """Every candidate of a program that replays, and what it gives; of a template, which knows its own, those."""
        name = program.sym_name.data
        if name not in TEMPLATES:
            yield from self._replaying(name, rejected)
            return
        if rejected is not None:
            for _ in self._replaying(name, rejected):
                pass
        labels = [sample.label.data for sample in program.samples]
        for choices in TEMPLATES[name].candidates(self.anchor, self.target):
            yield Candidate(name, {label: choices[label] for label in labels}), UseAttr.get(name, choices)

    def _replaying(
        self, name: str, rejected: Callable[[Candidate, TreadleError], None] | None
    ) -> Iterator[tuple[Candidate, Replayed]]:
        """The candidates of a program that replay, in the order of their decisions."""
        for decisions in self.samplers[name].enumerate():
            candidate = Candidate(name, decisions)
            try:
                kernel = self.replay(candidate)
            except TreadleError as error:
                if rejected is not None:
                    rejected(candidate, error)
                continue
            yield candidate, kernel

    def tries(self, use: UseAttr) -> bool:
        """Whether a program has the template, and the values of its knobs that no search tries are the usual ones."""
        name = use.template.data
        if name not in TEMPLATES or name not in self.by_name:
            return False
        usual = {knob.name: knob.unless_given for knob in TEMPLATES[name].knobs if knob.unless_given is not None}
        return all(usual.get(knob, value) == value for knob, value in use.knobs().items())

    def candidate(self, use: UseAttr) -> Candidate:
        """The candidate that gives the same kernel as a template's choices; TreadleError if no program has that
        template, or a choice is missing."""
        name = use.template.data
        if name not in TEMPLATES or name not in self.by_name:
            raise TreadleError(f"no schedule program is called @{name}", "task", list(self.by_name))
        labels = [sample.label.data for sample in self.by_name[name].samples]
        knobs = TEMPLATES[name].knobs
        missing = [knob.name for knob in knobs if knob.name not in use.knobs() and knob.unless_given is None]
        if missing:
            accepted = [knob.name for knob in knobs]
            raise TreadleError(f"template {name!r} is used without {', '.join(missing)}", "task", accepted)
        for knob in knobs:
            usual = knob.unless_given
            if usual is not None and use.knobs().get(knob.name, usual) != usual:
                raise TreadleError(f"no search tries other values of {knob.name!r}", "task", choice_text(usual))
        choices = TEMPLATES[name].canonical(self.anchor, use.knobs(), self.target)
        return Candidate(name, {label: choices[label] for label in labels})


@dataclass(frozen=True)
class Measured:
    """What became of a candidate: the seconds that one kernel takes, or None for one that failed."""

    candidate: Candidate
    seconds: float | None
    work: AnyWork | None = None


class Strategy(Protocol):
    """Chooses which candidates are measured. The same seed and results give the same candidates."""

    def propose(self, count: int) -> Sequence[Candidate]:
        """At most `count` candidates that replay and were not proposed before, the most promising first; none when
        there is nothing left."""
        ...

    def learn(self, results: Sequence[Measured]) -> None:
        """Takes notice of measured candidates, its own or other ones."""
        ...


class CostModel(Protocol):
    """Predicts how long kernels take from the work that they do."""

    def seconds(self, works: Sequence[AnyWork], target: Target) -> Sequence[float]:
        """The predicted seconds of each kernel."""
        ...

    def learn(self, results: Mapping[str, Sequence[tuple[AnyWork, float]]], target: Target) -> None:
        """Takes notice of kernels' works and measured seconds, by the digests of their groups."""
        ...


__all__ = ["Candidate", "CostModel", "Measured", "Strategy", "Task"]
