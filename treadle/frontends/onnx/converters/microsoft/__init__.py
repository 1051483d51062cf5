"""Operators of the domain `com.microsoft`, which ONNX Runtime's optimiser and quantiser, and exporters for it, write.

Source of their definitions: ONNX Runtime, docs/ContribOperators.md.
"""

DOMAIN = "com.microsoft"
