"""Names that C, C++ and CUDA accept, and the symbols of kernels as such names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr

from treadle.dialects.host import LaunchOp
from treadle.dialects.loop import FuncOp

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr const_cast
continue decltype default delete do double dynamic_cast else enum explicit export extern false float for friend goto if
inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
reinterpret_cast restrict return short signed sizeof static static_assert static_cast struct switch template this
thread_local throw true try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor
xor_eq
"""
# Names that the compilers, the C library or the headers define.
_TAKEN = """
main linux unix i386 NULL INFINITY NAN args worker workers inputs outputs constants arena pool threadIdx blockIdx
blockDim gridDim warpSize dim3 half
"""
_LIBRARY = """
abs labs fabs acos acosh asin asinh atan atan2 atanh cbrt ceil clock close copysign cos cosh div drem dup erf erfc exit
exp exp10 exp2 expm1 fdim floor fma fmax fmin fmod fork free frexp gamma getc hypot index isatty j0 j1 jn kill ldexp
ldiv lgamma link llabs log log10 log1p log2 logb lrint lround malloc memchr memcmp memcpy memmove memset modf nearbyint
nextafter open pause pipe poll pow putc puts raise rand random read realloc remainder remove remquo rename rewind rindex
rint round roundeven scalb select send signal significand sin sincos sinh sleep sqrt stat strlen swab sync system tan
tanh tgamma time trunc wait write y0 y1 yn
"""
LIBRARY = frozenset(name + suffix for name in _LIBRARY.split() for suffix in ("", "f", "l"))
"""Functions of the C library whose names operators may have: a kernel of such a name would replace them."""

RESERVED = frozenset((_KEYWORDS + _TAKEN).split())
_RESERVED_PREFIX = re.compile(r"_|treadle_|TREADLE_|v\d+[fiu](_u)?$|(u?(char|short|int|long)|float|double)\d$")
_LONGEST = 60


def identifier(hint: str, fallback: str = "x") -> str:
    """A C and C++ identifier like `hint`: letters, digits and underscores, no keyword, no reserved name."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", hint)[:_LONGEST].strip("_") or fallback
    if name[0].isdigit():
        name = f"{fallback}{name}"
    if name in RESERVED or _RESERVED_PREFIX.match(name):
        name = f"{name}_"
        return name if not _RESERVED_PREFIX.match(name) else f"x_{name.strip('_')}"
    return name


def kernel_identifier(symbol: str) -> str:
    """A name for a function with external linkage: as `identifier`, and none of the C library's."""
    name = identifier(symbol, "kernel")
    return f"{name}_kernel" if name in LIBRARY else name


class UniqueNames:
    """Makes names unique."""

    def __init__(self, taken: Iterable[str] = ()):
        self._used = set(taken)
        self._numbers: dict[str, int] = {}
        """The last number that was tried as a suffix of each name."""

    def unique(self, name: str) -> str:
        """The name itself if it is new, else with a number appended."""
        number, found = self._numbers.get(name, 1), name
        while found in self._used:
            number += 1
            found = f"{name}_{number}"
        self._numbers[name] = max(1, number - 1)
        self._used.add(found)
        return found


def rename_kernels(module: ModuleOp) -> None:
    """Gives each `loop.func` a symbol that can be printed as it is, all different, and its launches the same."""
    renamed: dict[str, str] = {}
    names = UniqueNames()
    for kernel in [op for op in module.ops if isinstance(op, FuncOp)]:
        symbol = kernel.sym_name.data
        name = names.unique(kernel_identifier(symbol))
        renamed[symbol] = name
        kernel.sym_name = StringAttr(name)
    for launch in module.walk():
        if isinstance(launch, LaunchOp) and launch.kernel.string_value() in renamed:
            launch.kernel = SymbolRefAttr(renamed[launch.kernel.string_value()])
