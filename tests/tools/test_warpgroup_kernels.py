"""How instructions of a step of a kernel of warpgroups are counted."""

from __future__ import annotations

from benchmarks.warpgroup_kernels import instructions_of_a_step
from treadle.backends.cuda.machine_code import Sass, parse_sass

STEP = ["UIADD3 UR8, UR8, 0x1, URZ", "HGMMA.64x64x16.F32 R24, gdesc[UR8], R24", "WARPGROUP.ARRIVE",
        "HGMMA.64x64x16.F32 R24, gdesc[UR8], R24, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x1"]  # fmt: skip
WAIT = "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR8], R5"


def sass_of(*lines: str) -> Sass:
    """The kernel that nvdisasm prints so."""
    text = "".join(f"{line}\n" if line.endswith(":") else f"  /*0000*/  {line} ;\n" for line in lines)
    return parse_sass(f".section .text.k,\n{text}")["k"]


def test_waits_that_are_tried_again_do_not_count() -> None:
    again = ["@P0 BRA `(.L_x_2)", "CS2R R8, SR_CLOCKLO", WAIT, "@!P0 BRA `(.L_x_9)"]
    sass = sass_of("MOV R1, R2", ".L_x_1:", WAIT, *again, ".L_x_2:", *STEP, "@P1 BRA `(.L_x_1)", "EXIT")
    assert instructions_of_a_step(sass, 1) == (2, 6)


def test_a_loop_of_several_steps_is_their_mean() -> None:
    sass = sass_of(".L_x_1:", WAIT, *STEP, *STEP, "NOP", "@P1 BRA `(.L_x_1)", *STEP, "EXIT")
    assert instructions_of_a_step(sass, 1) == (2, 4.5)


def test_steps_that_commit_two_groups() -> None:
    sass = sass_of(".L_x_1:", WAIT, *STEP, *STEP, "NOP", "@P1 BRA `(.L_x_1)", *STEP, "EXIT")
    assert instructions_of_a_step(sass, 2) == (4, 9)


def test_of_steps_that_are_written_out_the_last_is_the_epilogues() -> None:
    """A branch back from behind the end is no loop: there a wait is tried again."""
    last = ["IMAD R1, R1, R1, R1", *STEP]
    sass = sass_of(".L_x_1:", *STEP, *STEP, "NOP", *STEP, *last, "EXIT", WAIT, "@!P0 BRA `(.L_x_1)")
    assert instructions_of_a_step(sass, 1) == (2, 3.5)
