"""What a caller may give as shapes, and what is said of anything else."""

import numpy as np
import pytest

from treadle.errors import TreadleError
from treadle.shapes.dim import normalized


def test_shapes_and_extents_become_tuples() -> None:
    given = {"x": (1, 3), "y": [np.int64(4)], "batch": 2, "z": (), "n": np.int32(5)}
    assert normalized(given) == {"x": (1, 3), "y": (4,), "batch": (2,), "z": (), "n": (5,)}
    assert normalized(None) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((1, 8, 64), 'shapes: shapes is a tuple; accepted: a dict such as {"x": (1, 3, 48, 320)}, {"batch": 1}'),
        ({1: (2,)}, "shapes: 1 is no name of an input or a dimension"),
        ({"x": {2: 3}}, "shapes['x']: {2: 3} is no shape; accepted: whole numbers, treadle.Dim or expressions"),
        ({"x": 1.5}, "shapes['x']: 1.5 is no shape"),
        ({"x": (2, None)}, "shapes['x']: (2, None) is no shape"),
        ({"x": (2, -1)}, "shapes['x']: (2, -1) has a negative extent; accepted: extents from 0 upwards"),
    ],
)
def test_anything_else_is_refused(given: object, message: str) -> None:
    with pytest.raises(TreadleError) as caught:
        normalized(given)
    assert str(caught.value).startswith(message)
