"""The contents of an artifact's `manifest.json`, which is read strictly, since it is untrusted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast, get_args

import numpy as np

from treadle.errors import TreadleError
from treadle.shapes.decision_tree import Dispatch, boxes, parse_tree, symbols_of, tree_text
from treadle.shapes.dim import Dim
from treadle.shapes.dynamic import DynamicCalls
from treadle.shapes.states import State
from treadle.support.lazy import lazy_module
from treadle.target.tensor_map import PixelBox, TensorMap

if TYPE_CHECKING:
    import ml_dtypes
else:  # few models have its types
    ml_dtypes = lazy_module("ml_dtypes")

# Typed reading of a JSON object: a value of another type or range than expected is an error.

Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True)
class Fields:
    """A JSON object of the file `where`; `path` is its path in the file, such as `inputs[2]`.

    Every method takes a key and raises TreadleError for one that is missing or has a value of another kind.
    `unchanged` is what messages say is accepted where nothing more specific helps.
    """

    content: object
    path: str
    where: object
    unchanged: str

    def text(self, key: str) -> str:
        """A string."""
        return self._text(key, self._value(key))

    def choice(self, key: str, choices: Sequence[Choice]) -> Choice:
        """One of some strings."""
        return self._choice(key, self._value(key), choices)

    def natural(self, key: str, limit: int) -> int:
        """A whole number from 0 to `limit`."""
        return self._natural(key, self._value(key), limit)

    def truth(self, key: str) -> bool:
        """True or false."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise self._mistyped(key, value, "true or false")
        return value

    def naturals(self, key: str, limit: int) -> tuple[int, ...]:
        """A list of such numbers."""
        return tuple(self._natural(key, each, limit) for each in self._list(key, self._value(key)))

    def integers(self, key: str, limit: int) -> tuple[int, ...]:
        """A list of whole numbers from `-limit` to `limit`."""
        return tuple(self._integer(key, each, limit) for each in self._entries(key))

    def texts(self, key: str) -> dict[str, str]:
        """An object of strings."""
        value = self._value(key)
        if not isinstance(value, dict):
            raise self._mistyped(key, value, "an object")
        entries = cast("dict[str, object]", value)
        return {name: self._text(f"{key}.{name[:80]}", each) for name, each in entries.items()}

    def strings(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(self._text(f"{key}[{n}]", each) for n, each in enumerate(self._entries(key)))

    def objects(self, key: str) -> list[Fields]:
        """A list of objects."""
        entries = self._list(key, self._value(key))
        return [Fields(each, f"{self._path(key)}[{n}]", self.where, self.unchanged) for n, each in enumerate(entries)]

    def object(self, key: str) -> Fields:
        """An object."""
        return Fields(self._value(key), self._path(key), self.where, self.unchanged)

    def has(self, key: str) -> bool:
        """Whether the value is anything but null."""
        return self._value(key) is not None

    def pairs(self, key: str, choices: Sequence[Choice], limit: int) -> tuple[tuple[Choice, int], ...]:
        """A list of pairs: one of some strings, and a whole number from 0 to `limit`."""
        return tuple(self._pair(f"{key}[{n}]", each, choices, limit) for n, each in enumerate(self._entries(key)))

    def error(self, key: str, problem: str, accepted: str) -> TreadleError:
        """An error about a value, such as `inputs[2].shape is [-1]`."""
        return TreadleError(f"the manifest is damaged: {self._path(key)} {problem}", self.where, accepted)

    def _pair(self, key: str, value: object, choices: Sequence[Choice], limit: int) -> tuple[Choice, int]:
        entries = self._list(key, value)
        if len(entries) != 2:
            raise self.error(key, f"has {len(entries)} entries", "2")
        return self._choice(key, entries[0], choices), self._natural(key, entries[1], limit)

    def _entries(self, key: str) -> list[object]:
        return self._list(key, self._value(key))

    def _value(self, key: str) -> object:
        if not isinstance(self.content, dict):
            raise TreadleError(
                f"the manifest is damaged: {self.path or 'its text'} is no object", self.where, self.unchanged
            )
        entries = cast("dict[str, object]", self.content)
        if key not in entries:
            raise self.error(key, "is missing", self.unchanged)
        return entries[key]

    def _list(self, key: str, value: object) -> list[object]:
        if not isinstance(value, list):
            raise self._mistyped(key, value, "a list")
        return cast("list[object]", value)

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise self._mistyped(key, value, "a string")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.error(key, "is no Unicode text: it has a lone surrogate", "a string")
        return value

    def _choice(self, key: str, value: object, choices: Sequence[Choice]) -> Choice:
        for choice in choices:
            if value == choice:
                return choice
        raise self._mistyped(key, value, ", ".join(choices))

    def _natural(self, key: str, value: object, limit: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
            raise self._mistyped(key, value, f"a whole number from 0 to {limit}")
        return value

    def _integer(self, key: str, value: object, limit: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value <= limit:
            raise self._mistyped(key, value, f"a whole number from {-limit} to {limit}")
        return value

    def _mistyped(self, key: str, value: object, accepted: str) -> TreadleError:
        shown = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
        return self.error(key, f"is {shown[:80]}", accepted)

    def _path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


FORMAT = 13
MANIFEST = "manifest.json"
WROTE_IT = "a folder that `treadle compile` or CompiledModel.save wrote, unchanged"
"""What messages about a damaged artifact say is accepted."""

BufferKind = Literal["input", "output", "constant", "arena", "zeroed"]
Kind = Literal["cpu", "cuda"]
Shape3 = tuple[int, int, int]

_OF_NUMPY = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
_OF_ML_DTYPES = (
    "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16",
)  # fmt: skip
_DTYPES = (*_OF_NUMPY, *_OF_ML_DTYPES)


def element_type(name: str) -> np.dtype[Any]:
    """The NumPy type of a name. Those of `ml_dtypes` NumPy knows, also by name, once that package is imported, which
    happens here: a model of other types runs without it.

    TreadleError if it is not installed.
    """
    return np.dtype(getattr(ml_dtypes, name) if name in _OF_ML_DTYPES else name)


_MAX_RANK = 64
"""NumPy's."""
_MAX_BYTES = 1 << 47
"""The address space of a process."""
_MAX_GRID = (1 << 31) - 1


@dataclass(frozen=True)
class Tensor:
    """An input, an output or a constant: name (a constant's: its key in the weights), shape, NumPy dtype name.

    extents: where some dimensions change from call to call: the extent of each, as an expression of symbols; the shape
             is then the largest
    dense:   the program takes or gives the elements of a call alone, one after another; otherwise a tensor whose
             extents change lies in the largest shape
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    extents: tuple[str, ...] = ()
    dense: bool = False

    @property
    def num_bytes(self) -> int:
        """Size, row-major and without padding."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.extents or self.shape))}]"


@dataclass(frozen=True)
class Source:
    """A part of an external-data file that a model was compiled from.

    location: the file's path relative to the model, as the model has it
    sha256:   digest (hex) of the `nbytes` bytes from `offset` on
    """

    location: str
    offset: int
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class BufferMap:
    """A tensor map of the buffer that is one of a launch's arguments, by its number."""

    argument: int
    map: TensorMap


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a GPU's kernel.

    image:          the cubin's file; the text is beside it
    dynamic_shared: bytes of dynamic shared memory
    buffers:        for each argument, the number of an input, an output or a constant, or the byte in the arena or the
                    zeroed memory
    types:          for each argument, the NumPy dtype name of its elements, and how many the kernel takes it to have
    maps:           how copies of boxes see buffers; the kernel takes them behind the others, in this order
    """

    kernel: str
    image: str
    grid: Shape3
    block: Shape3
    dynamic_shared: int
    buffers: tuple[tuple[BufferKind, int], ...]
    types: tuple[tuple[str, int], ...]
    maps: tuple[BufferMap, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """All that is needed to run the folder's kernels.

    sparse:   names of constants of which data decide what a call reads, such as the rows of an embedding
    precision: of products, convolutions and attention, as the model was compiled
    weights:  how the constant matrices of products were quantised, if they were, as `graph-quantize-weights` says
    symbols:  the dimensions that change from call to call
    extents:  expressions of symbols; the last inputs, int64 scalars, are their values in a call
    found:    symbols that depend on data; the last outputs, int64 scalars, are their values after a call
    states:   what is kept between calls
    machine:  architecture and features that `model.so` needs ("x86_64 avx2 fma ..."); empty on cuda
    launches: cuda only; the kernels in order
    dispatches: cuda only; where a call runs one of several consecutive launches
    sources:  the external data that was read
    files:    sha256 of each other file of the folder
    """

    target: str
    kind: Kind
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    arena_bytes: int
    zeroed_bytes: int = 0
    sparse: tuple[str, ...] = ()
    precision: str = "f32"
    weights: Mapping[str, str] = field(default_factory=dict[str, str])
    symbols: tuple[Dim, ...] = ()
    extents: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    machine: str = ""
    launches: tuple[KernelLaunch, ...] = ()
    dispatches: tuple[Dispatch, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    sources: tuple[Source, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str])


def manifest_text(manifest: Manifest) -> str:
    """The manifest as JSON."""
    dispatches = [{**asdict(each), "tree": tree_text(each.tree)} for each in manifest.dispatches]
    content = {"format": FORMAT, **asdict(manifest), "dispatches": dispatches}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def parse_manifest(data: bytes, where: object) -> Manifest:
    """The manifest in a file's bytes; TreadleError for whatever `manifest_text` does not write.

    That is another format, a key that is missing or appears twice, a value of another type or out of range, and a
    launch whose kernel accesses more bytes than its buffer has.
    """
    try:
        content: object = json.loads(data, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        message = f"the manifest is damaged: {str(error)[:200] or 'nested too deeply'}"
        raise TreadleError(message, where, WROTE_IT) from error
    fields = Fields(content, "", where, WROTE_IT)
    format = fields.natural("format", _MAX_BYTES)
    if format != FORMAT:
        message = f"another version of Treadle wrote this, in format {format}"
        raise TreadleError(message, where, f"format {FORMAT}: compile the model again")
    manifest = _manifest(fields)
    try:
        dynamic_calls(manifest)
    except ValueError as error:
        raise TreadleError(f"the manifest contradicts itself: {error}", where, WROTE_IT) from error
    _check_dispatches(manifest, where)
    for number, launch in enumerate(manifest.launches):
        _check_buffers(manifest, launch, f"launches[{number}]", where)
    return manifest


def dynamic_calls(manifest: Manifest) -> DynamicCalls:
    """The calls of a manifest's program; ValueError for one that contradicts itself."""
    return DynamicCalls(
        manifest.symbols, manifest.extents, manifest.inputs, manifest.outputs, manifest.found, manifest.states
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key appears twice")
    return content


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _manifest(fields: Fields) -> Manifest:
    return Manifest(
        target=fields.text("target"),
        kind=fields.choice("kind", get_args(Kind)),
        inputs=_tensors(fields, "inputs"),
        outputs=_tensors(fields, "outputs"),
        constants=_tensors(fields, "constants"),
        arena_bytes=fields.natural("arena_bytes", _MAX_BYTES),
        zeroed_bytes=fields.natural("zeroed_bytes", _MAX_BYTES),
        sparse=fields.strings("sparse"),
        precision=fields.text("precision"),
        weights=fields.texts("weights"),
        symbols=tuple(map(_symbol, fields.objects("symbols"))),
        extents=fields.strings("extents"),
        found=fields.strings("found"),
        states=tuple(map(_state, fields.objects("states"))),
        machine=fields.text("machine"),
        launches=tuple(map(_launch, fields.objects("launches"))),
        dispatches=tuple(map(_dispatch, fields.objects("dispatches"))),
        metadata=fields.texts("metadata"),
        sources=tuple(map(_source, fields.objects("sources"))),
        files=fields.texts("files"),
    )


def _tensors(fields: Fields, key: str) -> tuple[Tensor, ...]:
    return tuple(map(_tensor, fields.objects(key)))


def _tensor(fields: Fields) -> Tensor:
    dtype = fields.choice("dtype", _DTYPES)
    shape = fields.naturals("shape", _MAX_BYTES)
    if len(shape) > _MAX_RANK:
        raise fields.error("shape", f"has {len(shape)} dimensions", f"at most {_MAX_RANK}")
    # Of an empty tensor, NumPy multiplies the other extents too.
    if prod(max(extent, 1) for extent in shape) * element_type(dtype).itemsize > _MAX_BYTES:
        raise fields.error("shape", "is larger than the address space", f"at most {_MAX_BYTES} bytes")
    extents = fields.strings("extents")
    if len(extents) not in (0, len(shape)):
        raise fields.error(
            "extents", f"has {len(extents)} entries", f"none, or one for each of {len(shape)} dimensions"
        )
    dense = fields.truth("dense")
    if dense and not extents:
        raise fields.error("dense", "is true of a tensor whose shape is the same in every call", "false")
    return Tensor(fields.text("name"), shape, dtype, extents, dense)


def _symbol(fields: Fields) -> Dim:
    name, lower, upper = fields.text("name"), fields.natural("lower", _MAX_BYTES), fields.natural("upper", _MAX_BYTES)
    try:
        return Dim(name, lower, upper, fields.natural("multiple", _MAX_BYTES))
    except TreadleError as error:
        raise fields.error("name", f"has a range that is none: {error.message}", fields.unchanged) from error


def _state(fields: Fields) -> State:
    argument, result = (fields.natural(key, _MAX_GRID) for key in ("argument", "result"))
    return State(argument, result, fields.truth("in_place"))


def _source(fields: Fields) -> Source:
    offset, nbytes = (fields.natural(key, 1 << 62) for key in ("offset", "nbytes"))
    return Source(fields.text("location"), offset, nbytes, fields.text("sha256"))


def _launch(fields: Fields) -> KernelLaunch:
    buffers = fields.pairs("buffers", get_args(BufferKind), _MAX_BYTES)
    types = fields.pairs("types", _DTYPES, _MAX_BYTES)
    if len(buffers) != len(types):
        raise fields.error("types", f"has {len(types)} entries", f"{len(buffers)}, one for each buffer")
    maps = tuple(_buffer_map(each, len(buffers)) for each in fields.objects("maps"))
    return KernelLaunch(
        kernel=fields.text("kernel"),
        image=fields.text("image"),
        grid=_three(fields, "grid"),
        block=_three(fields, "block"),
        dynamic_shared=fields.natural("dynamic_shared", _MAX_GRID),
        buffers=buffers,
        types=types,
        maps=maps,
    )


def _buffer_map(fields: Fields, arguments: int) -> BufferMap:
    map = fields.object("map")
    extents, strides, box = (map.naturals(key, _MAX_BYTES) for key in ("extents", "strides", "box"))
    try:
        pixels = _pixel_box(map.object("pixels")) if map.has("pixels") else None
        made = TensorMap(map.text("element"), extents, strides, box, map.natural("swizzle", _MAX_GRID), pixels)
    except TreadleError as error:
        raise fields.error("map", f"is no tensor map: {error.message}", str(error.accepted)) from error
    return BufferMap(fields.natural("argument", arguments - 1), made)


def _pixel_box(fields: Fields) -> PixelBox:
    lower, upper, steps = (fields.integers(key, _MAX_GRID) for key in ("lower", "upper", "steps"))
    return PixelBox(lower, upper, steps)


def _dispatch(fields: Fields) -> Dispatch:
    first, count = (fields.natural(key, _MAX_GRID) for key in ("first", "count"))
    text = fields.text("tree")
    try:
        tree = parse_tree(text)
    except (ValueError, RecursionError) as error:
        raise fields.error("tree", f"is no decision tree: {error}", "such as e0 <= 16 ? 0 : 1") from error
    return Dispatch(first, count, fields.naturals("inputs", _MAX_GRID), tree)


def _check_dispatches(manifest: Manifest, where: object) -> None:
    """Raises TreadleError unless every point of a dispatch has a launch, and none belongs to two dispatches."""
    end = 0
    for number, each in enumerate(manifest.dispatches):
        message = ""
        if each.first < end or each.first + each.count > len(manifest.launches):
            message = f"launches {each.first} to {each.first + each.count - 1} are not its own"
        missing = {kernel for kernel, _ in boxes(each.tree)}.difference(range(each.count))
        if missing:
            message = f"a leaf takes launch {min(missing)} of {each.count}"
        if any(symbol >= len(each.inputs) for symbol in symbols_of(each.tree)):
            message = f"the tree compares more than the {len(each.inputs)} inputs that are given"
        if not all(_is_extent(manifest, position) for position in each.inputs):
            message = f"inputs {list(each.inputs)} are not all extents"
        if message:
            raise TreadleError(f"the manifest contradicts itself: dispatches[{number}]: {message}", where, WROTE_IT)
        end = each.first + each.count


def _is_extent(manifest: Manifest, position: int) -> bool:
    return len(manifest.inputs) - len(manifest.extents) <= position < len(manifest.inputs)


def _three(fields: Fields, key: str) -> Shape3:
    values = fields.naturals(key, _MAX_GRID)
    if len(values) != 3 or min(values) < 1:
        raise fields.error(key, f"is {list(values)[:8]}", "three numbers from 1 upwards")
    return values[0], values[1], values[2]


def _check_buffers(manifest: Manifest, launch: KernelLaunch, path: str, where: object) -> None:
    """Raises TreadleError unless each buffer of a launch exists and has as many bytes as its kernel accesses."""
    tensors = {"input": manifest.inputs, "output": manifest.outputs, "constant": manifest.constants}
    shared = {"arena": manifest.arena_bytes, "zeroed": manifest.zeroed_bytes}
    for number, ((kind, index), (dtype, elements)) in enumerate(zip(launch.buffers, launch.types, strict=True)):
        needed = elements * element_type(dtype).itemsize
        if kind in shared:
            available = shared[kind] - index
        else:
            available = tensors[kind][index].num_bytes if index < len(tensors[kind]) else -1
        if needed > available:
            message = (
                f"{path}.buffers[{number}]: {kind} {index} has {max(available, 0)} bytes, the kernel needs {needed}"
            )
            raise TreadleError(f"the manifest contradicts itself: {message}", where, WROTE_IT)
    for number, each in enumerate(launch.maps):
        dtype, elements = launch.types[each.argument]
        has = elements * element_type(dtype).itemsize
        if each.map.span > has:
            message = f"{path}.maps[{number}]: spans {each.map.span} bytes of an argument of {has}"
            raise TreadleError(f"the manifest contradicts itself: {message}", where, WROTE_IT)
