"""Tests of the frontends."""
