"""How a CUDA text is compiled for the emulator: to run fast, to be checked, to be counted."""

from __future__ import annotations

from treadle.backends.c.toolchain import Toolchain
from treadle.backends.cuda.emulator.instrument import counts_operations

COMMON = ("-x", "c++", "-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti")
# One of the compilers links a library of its own for this sanitizer by default.
NO_UBSAN = "-fno-sanitize=undefined"
RUNTIME = ("-O3", "-march=native", "-fno-threadsafe-statics", "-ftls-model=initial-exec", NO_UBSAN)
# What a text calls and does not define is an error of the link, not of the load.
LINK = (NO_UBSAN, "-Wl,-z,defs")

# The reinterpretations of CUDA programs are no undefined behaviour here, and endless loops stay endless. The overflow
# of signed integers is undefined as in NVRTC, so that a text that relies on it shows; contraction is what --fmad is.
_KERNEL = (
    "-w", "-fno-strict-aliasing", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-finite-loops",
    "-fno-stack-protector",
)  # fmt: skip
_FAST = ("-O3", "-march=native", "-g1", NO_UBSAN)
# The runtime stands in for the sanitizers' libraries.
_SANITIZED = (
    "-g1", NO_UBSAN, "-fsanitize=thread", "-fsanitize=bounds,alignment", "-fsanitize-recover=bounds,alignment",
    "-ftrivial-auto-var-init=pattern",
)  # fmt: skip

# Hooks of their own for volatile accesses.
_VOLATILE_IN_GCC = ("--param=tsan-distinguish-volatile=1", "-fno-tree-fre")
_VOLATILE_IN_CLANG = ("-mllvm", "-tsan-distinguish-volatile")

# -O1 keeps most accesses where the text has them. The others would move behind the predicate under which their value
# is used, and out of bounds nobody would see them.
_LOADS_STAY_IN_GCC = ("-fno-tree-sink",)
_LOADS_STAY_IN_CLANG = ("-mllvm", "-instcombine-code-sinking=0")

# Counts are those of the text: without optimisation one access of it is one access, one operation one instruction.
_COUNTED = (
    "-O0", "-ffp-contract=off", "-ftrapping-math", "-fno-semantic-interposition", "-fno-optimize-sibling-calls",
    "-DTREADLE_EMU_COUNTERS",
)  # fmt: skip
# Roundings are no sums then; and treadle_emu_run uses the stack below a leaf function.
_COUNTED_ON_X86 = ("-msse4.1", "-mno-red-zone")
# This compiler would leave out reads of what is written right afterwards.
_COUNTED_BY_CLANG = ("-mllvm", "-tsan-instrument-read-before-write")


def text_flags(toolchain: Toolchain, checked: bool, counted: bool) -> tuple[str, ...]:
    """What compiles a text; one that is compiled for counting can be checked, too."""
    if not checked and not counted:
        return (*COMMON, *_KERNEL, *_FAST)
    clang = "clang" in toolchain.version
    sanitized = (*COMMON, *_KERNEL, *_SANITIZED, *(_VOLATILE_IN_CLANG if clang else _VOLATILE_IN_GCC))
    if not counted:
        return (*sanitized, "-O1", *(_LOADS_STAY_IN_CLANG if clang else _LOADS_STAY_IN_GCC))
    on_x86 = _COUNTED_ON_X86 if counts_operations() else ()
    return (*sanitized, *_COUNTED, *on_x86, *(_COUNTED_BY_CLANG if clang else ()))
