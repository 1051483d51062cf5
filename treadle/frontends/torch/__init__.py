"""The PyTorch frontend: an exported program becomes a module of graph operators."""

from treadle.frontends.torch.call import supported_operators
from treadle.frontends.torch.importer import (
    UnsupportedNodes,
    exported,
    import_exported,
    import_graph,
    trusted_program,
)

__all__ = ["UnsupportedNodes", "exported", "import_exported", "import_graph", "supported_operators", "trusted_program"]
