"""How graph-merge-matmuls joins parallel branches."""
