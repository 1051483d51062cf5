"""The example's templates are the defaults of its layer, and compute products of any shape with every tile."""

from __future__ import annotations

import pytest

from examples.own_template import Product, ProductOnCpu, ProductOnGpu, main
from tests.schedules.test_templates import check, product
from treadle.schedules.templates import TEMPLATES
from treadle.scheduling import register_template


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == [
        '#schedule.use<"example_product_cpu", {tile = [4, 32]}>',
        '#schedule.use<"example_product_gpu", {tile = [4, 4]}>',
    ]
    assert all(float(line.split()[-1]) < 1e-5 for line in lines[1::2])
    assert not any(name.startswith("example") for name in TEMPLATES)


@pytest.mark.parametrize("template", [ProductOnCpu, ProductOnGpu])
@pytest.mark.parametrize("shapes", [((1, 1), (1, 1)), ((37, 9), (9, 67)), ((64, 16), (16, 64))])
def test_products_of_any_shape(template: type[Product], shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with register_template(template):
        for tile in template.knobs[0].values:
            check(template.name, product(shapes), {"tile": tile})
