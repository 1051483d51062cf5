"""Names of indices that the IR leaves unnamed: by the buffer that they address, and the loop that moves them."""

from __future__ import annotations

import re

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from treadle.backends.c.printer import print_kernels
from treadle.dialects.registry import treadle_context
from treadle.passes.lower.loop_lower_accesses import LoopLowerAccessesPass
from treadle.passes.lower.loop_to_c import LoopToCPass


def definitions(body: str) -> list[str]:
    """The lines of a kernel that define an index."""
    constants = "\n".join(f"%c{n} = arith.constant {n} : index" for n in (0, 1, 2, 3, 4, 8, 48))
    arguments = "%A : memref<4096xf32>, %B : memref<4096xf32>, %C : memref<4096xf32>"
    context = treadle_context()
    head = f"loop.func @k({arguments}) grid(%block in 4) threads(%t in 1)"
    module: ModuleOp = Parser(context, f"{head} {{\n{constants}\n{body}\n}}").parse_module()
    for lowering in (LoopLowerAccessesPass(), LoopToCPass()):
        lowering.apply(context, module)
    module.verify()
    (unit,) = print_kernels(module)
    return re.findall(r"const long (\w+ = .*);", unit.text)


USES = {
    "one buffer, at the level of each loop": (
        """
        scf.for %m = %c0 to %c8 step %c1 {
          %0 = arith.muli %m, %c48 : index
          scf.for %k = %c0 to %c8 step %c1 {
            %1 = arith.addi %0, %k : index
            %2 = arith.muli %1, %c2 : index
            %3 = loop.load %A[%2] : memref<4096xf32>
            %4 = arith.addi %2, %c1 : index
            %5 = loop.load %A[%4] : memref<4096xf32>
            %6 = arith.addf %3, %5 : f32
            loop.store %6, %C[%k] : memref<4096xf32>
          }
        }
        """,
        ["a_m = m * 48", "a_k = (a_m + k) * 2"],
    ),
    "what leaves a loop": (
        """
        %0 = arith.muli %block, %c48 : index
        scf.for %m = %c0 to %c8 step %c1 {
          %1 = arith.addi %0, %m : index
          %3 = loop.load %A[%1] : memref<4096xf32>
          loop.store %3, %C[%m] : memref<4096xf32>
        }
        """,
        ["a_block = block * 48"],
    ),
    "several buffers": (
        """
        %0 = arith.divui %block, %c8 : index
        %1 = arith.muli %0, %c4 : index
        scf.for %m = %c0 to %c8 step %c1 {
          %2 = arith.addi %1, %m : index
          %3 = loop.load %A[%2] : memref<4096xf32>
          loop.store %3, %C[%2] : memref<4096xf32>
        }
        """,
        ["block_div8_x4 = block / 8 * 4", "m_offset = block_div8_x4 + m"],
    ),
    "names of the IR stay, and are variables": (
        """
        %row = arith.remui %block, %c4 : index
        %0 = arith.muli %row, %c48 : index
        scf.for %m = %c0 to %c8 step %c1 {
          %1 = arith.addi %0, %m : index
          %2 = loop.load %A[%1] : memref<4096xf32>
          %3 = loop.load %B[%row] : memref<4096xf32>
          %4 = arith.addf %2, %3 : f32
          loop.store %4, %C[%m] : memref<4096xf32>
        }
        """,
        ["row = block % 4", "a_row = row * 48"],
    ),
}


@pytest.mark.parametrize("case", USES)
def test_an_index_is_named_by_its_role(case: str) -> None:
    body, expected = USES[case]
    assert definitions(body) == expected
    assert definitions(body) == expected
