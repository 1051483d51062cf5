"""Operators on images in other layouts: channels last, or channels in blocks."""
