"""Options, descriptions and errors with the names and the meaning that they have in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto

from treadle.errors import TreadleError


class Fail(TreadleError, RuntimeError):
    """What failed for a reason that has no class of its own, such as a compiler that is missing."""


class InvalidArgument(TreadleError, ValueError):
    """Arguments that do not fit the model or the session."""


class NoSuchFile(TreadleError):
    """A model's file that is not there."""


class InvalidProtobuf(TreadleError):
    """Bytes that are no ONNX model."""


class Unsupported(TreadleError, NotImplementedError):
    """A model with an operator or a type, or an option, that Treadle does not have."""


class GraphOptimizationLevel(IntEnum):
    """Accepted, and without effect: a model is always compiled as a whole."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted, and without effect: the threads of a call share each kernel."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Accepted, and without effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


_REFUSED: Mapping[str, str] = {
    "session.load_model_format": "ONNX",
    "session.save_model_format": "ONNX",
    "session.set_denormal_as_zero": "0",
    "session.disable_cpu_ep_fallback": "0",
    "session.model_external_initializers_file_folder_path": "",
    "ep.context_enable": "0",
    "ep.context_file_path": "",
}
"""Entries of a session's configuration that say what is computed, read or written, with the only value that they may
have."""

OWN = "treadle."
"""What the names of Treadle's own entries begin with."""
OWN_ENTRIES = ("precision", "weights", "convolution", "database", "construct", "target", "shapes")


@dataclass(slots=True)
class SessionOptions:
    """The options of a session, with ONNX Runtime's names and defaults; others are an AttributeError.

    Honoured: `intra_op_num_threads` (0: the variable TREADLE_NUM_THREADS), the overrides of free dimensions, and
    Treadle's own entries of the configuration, which are arguments of `treadle.compile`: `treadle.precision`,
    `treadle.weights`, `treadle.convolution`, `treadle.database`, `treadle.construct`, `treadle.target`, and
    `treadle.shapes`, a range for dimensions by name, such as `"batch=1..8 seq=1..512"`. What does not change results is
    accepted, and has no effect; what would is refused by name, by the method or when a session is made.
    """

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    extents_by_name: dict[str, int] = field(default_factory=dict[str, int])
    """The overrides of free dimensions."""
    extents_by_denotation: dict[str, int] = field(default_factory=dict[str, int])
    entries: dict[str, str] = field(default_factory=dict[str, str])
    """The configuration."""

    def add_free_dimension_override_by_name(self, dim_name: str, dim_value: int) -> None:
        """Fixes the extent of the dimensions of a name."""
        self.extents_by_name[dim_name] = int(dim_value)

    def add_free_dimension_override_by_denotation(self, dim_denotation: str, dim_value: int) -> None:
        """Fixes the extent of the dimensions of a denotation, such as `DATA_BATCH`."""
        self.extents_by_denotation[dim_denotation] = int(dim_value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Sets an entry; Unsupported for one that would change what is computed, InvalidArgument for one of
        Treadle's that there is not."""
        if key in _REFUSED and value != _REFUSED[key]:
            raise Unsupported(f"'{key}' is {value!r}", "SessionOptions", repr(_REFUSED[key]))
        if key.startswith(OWN) and key.removeprefix(OWN) not in OWN_ENTRIES:
            raise InvalidArgument(f"there is no '{key}'", "SessionOptions", (OWN + each for each in OWN_ENTRIES))
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry; InvalidArgument for one that was not set."""
        if key not in self.entries:
            raise InvalidArgument(f"there is no entry '{key}'", "SessionOptions", list(self.entries) or "no entries")
        return self.entries[key]

    def has_providers(self) -> bool:
        """Whether the options name providers: they do not; those of the session count."""
        return False

    def register_custom_ops_library(self, path: str) -> None:
        """Unsupported: libraries of operators for ONNX Runtime are not called."""
        raise Unsupported(f"custom operators of {path}", "SessionOptions", "a model of ONNX's operators")

    def add_initializer(self, name: str, value: object) -> None:
        """Unsupported: weights are those of the model."""
        raise Unsupported(f"another value for initialiser '{name}'", "SessionOptions", "the model's own weights")

    def add_external_initializers(self, names: object, values: object) -> None:
        """Unsupported: weights are those of the model."""
        raise Unsupported(f"other values for initialisers {names}", "SessionOptions", "the model's own weights")

    def check(self) -> None:
        """Unsupported for what a session would have to do, and does not; InvalidArgument for numbers out of
        range."""
        if self.enable_profiling:
            accepted = "False; CompiledModel.trace and `treadle run --timeline` write such a trace"
            raise Unsupported("enable_profiling is True", "SessionOptions", accepted)
        if self.optimized_model_filepath:
            message = f"optimized_model_filepath is {self.optimized_model_filepath!r}"
            raise Unsupported(message, "SessionOptions", "''; `treadle compile` writes what it makes of a model")
        if self.intra_op_num_threads < 0:
            message = f"intra_op_num_threads is {self.intra_op_num_threads}"
            raise InvalidArgument(message, "SessionOptions", "0, which means TREADLE_NUM_THREADS, and more")

    def own(self, name: str) -> str | None:
        """The entry of Treadle's of this name."""
        return self.entries.get(OWN + name)


@dataclass(slots=True)
class RunOptions:
    """The options of a call, with ONNX Runtime's names; `terminate` alone has an effect: the call is refused."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    entries: dict[str, str] = field(default_factory=dict[str, str])

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Sets an entry, which has no effect."""
        self.entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """An entry; InvalidArgument for one that was not set."""
        if key not in self.entries:
            raise InvalidArgument(f"there is no entry '{key}'", "RunOptions", list(self.entries) or "no entries")
        return self.entries[key]


@dataclass(frozen=True)
class NodeArg:
    """An input or an output: its type as `tensor(float)`, and its shape, whose dimensions are numbers, names, and None
    where they have neither."""

    name: str
    type: str
    shape: list[int | str | None]

    @staticmethod
    def of(entry: ValueInfoProto) -> NodeArg:
        """What a model says of an input or an output."""
        dims = entry.type.tensor_type.shape.dim
        shape = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None for d in dims]
        return NodeArg(entry.name, type_text(entry.type), shape)


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]

    @staticmethod
    def of(proto: ModelProto) -> ModelMetadata:
        """The metadata of a model."""
        entries = {entry.key: entry.value for entry in proto.metadata_props}
        return ModelMetadata(
            proto.producer_name, proto.graph.name, proto.domain, proto.doc_string, proto.graph.doc_string,
            proto.model_version, entries,
        )  # fmt: skip


def element_text(element: int) -> str:
    """An element type of ONNX as ONNX Runtime calls it: `float`, `int64`, `float16`."""
    return TensorProto.DataType.Name(element).lower()  # pyright: ignore


def type_text(type: TypeProto) -> str:
    """A type as ONNX Runtime writes it: `tensor(float)`, `seq(tensor(int64))`."""
    match type.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({element_text(type.tensor_type.elem_type)})"
        case "sequence_type":
            return f"seq({type_text(type.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_text(type.optional_type.elem_type)})"
        case "map_type":
            key, value = type.map_type.key_type, type.map_type.value_type
            return f"map({element_text(key)},{type_text(value)})"
        case kind:
            return str(kind)
