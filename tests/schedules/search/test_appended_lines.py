"""Files of whole lines: after a torn line, on a full disk, with and without room that was kept."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.waiting import HANGS
from treadle.errors import TreadleError
from treadle.schedules.search.database import Room, append_lines

ROOT = Path(__file__).resolve().parents[3]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_lines_are_appended_to_a_file_in_a_folder_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.jsonl"
    append_lines(path, "one\n")
    append_lines(path, "two\nthree\n")
    assert path.read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("torn", ["tw", "two", "\0\0\0"])
def test_a_torn_line_is_cut_off(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text(f"one\n{torn}")
    append_lines(path, "two\n")
    assert path.read_text() == "one\ntwo\n"
    path.write_text(torn)
    append_lines(path, "two\n")
    assert path.read_text() == "two\n"


def failing(times: int) -> Callable[[int, memoryview], int]:
    """`os.write` on a disk with room for three bytes a call, and for none every other time, so many times."""
    real, calls = os.write, [0]

    def write(descriptor: int, data: memoryview) -> int:
        calls[0] += 1
        if calls[0] > 2 * times:
            return real(descriptor, data)
        if calls[0] % 2:
            return real(descriptor, data[:3])
        raise FULL

    return write


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text("one\n")
    monkeypatch.setattr(os, "write", failing(1))
    with pytest.raises(TreadleError, match=r"b\.jsonl: cannot write: No space left on device; accepted: a database"):
        append_lines(path, "two\nthree\n")
    assert path.read_text() == "one\n"


def test_room_takes_the_last_lines_of_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text("one\n")
    with Room(tmp_path) as room:
        assert os.listdir(tmp_path) == ["b.jsonl"]
        monkeypatch.setattr(os, "write", failing(1))
        with pytest.raises(TreadleError, match="No space left on device"):
            append_lines(path, "two\nthree\n", room)
        assert path.read_text() == "one\ntwo\nthree\n"
        assert not room.release()
        monkeypatch.setattr(os, "write", failing(1))
        with pytest.raises(TreadleError, match="No space left on device"):
            append_lines(path, "four\n", room)
    assert path.read_text() == "one\ntwo\nthree\n"


def test_room_that_does_not_do_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.jsonl"
    with Room(tmp_path) as room:
        monkeypatch.setattr(os, "write", failing(2))
        with pytest.raises(TreadleError, match="No space left on device"):
            append_lines(path, "two\nthree\n", room)
    assert path.read_text() == ""


def test_other_failures_do_not_use_up_the_room(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").mkdir()
    with Room(tmp_path) as room:
        with pytest.raises(TreadleError, match=r"b\.jsonl: cannot write: Is a directory"):
            append_lines(tmp_path / "b.jsonl", "two\n", room)
        assert room.release()


def test_no_room_is_said_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", failing(1))
    with pytest.raises(TreadleError, match="cannot write: No space left on device"):
        Room(tmp_path)
    assert os.listdir(tmp_path) == []


MOUNTED = "mount -t tmpfs -o size=160k tmpfs {folder} && exec {python} -m tests.tuning.full_disk {folder}"


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """Of a file system of 160 kB 64 are kept: the line that found it full is written, too, and all lines are whole."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        able = subprocess.run([*command, f"mount -t tmpfs tmpfs {tmp_path}"], capture_output=True).returncode == 0
    except OSError:
        able = False
    if not able:
        pytest.skip("no file system can be mounted here")
    script = MOUNTED.format(folder=tmp_path, python=sys.executable)
    done = subprocess.run([*command, script], cwd=ROOT, capture_output=True, text=True, timeout=HANGS)
    appended, lines, whole, said = done.stdout.split(maxsplit=3)
    assert int(lines) == int(appended) + 1 > 80
    assert whole == "True"
    assert "cannot write: No space left on device; accepted: a database that can be written, with room" in said
