"""Serving with one artifact for a range of batches; docs/serving.md explains the files."""
