"""`treadle run`: compiles a model, runs it, and compares it with its definition when asked to."""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from treadle.api import compile
from treadle.backends.c.compiler import observed_calls
from treadle.backends.cuda.emulator import CHECKS, check_limit
from treadle.backends.timeline import CompileSteps, Timeline, now
from treadle.errors import TreadleError
from treadle.model import CompiledModel, load
from treadle.runtime.inputs import (
    Given,
    check_of_model,
    empty_lengths,
    empty_states,
    inputs_at,
    inputs_of,
    points_of,
    read_inputs,
)
from treadle.runtime.run import check_call_options, describe, save_outputs, spread, timed
from treadle.shapes.constants import Constants
from treadle.shapes.dim import Shapes
from treadle.support.lazy import lazy_module
from treadle.support.output import STDOUT, output_stream
from treadle.support.progress import Progress
from treadle.target.options import DEVICES, parse_precision, parse_weights
from treadle.tools.arguments import parse_states, shapes_of_call
from treadle.tools.profile_table import print_profile
from treadle.tools.progress_bar import progress_bar

if TYPE_CHECKING:
    from treadle.tools import oracle
else:
    oracle = lazy_module("treadle.tools.oracle")

Array = NDArray[Any]

_EVENTS = 1 << 20
"""Room of a timeline: 42 MB where they are all written."""


def run_command(args: argparse.Namespace) -> int:
    """Prints a line for each output; 1 if an output differs from the reference, or the sanitizer finds something."""
    path = Path(args.model)
    given = read_inputs(args.input)
    shapes = shapes_of_call(args.shape, given.shapes)
    check_call_options(args)
    for option, asked in (("--sanitize", args.sanitize), ("--profile", args.profile), ("--limit", args.limit)):
        if asked not in (None, False) and args.device is None:
            raise TreadleError(f"{option} needs the emulator", "--device", DEVICES)
    if args.rebuild and not path.is_dir():
        raise TreadleError("--rebuild is for a compiled model", path, "a folder that `treadle compile` wrote")
    if args.limit is not None:
        check_limit(args.limit, "--limit")
    _check_timeline(args)
    with progress_bar() as progress, _written(args.timeline, path) as traced:
        steps = CompileSteps(progress)
        with observed_calls(steps.compiled):
            model = _packaged(path, given, args) if path.is_dir() else _compiled(shapes, given.constants, args, steps)
        compiled = now()
        inputs = inputs_of(model, given.arrays, args.seed)
        if model.device == "emulator":
            progress("compiling for the emulator", 1.0)
            model.open()
            progress("running on the emulator", 1.0)
        if args.timeline is not None:
            traced.append(model.trace(_EVENTS))
            traced[0].tracks = steps.tracks(compiled)
        start = time.perf_counter()
        outputs = model.run(inputs)
        seconds = time.perf_counter() - start
        repeated = [timed(model, inputs) for _ in range(args.repeat)]
        for timeline in traced:
            timeline.stop()
    describe(outputs)
    on = "the first run, which loads the kernels" if model.device is None else f"on the {model.device}"
    print(f"{seconds * 1e3:.2f} ms ({on})")
    if repeated:
        print(spread(repeated))
    for timeline in traced:
        _describe_timeline(timeline, str(args.timeline))
    if args.save is not None:
        save_outputs(outputs, Path(args.save))
    if args.profile:
        print_profile(model.reports)
    statuses = [_sanitize(model) if args.sanitize else 0]
    if args.check and (given.arrays or not model.symbols):
        statuses.append(_check(path, model, inputs, outputs, given.constants))
    if args.check and model.symbols:
        statuses.append(_check_range(path, model, given, args.seed))
    return max(statuses)


def _check_timeline(args: argparse.Namespace) -> None:
    """TreadleError for a timeline that there is not, or that has no file to go to."""
    if args.timeline is not None and args.device is not None:
        raise TreadleError("the emulator's launches have no times", "--timeline", "a model on a CPU or a GPU")
    if args.timeline == STDOUT:
        raise TreadleError("stdout has the lines about the outputs", "--timeline", "the name of a file")


@contextmanager
def _written(name: str | None, model: Path) -> Generator[list[Timeline]]:
    """A list whose timeline is written at the end; that it can be is found out now."""
    traced = list[Timeline]()
    if name is None:
        yield traced
        return
    with output_stream(name) as stream:
        yield traced
        for timeline in traced:
            timeline.title = model.name
            stream.write(timeline.text())


def _describe_timeline(timeline: Timeline, name: str) -> None:
    """How much there is of it, how long threads waited, and in which launch most."""
    launches, dropped = timeline.launches, timeline.dropped
    calls = "1 call" if len(timeline.calls) == 1 else f"{len(timeline.calls)} calls"
    line = f"{name}: {calls}, {len(launches)} launches"
    waited, total = sum(each.waited for each in launches), sum(each.seconds * each.workers for each in launches)
    if timeline.workers > 1 and total:
        line += f" on {timeline.workers} threads, which waited for {waited / total:.1%} of the launches' time"
    print(line)
    if timeline.workers > 1 and launches:
        worst = max(launches, key=lambda each: each.waited)
        busy = ", ".join(f"{1e3 * each:.3f}" for each in worst.busy)
        nodes = f" ({worst.nodes})" if worst.nodes else ""
        print(
            f"longest wait: {worst.kernel}{nodes}, {1e3 * worst.seconds:.3f} ms, in which the threads computed {busy}"
        )
    if dropped:
        print(f"events dropped: {dropped}, the oldest; fewer calls (--repeat) are kept as a whole")


def _packaged(path: Path, given: Given, args: argparse.Namespace) -> CompiledModel:
    """The compiled model in a folder; TreadleError for an option that only the .onnx file could follow."""
    asked = {
        "--check": args.check, "--shape": args.shape, "--target": args.target, "--precision": args.precision,
        "--weights": args.weights, "--convolution": args.convolution, "--states": args.states,
        "--database": args.database, "--construct": args.construct, "--from": args.after,
        "--explain-fusion": args.explain_fusion,
    }  # fmt: skip
    check_of_model(given, path)
    for option, value in asked.items():
        if value:
            raise TreadleError(f"{option} needs the model itself, not a compiled one", path, "an .onnx file")
    return load(
        path, args.threads, device=args.device, checks=_checks(args), counters=args.profile, limit=args.limit,
        rebuild=args.rebuild,
    )  # fmt: skip


def _compiled(shapes: Shapes, constants: Constants, args: argparse.Namespace, progress: Progress) -> CompiledModel:
    """The model of an .onnx file; if a device is given without a target, for the GPU that the device emulates."""
    target = args.target or ("cpu" if args.device is None else "cuda")
    return compile(
        args.model,
        target,
        shapes,
        constants=constants,
        states=parse_states(args.states),
        precision=args.precision or "f32",
        weights=args.weights,
        convolution=args.convolution,
        database=args.database,
        construct=args.construct,
        after=args.after,
        threads=args.threads,
        device=args.device,
        checks=_checks(args),
        counters=args.profile,
        limit=args.limit,
        explain_fusion=args.explain_fusion,
        progress=progress,
    )


def _checks(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(CHECKS) if args.sanitize else ()


def _sanitize(model: CompiledModel) -> int:
    """A line for each finding, those of a kernel's several launches once, then their number; 1 if there are any."""
    findings = dict.fromkeys(str(finding) for report in model.reports for finding in report.findings)
    for finding in findings:
        print(finding)
    kernels = {report.kernel for report in model.reports}
    print(f"findings: {len(findings)}; launches: {len(model.reports)}; kernels: {len(kernels)}")
    return 1 if findings else 0


def _check(
    path: Path, model: CompiledModel, inputs: dict[str, Array], outputs: dict[str, Array], constants: dict[str, Array]
) -> int:
    """A line for each output of the model and of ONNX Runtime; 1 if one of them differs from the definition."""
    check = check_of_call(path, model, inputs, outputs, constants)
    _print_comparisons(check)
    for refusal in check.refusals:
        print(f"{refusal}; the definition alone was compared with")
    return 0 if check.agrees else 1


def check_of_call(
    path: Path, model: CompiledModel, inputs: dict[str, Array], outputs: dict[str, Array], constants: dict[str, Array],
    *, evaluator: bool = False,
) -> oracle.Check:  # fmt: skip
    """Outputs of a call of the model in a file, compared with its definition; `evaluator` as in `check_model`."""
    precision, weights = parse_precision(model.manifest.precision), model.manifest.weights.get("kind")
    return oracle.check_model(
        path, inputs, outputs, precision, constants, evaluator=evaluator, weights=parse_weights(weights),
        states=empty_states(model),
    )  # fmt: skip


def checks_along(
    path: Path, model: CompiledModel, given: Given, seed: int
) -> Iterator[tuple[dict[str, int], oracle.Check]]:
    """The same at corners and other points of a model's range: the values of its symbols, each with the check."""
    points = points_of(model.symbols, seed)
    for values in map(dict, dict.fromkeys(tuple({**point, **empty_lengths(model)}.items()) for point in points)):
        inputs = inputs_at(model.inputs, values, given.arrays, seed)
        model.reset()
        yield values, check_of_call(path, model, inputs, model.run(inputs), given.constants, evaluator=True)


def _print_comparisons(check: oracle.Check, where: str = "") -> None:
    for result in check.own:
        print(f"{where}{result}")
    for name, distance in check.distances.items():
        print(f"{where}{name}: {distance:.3g} from the model with float weights (relative, in the root mean square)")
    for result in check.reference:
        print(f"{where}{check.peer}: {result}", flush=True)


def _check_range(path: Path, model: CompiledModel, given: Given, seed: int) -> int:
    """A line for each output at each point of a model's range, then what was compared with what."""
    peers, refusals, status, calls = dict[str, None](), dict[str, None](), 0, 0
    for values, check in checks_along(path, model, given, seed):
        _print_comparisons(check, ", ".join(f"{name} = {value}" for name, value in values.items()) + ": ")
        peers |= {check.peer: None} if check.peer else {}
        refusals |= dict.fromkeys(check.refusals)
        status |= not check.agrees
        calls += 1
    for refusal in refusals:
        print(refusal)
    ranges, others = ", ".join(map(str, model.symbols)), "".join(f", and {peer} on the model itself" for peer in peers)
    print(f"at {calls} points of {ranges}: compared with the definition for each point's shapes{others}")
    return status


__all__ = ["check_of_call", "checks_along", "run_command"]
