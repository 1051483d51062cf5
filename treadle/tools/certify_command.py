"""`treadle certify`: proves that every call of an artifact for a range of shapes is served by exactly one kernel."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from treadle.artifact import Artifact
from treadle.tools.certificate import Certificate, certify


def certify_command(args: argparse.Namespace) -> int:
    """Prints a table a dispatch: each leaf's kernel, and the extents with which a call comes to it."""
    artifact = Artifact(Path(args.artifact))
    found = certify(artifact)
    console = Console(highlight=False, soft_wrap=True)
    for number, certificate in enumerate(found):
        console.print(certificate_table(number, certificate))
        console.print(Text(_losses(certificate)))
    symbols = ", ".join(map(str, artifact.manifest.symbols)) or "one shape"
    several = (
        f"{len(found)} groups take one of several kernels, each call exactly one" if found else "one kernel a group"
    )
    console.print(Text(f"certified for {symbols}: {several}"))
    return 0


def certificate_table(number: int, certificate: Certificate) -> Table:
    """The leaves of one dispatch."""
    table = Table(box=box.SIMPLE_HEAD, title=f"dispatch {number}: {certificate.tree}", title_justify="left")
    for name in (*certificate.names, "kernel"):
        table.add_column(name, overflow="fold")
    for leaf in certificate.leaves:
        table.add_row(*(f"{low} to {high}" for low, high in leaf.extents), Text(leaf.kernel))
    return table


def _losses(certificate: Certificate) -> str:
    worst, mean = certificate.worst, certificate.mean
    if worst is None or mean is None:
        return "nothing was predicted of its kernels"
    points = f"{certificate.points} points"
    return f"predicted loss against the best micro-kernel at {points}: worst {worst:.1%}, mean {mean:.1%}"


__all__: Sequence[str] = ["certificate_table", "certify_command"]
