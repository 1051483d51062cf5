"""Random ONNX models and hostile files: what is drawn follows from a seed alone.

`python -m tests.fuzz SEED` repeats one model; `make fuzz SECONDS=600` draws new ones. What must come out is said by
ONNX's reference evaluator in float64 (`definition.py`), and not by anything of the compiler.
"""
