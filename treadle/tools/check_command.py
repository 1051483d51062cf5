"""`treadle check`: which nodes of a model are supported, which are not, and why."""

from __future__ import annotations

import argparse
import pkgutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from treadle.settings import Settings
from treadle.tools.arguments import parse_shapes

if TYPE_CHECKING:
    from treadle.frontends.onnx import NodeReport

CheckModel = Callable[[str, dict[str, tuple[int, ...]]], "list[NodeReport]"]


def check_command(args: argparse.Namespace) -> int:
    """Prints a table; 1 if any node is not supported."""
    check_model = cast(CheckModel, pkgutil.resolve_name("treadle.frontends.onnx:check_model"))
    reports = check_model(args.model, parse_shapes(args.shape))
    missing = [report for report in reports if not report.supported]
    console = Console(highlight=False, soft_wrap=True)
    console.print(_nodes(reports) if args.nodes else _operators(reports))
    for report in missing:
        console.print(Text(f"{report.verdict}: {report.reason or report.name}"))
    if args.explain_fusion and not missing:
        _explain(args)
    console.print(f"{len(reports) - len(missing)} of {len(reports)} nodes are supported")
    return 1 if missing else 0


def _explain(args: argparse.Namespace) -> None:
    """Runs the pipeline up to the fusion, which prints its decisions."""
    target = pkgutil.resolve_name("treadle.api:resolve_target")(args.target or "cpu")
    settings = Settings(args.precision or "f32", explain_fusion=True)
    shapes = parse_shapes(args.shape)
    request = pkgutil.resolve_name("treadle.request:Request")(Path(args.model), target, shapes, settings=settings)
    pkgutil.resolve_name("treadle.request:lowered_module")(request, "fuse")


def _operators(reports: Sequence[NodeReport]) -> Table:
    """One row for each kind of operator, in alphabetical order."""
    table = _table("operator", "nodes", "supported")
    nodes = Counter(report.op_type for report in reports)
    supported = Counter(report.op_type for report in reports if report.supported)
    for kind in sorted(nodes):
        table.add_row(Text(kind), str(nodes[kind]), str(supported[kind]))
    return table


def _nodes(reports: Sequence[NodeReport]) -> Table:
    """One row for each node, in the model's order."""
    table = _table("node", "operator", "verdict")
    for report in reports:
        table.add_row(Text(report.name), Text(report.op_type), report.verdict)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
