"""The printer that the C and the CUDA backends share: names, literals, expressions and statements of C.

`names.py` spells names and comments, `folding.py` decides which values are written inside the expressions that use
them, `expressions.py` (with `scalars.py` and `vectors.py`) and `statements.py` write the text, and `language.py` says
what C and CUDA spell differently.
"""

from treadle.backends.c_like.language import Language
from treadle.backends.c_like.names import Names, Nodes, comment_text, kernel_comments, launched_nodes
from treadle.backends.c_like.statements import Lines, StatementPrinter

__all__ = [
    "Language", "Lines", "Names", "Nodes", "StatementPrinter", "comment_text", "kernel_comments", "launched_nodes",
]  # fmt: skip
