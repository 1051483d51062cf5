"""Passes that make and obey scheduling decisions."""
