"""Index algebra: symbolic integers with ranges, read from index arithmetic and emitted as it.

Expressions: `expr.py`; what they are as functions of their variables: `algebra.py`; their ranges under facts:
`bounds.py`. From the IR: `reader.py`; to it, and to text: `emitter.py`. Consecutive addresses: `contiguity.py`; maps
that are one-to-one and onto: `mixed_radix.py`.

Below the dialects: an operation whose block arguments or results are bounded says so through `HasIndexRanges`.
"""
