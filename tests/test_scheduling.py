"""Templates and rules from outside: what registering them rejects and does, in this process and in others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.helpers.onnx_models import single_node_model
from tests.helpers.waiting import HANGS
from treadle.errors import TreadleError
from treadle.schedules.rules.tiling import CPU as CPU_RULES
from treadle.schedules.rules.tiling import CUDA as CUDA_RULES
from treadle.schedules.rules.tiling import default_rules
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.generic_cpu import GenericCpu
from treadle.scheduling import Draft, Knob, Template, register_rule, register_template
from treadle.support.extensions import Additions, add, additions, extensions_digest
from treadle.target import Target
from treadle.tuning.child import Child
from treadle.tuning.workers import Workers, this_machine

CPU = Target.parse("cpu")


class Mine(GenericCpu):
    name = "mine"


class Unfinished(Template):
    """Has neither knobs nor a builder."""

    name, kind = "unfinished", "cpu"


class Sized(GenericCpu):
    name = "sized"

    def __init__(self, size: int) -> None:
        self.size = size


def of(**given: object) -> type[Template]:
    return type("Mine", (GenericCpu,), {"name": "mine", **given})


def unchanged(draft: Draft) -> Sequence[Draft]:
    return [draft]


TAKEN = "register_template: there is a template 'generic_cpu'; accepted: none of attention_cpu, .*"
REJECTED: dict[str, tuple[object, str]] = {
    "taken": (of(name="generic_cpu"), TAKEN),
    "no template": (object(), "register_template: object is no template; accepted: a subclass of Template"),
    "methods": (
        Unfinished,
        "template Unfinished: it has no knobs and no build and no default and no fits; accepted: a tem",
    ),
    "name": (
        of(name="my template"),
        "template Mine: its name is 'my template'; accepted: letters, digits and underscores",
    ),
    "kind": (of(kind="sm_80"), "template 'mine': kind is 'sm_80'; accepted: cpu, cuda"),
    "precision": (of(precision="f8"), "template 'mine': precision is 'f8'; accepted: f32, .*tf32"),
    "arguments": (Sized, "template Sized: its class takes arguments; accepted: an instance of it"),
    "knobs": (of(knobs=["run"]), r"template 'mine': its knobs are \['run'\]; accepted: a tuple of Knob"),
    "twice": (of(knobs=(Knob("a", (1,), ""),) * 2), "template 'mine': 'a' is there twice; accepted: letters"),
    "knob": (of(knobs=(Knob("a b", (1,), ""),)), "template 'mine': 'a b' is no name of a knob; accepted: letters"),
    "none": (of(knobs=(Knob("a", (), ""),)), "template 'mine': knob 'a' has no values; accepted: one or more"),
    "unless given": (
        of(knobs=(Knob("a", (1, 2), "", 3),)),
        "template 'mine': knob 'a' is 3 unless given; accepted: one of its values",
    ),
    "float": (
        of(knobs=(Knob("a", (1, cast("Any", 0.5)), ""),)),
        r"template 'mine': knob 'a' has the value 0\.5 of type float; accepted: int, bool, str, tuple of int",
    ),
    "words": (
        of(knobs=(Knob("a", (cast("Any", ("m", "n")),), ""),)),
        ".* has the value .* of type tuple; accepted: int",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_template_that_is_rejected(case: str) -> None:
    template, said = REJECTED[case]
    before = dict(TEMPLATES)
    with pytest.raises(TreadleError, match=f"^{said}"):
        register_template(cast("Any", template))
    assert before == TEMPLATES


def test_what_is_tried_after_a_template() -> None:
    with pytest.raises(
        TreadleError, match="template 'mine': there is no template 'flat' to be tried after it; accepted"
    ):
        register_template(Mine, before="flat")
    before = list(TEMPLATES)
    with register_template(Mine, before="reduce_cpu"):
        position = before.index("reduce_cpu")
        assert list(TEMPLATES) == [*before[:position], "mine", *before[position:]]
    with register_template(Sized(3)) as registered:
        assert list(TEMPLATES) == [*before, "sized"]
        registered.remove()
        assert list(TEMPLATES) == before
    assert list(TEMPLATES) == before


def test_rules_go_behind_templates_or_to_the_end() -> None:
    with register_rule(unchanged), register_rule(unchanged, "cuda", last=True):
        assert default_rules(CPU) == (CPU_RULES[0], unchanged, *CPU_RULES[1:])
        assert default_rules(Target.parse("sm_80")) == (*CUDA_RULES, unchanged)
        with pytest.raises(TreadleError, match="register_rule: the rule 'unchanged' is registered for cpu"):
            register_rule(unchanged)
    assert default_rules(CPU) == CPU_RULES


@pytest.mark.parametrize(
    ("rule", "kind", "said"),
    [
        (lambda draft: [draft], "cpu", "is no rule; accepted: a function at the top of a module"),  # pyright: ignore[reportUnknownLambdaType]
        (unchanged, "sm_80", "kind is 'sm_80'; accepted: cpu, cuda"),
    ],
)
def test_a_rule_that_is_rejected(rule: Callable[[Draft], Sequence[Draft]], kind: str, said: str) -> None:
    with pytest.raises(TreadleError, match=said):
        register_rule(rule, cast("Any", kind))


def test_keys_of_caches_know_a_rule() -> None:
    with register_rule(unchanged):
        once = extensions_digest()
        assert once == extensions_digest() != ""
    with register_rule(unchanged, last=True):
        assert extensions_digest() not in ("", once)
    assert extensions_digest() == ""


# Other processes.


def names(_: int) -> tuple[list[str], list[str], str]:
    return list(TEMPLATES), [rule.__name__ for rule in default_rules(CPU)], extensions_digest()


def test_another_process_gets_and_loses_what_is_registered() -> None:
    child, here = Child(), this_machine
    try:
        for size in (3, 4):
            with register_template(Sized(size), before="row_cpu"), register_rule(unchanged):
                found = Workers(_Pool(child), here()).call(names, 0)
                assert found == names(0) and "sized" in found[0] and "unchanged" in found[1]
        assert Workers(_Pool(child), here()).call(names, 0) == names(0)
    finally:
        child.close()


class _Pool(Executor):
    """An executor of one child."""

    def __init__(self, child: Child):
        self.child = child

    def submit(self, fn, /, *args, **kwargs):  # pyright: ignore[reportIncompatibleMethodOverride, reportMissingParameterType]
        future: Future[object] = Future()
        try:
            future.set_result(self.child.call(partial(fn, *args, **kwargs), HANGS))
        except Exception as error:
            future.set_exception(error)
        return future


def test_what_no_other_process_can_import() -> None:
    class Local(GenericCpu):
        name = "local"

    with (
        register_template(Local),
        pytest.raises(
            TreadleError, match=r"local: .*Local of tests\.test_scheduling cannot be imported by other processes"
        ),
    ):
        additions()


def test_additions_that_are_not_there() -> None:
    with pytest.raises(
        TreadleError, match=r"a worker: what the program added .* ModuleNotFoundError: .*no_such_module"
    ):
        add(Additions("digest", ("no_such_module",)))
    with pytest.raises(
        TreadleError, match="a worker: what the program added to Treadle has other sources; accepted: the"
    ):
        add(Additions("digest", (__name__,)))


SCRIPT = """
import sys
from pathlib import Path

import treadle
from treadle.scheduling import register_rule, register_template
from treadle.schedules.templates.generic_cpu import GenericCpu

RUN = {run}

class Mine(GenericCpu):
    name = "mine"

    def default(self, anchor, target):
        return {{"run": RUN, "rows": 1}}

def unchanged(draft):
    return [draft]

if __name__ == "__main__":
    register_template(Mine, before="generic_cpu")
    register_rule(unchanged)
    model, command = sys.argv[1:]
    if command == "compile":
        with treadle.compile(model) as compiled:
            print(*(path.read_text() for path in sorted((compiled.folder / "kernels").glob("*.c"))))
    else:
        for group in treadle.tune(model, Path(model).parent / "database", trials=2, seconds=10):
            print(group.default, group.default_seconds is not None)
"""


def output(script: Path, model: Path, command: str) -> str:
    command_line = [sys.executable, "-B", str(script), str(model), command]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_edited_template_gives_a_new_kernel_in_a_new_process(tmp_path: Path) -> None:
    model = single_node_model(tmp_path / "m.onnx", "Relu")
    script, found = tmp_path / "script" / "main.py", list[str]()
    script.parent.mkdir()
    for run in (4, 2, 4):
        script.write_text(SCRIPT.format(run=run))
        found.append(output(script, model, "compile"))
    assert found[0] == found[2] != found[1]


def test_a_search_builds_schedules_of_a_template_in_a_script(tmp_path: Path) -> None:
    model = single_node_model(tmp_path / "m.onnx", "Relu")
    script = tmp_path / "script" / "main.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.format(run=4))
    assert output(script, model, "tune") == "@mine {run = 4, rows = 1} True\n"
