"""Modules as text that keeps the nodes of the model that operations compute."""

from __future__ import annotations

from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.printer import Printer

from treadle.dialects.model_nodes import NamesNodes, nodes_of


class NodePrinter(Printer):
    """xDSL's printer, which also prints the locations that name nodes of the model, of operations that compute them.

    ```mlir
    %y = graph.unary "relu" %x : (tensor<4xf32>) -> tensor<4xf32> loc("relu_0"("Relu"))
    ```
    With `print_debuginfo` every location is printed, as xDSL does.
    """

    def print_op(self, op: Operation) -> None:
        """Prints an operation."""
        super().print_op(op)
        if isinstance(op, NamesNodes) and not self.print_debuginfo and nodes_of(op.location):
            self.print_string(" ")
            self.print_attribute(op.location)


def ir_text(module: ModuleOp) -> str:
    """The module as text, from which it can be parsed again."""
    stream = StringIO()
    NodePrinter(stream).print_op(module)
    return stream.getvalue() + "\n"
