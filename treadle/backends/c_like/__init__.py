"""The printer that the C and the CUDA backends share: names, literals, expressions and statements of C.

`names.py` and `literals.py` spell single tokens, `folding.py` decides which values are written inside the expressions
that use them, `expressions.py` and `statements.py` write the text, and `language.py` says what C and CUDA spell
differently.
"""

from treadle.backends.c_like.comments import Nodes, kernel_comments, launched_nodes
from treadle.backends.c_like.language import Language
from treadle.backends.c_like.names import Names, comment_text
from treadle.backends.c_like.statements import StatementPrinter

__all__ = ["Language", "Names", "Nodes", "StatementPrinter", "comment_text", "kernel_comments", "launched_nodes"]
