"""What the instructions of a schedule program work on: axes of an iteration space, and sampled parameters."""

from __future__ import annotations

from xdsl.ir import ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition


@irdl_attr_definition
class AxisType(ParametrizedAttribute, TypeAttribute):
    """A dimension of the anchor, or one level of it: `!schedule.axis`."""

    name = "schedule.axis"


@irdl_attr_definition
class ParamType(ParametrizedAttribute, TypeAttribute):
    """A value that a search decides: `!schedule.param`."""

    name = "schedule.param"


AXIS = AxisType()
PARAM = ParamType()

__all__ = ["AXIS", "PARAM", "AxisType", "ParamType"]
