"""Schedule templates and rules from outside of the package: what they are written with, and how Treadle gets them.

```python
class Flat(Template):
    name, kind, knobs = "flat", "cpu", (Knob("elements", (64, 1024), "elements that a block computes"),)
    ...

register_template(Flat(), before="generic_cpu")
```
`examples/own_template.py` and `examples/own_rule.py` are whole ones; docs/embedding.md says what caches and the
processes of a search know of them.
"""

from __future__ import annotations

from treadle.dialects.loop import Space as MemorySpace
from treadle.dialects.schedule import Choice
from treadle.dialects.task import Mapping as TaskMapping
from treadle.dialects.task import repeat, spatial
from treadle.schedules.kernel_builder import Index, KernelBuilder, Predicate, all_of, emit_element, kernel_builder
from treadle.schedules.pipelines import multiplied, pipelined, prefetched
from treadle.schedules.registration import Registration, register_rule, register_template
from treadle.schedules.rules import (
    Draft,
    Rule,
    cross_thread,
    default_rules,
    fused,
    located,
    staged,
    templates,
    tensor_cores,
    tensorized,
    tiled,
    unrolled,
    vector_lanes,
    vectorised,
)
from treadle.schedules.template import (
    Anchor,
    Choices,
    Knob,
    Template,
    check_divides,
    check_limit,
    check_limits,
    number,
    pair,
)
from treadle.schedules.tiles import (
    Fragment,
    Region,
    SharedTile,
    TileBuilder,
    TileLayout,
    staged_bytes,
)

__all__ = [
    "Anchor", "Choice", "Choices", "Draft", "Fragment", "Index", "KernelBuilder", "Knob", "MemorySpace", "Predicate",
    "Region", "Registration", "Rule", "SharedTile", "TaskMapping", "Template", "TileBuilder", "TileLayout", "all_of",
    "check_divides", "check_limit", "check_limits", "cross_thread", "default_rules", "emit_element", "fused",
    "kernel_builder", "located", "multiplied", "number", "pair", "pipelined", "prefetched", "register_rule",
    "register_template", "repeat", "spatial", "staged", "staged_bytes", "templates", "tensor_cores", "tensorized",
    "tiled", "unrolled", "vector_lanes", "vectorised",
]  # fmt: skip
