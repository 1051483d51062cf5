"""`treadle explore`: what it records and says of a compile, its server, and edits of decisions."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import subprocess
import threading
import zlib
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

import treadle
from tests.helpers.onnx_models import residual_layers, save_model, two_products, value
from tests.helpers.waiting import HANGS, eventually
from tests.test_states import KEPT, RANGES, decoder
from tests.tools.test_report import CHROMIUM, DRIVER, NASTY, Browser, Tree, browser
from treadle.api import resolve_target
from treadle.compiler.pipeline import lower
from treadle.compiler.request import CompileRequest, lowered_module, read_module
from treadle.dialects.registry import treadle_context
from treadle.passes.instruments import Instrument, ir_text
from treadle.runtime.inputs import Given
from treadle.shapes.dim import Dim, normalized
from treadle.tools import explore_export, explore_values
from treadle.tools.explore_export import CHUNK, Packing, exported_names, is_export, write_export
from treadle.tools.explore_page import DATA, INDEX
from treadle.tools.explore_page import document as document_of
from treadle.tools.explore_record import EDIT, Documents, code_of, json_of
from treadle.tools.explore_server import TOKEN, Server
from treadle.tools.explore_session import Session, Settings
from treadle.tools.treadle_cli import main
from treadle.tuning.child import CallEndedError

NODE = shutil.which("node")
A, B = (np.random.default_rng(3).standard_normal(shape).astype(np.float32) for shape in ((16, 48), (48, 16)))
SETTINGS = Settings(seconds=0.1, threads=2)
TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|(%[\w.$-]+)')
"""As explore_text.js finds values in a line."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose first node has a name that neither HTML nor a terminal should read."""
    return two_products(tmp_path_factory.mktemp("explore") / "m.onnx", A, B, NASTY)


@contextmanager
def opened(
    path: Path, n: int | Dim | None = 24, target: str = "cpu", settings: Settings = SETTINGS
) -> Generator[Session]:
    request = CompileRequest(path, resolve_target(target), {} if n is None else {"n": (n,)})
    with closing(Session(request, Given(), settings)) as session:
        session.begin()
        yield session


@pytest.fixture(scope="module")
def session(path: Path) -> Generator[Session]:
    """One that no test edits."""
    with opened(path) as found:
        yield found


@contextmanager
def served(session: Session) -> Generator[Server]:
    with Server(session) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(path: Path) -> Generator[Server]:
    with opened(path) as session, served(session) as found:
        yield found


def send(
    server: Server, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any, Mapping[str, str]]:
    """The status of an answer, its content, and its headers; with the token unless other headers are given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=HANGS)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    given = {TOKEN: server.token} if headers is None else dict(headers)
    with closing(connection):
        connection.request("GET" if body is None else "POST", path, data, given)
        answer = connection.getresponse()
        content = answer.read().decode()
        is_json = answer.getheader("Content-Type") == "application/json"
        return answer.status, json.loads(content) if is_json else content, dict(answer.getheaders())


def document(server: Server, name: str) -> Any:
    status, content, _ = send(server, f"/data/{name}")
    assert status == 200, content
    return content


# What is recorded.


class Texts(Instrument):
    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        self.found.append((stage, step.name, ir_text(module)))


def test_texts_are_those_of_the_pipeline(session: Session, path: Path) -> None:
    module, texts = lowered_module(session.request, "import"), Texts()
    first = ir_text(module)
    lower(treadle_context(), module, session.target, instruments=[texts])
    recorder, documents = session.current.recorder, session.documents
    assert documents.get(f"text-{recorder.first}")["text"] == first
    before = first
    assert len(recorder.passes) == len(texts.found)
    for each, (stage, name, text) in zip(recorder.passes, texts.found, strict=True):
        assert (each.stage, each.name) == (stage, name)
        assert documents.get(f"text-{each.after}")["text"] == text
        assert documents.get(f"text-{each.before}")["text"] == before
        assert (each.before == each.after) == (text == before)
        blocks = [] if text == before else documents.difference(each.before, each.after)
        assert each.added - each.removed == text.count("\n") - before.count("\n")
        assert each.added == sum(block.added for block in blocks)
        before = text


def test_every_value_is_found_by_its_place(session: Session) -> None:
    """The page knows a value by its order in its line: texts in quotes are none."""
    documents = session.documents
    for number in {each.after for each in session.current.recorder.passes}:
        values = documents.get(f"values-{number}")
        for n, line in enumerate(documents.get(f"text-{number}")["text"].splitlines()):
            shown = [found[1] for found in TOKENS.finditer(line) if found[1]]
            assert shown == [values["names"][each] for each in (values["lines"][n] if n < len(values["lines"]) else [])]


def test_values_say_where_they_come_from(session: Session) -> None:
    documents = session.documents
    number = session.current.scheduled
    values = documents.get(f"values-{number}")
    id = values["names"].index("%r")
    lines = documents.get(f"text-{number}")["text"].splitlines()
    assert lines[values["at"][id]].strip().startswith("%r = graph.matmul ")
    assert values["TYPE"][values["type"][id]] == "tensor<24x16xf32>"
    assert values["OP"][values["op"][id]] == "graph.matmul"
    assert values["FUNCTION"][values["function"][id]] == "main"
    assert values["NODES"][values["nodes"][id]] == [["down", "MatMul"]]
    users = [n for n, line in enumerate(values["lines"]) if id in line and n != values["at"][id]]
    assert len(users) == 1 and "graph.at %r[" in lines[users[0]]


def test_lines_of_c_are_those_of_their_operations(session: Session) -> None:
    version, documents = session.current, session.documents
    ir = documents.get(f"text-{version.recorder.passes[-1].after}")["text"].splitlines()
    for code in version.code:
        text = documents.get(f"text-{code.text}")["text"].splitlines()
        assert any("#include" in line for line in text)
        (store,) = {text[n].strip().split(" = ")[0].split("[")[0] for n in code.written}
        assert store in ("*(v16f_u *)&C", "*(v16f_u *)&Y", "C", "Y", "*(v8f_u *)&C", "*(v8f_u *)&Y") or "&" in store
        body = range(next(n for n, line in enumerate(text) if line.startswith("void ")) + 1, len(text) - 1)
        claimed = {n for lines in code.lines.values() for n in lines}
        assert claimed <= set(body)
        assert {n for n in body if "args[" not in text[n]} == claimed, "each line but parameters is of an operation"
    (product, *_) = version.code
    text = documents.get(f"text-{product.text}")["text"].splitlines()
    loads = [line for line in product.lines if "memref.load %A[" in ir[line]]
    assert loads
    assert all("A[" in text[n] for line in loads for n in product.lines[line])


def test_lines_of_cuda_are_those_of_their_operations(path: Path) -> None:
    request = CompileRequest(path, resolve_target("sm_80"), {"n": (24,)})
    module, documents = lowered_module(request), Documents()
    ir = ir_text(module).splitlines()
    for code in code_of(module, "cuda", documents):
        text = documents.get(f"text-{code.text}")["text"].splitlines()
        start = next(n for n, line in enumerate(text) if line.startswith('extern "C"'))
        assert {n for lines in code.lines.values() for n in lines} == set(range(start + 1, len(text) - 1))
        barriers = [line for line in code.lines if "cuda.barrier" in ir[line]]
        assert all("treadle_barrier" in text[n] or "__syncthreads" in text[n] for b in barriers for n in code.lines[b])
        assert code.written and code.nodes


def test_values_are_numpys(session: Session) -> None:
    x = session.inputs["x"].astype(np.float64)
    p = x @ A
    s = np.maximum(p, 0) @ B + x
    exact = {"%p": p, "%q": np.maximum(p, 0), "%s": s, "%y": np.exp(s - s.max(1, keepdims=True))}
    exact["%y"] /= exact["%y"].sum(1, keepdims=True)
    recorder = session.current.recorder
    for number, expected in (
        (recorder.first, exact),
        (recorder.last_of("schedule"), exact),
        (recorder.last_of("kernels"), {name: exact[name] for name in ("%q", "%s", "%y")}),
        (recorder.last_of("loops"), {name: exact[name] for name in ("%q", "%s", "%y")}),
    ):
        numbers = session.evaluator.numbers(number)
        assert "note" not in numbers
        names = session.documents.get(f"values-{number}")["names"]
        found = {names[int(id)]: each for id, each in numbers["values"].items()}
        for name, array in expected.items():
            first = np.array([float(each) for each in found[name]["first"]])
            np.testing.assert_allclose(first, array.reshape(-1)[:8], rtol=1e-4, atol=1e-5)
            assert float(found[name]["max"]) == pytest.approx(array.max(), rel=1e-4)
            assert float(found[name]["mean"]) == pytest.approx(array.mean(), rel=1e-3, abs=1e-5)
            assert sum(found[name]["histogram"]) == array.size
            error = re.match(
                r"at most (\S+), .* root mean square; at most (\S+) of an element's limit", found[name]["error"]
            )
            assert error is not None
            assert 0 < float(error[1]) < 1e-4
            assert 0 < float(error[2]) < 1


def test_scalars_have_values_for_all_elements(session: Session) -> None:
    """Of softmax's definition: x - max, and the exponential of it."""
    number = session.current.scheduled
    documents = session.documents
    values, text = documents.get(f"values-{number}"), documents.get(f"text-{number}")["text"].splitlines()
    numbers = session.evaluator.numbers(number)["values"]
    x = session.inputs["x"].astype(np.float64)
    s = np.maximum(x @ A, 0) @ B + x
    shifted = s - s.max(1, keepdims=True)
    checked = 0
    for id, each in numbers.items():
        line = text[values["at"][int(id)]].strip()
        expected = shifted if " = arith.subf" in line else np.exp(shifted) if " = math.exp" in line else None
        if expected is not None:
            checked += 1
            assert each["shape"] == [24, 16]
            np.testing.assert_allclose(
                [float(n) for n in each["first"]], expected.reshape(-1)[:8], rtol=1e-4, atol=1e-5
            )
            assert "of an element's limit" in each["error"]
    assert checked == 2, "of the sum's own body there are others, which are folded"


def test_a_wrong_kernel_is_far_from_float64(session: Session) -> None:
    """The f64 values are of the groups, whatever the kernels compute."""
    number = session.current.recorder.last_of("plan")
    text = session.documents.get(f"text-{number}")["text"]
    wrong = text.replace("arith.maximumf", "arith.minimumf", 1)
    assert wrong != text
    added = session.documents.add_text(wrong)
    session.documents.put(f"values-{added}", session.documents.get(f"values-{number}"))
    numbers = session.evaluator.numbers(added)
    names = session.documents.get(f"values-{number}")["names"]
    worst = {names[int(id)]: float(re.findall(r"at most (\S+?)[, ]", each["error"])[-1])
             for id, each in numbers["values"].items()}  # fmt: skip
    assert worst["%q"] > 1000


def test_what_is_not_evaluated_says_why(session: Session) -> None:
    last = session.current.recorder.passes[-1].after
    assert "only the compiled code runs what the last pass leaves" in session.evaluator.numbers(last)["note"]
    few = session.evaluator.__class__(session.documents, session.evaluator.inputs, session.current.scheduled, most=1000)
    assert "operations a call" in few.numbers(session.current.recorder.last_of("kernels"))["note"]


# The server.


def test_only_the_page_itself_is_answered(session: Session) -> None:
    with served(session) as server:
        check_answers(server)


def check_answers(server: Server) -> None:
    status, page, headers = send(server, "/", headers={})
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert server.token not in page
    assert send(server, "/explore.js", headers={})[0] == 200
    here = {TOKEN: server.token}
    for path, body, given, said in (
        ("/data/state", None, {}, "token"),
        ("/data/state", None, {TOKEN: server.token[:-1]}, "token"),
        ("/data/state", None, {TOKEN: "caf\u00e9"}, "token"),
        ("/progress", None, {}, "token"),
        ("/module", None, {}, "token"),
        ("/undo", {}, {}, "token"),
        ("/data/state", None, {**here, "Host": "evil.example"}, "another host"),
        ("/", None, {"Host": f"evil.example:{server.server_port}"}, "another host"),
        ("/undo", {}, {**here, "Origin": "https://evil.example"}, "another page"),
        ("/undo", {}, {**here, "Origin": "null"}, "another page"),
    ):
        status, content, _ = send(server, path, body, given)
        assert (status, said in content["error"]) == (403, True), (path, given, content)
    origin = f"http://{server.host}"
    assert send(server, "/undo", {}, {**here, "Origin": origin})[1]["error"].startswith("undo: nothing was edited")
    local = {**here, "Host": f"localhost:{server.server_port}"}
    assert send(server, "/data/state", headers=local)[0] == 200


@pytest.mark.parametrize(
    ("address", "body", "status", "said"),
    [
        ("/data/nothing", None, 404, "there is no document 'nothing'"),
        ("/data/text-999", None, 404, "there is no document"),
        ("/data/diff-0-999", None, 404, "there is no document"),
        ("/data/numbers-999", None, 404, "there is no document"),
        ("/data/..%2f..%2fetc", None, 404, "there is no document"),
        ("/../pyproject.toml", None, 404, "there is nothing at"),
        ("/data/options-77", None, 400, "there is no group 77; accepted: 0 to 2"),
        ("/nothing", {}, 404, "there is nothing to do"),
        ("/edit", b"{", 400, "no JSON"),
        ("/edit", [], 400, "no object"),
        ("/edit", {"group": "0", "schedule": ""}, 400, "no edit"),
        ("/edit", {"group": True, "schedule": ""}, 400, "no edit"),
        ("/edit", b" " * 70_000, 413, "up to 65536 bytes"),
        ("/edit", {"group": -1, "schedule": ""}, 400, "there is no group -1"),
        ("/edit", {"group": 0, "schedule": ""}, 400, "attribute expected"),
        ("/edit", {"group": 0, "schedule": "7 : i64"}, 400, "is no schedule"),
        ("/edit", {"group": 0, "schedule": '#schedule.use<"matmul_cpu", {rows = 99}>'}, 400, "accepted: 1 to 14"),
        ("/edit", {"group": 0, "schedule": '#schedule.use<"matmul_gpu">'}, 400, "unknown template 'matmul_gpu'"),
        ("/edit", {"group": 0, "schedule": '#schedule.use<"row_cpu"> x'}, 400, "'x' is no schedule"),
        ("/edit", {"group": 0, "schedule": '#schedule.use<"matmul_cpu", {rows = 1, rows = 2}>'}, 400, "given twice"),
        ("/edit", {"group": 0, "schedule": "@nowhere"}, 400, "there is no schedule program @nowhere"),
    ],
)  # fmt: skip
def test_bad_requests_are_one_error(address: str, body: object, status: int, said: str, session: Session) -> None:
    with served(session) as server:
        found, content, _ = send(server, address, body)
        assert (found, said in content["error"]) == (status, True), content
        assert "\n" not in content["error"]
        assert len(session.versions) == 1, "nothing changed"


def test_an_edit_is_compiled_timed_checked_and_undone(server: Server, tmp_path: Path) -> None:
    groups = document(server, "version-0")["groups"]
    assert [each["label"] for each in groups] == ["unpack_matmul_relu", "unpack_matmul_add", "softmax"]
    old = groups[0]["schedule"]
    new = old.replace("pack = false", "pack = true")
    assert new != old
    status, state, _ = send(server, "/edit", {"group": 0, "schedule": new})
    assert status == 200, state
    base, edited = state["versions"]
    assert (base["number"], edited["number"]) == (0, 1)
    assert edited["change"] == f"unpack_matmul_relu: {old} became {new}"
    assert re.search(r"ms became .* ms a call; two runs of the version before differ", edited["timed"])
    assert re.fullmatch(r"\d+\.\d+ times as fast, \S+ to \S+", edited["ratio"])
    assert re.fullmatch(r"\d+\.\d+ times as fast, \S+ to \S+", edited["groupRatio"])
    (verdict,) = edited["verdicts"]
    assert verdict["agrees"] and verdict["text"].startswith("y: max abs error")
    found = document(server, "version-1")
    assert found["groups"][0]["schedule"] == new
    (edit,) = [each for each in found["passes"] if each["name"] == EDIT]
    assert (edit["stage"], edit["added"], edit["removed"]) == ("schedule", 1, 1)
    before = document(server, "version-0")["passes"]
    index = found["passes"].index(edit)
    assert [each["name"] for each in found["passes"] if each["name"] != EDIT] == [each["name"] for each in before]
    assert found["passes"][:index] == before[:index]
    kernel, other = (document(server, f"code-{n}")["kernels"][0] for n in (1, 0))
    assert "panel[" in document(server, f"text-{kernel['text']}")["text"]
    assert "panel[" not in document(server, f"text-{other['text']}")["text"]
    assert document(server, f"diff-{other['text']}-{kernel['text']}")["blocks"]
    saved = tmp_path / "schedule.mlir"
    saved.write_text(send(server, "/module")[1])
    x = np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32)
    with treadle.compile(saved) as model:
        s = np.maximum(x.astype(np.float64) @ A, 0) @ B + x
        e = np.exp(s - s.max(1, keepdims=True))
        np.testing.assert_allclose(model(x)[0], e / e.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)
        texts = [model.artifact.read_text(name) for name in model.manifest.files if name.endswith("matmul_relu.c")]
    assert texts == [document(server, f"text-{kernel['text']}")["text"]], "resumed with the edited decision"
    status, state, _ = send(server, "/edit", {"group": 0, "schedule": new})
    assert (status, "it has this schedule already" in state["error"]) == (400, True)
    state = send(server, "/undo", {})[1]
    assert [each["number"] for each in state["versions"]] == [0]
    assert old in send(server, "/module")[1]


def test_options_are_those_of_the_templates(session: Session, capsys: pytest.CaptureFixture[str], path: Path) -> None:
    assert main(["schedules", str(path), "matmul_relu", "--shape", "n=24"]) == 0
    printed = capsys.readouterr().out
    options = session.options(0)
    assert f"default {options['default']}\n" in printed
    for template in options["templates"]:
        assert f"  {template['name']}: " in printed
        for knob in template["knobs"]:
            assert re.search(rf"^    {knob['name']} +", printed, re.MULTILINE)
            assert knob["values"]
            assert knob["meaning"].split(" (")[0] in printed


def test_one_thing_is_computed_at_a_time(session: Session) -> None:
    with served(session) as server, server.work:
        status, content, _ = send(server, "/measure", {})
        assert (status, content["error"].startswith("something is computed")) == (409, True)
        assert send(server, "/progress")[0] == 200
        assert send(server, "/data/text-0")[0] == 200, "what is there is given meanwhile"


def test_code_that_crashes_ends_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*arguments: object) -> None:
        raise CallEndedError("it ended the process that ran it (SIGSEGV)")

    with opened(path) as session:
        monkeypatch.setattr(session._child, "call", ended)
        old = str(session.options(0)["default"])
        version = session.edit(0, old.replace("pack = false", "pack = true"))
        assert version.note == "not timed: it ended the process that ran it (SIGSEGV)"
        (verdict,) = version.verdicts
        assert not verdict.agrees
        assert verdict.text == "the compiled code gave no outputs: it ended the process that ran it (SIGSEGV)"
        session.__dict__.pop("_calls")
        session.request = replace(session.request, model=path.with_name("gone.onnx"))
        session.measure()
        (verdict,) = version.verdicts
        assert verdict.text.startswith("not compared with the definition: ")
        assert not verdict.agrees


def test_equal_groups_are_edited_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """relu(x a) and relu(z a) are one kernel, launched twice."""
    monkeypatch.setattr(Session, "measure", lambda session: None)
    nodes = [helper.make_node("MatMul", [x, "a"], [f"p{x}"]) for x in ("x", "z")]
    nodes += [helper.make_node("Relu", [f"p{x}"], [f"y{x}"]) for x in ("x", "z")]
    inputs, outputs = ([value(f"{y}{x}", (24, n)) for x in ("x", "z")] for y, n in (("", 16), ("y", 48)))
    path = save_model(tmp_path / "m.onnx", nodes, inputs, outputs, [numpy_helper.from_array(A, "a")])
    request = CompileRequest(path, resolve_target("cpu"))
    with closing(Session(request, Given(), Settings(0.1, 2, check=False))) as session:
        session.begin()
        new = str(session.options(0)["default"]).replace("pack = false", "pack = true")
        assert session.edit(0, new, equal=True).groups == (0, 1)
        assert len(session.current.code) == 1
        assert session.current.code[0].launches == 2
        session.undo()
        assert session.edit(0, new).groups == (0,)
        assert len(session.current.code) == 2


@pytest.mark.slow
def test_a_range_is_checked_along_it(path: Path) -> None:
    with opened(path, Dim("n", 1, 9)) as session:
        number = session.current.recorder.first
        assert "note" not in session.evaluator.numbers(number)
        old = str(session.options(0)["default"])
        version = session.edit(0, old.replace("pack = false", "pack = true"))
        assert [each.where for each in version.verdicts] == ["n = 1", "n = 3", "n = 9"]
        assert all(each.agrees for each in version.verdicts)
        assert version.timed is not None
        assert len(version.timed.calls[0]) == len(version.timed.calls[1]) > 0


def test_states_have_values_and_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_timed", lambda *arguments: (None, "not timed"))
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder().SerializeToString())
    request = CompileRequest(path, resolve_target("cpu"), normalized(RANGES), states=KEPT)
    with closing(Session(request, Given(), SETTINGS)) as session:
        session.begin()
        for number in (session.current.recorder.first, session.current.recorder.last_of("loops")):
            numbers = session.evaluator.numbers(number)
            assert "note" not in numbers
            assert numbers["values"]
        session.measure()
        assert [each.agrees for each in session.current.verdicts] == [True] * 3


# The command.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "70000 is no port; accepted: 0 to 65535"),
        (["--seconds", "0"], "--seconds: 0 seconds"),
        (["--threads", "0"], "0 is not a number of threads"),
        (["--input", "z=1"], "z"),
    ],
)
def test_bad_arguments_are_one_line(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["explore", str(path), "--shape", "n=24", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_port_in_use_is_one_line(session: Session, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(session) as server:
        assert main(["explore", str(path), "--shape", "n=24", "--port", str(server.server_port)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert (
            line
            == f"treadle: --port: port {server.server_port} is in use; accepted: another one, or 0 for one that is free"
        )


def test_what_has_no_decisions_is_refused(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", str(tmp_path)]) == 2
    assert "a compiled folder has no stages to explore" in capsys.readouterr().err
    assert main(["compile", str(path), "--shape", "n=24", "--to", "plan", "-o", str(tmp_path / "plan")]) == 0
    capsys.readouterr()
    assert main(["explore", str(tmp_path / "plan" / "plan.mlir"), "--export", str(tmp_path / "page")]) == 2
    assert "the IR after stage 'plan' has no decisions to edit" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert main(["explore", str(path), "--shape", "n=24", "--export", str(tmp_path / "other")]) == 2
    assert "the folder holds other files" in capsys.readouterr().err


def test_saved_decisions_are_explored_on(session: Session, tmp_path: Path) -> None:
    saved = tmp_path / "schedule.mlir"
    saved.write_text(session.text())
    request = CompileRequest(saved, resolve_target("cpu"))
    with closing(Session(request, Given(), SETTINGS)) as again:
        again.begin()
        assert again.current.recorder.passes[0].name == "schedule-instantiate"
        assert again.text() == session.text()
        again.measure()
        assert [each.agrees for each in again.current.verdicts] == [True]


def exported(folder: Path) -> dict[str, Any]:
    """The files of an export, inflated."""
    read: dict[str, Any] = {}
    for file in (folder / DATA).iterdir():
        found = re.fullmatch(r'treadleDocument\("([\w-]+)", "([\w+/=]*)"\);\n', file.read_text(encoding="ascii"))
        assert found is not None and found[1] == file.stem
        read[file.stem] = json.loads(zlib.decompress(base64.b64decode(found[2])))
    return read


def test_an_export_needs_nothing_else(session: Session, tmp_path: Path) -> None:
    write_export(session, tmp_path)
    page = Tree((tmp_path / INDEX).read_text())
    sources = [each.get("src") for each in page.root.iter("script")]
    assert all(source and (tmp_path / source).is_file() for source in sources)
    assert not any("href" in each.attrib for each in page.root.iter())
    read = exported(tmp_path)
    for each in read["version-0"]["passes"]:
        assert {f"text-{each['before']}", f"text-{each['after']}", f"values-{each['after']}"} <= set(read)
        assert each["before"] == each["after"] or f"diff-{each['before']}-{each['after']}" in read
    assert f"numbers-{read['version-0']['scheduled']}" in read
    nodes = {node[0] for each in read["version-0"]["groups"] for node in each["nodes"]}
    assert any("<script>alert(1)</script> \\x1b[2J" in name for name in nodes), "as text, without control characters"
    assert is_export(tmp_path)
    (tmp_path / "more").write_text("")
    assert not is_export(tmp_path)


READER = """
const [folder, ...names] = process.argv.slice(2);
const { readFileSync } = require("fs");
eval(readFileSync(`${folder}/explore_packed.js`, "utf8") + "globalThis.unpacked = unpacked;");
const known = new Map();
function load(name) {
  if (!known.has(name)) {
    const treadleDocument = (found, content) => unpacked(found, content, load);
    known.set(name, eval(readFileSync(`${folder}/data/${name}.js`, "utf8")));
  }
  return known.get(name);
}
(async () => {
  for (const name of names) console.log(JSON.stringify(await load(name)));
})();
"""
"""Reads documents of an export as its page does, and prints them."""


@pytest.mark.skipif(NODE is None, reason="no node")
@pytest.mark.parametrize("chunk", [CHUNK, 7])
def test_an_export_is_read_as_the_server_would_give_it(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Also where strings are in many files."""
    monkeypatch.setattr(explore_export, "CHUNK", chunk)
    write_export(session, tmp_path)
    script = tmp_path / "explore_packed.js"
    assert f"CHUNK = {CHUNK};" in script.read_text()
    script.write_text(script.read_text().replace(f"CHUNK = {CHUNK};", f"CHUNK = {chunk};"))
    (tmp_path / "reader.js").write_text(READER)
    names = list(dict.fromkeys(exported_names(session)))
    command = [str(NODE), str(tmp_path / "reader.js"), str(tmp_path), *names]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    for name, line in zip(names, lines, strict=True):
        assert json.loads(line) == json.loads(json_of(document_of(session, name))), name


def test_a_text_whose_values_cannot_be_put_back_is_exported_whole() -> None:
    values = {"lines": [[0]], "names": ["%x"]}
    assert Packing().packed("text-3", {"text": "%y = a"}, values) == {"text": "%y = a"}
    assert Packing().packed("text-3", {"text": '%x = "%y"'}, values) == {"lines": [0]}


BYTES_OF_A_NODE = 20_000_000 // 10_000
"""20 MB for a model of ten thousand nodes."""


def test_the_size_of_an_export_grows_slowly(tmp_path: Path) -> None:
    """What a node adds to all texts, values and numbers."""
    sizes: dict[int, int] = {}
    for layers in (5, 20):
        path = residual_layers(tmp_path / f"{layers}.onnx", layers)
        with opened(path, settings=replace(SETTINGS, check=False), n=None) as session:
            folder = tmp_path / str(layers)
            folder.mkdir()
            write_export(session, folder)
            sizes[layers] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert (sizes[20] - sizes[5]) / (5 * 15) < BYTES_OF_A_NODE


def test_kernels_that_are_too_much_to_interpret_are_not_read(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = replace(session.evaluator, most=0)
    numbers, read = [session.current.recorder.last_of(stage) for stage in ("kernels", "plan")], list[str]()

    def counted(text: str, where: str) -> ModuleOp:
        read.append(where)
        return read_module(text, where)

    monkeypatch.setattr(explore_values, "read_module", counted)
    for number in numbers:
        assert "operations a call" in evaluator.numbers(number)["note"]
    assert read == [f"text {session.current.scheduled}"]


@pytest.mark.slow
def test_a_gpus_decisions_are_checked_on_the_emulator(path: Path) -> None:
    with opened(path, target="sm_80") as session:
        old = str(session.options(0)["default"])
        new = re.sub(r"block_k = \d+", "block_k = 16", old)
        version = session.edit(0, new)
        assert version.note.startswith("not timed: sm_80")
        assert [each.agrees for each in version.verdicts] == [True]


# In a browser.

ROWS = "document.querySelectorAll('#passes .row').length > 3"


def choose_pass(shown: Browser, name: str) -> None:
    shown.run(f"[...document.querySelectorAll('#passes .item')].find(e => e.textContent.startsWith('{name}')).click()")
    assert eventually(lambda: name in shown.run("return document.querySelector('#passes h2').textContent"))
    assert eventually(lambda: shown.run(f"return {ROWS}"))


def choose_value(shown: Browser, name: str) -> str:
    """The panel of a value after a click on it."""
    shown.run(f"""const panes = [...document.querySelectorAll('#passes .pane')];
        [...panes.at(-1).querySelectorAll('.v')].find(e => e.textContent === '{name}').click()""")
    assert eventually(lambda: "evaluating" not in (panel(shown) or "evaluating"))
    return panel(shown)


def panel(shown: Browser) -> str:
    return shown.run("return document.getElementById('value').innerText")


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver is installed")
def test_clicks_in_an_export(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "page"
    assert main(["explore", str(path), "--shape", "n=24", "--export", str(output), "--threads", "2"]) == 0
    with browser(tmp_path / "profile") as shown:
        shown.send("/url", {"url": (output / INDEX).as_uri()})
        assert eventually(lambda: shown.run(f"return {ROWS}"))
        assert shown.run("return alert.toString().includes('native')")
        choose_pass(shown, "graph-define")
        said = choose_value(shown, "%q")
        assert "tensor<24x48xf32>" in said
        assert "error against float64" in said
        assert "unpack_matmul_relu" in said
        shown.click("#value dd .link")
        assert shown.run("return document.querySelectorAll('#passes .row.here').length") == 1
        shown.run(
            "[...document.querySelectorAll('#value .link')].find(e => e.textContent === 'unpack_matmul_relu').click()"
        )
        assert eventually(
            lambda: shown.run("return document.querySelector('#code .row.here')?.textContent.includes('C[')")
        )
        shown.run("document.querySelector('#code .row.here').click()")
        assert eventually(lambda: "loop-to-c" in shown.run("return document.querySelector('#passes h2').textContent"))
        marked = "return [...document.querySelectorAll('#passes .row.here')].map(e => e.textContent).join()"
        assert eventually(lambda: "vector.store" in shown.run(marked))
        shown.click("[data-tab=decisions]")
        assert shown.run("return document.querySelectorAll('#decisions .group').length") == 3
        assert shown.run("return document.querySelector('#decisions .agrees').innerText").startswith("y: max abs error")
        assert not shown.run("return document.querySelector('.apply')")
        assert shown.run("return document.documentElement.scrollWidth <= innerWidth")
        assert shown.send("/se/log", {"type": "browser"}) == [], "no error in the console"


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver is installed")
def test_clicks_edit_a_decision(server: Server, tmp_path: Path) -> None:
    rows = "return document.querySelectorAll('#decisions tbody tr').length"
    with browser(tmp_path / "profile") as shown:
        shown.send("/url", {"url": server.address})
        assert eventually(lambda: shown.run(f"return {ROWS}"))
        shown.click("[data-tab=decisions]")
        shown.click("#decisions .group summary")
        assert eventually(lambda: shown.run("return document.querySelector('[data-knob=pack]')"))
        shown.run("const s = document.querySelector('[data-knob=pack]'); s.value = 'true'; s.onchange()")
        shown.click(".apply")
        assert eventually(lambda: shown.run(rows) == 2)
        assert "agrees" in shown.run("return document.querySelector('#decisions .agrees').innerText")
        row = "return document.querySelector('#decisions tbody tr:nth-child(2)').innerText"
        assert "times as fast" in shown.run(row)
        schedule = "return document.querySelector('#decisions .group code').innerText"
        assert "pack = true" in shown.run(schedule)
        text = '#schedule.use<"matmul_cpu", {rows = 99}>'
        assert eventually(lambda: shown.run("return document.querySelector('.group[open] textarea')"))
        shown.run(f"document.querySelector('.group[open] textarea').value = '{text}'")
        shown.click(".apply")
        error = "return document.querySelector('.group[open] .error').textContent"
        assert eventually(lambda: "is 99; accepted: 1 to 14" in shown.run(error))
        shown.click("[data-tab=passes]")
        assert "edit" in shown.run("return document.querySelector('#passes h2').textContent")
        choose_pass(shown, "loop-to-c")
        shown.click("#against")
        added = "return [...document.querySelectorAll('#passes .row.new')].map(e => e.textContent).join()"
        assert eventually(lambda: "%panel = memref.alloca" in shown.run(added))
        shown.click("[data-tab=decisions]")
        shown.click("#undo")
        assert eventually(lambda: shown.run(rows) == 1)
        assert "pack = false" in shown.run(schedule)
