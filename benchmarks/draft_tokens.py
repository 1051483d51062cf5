"""What a step costs that reads draft tokens along with the next one, against a step of one token.

    python -m benchmarks.draft_tokens --models DIR
    python -m benchmarks.draft_tokens --models DIR int4 --layers 4 --threads 2

A decoder in the shape of Qwen2 0.5B, with random weights, gives the logits of all tokens of a call; it has read 256
tokens. Calls of one and of more tokens take turns. Drafts pay where a call accepts more tokens than the
call costs calls of one token: the second number of each pair is that cost. The raw numbers go to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.language_models import Decoder
from benchmarks.language_own import CHOSEN, Own
from benchmarks.machine import describe_run
from benchmarks.result_files import RESULTS, write_results

COUNTS = (1, 2, 3, 4, 6, 8)
PAST = 256


def main(argv: Sequence[str] | None = None) -> None:
    """Measures each kind of weights, one after the other."""
    parser = argparse.ArgumentParser(description="What a step with draft tokens costs.")
    parser.add_argument("kinds", nargs="*", default=list(CHOSEN), help=", ".join(CHOSEN))
    parser.add_argument("--models", type=Path, required=True, help="where models are written, and found again")
    parser.add_argument("--layers", type=positive, default=Decoder.layers)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    model = Decoder(layers=args.layers, every_row=True).write(args.models)
    table = Table(
        "weights",
        *(f"{count} tokens" for count in COUNTS),
        title=f"ms a call, and times a call of one: {model.parent.name}",
    )
    results: list[dict[str, object]] = []
    for kind in args.kinds:
        own = Own(str(model), kind, args.threads, 512, 2048)
        seconds = measured(own, args.rounds)
        table.add_row(kind, *(f"{s * 1e3:.1f} {s / seconds[0]:.2f}" for s in seconds))
        results.append(
            {"kind": kind, "layers": args.layers, "threads": args.threads, "counts": COUNTS, "seconds": seconds}
        )
        own.close()
    Console().print(table)
    print(f"written to {write_results('draft_tokens', describe_run(), results, args.output)}")


def measured(own: Own, rounds: int) -> list[float]:
    """The median seconds of a call of each count of tokens, the counts in turn."""
    random = np.random.default_rng(0)
    past = random.integers(0, 1000, PAST).tolist()
    own.read_behind(past, [1])
    times = [
        [own.read_behind(past, random.integers(0, 1000, count).tolist()) for count in COUNTS] for _ in range(rounds)
    ]
    return [median(column) for column in zip(*times, strict=True)]


if __name__ == "__main__":
    main()
