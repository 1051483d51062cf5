"""`InferenceSession`: a model that is compiled for the shapes of its calls, with ONNX Runtime's signatures."""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, shape_inference

from treadle.api import compile as compile_model
from treadle.backends.c.executor import ThreadPool
from treadle.backends.cuda.gpu_probe import why_no_gpu
from treadle.errors import TreadleError, TreadleWarning
from treadle.frontends.onnx import ValueNeeded, look_up_nodes
from treadle.frontends.onnx.inputs import free_inputs
from treadle.frontends.onnx.loader import load_model
from treadle.frontends.onnx.tensor_data import DTYPES, SUPPORTED_TYPES
from treadle.model import CompiledModel
from treadle.onnxruntime.options import (
    OWN_ENTRIES,
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    ModelMetadata,
    NodeArg,
    NoSuchFile,
    RunOptions,
    SessionOptions,
    Unsupported,
)
from treadle.onnxruntime.plans import Form, Plan, compile_widest, static_plan
from treadle.plugins.loader import load_plugins
from treadle.shapes.dim import Dim, parse_dim

Array = NDArray[Any]
Provider = str | tuple[str, Mapping[str, Any]]

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_TARGETS = {CPU: "cpu", CUDA: "cuda"}
_KEPT = 16
"""Compiled models that a session keeps open; others come back from the cache on the disk."""
_SESSION = "InferenceSession"
_SHAPE_BYTES = 1024
"""Of a tensor that may be a shape."""
_NO_OPTIONS: Mapping[str, Any] = {}


def get_available_providers() -> list[str]:
    """The providers that a session can have here, the fastest first."""
    return [CUDA, CPU] if why_no_gpu() is None else [CPU]


class InferenceSession:
    """A model, with the signatures of `onnxruntime.InferenceSession`.

    ```python
    import treadle.onnxruntime as ort

    session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    ```
    A model of fixed shapes is compiled when the session is made. Of one whose shapes are open the first call compiles
    for its shapes. When other shapes come, the dimensions that have changed become ranges, up to at least twice what
    was seen, which one artifact serves; calls beyond it make a range of twice as much. Ranges that the model does not
    allow are tried shorter; where it allows none, each shape is compiled, and a TreadleWarning says why. All of it is
    kept in Treadle's cache on the disk.

    Several threads may call a session; calls take turns, since they use the same threads and memory.

    Raises `InvalidArgument`, `NoSuchFile`, `InvalidProtobuf`, `Unsupported` or `Fail`: each is a
    `treadle.TreadleError`.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ):
        """path_or_bytes: of an .onnx file
        providers: names of `get_available_providers()`, the first of which is taken; others are left out with a
                   warning. Default: the CPU
        provider_options: one for each provider; none has an effect but `device_id`, which has to be 0
        kwargs: what ONNX Runtime takes there, `disabled_optimizers` and the like, has no effect
        """
        options = cast("object", SessionOptions() if sess_options is None else sess_options)
        if not isinstance(options, SessionOptions):
            message = f"sess_options is a {type(sess_options).__name__} of {type(sess_options).__module__}"
            raise InvalidArgument(message, _SESSION, "treadle.onnxruntime.SessionOptions")
        options.check()
        load_plugins()
        self._options = options
        self._provider = _provider_of(providers, provider_options)
        self._model = _Source.of(path_or_bytes)
        self._inputs = {entry.name: _Input.of(entry, self._options) for entry in self._model.inputs}
        threads = self._options.intra_op_num_threads or None
        self._pool = ThreadPool(threads) if self._provider == CPU else None
        self._compiled = _Compiled(self._model, self._arguments(), {n: i.names for n, i in self._inputs.items()})
        self._prepare()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Array]:
        """The outputs of these names, in this order, or all of them where there are none, for inputs by name.

        Inputs are arrays of the model's types, or lists of numbers. InvalidArgument: a name that there is not, an input
        that is missing, an array of another type, rank or extent than the model has.
        """
        if run_options is not None and run_options.terminate:
            raise Fail("the call is to end before it begins: terminate is set", "run", "terminate=False")
        wanted = self._positions(output_names)
        given = self._given(input_feed)
        results = self._compiled.run(given)
        return results if wanted is None else [results[position] for position in wanted]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs; names of dimensions that the options fix are numbers."""
        return [each.arg for each in self._inputs.values()]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, as the model declares them."""
        return [NodeArg.of(entry) for entry in self._model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: initialisers are constants of what is compiled, also those that the model lists as inputs."""
        return []

    def get_providers(self) -> list[str]:
        """The provider that is used, and the CPU's, as ONNX Runtime lists them."""
        return list(dict.fromkeys((self._provider, CPU)))

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """No options of each provider."""
        return {provider: {} for provider in self.get_providers()}

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        return self._model.metadata

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    @property
    def compiled(self) -> list[CompiledModel]:
        """What was compiled so far, the last used last: Treadle's own models, to trace or to save them."""
        return self._compiled.models()

    def _arguments(self) -> dict[str, Any]:
        """What `treadle.compile` is given beside model and shapes."""
        own = {name: self._options.own(name) for name in OWN_ENTRIES if name not in ("shapes", "target")}
        chosen: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
        return {**chosen, "target": self._options.own("target") or _TARGETS[self._provider], "threads": self._pool}

    def _prepare(self) -> None:
        """Compiles what needs no call, and checks the operators of what does."""
        if self._model.missing is not None:
            raise self._model.missing
        ranges = _ranges(self._options.own("shapes"), self._inputs)
        is_open = not all(each.has_rank for each in self._inputs.values()) or any(
            not isinstance(extent, int) for each in self._inputs.values() for extent in each.names
        )
        if ranges or not is_open:
            self._compiled.prepare({name: each.within(ranges) for name, each in self._inputs.items()})

    def _positions(self, names: Sequence[str] | None) -> list[int] | None:
        if not names:
            return None
        listed = [entry.name for entry in self._model.outputs]
        for name in names:
            if name not in listed:
                raise InvalidArgument(f"there is no output '{name}'", "run", listed)
        return [listed.index(name) for name in names]

    def _given(self, feed: Mapping[str, Any]) -> dict[str, Array]:
        if not hasattr(feed, "keys"):
            raise InvalidArgument(f"input_feed is a {type(feed).__name__}", "run", "a dict of arrays by input")
        missing = [name for name in self._inputs if name not in feed]
        if missing:
            message = f"{'inputs' if len(missing) > 1 else 'input'} {', '.join(missing)} missing"
            raise InvalidArgument(message, "run", list(self._inputs))
        for name in feed:
            if name not in self._inputs:
                constant = "an initialiser, whose value is compiled in" if name in self._model.constants else "no input"
                raise InvalidArgument(f"'{name}' is {constant}", "run", list(self._inputs) or "no inputs")
        return {name: each.array(feed[name]) for name, each in self._inputs.items()}


@dataclass(frozen=True)
class _Input:
    """An input: its description, its type, and its dimensions as numbers, names or None, None without a known rank."""

    arg: NodeArg
    dtype: np.dtype[Any]
    names: Sequence[int | str | None]
    has_rank: bool

    @staticmethod
    def of(entry: ValueInfoProto, options: SessionOptions) -> _Input:
        """Unsupported for a type that Treadle lacks."""
        arg, where = NodeArg.of(entry), f"input '{entry.name}'"
        if entry.type.WhichOneof("value") != "tensor_type":
            raise Unsupported(f"the input is of type {arg.type}", where, "a tensor")
        dtype = DTYPES.get(entry.type.tensor_type.elem_type)
        if dtype is None:
            raise Unsupported(f"the input is of type {arg.type}", where, SUPPORTED_TYPES)
        dims = entry.type.tensor_type.shape.dim
        names = [
            options.extents_by_denotation.get(dim.denotation, options.extents_by_name.get(str(extent), extent))
            if not isinstance(extent, int)
            else extent
            for dim, extent in zip(dims, arg.shape, strict=True)
        ]
        known = entry.type.tensor_type.HasField("shape")
        return _Input(NodeArg(arg.name, arg.type, list(names)), dtype, names, known)

    def within(self, ranges: Mapping[str, Dim]) -> tuple[int | Dim | str, ...]:
        """Its shape with ranges for dimensions by name; InvalidArgument for one that has no name."""
        if not self.has_rank or None in self.names:
            message, accepted = "a dimension without a name has no range", "no such entry: ranges then come with calls"
            raise InvalidArgument(message, f"input '{self.arg.name}' and treadle.shapes", accepted)
        return tuple(ranges.get(each, each) if isinstance(each, str) else each or 0 for each in self.names)

    def array(self, value: Any) -> Array:
        """A value of a feed as an array that fits the input; InvalidArgument for one that does not."""
        where = f"input '{self.arg.name}'"
        if isinstance(value, list | tuple | int | float):
            try:
                value = np.asarray(value, self.dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidArgument(f"no array of {self.arg.type}: {error}", where, "an array") from error
        if not isinstance(value, np.ndarray | np.generic):
            raise InvalidArgument(f"a {type(value).__name__} is given", where, f"an array of {self.arg.type}")
        array: Array = np.asarray(value)
        if array.dtype != self.dtype:
            raise InvalidArgument(f"an array of {array.dtype} is given", where, f"{self.dtype}, {self.arg.type}")
        if self.has_rank:
            self._check_shape(array, where)
        return array

    def _check_shape(self, array: Array, where: str) -> None:
        fits = array.ndim == len(self.names) and all(
            not isinstance(wanted, int) or wanted == extent
            for wanted, extent in zip(self.names, array.shape, strict=True)
        )
        if not fits:
            shown = ", ".join("?" if name is None else str(name) for name in self.names)
            raise InvalidArgument(f"an array of shape {list(array.shape)} is given", where, f"[{shown}]")


@dataclass(frozen=True)
class _Source:
    """A model as it was given, and what its file says of inputs and outputs; `missing` is what Treadle lacks of it."""

    model: str | ModelProto
    inputs: Sequence[ValueInfoProto]
    outputs: Sequence[ValueInfoProto]
    constants: frozenset[str]
    metadata: ModelMetadata
    missing: TreadleError | None

    @staticmethod
    def of(given: object) -> _Source:
        """NoSuchFile, InvalidProtobuf; InvalidArgument for what is neither path nor bytes."""
        if not isinstance(given, str | bytes | os.PathLike):
            message = f"the model is a {type(given).__name__}"
            raise InvalidArgument(message, _SESSION, "the path of an .onnx file, or its bytes (SerializeToString())")
        source = given if isinstance(given, bytes) else Path(cast("str | os.PathLike[str]", given))
        if isinstance(source, Path) and not source.exists():
            raise NoSuchFile("there is no such file", source, "the path of an .onnx file")
        try:
            loaded = load_model(source)
        except TreadleError as error:
            raise InvalidProtobuf(error.message, error.where, error.accepted) from error
        unsupported = next((report for report in look_up_nodes(source) if not report.supported), None)
        graph, missing = loaded.graph, None
        if unsupported is not None:
            missing = Unsupported(unsupported.reason or unsupported.op_type, _SESSION)
        constants = frozenset(entry.name for entry in graph.initializer)
        model = str(source) if isinstance(source, Path) else loaded.proto
        inputs, metadata = free_inputs(graph), ModelMetadata.of(loaded.proto)
        return _Source(model, inputs, _outputs(loaded.proto), constants, metadata, missing)


@dataclass
class _Compiled:
    """What was compiled of a model: plans with their artifacts, and values of inputs that shapes depend on.

    arguments: of `treadle.compile`
    names:     what the model calls the dimensions of each input
    """

    source: _Source
    arguments: Mapping[str, Any]
    names: Mapping[str, Sequence[int | str | None]]
    _models: OrderedDict[object, tuple[Plan, CompiledModel]] = field(
        default_factory=OrderedDict[object, tuple[Plan, CompiledModel]]
    )
    _forms: OrderedDict[object, list[Form]] = field(default_factory=OrderedDict[object, list[Form]])
    _needed: set[str] = field(default_factory=set[str])
    _each_alone: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def models(self) -> list[CompiledModel]:
        """All of them."""
        with self._lock:
            return [model for _, model in self._models.values()]

    def prepare(self, shapes: Mapping[str, tuple[int | Dim | str, ...]]) -> None:
        """Compiles for shapes, unless values decide about them, which come with the first call."""
        try:
            self._compile(Plan(shapes), {})
        except ValueNeeded as error:
            self._needed |= error.inputs
            if not error.inputs:
                raise Fail(error.message, error.where, error.accepted) from error

    def run(self, given: Mapping[str, Array]) -> list[Array]:
        """The outputs of a call, which is compiled if it is the first one of its shapes."""
        with self._lock:
            model = self._served(given)
        try:
            results = model.run({name: array for name, array in given.items() if name not in self._needed})
        except TreadleError as error:
            raise InvalidArgument(error.message, error.where, error.accepted) from error
        return [results[tensor.name] for tensor in model.outputs]

    def _served(self, given: Mapping[str, Array]) -> CompiledModel:
        while True:
            values = {name: array for name, array in given.items() if name in self._needed}
            form = {name: array.shape for name, array in given.items() if name not in self._needed}
            fixed = _key(values)
            for key, (plan, model) in reversed(self._models.items()):
                if cast("tuple[object, object]", key)[0] == fixed and plan.serves(form):
                    self._models.move_to_end(key)
                    return model
            try:
                return self._new(form, values)
            except ValueNeeded as error:
                if not error.inputs - self._needed:
                    raise Fail(error.message, error.where, error.accepted) from error
                self._needed |= error.inputs

    def _new(self, form: Form, values: Mapping[str, Array]) -> CompiledModel:
        """Compiles for a call, and for others beside it where shapes have changed before."""
        if self._each_alone:
            return self._compile(static_plan(form), values)
        forms = self._forms.setdefault(_key(values), [])
        forms.append(form)
        while len(self._forms) > _KEPT:
            self._forms.popitem(last=False)
        made, why_alone = compile_widest(forms, self.names, partial(self._compile, values=values))
        if why_alone is not None:
            self._each_alone = True
            warnings.warn(why_alone, TreadleWarning, stacklevel=5)
        return made

    def _compile(self, plan: Plan, values: Mapping[str, Array]) -> CompiledModel:
        """Compiles a plan, with inputs that are constants. Raises ValueNeeded; else what `compile` raises, as Fail."""
        try:
            model = compile_model(self.source.model, shapes=plan.shapes, constants=values, **self.arguments)
        except ValueNeeded:
            raise
        except TreadleError as error:
            raise Fail(error.message, error.where, error.accepted) from error
        self._models[_key(values), str(plan)] = plan, model
        while len(self._models) > _KEPT:
            _, (_, oldest) = self._models.popitem(last=False)
            oldest.close()
        return model


def _outputs(proto: ModelProto) -> list[ValueInfoProto]:
    """The outputs of a model, with what follows from its operators where it does not declare a type or an extent."""
    graph = proto.graph
    bare = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    bare.graph.CopyFrom(GraphProto(name=graph.name, node=graph.node, input=graph.input, output=graph.output))
    for tensor in graph.initializer:  # the values of large ones are no shapes, and need not be copied
        small = tensor.ByteSize() <= _SHAPE_BYTES
        bare.graph.initializer.append(
            tensor if small else TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        )
    try:
        return list(shape_inference.infer_shapes(bare).graph.output)
    except (ValueError, RuntimeError):  # more than 2 GB, or nodes that contradict each other
        return list(graph.output)


def _key(values: Mapping[str, Array]) -> object:
    return tuple((name, array.shape, array.tobytes()) for name, array in values.items())


def _provider_of(providers: Sequence[Provider] | None, options: Sequence[Mapping[str, Any]] | None) -> str:
    """The first provider that is here; the CPU's if none is, with a warning."""
    names: list[str] = []
    for number, each in enumerate(providers or ()):
        name, given = each if isinstance(each, tuple) else (each, _NO_OPTIONS)
        further = options[number] if options is not None and number < len(options) else _NO_OPTIONS
        device = int({**given, **further}.get("device_id", 0))
        if name == CUDA and device != 0:
            raise Unsupported(f"device_id is {device}", _SESSION, "0, the first GPU")
        names.append(name)
    available = get_available_providers()
    absent = [name for name in names if name not in available]
    if absent:
        words = f"not available: {', '.join(absent)}; available: {', '.join(available)}"
        warnings.warn(words, TreadleWarning, stacklevel=3)
    return next((name for name in names if name in available), CPU)


def _ranges(text: str | None, inputs: Mapping[str, _Input]) -> dict[str, Dim]:
    """The entry `treadle.shapes`; InvalidArgument where it names what is no open dimension."""
    found: dict[str, Dim] = {}
    known = list(dict.fromkeys(n for each in inputs.values() for n in each.names if isinstance(n, str)))
    for part in (text or "").split():
        name, _, extents = part.partition("=")
        if name not in known:
            raise InvalidArgument(f"'{name}' is no open dimension", "treadle.shapes", known or "none: all are fixed")
        try:
            found[name] = parse_dim(extents, name)
        except TreadleError as error:
            raise InvalidArgument(error.message, "treadle.shapes", error.accepted) from error
    return found
