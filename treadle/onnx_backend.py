"""ONNX's own interface of backends: `prepare`, `run_model`, `run_node`, `supports_device`.

```python
import treadle.onnx_backend as backend

(y,) = backend.run_model(onnx.load("model.onnx"), [x])
Runner(backend.TreadleBackend, __name__).test_cases  # the tests of `onnx.backend.test`
```

A model's extents may come with the first call, and so may values that decide about extents, such as the shape that a
`Reshape` is given: each of them is compiled when it first comes. What is not supported is a TreadleError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, defs, helper
from onnx.backend.base import Backend, BackendRep

from treadle.api import compile as compile_model
from treadle.backends.cuda.gpu_probe import why_no_gpu
from treadle.errors import TreadleError
from treadle.frontends.onnx import MissingExtents, ValueNeeded, look_up_nodes
from treadle.frontends.onnx.inputs import free_inputs
from treadle.model import CompiledModel
from treadle.plugins.loader import load_plugins

Array = NDArray[Any]

TARGETS = {"CPU": "cpu", "CUDA": "cuda"}
"""Targets by the names that ONNX gives devices; a number of a device may follow, as in `CUDA:0`."""


class TreadleRep(BackendRep):
    """A model, with what was compiled of it for shapes, and for values that decide about shapes.

    options: further arguments of `treadle.compile`
    """

    def __init__(self, model: ModelProto, target: str, options: Mapping[str, Any]):
        self._model = model
        self._target = target
        self._options = options
        self._names = [entry.name for entry in free_inputs(model.graph)]
        self._needed: set[str] = set()
        self._compiled: dict[object, CompiledModel] = {}
        try:
            self._ready({})
        except MissingExtents:
            _check_operators(model)
        except ValueNeeded as error:
            self._needed |= error.inputs

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs, in order, for inputs by name, in order, or for a single one.

        TreadleError: inputs that do not fit; what compiling raises, if shapes or values come for the first time.
        """
        if kwargs:
            raise TreadleError(f"the argument '{next(iter(kwargs))}'", "run", "inputs only")
        given = self._named(inputs)
        while True:
            try:
                model = self._ready(given)
            except ValueNeeded as error:
                if not error.inputs - self._needed:
                    raise
                self._needed |= error.inputs
                continue
            return model(**{name: array for name, array in given.items() if name not in self._needed})

    def _ready(self, given: Mapping[str, Array]) -> CompiledModel:
        """What was compiled for the shapes and the needed values of a call."""
        values = {name: array for name, array in given.items() if name in self._needed}
        shapes = {name: array.shape for name, array in given.items() if name not in self._needed}
        key = (tuple(shapes.items()), tuple((n, a.shape, a.tobytes()) for n, a in values.items()))
        if key not in self._compiled:
            self._compiled[key] = compile_model(self._model, self._target, shapes, constants=values, **self._options)
        return self._compiled[key]

    def _named(self, inputs: Any) -> dict[str, Array]:
        if isinstance(inputs, Mapping):
            by_name = cast("Mapping[str, Any]", inputs)
            given = {name: np.asarray(array) for name, array in by_name.items()}
        else:
            listed: Any = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(listed) > len(self._names):
                raise TreadleError(f"{len(listed)} inputs are given", "run", f"{len(self._names)} inputs")
            given = {name: np.asarray(array) for name, array in zip(self._names, listed, strict=False)}
        missing = [name for name in self._names if name not in given]
        if missing or len(given) > len(self._names):
            wrong = missing[0] if missing else next(name for name in given if name not in self._names)
            raise TreadleError(f"input '{wrong}' is {'missing' if missing else 'unknown'}", "run", self._names)
        return given


class TreadleBackend(Backend):
    """Treadle as `onnx.backend.base.Backend`."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the operators of the model, in their versions, are supported."""
        load_plugins()
        try:
            return all(report.supported for report in look_up_nodes(model.SerializeToString()))
        except TreadleError:
            return False

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> TreadleRep:
        """The model, compiled if all extents are known.

        kwargs: further arguments of `treadle.compile`, such as `precision="f16"`
        TreadleError: what is not supported, a device that is not here.
        """
        return TreadleRep(model, _target(device), kwargs)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Array, ...]:
        """The outputs of a model. Raises what `prepare` and `TreadleRep.run` raise."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """The outputs of one node, for arrays as its inputs in order (of those that are not left out), or by name.

        kwargs: `opset_version` of ONNX's own operators (default: the newest), the rest as of `prepare`
        """
        opset = int(kwargs.pop("opset_version", defs.onnx_opset_version()))
        names = list(dict.fromkeys(filter(None, node.input)))
        listed: Any = [inputs[name] for name in names] if isinstance(inputs, Mapping) else inputs
        given: Sequence[Any] = [listed] if isinstance(listed, np.ndarray) else listed
        arrays = [np.asarray(array) for array in given]
        if len(arrays) != len(names):
            raise TreadleError(f"{len(arrays)} inputs are given", f"node '{node.name}' ({node.op_type})", names)
        entries = [_typed(name, array) for name, array in zip(names, arrays, strict=True)]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        imports = [helper.make_opsetid("", opset)]
        imports += [helper.make_opsetid(node.domain, 1)] if node.domain not in ("", "ai.onnx") else []
        model = helper.make_model(helper.make_graph([node], "node", entries, outputs), opset_imports=imports)
        return cls.run_model(model, dict(zip(names, arrays, strict=True)), device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on a device here: the CPU, or a GPU where there is one."""
        kind = device.split(":")[0]
        return kind == "CPU" or (kind == "CUDA" and why_no_gpu() is None)


def _target(device: str) -> str:
    kind = device.split(":")[0]
    if kind not in TARGETS:
        raise TreadleError(f"unknown device '{device}'", "device", TARGETS)
    return TARGETS[kind]


def _typed(name: str, array: Array) -> ValueInfoProto:
    try:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    except (KeyError, ValueError) as error:
        raise TreadleError(f"an array of {array.dtype}", f"input '{name}'", "an element type of ONNX") from error


def _check_operators(model: ModelProto) -> None:
    """TreadleError for the first operator that is not supported."""
    for report in look_up_nodes(model.SerializeToString()):
        if not report.supported:
            raise TreadleError(report.reason or report.op_type)


is_compatible = TreadleBackend.is_compatible
prepare = TreadleBackend.prepare
run_model = TreadleBackend.run_model
run_node = TreadleBackend.run_node
supports_device = TreadleBackend.supports_device

__all__ = [
    "TreadleBackend",
    "TreadleRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
