"""Schedules: templates, and what chooses among them."""
