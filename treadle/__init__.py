"""Treadle: a deep-learning compiler built from xDSL dialects and passes.

```python
m = treadle.compile("m.onnx", target="cpu", shapes={"x": (1, 3, 48, 320)})
(y,) = m(x)
```
"""

from treadle.api import compile
from treadle.errors import TreadleError
from treadle.model import CompiledModel, load
from treadle.target import Target
from treadle.version import __version__

__all__ = ["CompiledModel", "Target", "TreadleError", "__version__", "compile", "load"]
