"""Frontends: readers of models."""
