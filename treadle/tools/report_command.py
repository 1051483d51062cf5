"""`treadle report`: a compiled model as one page, on which nodes, groups, kernels and launches are linked."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from treadle.api import resolve_target
from treadle.artifact.artifact import Artifact
from treadle.bench.model import OWN, POINTS, Benchmark, bench_model
from treadle.bench.peaks import module_of
from treadle.compiler.request import CompileRequest, is_ir_file
from treadle.errors import TreadleError
from treadle.model import CompiledModel
from treadle.runtime.inputs import Given, inputs_of, read_inputs
from treadle.schedules.search.database_files import open_database
from treadle.shapes.dim import Shapes, normalized
from treadle.support.output import STDOUT, output_stream
from treadle.support.version import __version__
from treadle.target.host import hardware_of, host_target
from treadle.target.options import CompileOptions, parse_construction, parse_convolution, parse_precision, parse_weights
from treadle.tools.arguments import parse_states, shapes_of_call
from treadle.tools.bench_command import NO_ROOFLINE, model_of, times_along
from treadle.tools.certify_command import certify, kernels_of_every_call
from treadle.tools.model_page import model_page
from treadle.tools.model_report import Decisions, ModelReport, Step, decisions_of, kernels_in, program_of, program_text
from treadle.tools.oracle import Check
from treadle.tools.progress_bar import progress_bar
from treadle.tools.report_source import Report, model_report
from treadle.tools.run_command import check_of_call, checks_along
from treadle.tuning.model import tasks_of_model

Array = NDArray[Any]

_LEAST_SECONDS = 0.5
_POINTS = 2 * POINTS - 1
"""Calls along a range: those of `treadle bench`, and one between each two."""


def report_command(args: argparse.Namespace) -> int:
    """Writes the page of a model, or of a folder, to the file of `-o`."""
    if args.seconds < _LEAST_SECONDS:
        raise TreadleError(f"{args.seconds:g} seconds", "--seconds", f"at least {_LEAST_SECONDS:g}")
    if args.threads is not None and args.threads < 1:
        raise TreadleError(f"{args.threads} is not a number of threads", "--threads", "1 upwards")
    path, given = Path(args.model), read_inputs(args.input)
    shapes = shapes_of_call(args.shape, given.shapes)
    with output_stream(args.output) as stream, progress_bar() as progress:  # no minutes for what cannot be written
        with model_of(path, shapes, given, args, progress) as model:
            progress("reading what was decided", 1.0)
            request = None if path.is_dir() else request_of(path, shapes, given, args)
            decisions = Decisions() if request is None else decisions_of(request)
            tuning = None if request is None or not request.options.database else _tuning(request, args.seed)
            report = replace(report_of(model, decisions, path.name), tuning=tuning)
            if model.manifest.kind == "cpu":
                progress("measuring", 1.0)
                report = measured(report, model, given, args.seed, args.seconds)
                progress("comparing with the definition", 1.0)
                report = _checked(report, path, model, given, args)
        page = model_page(report)
        stream.write(page)
    if args.output != STDOUT:
        print(f"{args.output}: {len(report.steps)} steps of {len(report.nodes)} nodes, {len(page) / 1e6:.1f} MB")
    return 0


def report_of(model: CompiledModel, decisions: Decisions, title: str) -> ModelReport:
    """What is known of a model without running it. TreadleError for an artifact whose files are missing or changed."""
    artifact, manifest = model.artifact, model.manifest
    module = module_of(artifact)
    steps, values = program_of(artifact, module, decisions.groups)
    certificates, always = (certify(artifact), kernels_of_every_call(artifact)) if manifest.symbols else ([], [])
    return ModelReport(
        title=title,
        facts=tuple(_facts(artifact, model)),
        notes=tuple(_missing(artifact, decisions)),
        decisions=decisions,
        steps=steps,
        values=values,
        kernels=kernels_in(artifact, module),
        program=program_text(artifact),
        arena_bytes=manifest.arena_bytes,
        symbols=", ".join(map(str, manifest.symbols)),
        certificates=tuple(certificates),
        always=tuple(always),
    )


def measured(report: ModelReport, model: CompiledModel, given: Given, seed: int, seconds: float) -> ModelReport:
    """The same with times on this machine, for a CPU: of a call, of each launch, and along a range."""
    along = times_along(model, given.arrays, seed, seconds / 2, _POINTS)
    result = bench_model(model, inputs_of(model, given.arrays, seed), seconds=seconds / 2 if along else seconds)
    facts = ((OWN, f"{__version__}, on {hardware_of(host_target())}"), ("a call", _call(result, bool(along))))
    notes = [f"{result.disturbance}; {NO_ROOFLINE}"] if result.is_disturbed else []
    if not result.kernels:
        notes.append("Launches are not timed: shapes or data decide which of them a call has.")
    return replace(
        report,
        facts=(*report.facts, *facts),
        notes=(*report.notes, *notes),
        steps=_timed(report.steps, result),
        benchmark=result,
        along=tuple(along),
    )


def _timed(steps: tuple[Step, ...], result: Benchmark) -> tuple[Step, ...]:
    """The steps with what they took; without choices, each is a launch."""
    if not result.launches:
        return steps
    return tuple(replace(step, time=time) for step, time in zip(steps, result.launches, strict=True))


def _call(result: Benchmark, is_range: bool) -> str:
    low, middle, high = (f"{each * 1e3:.3f}" for each in result.times[OWN].quartiles)
    threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
    where = " at the largest shape" if is_range else ""
    return f"{middle} ms (median; quartiles {low} and {high}) with {threads}{where}"


def _facts(artifact: Artifact, model: CompiledModel) -> Iterator[tuple[str, str]]:
    manifest = artifact.manifest
    yield "inputs", "; ".join(map(str, model.inputs)) or "none"
    yield "outputs", "; ".join(map(str, model.outputs))
    if manifest.symbols:
        yield "range", ", ".join(map(str, manifest.symbols))
    yield "target", f"{manifest.target}, {manifest.precision}"
    if manifest.weights:
        yield "weights", ", ".join(f"{key} {value}" for key, value in manifest.weights.items())
    yield "memory of a call", str(model.memory)


def _missing(artifact: Artifact, decisions: Decisions) -> Iterator[str]:
    if not decisions.groups:
        yield "Decisions and errors are not in a compiled folder: a report of the model itself has them."
    if artifact.manifest.kind != "cpu":
        yield f"Nothing was run or measured: {artifact.manifest.target} is not this machine's processor."


def _checked(
    report: ModelReport, path: Path, model: CompiledModel, given: Given, args: argparse.Namespace
) -> ModelReport:
    """The same with errors; a note where there is no definition to compare with."""
    if path.is_dir() or args.no_check:
        return report
    found: list[tuple[str, Check]] = []
    try:
        if model.symbols and not given.arrays:
            for values, check in checks_along(path, model, given, args.seed):
                found.append((", ".join(f"{name} = {value}" for name, value in values.items()), check))
        else:
            inputs = inputs_of(model, given.arrays, args.seed)
            model.reset()
            found.append(("", check_of_call(path, model, inputs, model.run(inputs), given.constants)))
    except TreadleError as error:
        return replace(report, notes=(*report.notes, f"Outputs were not compared with a definition: {error}"))
    refusals = dict.fromkeys(refusal for _, check in found for refusal in check.refusals)
    return replace(report, checks=tuple(found), notes=(*report.notes, *refusals))


def request_of(path: Path, shapes: Shapes, given: Given, args: argparse.Namespace) -> CompileRequest:
    """What `compile` makes of the same arguments."""
    target = resolve_target(args.target or "cpu")
    database = "" if args.database is None else str(open_database(Path(args.database).resolve()).folder)
    options = CompileOptions(
        parse_precision(args.precision or "f32"), database=database,
        convolution=parse_convolution(args.convolution, target.kind), construct=parse_construction(args.construct),
        weights=parse_weights(args.weights),
    )  # fmt: skip
    return CompileRequest(
        path, target, normalized(shapes), options=options, constants=given.constants, states=parse_states(args.states)
    )


def _tuning(request: CompileRequest, seed: int) -> Report | None:
    """What a search tried for the groups of a model in a file; None of IR, whose groups are formed."""
    if not isinstance(request.model, Path) or is_ir_file(request.model):
        return None
    tasks = tasks_of_model(request.model, request.target, request.shapes, request.options, constants=request.constants)
    return model_report(request.model.name, tasks, Path(request.options.database), hardware_of(request.target), seed)


__all__ = ["measured", "report_command", "report_of", "request_of"]
