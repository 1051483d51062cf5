"""The runtime: loads and calls what Treadle compiled, with NumPy and nothing of the compiler.

```python
from treadle.runtime import load  # of the wheel treadle-runtime: from treadle_runtime import load

model = load("reader.treadle", threads=2)
(scores,) = model(x)
```
`treadle.load` is this, with the emulator and the nodes' names in timelines besides. The wheel `treadle-runtime` is this
package and what it imports (docs/adr/0090).
"""

from treadle.backends.c.executor import ThreadPool
from treadle.backends.cuda.device_array import DeviceArray
from treadle.errors import TreadleError
from treadle.runtime.model import Model, load
from treadle.support.version import __version__

__all__ = ["DeviceArray", "Model", "ThreadPool", "TreadleError", "__version__", "load"]
