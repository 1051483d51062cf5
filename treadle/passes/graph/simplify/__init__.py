"""The patterns of graph-simplify, by what they look at."""
