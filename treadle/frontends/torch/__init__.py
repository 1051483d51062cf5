"""The PyTorch frontend: an exported program becomes a module of graph operators."""

from treadle.frontends.torch.export import exported
from treadle.frontends.torch.importer import UnsupportedNodes, import_exported, import_graph
from treadle.frontends.torch.registry import supported_operators

__all__ = ["UnsupportedNodes", "exported", "import_exported", "import_graph", "supported_operators"]
