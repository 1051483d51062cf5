"""The patterns of graph-recognize, by the operator that they find written out."""
