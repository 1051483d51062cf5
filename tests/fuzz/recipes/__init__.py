"""How each operator is drawn: a recipe by operator, which appends a node or raises `Undrawable`."""

from tests.fuzz.recipes.elementwise import ELEMENTWISE
from tests.fuzz.recipes.indexing import INDEXING
from tests.fuzz.recipes.normalize import NORMALIZE
from tests.fuzz.recipes.products import PRODUCTS
from tests.fuzz.recipes.quantized import QUANTIZED
from tests.fuzz.recipes.reduce import REDUCE
from tests.fuzz.recipes.shapes import SHAPES
from tests.fuzz.recipes.windows import WINDOWS

RECIPES = {**ELEMENTWISE, **INDEXING, **NORMALIZE, **PRODUCTS, **REDUCE, **SHAPES, **WINDOWS}

__all__ = ["QUANTIZED", "RECIPES"]
