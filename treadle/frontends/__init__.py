"""Readers of models."""
