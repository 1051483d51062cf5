"""Passes on tensor programs, from definition to fusion."""
