"""The ONNX frontend: a model file becomes a module of graph operators."""

from treadle.frontends.onnx.check import NodeReport, check_model, look_up_nodes
from treadle.frontends.onnx.functions import supported_operators
from treadle.frontends.onnx.importer import import_model, needed_inputs
from treadle.frontends.onnx.inputs import MissingExtents
from treadle.frontends.onnx.node import ValueNeeded

__all__ = [
    "MissingExtents",
    "NodeReport",
    "ValueNeeded",
    "check_model",
    "import_model",
    "look_up_nodes",
    "needed_inputs",
    "supported_operators",
]
