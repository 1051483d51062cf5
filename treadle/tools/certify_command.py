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
from treadle.tools.certificate import Certificate, Losses, certify, kernels_of_every_call
from treadle.tools.certificate_page import LOSS_HEADINGS, certificate_page, loss_texts
from treadle.tools.output import output_stream


def certify_command(args: argparse.Namespace) -> int:
    """Prints a table a dispatch: each leaf's kernel, the extents with which a call comes to it, and what such calls
    were predicted to lose; `--report` writes a page with pictures."""
    artifact = Artifact(Path(args.artifact))
    found = certify(artifact)
    console = Console(highlight=False, soft_wrap=True)
    for number, certificate in enumerate(found):
        console.print(certificate_table(number, certificate))
        console.print(Text(_losses(certificate)))
    symbols = ", ".join(map(str, artifact.manifest.symbols)) or "one shape"
    if args.report is not None:
        page = certificate_page(artifact.folder.name, symbols, found, kernels_of_every_call(artifact))
        with output_stream(args.report) as stream:
            stream.write(page)
    several = (
        f"{len(found)} groups take one of several kernels, each call exactly one" if found else "one kernel a group"
    )
    console.print(Text(f"certified for {symbols}: {several}"))
    return 0


def certificate_table(number: int, certificate: Certificate) -> Table:
    """The leaves of one dispatch."""
    table = Table(box=box.SIMPLE_HEAD, title=f"dispatch {number}: {certificate.tree}", title_justify="left")
    losses = [Losses.of(certificate.at(leaf)) for leaf in certificate.leaves]
    has_losses = any(loss is not None for loss in losses)
    for name in (*certificate.names, "kernel", *(LOSS_HEADINGS if has_losses else ())):
        table.add_column(name, overflow="fold")
    for leaf, loss in zip(certificate.leaves, losses, strict=True):
        extents = (f"{low} to {high}" for low, high in leaf.extents)
        table.add_row(*extents, Text(leaf.kernel), *(loss_texts(loss) if has_losses else ()))
    return table


def _losses(certificate: Certificate) -> str:
    loss = Losses.of(certificate.points)
    if loss is None:
        return "nothing was predicted of its kernels"
    found = f"worst {loss.worst:.1%}, mean {loss.mean:.1%}"
    return f"predicted loss against the best micro-kernel at {loss.points} points: {found}"


__all__: Sequence[str] = ["certificate_table", "certify_command"]
