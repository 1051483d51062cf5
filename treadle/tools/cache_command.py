"""`treadle cache`: lists the contents of the cache, or removes them."""

from __future__ import annotations

import argparse

from treadle.artifact.store import KINDS, kind_bytes, store_of
from treadle.environment import load_environment


def cache_command(args: argparse.Namespace) -> int:
    """Prints a line for each kind of entry, with its number and its size; with `--clear`, after removing them."""
    store = store_of(load_environment())
    if args.clear:
        store.clear()
    for folder in store.every_folder():
        print(f"{folder}: at most {_megabytes(store.limit)} (TREADLE_CACHE_LIMIT)")
        for kind in KINDS:
            count, size = kind_bytes(folder, kind)
            print(f"{kind:<10} {count:>7} {_megabytes(size):>12}")
    return 0


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
