"""Treadle: a deep-learning compiler built from xDSL dialects and passes.

```python
m = treadle.compile("m.onnx", target="cpu", shapes={"x": (1, 3, 48, 320)})
(y,) = m(x)
```
"""

from typing import TYPE_CHECKING

from treadle.errors import TreadleError
from treadle.support.lazy import lazy_exports
from treadle.support.version import __version__

if TYPE_CHECKING:
    from treadle.api import compile
    from treadle.backends.c.executor import ThreadPool
    from treadle.backends.cuda.device_array import DeviceArray
    from treadle.generation import Conversation, Sampling, generate
    from treadle.model import CompiledModel, load
    from treadle.shapes.dim import Dim
    from treadle.target import Target
    from treadle.tuning.model import tune
else:  # `treadle --version` waits for none of them
    __getattr__ = lazy_exports(
        {
            "CompiledModel": "treadle.model",
            "Conversation": "treadle.generation",
            "DeviceArray": "treadle.backends.cuda.device_array",
            "Dim": "treadle.shapes.dim",
            "Sampling": "treadle.generation",
            "Target": "treadle.target",
            "ThreadPool": "treadle.backends.c.executor",
            "compile": "treadle.api",
            "generate": "treadle.generation",
            "load": "treadle.model",
            "tune": "treadle.tuning.model",
        }
    )

__all__ = [
    "CompiledModel", "Conversation", "DeviceArray", "Dim", "Sampling", "Target", "ThreadPool", "TreadleError",
    "__version__", "compile", "generate", "load", "tune",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
