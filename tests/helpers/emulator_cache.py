"""A cache of a test's own that has what the emulator compiled: its runtime takes 4 s of a core."""

from __future__ import annotations

from pathlib import Path

from treadle.environment import load_environment


def cache_with_emulator(folder: Path) -> Path:
    """`folder`, a cache that is empty but for the emulator's builds, which are those of the run's cache."""
    builds = load_environment().cache_dir / "emulator"
    builds.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "emulator").symlink_to(builds, target_is_directory=True)
    return folder


__all__ = ["cache_with_emulator"]
