"""Tuning: candidates are built, held against the definition, timed in turns; the best is kept as text."""
