"""Quantised models: what DequantizeLinear gives, what QuantizeLinear reads, and products in between."""
