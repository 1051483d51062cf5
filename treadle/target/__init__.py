"""What is compiled for: hardware as data, this machine's, and the options of a compilation."""

from treadle.target.description import (
    AMX,
    GPUS,
    INSTRUCTION_SETS,
    KIB,
    KINDS,
    MATRIX_UNITS,
    NATIVE,
    NO_UNIT,
    TARGETS,
    VNNI,
    VNNI_BF16,
    MatrixUnit,
    Target,
    TargetKind,
    register_target,
)

__all__ = [
    "AMX", "GPUS", "INSTRUCTION_SETS", "KIB", "KINDS", "MATRIX_UNITS", "NATIVE", "NO_UNIT", "TARGETS", "VNNI",
    "VNNI_BF16", "MatrixUnit", "Target", "TargetKind", "register_target",
]  # fmt: skip
