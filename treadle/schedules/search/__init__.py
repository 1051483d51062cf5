"""Searching schedules: what a candidate does (`Work`), what it would cost (models), and what was measured (records)."""
