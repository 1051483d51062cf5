"""Index algebra: symbolic integers with ranges, read from index arithmetic and emitted as it.

Below the dialects: an operation whose block arguments or results are bounded says so through `HasIndexRanges`.
"""
