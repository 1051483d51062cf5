"""`make gpu-first` without a GPU: limits, reports, what stays of a step that fails. The fake driver rehearses it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_first, install_wheels
from benchmarks.gpu_first import STEPS, Step, run_step

HERE = (sys.executable,)


def python(text: str) -> tuple[str, ...]:
    return ("-c", text)


def test_a_step_ends_with_its_output_or_at_its_limit() -> None:
    step = Step("a", "why", (), 9.0)
    passed = run_step(step, [*HERE, *python("print('x\\n' * 99)")], 60.0)
    assert (passed["ended"], passed["output"]) == ("passed", ["x"] * 39 + [""])
    failed = run_step(step, [*HERE, *python("import sys; print('why'); sys.exit(3)")], 60.0)
    assert (failed["ended"], failed["output"]) == ("failed", ["why"])
    # A child of the step's does not outlive it either: it would hold the pipe open.
    endless = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    assert run_step(step, [*HERE, *python(endless)], 1.0)["ended"] == "stopped"
    assert run_step(step, [*HERE, *python("1")], 0.0)["ended"] == "no time left"


def test_each_step_s_result_is_written_before_the_next_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    look = f"import json; print(len(json.load(open({str(tmp_path / 'steps.json')!r}))['steps']))"
    report = tmp_path / "tests.xml"
    xml = (
        "<testsuites><testsuite><testcase classname='t' name='good'/>"
        "<testcase classname='t' name='bad'><failure message='1 != 2'/></testcase></testsuite></testsuites>"
    )
    steps = (
        Step("tests", "first", python(f"open({str(report)!r}, 'w').write({xml!r}); import sys; sys.exit(1)"), 60.0),
        Step("looks", "then", python(look), 60.0, python("print('rehearsed')")),
    )
    monkeypatch.setattr(gpu_first, "STEPS", steps)
    monkeypatch.setattr(gpu_first, "why_no_gpu", lambda: None)
    monkeypatch.setattr(gpu_first, "describe_gpu", lambda: {"gpu": "Some GPU"})
    assert gpu_first.main(["--output", str(tmp_path)], HERE) == 1
    content = json.loads((tmp_path / "steps.json").read_text())
    first, second = content["steps"]
    assert content["gpu"] == "Some GPU" and "commit" in content
    assert first["tests"] == {"t::good": "passed", "t::bad": "failure: 1 != 2"} and not report.exists()
    assert (second["ended"], second["output"]) == ("passed", ["1"])
    gpu_first.main(["--output", str(tmp_path), "--rehearse"], HERE)
    assert json.loads((tmp_path / "steps.json").read_text())["steps"][1]["output"] == ["rehearsed"]
    assert "tests: failed after" in capsys.readouterr().out


def test_a_step_whose_tests_were_all_skipped_has_not_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped = "<testcase classname='t' name='a'><skipped message='no pycuda'/></testcase>"
    for cases, ended in ((skipped, "skipped"), (f"{skipped}<testcase classname='t' name='b'/>", "passed")):
        xml = f"<testsuites><testsuite>{cases}</testsuite></testsuites>"
        step = Step("tests", "first", python(f"open({str(tmp_path / 'tests.xml')!r}, 'w').write({xml!r})"), 60.0)
        monkeypatch.setattr(gpu_first, "STEPS", (step,))
        monkeypatch.setattr(gpu_first, "why_no_gpu", lambda: None)
        monkeypatch.setattr(gpu_first, "describe_gpu", lambda: {"gpu": "Some GPU"})
        assert gpu_first.main(["--output", str(tmp_path)], HERE) == int(ended == "skipped")
        assert f"tests: {ended} after" in capsys.readouterr().out


def test_the_limits_fit_into_eight_minutes() -> None:
    assert gpu_first._arguments([]).seconds < 480
    assert all(step.seconds <= 130 and "OUTPUT" in " ".join(step.arguments) for step in STEPS)


def test_without_a_gpu_there_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_first, "why_no_gpu", lambda: "no GPU: none was built in")
    assert gpu_first.main([]) == 0
    assert capsys.readouterr().out == "gpu-first skipped: no GPU: none was built in\n"


def test_wheels_of_a_folder_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("pycuda-2026.1-cp311-cp311-linux_x86_64.whl", "pycuda-2026.1-cp312-cp312-linux_x86_64.whl", "a.txt"):
        (tmp_path / name).touch()
    assert install_wheels.packages(tmp_path) == ["pycuda"]
    assert install_wheels.install(tmp_path / "none", tmp_path) == 1
    assert "no wheels; accepted: a folder of .whl files" in capsys.readouterr().err
