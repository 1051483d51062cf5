"""Copies and pickles of a compiled model are refused with what to do instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import treadle
from tests.helpers.onnx_models import linear_model
from treadle.errors import TreadleError


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_model_is_not_copied(way: Callable[[object], object], tmp_path: Path) -> None:
    with treadle.compile(linear_model(tmp_path / "m.onnx")) as model:
        model(np.ones((2, 8), np.float32))
        with pytest.raises(TreadleError, match=r"cannot be pickled or copied; accepted: its folder: `save\(path\)`"):
            way(model)
        assert model(np.ones((2, 8), np.float32))[0].shape == (2, 4)
