"""Tuning: candidates are built, checked against the definition and timed together; the best is stored as text."""
