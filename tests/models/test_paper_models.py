"""The five models of Hidet's paper, compiled for the CPU, agree with their definitions; ONNX Runtime does, too.

They are files of a folder that TREADLE_PAPER_MODELS names (`make bench ARGS="--onnx FOLDER"` writes them), or exported
here, which takes torch, torchvision, transformers and onnxscript.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.paper_models import PAPER_MODELS
from tests.helpers.environment import paper_models_folder
from tests.models.agreement import Case
from treadle.tools.oracle import Definition

THREADS = 2


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER_MODELS)
def test_a_model_of_the_paper_agrees(name: str, tmp_path: Path) -> None:
    path, inputs = _file(name, tmp_path), PAPER_MODELS[name].inputs
    definition = Definition.of_file(path, inputs)
    case = Case(path, inputs, definition, definition.outputs())
    with case.compile("cpu", threads=THREADS) as model:
        outputs = model.run(inputs)
        print(name, *case.compare(outputs), sep="\n")
        assert case.disagreements(outputs) == []
        assert case.unnoticed(model) == []


def _file(name: str, folder: Path) -> Path:
    """The exported model; the test is skipped where what exports it is not installed."""
    pytest.importorskip("onnxruntime")
    given = paper_models_folder()
    if given is not None:
        return given / f"{name}.onnx"
    try:
        return PAPER_MODELS[name].write(folder / f"{name}.onnx")
    except ImportError as error:
        pytest.skip(f"{error}; or TREADLE_PAPER_MODELS names a folder of exported models")
