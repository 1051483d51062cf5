"""`treadle check`: which nodes of a model are supported, which are not, and why."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from treadle.errors import TreadleError
from treadle.support.lazy import lazy_module
from treadle.target.options import CompileOptions, parse_convolution, parse_weights
from treadle.tools.arguments import parse_shapes, read_constants

if TYPE_CHECKING:
    from treadle import api
    from treadle.backends.memory import Memory
    from treadle.compiler import request as compile_request
    from treadle.frontends import onnx
    from treadle.frontends.onnx import NodeReport
    from treadle.passes.schedule import kernel_choices
else:
    api, compile_request = lazy_module("treadle.api"), lazy_module("treadle.compiler.request")
    onnx, kernel_choices = lazy_module("treadle.frontends.onnx"), lazy_module("treadle.passes.schedule.kernel_choices")


def check_command(args: argparse.Namespace) -> int:
    """Prints a table; 1 if any node is not supported.

    Without the shapes that a dynamic model needs, only operators are looked up, and a line says so.
    """
    if args.operators:
        print("\n".join(onnx.supported_operators()))
        return 0
    if args.model is None:
        raise TreadleError("no model is given", "arguments", "treadle check MODEL, or treadle check --operators")
    reports, unchecked = _reports(args)
    missing = [report for report in reports if not report.supported]
    console = Console(highlight=False, soft_wrap=True)
    console.print(_nodes(reports) if args.nodes else _operators(reports))
    for report in missing:
        console.print(Text(f"{report.verdict}: {report.reason or report.name}"))
    if args.explain_fusion and not missing and unchecked is None:
        _explain(args)
    if args.kernels and not missing and unchecked is None:
        console.print(_kernels(args))
    if args.memory and not missing and unchecked is None:
        console.print(f"peak memory of a call: {_memory(args)}")
    if unchecked is not None:
        console.print(Text(f"operators only, no shapes: {unchecked}"))
    console.print(f"{len(reports) - len(missing)} of {len(reports)} nodes are supported")
    operations = sum(report.operations for report in reports)
    if operations:
        console.print(f"{operations:,} operations of arithmetic, as imported")
    return 1 if missing else 0


def _reports(args: argparse.Namespace) -> tuple[list[NodeReport], str | None]:
    """The verdict on each node; if extents are missing for a full check, the error that names them."""
    try:
        return onnx.check_model(args.model, parse_shapes(args.shape), read_constants(args.input)), None
    except TreadleError as error:
        if not isinstance(error, onnx.MissingExtents):
            raise
        return onnx.look_up_nodes(args.model), str(error)


def _explain(args: argparse.Namespace) -> None:
    """Runs the pipeline up to the fusion, which prints its decisions."""
    target = api.resolve_target(args.target or "cpu")
    algorithm = parse_convolution(args.convolution, target.kind)
    options = CompileOptions(
        args.precision or "f32", explain_fusion=True, convolution=algorithm, weights=parse_weights(args.weights)
    )
    shapes = parse_shapes(args.shape)
    request = compile_request.CompileRequest(
        Path(args.model), target, shapes, options=options, constants=read_constants(args.input)
    )
    compile_request.lowered_module(request, "fuse")


def _kernels(args: argparse.Namespace) -> Table:
    """One row for each group: its nodes, the templates of its kernels, and why it gets none that are tried before."""
    target, shapes = api.resolve_target(args.target or "cpu"), parse_shapes(args.shape)
    algorithm = parse_convolution(args.convolution, target.kind)
    options = CompileOptions(args.precision or "f32", convolution=algorithm, weights=parse_weights(args.weights))
    request = compile_request.CompileRequest(
        Path(args.model), target, shapes, options=options, constants=read_constants(args.input)
    )
    table = _table("group", "nodes", "kernel", "not, because")
    for row in kernel_choices.kernel_choices(compile_request.lowered_module(request, "schedule"), target):
        reasons = "; ".join(f"{template}: {why}" for template, why in row.obstacles.items())
        table.add_row(Text(row.group), Text(row.nodes), Text(", ".join(row.templates)), Text(reasons))
    return table


def _memory(args: argparse.Namespace) -> Memory:
    """What a call of the compiled model takes, as `treadle compile` with these arguments would make it."""
    target, shapes = args.target or "cpu", parse_shapes(args.shape)
    constants, precision = read_constants(args.input), args.precision or "f32"
    with api.compile(
        Path(args.model),
        target,
        shapes,
        constants=constants,
        precision=precision,
        weights=args.weights,
        convolution=args.convolution,
    ) as model:
        return model.memory


def _operators(reports: Sequence[NodeReport]) -> Table:
    """One row for each kind of operator, in alphabetical order."""
    table = _table("operator", "nodes", "supported")
    nodes = Counter(report.op_type for report in reports)
    supported = Counter(report.op_type for report in reports if report.supported)
    for kind in sorted(nodes):
        table.add_row(Text(kind), str(nodes[kind]), str(supported[kind]))
    return table


def _nodes(reports: Sequence[NodeReport]) -> Table:
    """One row for each node, in the model's order: the graph operators that it becomes, and what they take."""
    table = _table("node", "operator", "verdict", "becomes")
    for column in ("operations", "bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    for report in reports:
        counts = [f"{number:,}" if report.becomes else "" for number in (report.operations, report.bytes)]
        table.add_row(Text(report.name), Text(report.op_type), report.verdict, Text(", ".join(report.becomes)), *counts)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
