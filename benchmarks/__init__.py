"""Measurements on real models; `make bench` runs them."""
