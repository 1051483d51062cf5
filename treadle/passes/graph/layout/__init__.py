"""Operators on images in channels-last order."""
