"""The machine code of a kernel's time step: registers, instructions, and a model's times.

It needs no GPU, but NVRTC and nvdisasm, of the package nvidia-cuda-nvdisasm or a CUDA toolkit:

    python -m bench.gpu.machine_code --nvdisasm .bench/nvdisasm/nvidia/cu13/bin/nvdisasm

The model is one multiprocessor of an H200. Its 16 warps have four schedulers, each of which issues
one instruction a cycle of a warp whose operands have come; a warp's instructions stay in order. How
long a result takes, and how long it occupies what the schedulers share, is in `COSTS`. The barrier
of a cluster, of older kernels, is without the fence over all memory that its machine code has. No
GPU has confirmed it: it is for ratios.

`--cells` reads the kernel of networks with gates and of ODEs, not the scan's. `--kernel` names
another source, of an earlier checkout for instance. Where neighbouring threads read shared memory
at different addresses, a read takes `--read-cycles 4`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from bench.report import new_parser, say, table
from eigensweep.models.recurrence.complex_reference import FORMS
from eigensweep.models.recurrence.cuda import gated, kernels, scan
from eigensweep.models.recurrence.cuda.compiler import compile_kernel
from eigensweep.models.recurrence.native.gated import Cell

ARCHITECTURE, SHARED_BYTES = "sm_90", 227 << 10
GIGAHERTZ = 1.83
SIZES = (64, 138, 192, 256, 512)
ROWS = (1, 4, 5, 6)

WARPS, SCHEDULERS = 16, 4
WAITING = 12.0
"""Cycles of work that may wait for the pipe of shared memory before a scheduler holds back."""

COSTS = {
    "LDS": ("shared", 29.0, 1.0),
    "SHFL": ("shared", 23.0, 1.0),
    "STS": ("shared", 0.0, 1.0),
    "STAS": ("shared", 0.0, 2.0),
    "ST.": ("shared", 0.0, 2.0),
    "LDG": ("shared", 500.0, 1.0),
    "STG": ("shared", 0.0, 1.0),
    "MUFU": ("special", 20.0, 8.0),
    "S2R": ("alone", 25.0, 1.0),
    "LDC": ("alone", 25.0, 1.0),
    "R2UR": ("alone", 10.0, 1.0),
}
"""Beginnings of opcodes: pipe, cycles until the result is there, cycles that it fills the pipe."""
ARITHMETIC = ("alone", 4.5, 1.0)
BARRIERS = ("BAR", "UCGABAR_WAIT", "SYNCS.PHASECHK")
BARRIER, CLUSTER_BARRIER = 22.0, 220.0
"""Cycles from the last warp's arrival on."""

NO_RESULT = (
    *("ST", "BAR", "BRA", "BSSY", "BSYNC", "EXIT", "UCGABAR", "WARPSYNC", "MEMBAR", "ERRBAR"),
    *("CGAERRBAR", "CCTL", "FENCE", "NOP", "SYNCS"),
)
TWO_RESULTS = ("ISETP", "FSETP", "PLOP3", "SHFL")
PREDICATE = re.compile(r"\s*U?P(\d|T)")
REGISTER = re.compile(r"\b(U?R|U?P)(\d+)\b(\.64)?")

COLUMNS = {
    "of": "of",
    "n": "n",
    "blocks": "blocks",
    "rows": "rows",
    "direction": "direction",
    "registers": "registers",
    "spilled": "spilled bytes",
    "instructions": "instructions",
    "FFMA": "FFMA",
    "LDS": "LDS",
    "SHFL": "SHFL",
    "us": "model us",
}


@dataclass(frozen=True)
class Instruction:
    """One instruction: where it stands, its opcode, and the registers that it makes and needs."""

    address: int
    opcode: str
    made: tuple[str, ...]
    needed: tuple[str, ...]
    target: str | None = None


@dataclass
class Warp:
    """Where a warp is, and when its registers have come."""

    at: int = 0
    free: float = 0.0
    waits: float | None = None
    ready: dict[str, float] = field(default_factory=dict)


def disassemble(cubin: bytes, nvdisasm: str) -> tuple[list[Instruction], dict[str, int]]:
    """Return the instructions of a kernel, and the address of each label."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [nvdisasm, "-c", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        if label := re.match(r"\s*\.(L_x_\d+):", line):
            waiting.append(label[1])
        elif code := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            found.append(read_instruction(int(code[1], 16), code[2].strip()))
            labels |= dict.fromkeys(waiting, found[-1].address)
            waiting = []
    return found, labels


def read_instruction(address: int, words: str) -> Instruction:
    """Return what an instruction makes and needs.

    >>> read_instruction(0, "@!P0 FFMA R4, R5, R6.reuse, R4").made
    ('R4',)
    >>> read_instruction(0, "LDS.128 R8, [R2+0x40]").made
    ('R8', 'R9', 'R10', 'R11')
    >>> read_instruction(0, "STG.E desc[UR4][R2.64], R7").needed
    ('UR4', 'R2', 'R3', 'R7')
    """
    parts = re.match(r"(?:@!?(\w+)\s+)?(\S+)\s*(.*)", words)
    assert parts is not None
    guard, opcode, rest = parts[1], parts[2], parts[3]
    operands = rest.split(",")
    results = 1
    if opcode.startswith(NO_RESULT):
        results = 0
    elif opcode.startswith(TWO_RESULTS) or PREDICATE.fullmatch("".join(operands[1:2])):
        results = 2
    made = [name for each in operands[:results] for name in names_in(each)]
    wide = 4 if ".128" in opcode else 2 if re.search(r"\.64|WIDE", opcode) else 1
    if made and wide > 1 and made[0].lstrip("U").startswith("R"):
        kind, number = re.match(r"(\D+)(\d+)", made[0]).groups()  # type: ignore[union-attr]
        made[:1] = [f"{kind}{int(number) + i}" for i in range(wide)]
    needed = [name for each in operands[results:] for name in names_in(each)]
    if guard and not guard.endswith("T"):
        needed.append(guard)
    target = re.search(r"`\(\.(L_x_\d+)\)", rest) if opcode.startswith("BRA") else None
    return Instruction(address, opcode, tuple(made), tuple(needed), target[1] if target else None)


def names_in(operand: str) -> Iterator[str]:
    """Yield the registers that an operand names, both of a pair."""
    for kind, number, pair in REGISTER.findall(operand):
        yield f"{kind}{number}"
        if pair:
            yield f"{kind}{int(number) + 1}"


def loop_over_time(code: Sequence[Instruction], labels: dict[str, int]) -> list[Instruction]:
    """Return the largest loop that has a barrier in it."""
    best: list[Instruction] = []
    for each in code:
        start = labels.get(each.target or "", each.address + 1)
        body = [other for other in code if start <= other.address <= each.address]
        if len(body) > len(best) and any(other.opcode.startswith(BARRIERS) for other in body):
            best = body
    return best


def cost_of(opcode: str, read_cycles: float) -> tuple[str, float, float]:
    """Return pipe, cycles to the result and cycles in the pipe."""
    for beginning, (pipe, latency, filled) in COSTS.items():
        if opcode.startswith(beginning):
            return pipe, latency, read_cycles if opcode.startswith("LDS.128") else filled
    return ARITHMETIC


def cycles_of(loop: Sequence[Instruction], *, read_cycles: float, blocks: int) -> float:
    """Return the cycles that a time step takes, the mean of the third to the sixth."""
    costs = [cost_of(each.opcode, read_cycles) for each in loop]
    warps = [Warp() for _ in range(WARPS)]
    latest = list(range(SCHEDULERS))  # the warp that each scheduler served last
    issued, special = [0.0] * SCHEDULERS, [0.0] * SCHEDULERS
    shared, now = 0.0, 0.0
    steps: list[float] = []
    while len(steps) < 7:
        if all(warp.waits is not None for warp in warps):
            now = max(now, *(warp.waits or 0.0 for warp in warps))
            steps.append(now)
            for warp in warps:
                warp.waits, warp.free = None, now
        for scheduler in range(SCHEDULERS):
            mine = range(scheduler, WARPS, SCHEDULERS)
            for number in sorted(mine, key=lambda i: (i != latest[scheduler], i)):
                warp = warps[number]
                each, (pipe, latency, filled) = loop[warp.at], costs[warp.at]
                if warp.waits is not None or warp.free > now:
                    continue
                if any(warp.ready.get(name, 0.0) > now for name in each.needed):
                    continue
                done = now + latency
                if pipe == "shared":
                    if issued[scheduler] > now or shared > now + WAITING:
                        continue
                    shared = max(now, shared) + filled
                    done, issued[scheduler] = shared + latency, now + 2
                elif pipe == "special":
                    if special[scheduler] > now:
                        continue
                    special[scheduler] = now + filled
                if each.opcode.startswith(BARRIERS):
                    is_own = blocks == 1 or each.opcode.startswith("BAR")
                    warp.waits = now + (BARRIER if is_own else CLUSTER_BARRIER)
                warp.ready.update(dict.fromkeys(each.made, done))
                warp.free = now + (2 if each.opcode.startswith("B") else 1)
                warp.at, latest[scheduler] = (warp.at + 1) % len(loop), number
                break
        now += 1
    return (steps[-1] - steps[2]) / (len(steps) - 3)


def read_shape(
    shape: scan.ScanShape | gated.GatedShape, source: Path | None, nvdisasm: str, read_cycles: float
) -> dict[str, Any]:
    """Return a row of the table."""
    if isinstance(shape, scan.ScanShape):
        source, of, barriers = source or scan.SOURCE, str(shape.activation), 1
        definitions = shape.definitions
    else:
        source, of = source or gated.SOURCE, shape.cell.name.lower()
        barriers = 4 if shape.cell in (Cell.LSTM_FULL, Cell.GRU_CHO, Cell.LEM) else 2
        definitions = shape.definitions(SHARED_BYTES)
    made = compile_kernel(source, dict(definitions), ARCHITECTURE)
    loop = loop_over_time(*disassemble(made.cubin, nvdisasm))
    cycles = barriers * cycles_of(loop, read_cycles=read_cycles, blocks=shape.blocks)
    # Steps that one pass of the loop makes.
    steps = max(1, sum(each.opcode.startswith(BARRIERS) for each in loop) // barriers)
    counts = {
        name: sum(each.opcode.startswith(beginning) for each in loop) // steps
        for name, beginning in (
            ("instructions", ""),
            ("FFMA", "FFMA"),
            ("LDS", "LDS"),
            ("SHFL", "SHFL"),
        )
    }
    return {
        "of": of,
        "n": shape.units,
        "blocks": shape.blocks,
        "rows": shape.rows,
        "direction": "back" if shape.is_backward else "forward",
        "registers": made.registers,
        "spilled": made.spilled_bytes,
        **counts,
        "us": cycles / GIGAHERTZ / 1000,
    }


def find_nvdisasm() -> str | None:
    """Return nvdisasm of the path or of NVIDIA's packages, if it is there."""
    beside = (Path(folder) / "nvidia/cu13/bin/nvdisasm" for folder in sys.path)
    return shutil.which("nvdisasm") or next((str(path) for path in beside if path.exists()), None)


def main() -> None:
    """Print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--nvdisasm", default=find_nvdisasm(), help="where it is")
    parser.add_argument("--kernel", type=Path, help="another source of the kernel")
    parser.add_argument("--read-cycles", type=float, default=2.0, help="of 16 bytes a thread")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--activation", choices=scan.KERNELS, default="modrelu")
    cells = [cell.name.lower() for cell in Cell]
    parser.add_argument(
        "--cells", nargs="+", choices=cells, default=[], help="not the scan, but these"
    )
    args = parser.parse_args()
    if args.nvdisasm is None:
        parser.error("nvdisasm is not there; the package nvidia-cuda-nvdisasm brings it")
    shapes: list[scan.ScanShape | gated.GatedShape] = []
    for n, count, is_backward in product(args.sizes, args.rows, (False, True)):
        if not args.cells:
            blocks = scan.count_blocks(n, is_paired=args.activation in FORMS)
            shapes.append(scan.ScanShape(n, count, blocks, is_backward, args.activation))
        for cell in (Cell[name.upper()] for name in args.cells):
            if n <= gated.CLUSTERS[cell][-1][0] and count in kernels.ROWS:
                blocks = gated.count_blocks(cell, n)
                shapes.append(gated.GatedShape(cell, n, count, blocks, is_backward))
    rows = [read_shape(each, args.kernel, args.nvdisasm, args.read_cycles) for each in shapes]
    say(table(rows, COLUMNS))


if __name__ == "__main__":
    main()
