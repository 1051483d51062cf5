"""Constants and named dimensions as attributes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr, TensorType
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.dtypes import integer_dtype_limits, is_float_dtype, is_integer_dtype, numpy_dtype

INLINE_LIMIT = 16
"""Constants of at most this many elements are written into the IR; larger ones go to the store."""


@irdl_attr_definition
class BlobAttr(ParametrizedAttribute):
    """A large constant, stored outside the text in the content-addressed store.

    Names the SHA-256 of the little-endian, row-major bytes and their number:

    ```mlir
    #graph.blob<"sha256:9f86d0...", 9437184>
    ```

    Rejected: a digest that is not `sha256:` and 64 hexadecimal digits.
    """

    name = "graph.blob"
    digest: StringAttr
    nbytes: IntAttr

    @classmethod
    def get(cls, digest: str, nbytes: int) -> BlobAttr:
        return cls(StringAttr(digest), IntAttr(nbytes))

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f'<"{self.digest.data}", {self.nbytes.data}>')

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            digest = parser.parse_str_literal()
            parser.parse_punctuation(",")
            nbytes = parser.parse_integer(allow_negative=False)
        return StringAttr(digest), IntAttr(nbytes)

    def verify(self) -> None:
        scheme, _, hexadecimal = self.digest.data.partition(":")
        if scheme != "sha256" or len(hexadecimal) != 64 or set(hexadecimal) - set("0123456789abcdef"):
            raise VerifyException(f"a blob's digest is 'sha256:' and 64 hex digits, not {self.digest.data!r}")


@irdl_attr_definition
class InlineAttr(ParametrizedAttribute):
    """A small constant as text that reads back to the same bits (infinities and NaN included).

    ```mlir
    #graph.inline<"1.0, -inf, 3.5">
    ```
    """

    name = "graph.inline"
    text: StringAttr

    @classmethod
    def get(cls, array: NDArray[np.generic]) -> InlineAttr:
        return cls(StringAttr(", ".join(str(v.item()) for v in array.reshape(-1).astype(_text_dtype(array)))))

    def array(self, type: TensorType) -> NDArray[np.generic]:
        """The values as an array of `type`'s shape and dtype; ValueError if the text does not fit it."""
        words = [w.strip() for w in self.text.data.split(",")] if self.text.data else []
        dtype = numpy_dtype(type.element_type)
        if dtype == np.bool_:
            values = np.array([{"True": True, "False": False}[w] for w in words], dtype)
        elif is_integer_dtype(dtype):
            values = _integers([int(w) for w in words], dtype)
        else:
            values = np.array([float(w) for w in words], np.float64).astype(dtype)
        return values.reshape(type.get_shape())


def _integers(numbers: Sequence[int], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Numbers as an array; OverflowError for one that is none of the type's, of which some types keep the low bits."""
    lowest, highest = integer_dtype_limits(dtype)
    beyond = [number for number in numbers if not lowest <= number <= highest]
    if beyond:
        raise OverflowError(f"{beyond[0]} is no {dtype}")
    return np.array(numbers, dtype)


def _text_dtype(array: NDArray[np.generic]) -> np.dtype[np.generic]:
    """Floats are written as float64, whose text is exact for every narrower format."""
    return np.dtype(np.float64) if is_float_dtype(array.dtype) else array.dtype


def digest_of(array: NDArray[np.generic]) -> str:
    """The `sha256:...` name of an array's row-major bytes."""
    return "sha256:" + hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


@irdl_attr_definition
class DimsAttr(ParametrizedAttribute):
    """Names of a tensor's symbolic dimensions, as the encoding of its type.

    ```mlir
    tensor<?x768xf32, #graph.dims<"batch", "">>
    ```
    Two dimensions of the same name have the same extent in one function. Static dimensions have the empty name.
    """

    name = "graph.dims"
    names: ArrayAttr[StringAttr]

    @classmethod
    def get(cls, names: Sequence[str]) -> DimsAttr:
        return cls(ArrayAttr([StringAttr(n) for n in names]))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_list(self.names.data, lambda n: printer.print_string_literal(n.data))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        names = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, parser.parse_str_literal)
        return (ArrayAttr([StringAttr(n) for n in names]),)


__all__ = ["INLINE_LIMIT", "BlobAttr", "DimsAttr", "InlineAttr", "digest_of"]
