"""What is read from the machine code of a kernel, without a disassembler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.gpu import machine_code
from bench.gpu.machine_code import cycles_of, disassemble, loop_over_time, read_instruction

LISTING = """
        /*0000*/                   MOV R1, 0x0 ;
.L_x_0:
        /*0010*/                   LDS.128 R8, [R2] ;
        /*0020*/                   FFMA R4, R8, R5, R4 ;
        /*0030*/              @!P0 STS [R3], R4 ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/               @P1 BRA `(.L_x_0) ;
        /*0060*/                   EXIT ;
"""


@pytest.fixture
def loop(tmp_path):
    program = tmp_path / "nvdisasm"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{LISTING}\nEND\n")
    program.chmod(0o755)
    return loop_over_time(*disassemble(b"", str(program)))


def test_the_loop_is_what_a_branch_back_closes_around_a_barrier(loop):
    assert [each.opcode.split(".")[0] for each in loop] == ["LDS", "FFMA", "STS", "BAR", "BRA"]


def test_a_guard_is_needed_and_a_store_makes_nothing():
    stored = read_instruction(0, "@!P0 STS [R3], R4")
    assert (stored.made, set(stored.needed)) == ((), {"R3", "R4", "P0"})


def test_a_step_waits_for_the_reads_of_all_warps(loop):
    shared, apart = (cycles_of(loop, read_cycles=each, blocks=1) for each in (2.0, 4.0))
    assert apart - shared == pytest.approx(2 * machine_code.WARPS, abs=8)
    assert cycles_of(loop, read_cycles=2.0, blocks=8) == shared, "its barrier is the block's own"
    wide = [
        replace(each, opcode="UCGABAR_WAIT") if each.opcode.startswith("BAR") else each
        for each in loop
    ]
    assert cycles_of(wide, read_cycles=2.0, blocks=8) > shared
