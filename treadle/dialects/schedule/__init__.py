"""The schedule dialect: decisions as IR, and programs that build schedules from them."""

from xdsl.ir import Dialect

from treadle.dialects.dispatch_tree import PredictedAttr, TreeAttr
from treadle.dialects.schedule.attributes import MOST_KERNELS, Choice, DispatchAttr, UseAttr, choice_text
from treadle.dialects.schedule.program import ProgramOp
from treadle.dialects.schedule.sampling import AxisType, ParamType, SampleOp, SampleTileOp
from treadle.dialects.schedule.staging import MarkOp, StageOp, SwizzleOp, TemplateOp, UnrollOp
from treadle.dialects.schedule.tiling import ArrangeOp, AxesOp, FuseOp, SplitOp

SCHEDULE = Dialect(
    "schedule",
    [
        ProgramOp,
        AxesOp,
        SampleOp,
        SampleTileOp,
        SplitOp,
        FuseOp,
        ArrangeOp,
        StageOp,
        MarkOp,
        UnrollOp,
        SwizzleOp,
        TemplateOp,
    ],
    [UseAttr, DispatchAttr, TreeAttr, PredictedAttr, AxisType, ParamType],
)

__all__ = [
    "MOST_KERNELS", "SCHEDULE", "ArrangeOp", "AxesOp", "AxisType", "Choice", "DispatchAttr", "FuseOp", "MarkOp",
    "ParamType", "ProgramOp", "SampleOp", "SampleTileOp", "SplitOp", "StageOp", "SwizzleOp", "TemplateOp", "UnrollOp",
    "UseAttr", "choice_text",
]  # fmt: skip
