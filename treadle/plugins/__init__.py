"""Plug-ins: packages that add passes, templates, rules, converters and targets to Treadle once they are installed.

A package names them in its `pyproject.toml`, and whatever compiles finds them:

```toml
[project.entry-points."treadle.passes"]
drop-double-neg = "my_package.passes:DROP_DOUBLE_NEG"    # a PassPlugin
```
`docs/plugins.md` has the groups and what an entry of each is; examples/plugin is a package that adds one of each.
"""

from typing import TYPE_CHECKING

from treadle.support.lazy import lazy_exports

if TYPE_CHECKING:
    from treadle.dialects.graph.definition import DefinitionBuilder, Operator, Scalar
    from treadle.frontends.common.builder import GraphBuilder, Tensor
    from treadle.frontends.onnx.functions import converts
    from treadle.frontends.onnx.node import Node
    from treadle.plugins.kinds import PassPlugin, RulePlugin, TemplatePlugin
    from treadle.plugins.loader import load_plugins
else:  # what compiles asks first whether there are any
    __getattr__ = lazy_exports(
        {
            "DefinitionBuilder": "treadle.dialects.graph.definition",
            "GraphBuilder": "treadle.frontends.common.builder",
            "Node": "treadle.frontends.onnx.node",
            "Operator": "treadle.dialects.graph.definition",
            "PassPlugin": "treadle.plugins.kinds",
            "RulePlugin": "treadle.plugins.kinds",
            "Scalar": "treadle.dialects.graph.definition",
            "TemplatePlugin": "treadle.plugins.kinds",
            "Tensor": "treadle.frontends.common.builder",
            "converts": "treadle.frontends.onnx.functions",
            "load_plugins": "treadle.plugins.loader",
        }
    )

__all__ = [
    "DefinitionBuilder", "GraphBuilder", "Node", "Operator", "PassPlugin", "RulePlugin", "Scalar", "TemplatePlugin",
    "Tensor", "converts", "load_plugins",
]  # fmt: skip
