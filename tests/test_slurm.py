"""deploy/slurm: the script runs here, with programs in the place of Slurm, Ray and the service.

Nothing of this has run under Slurm itself.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.waiting import wait_until

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "deploy" / "slurm" / "eigensweep.sbatch"
# A signal may come while "sleep" starts: "$!" is set by then, a variable of our own is not.
WAITS = """
trap '[ -z "$!" ] || kill "$!"; echo "$name ended" >>"$LOG"; exit "${STATUS:-0}"' TERM
sleep 1000 &
echo "$name" >>"$LOG"
wait
"""
PROGRAMS = {
    "srun": """
while [[ "$1" == --* ]]; do
  [[ "$1" != --nodelist=* ]] || export NODE="${1#--nodelist=}"
  shift
done
exec "$@"
""",
    "scontrol": """
[ "$1" != show ] || { printf '%s\\n' first second third; exit; }
echo "scontrol $*" >>"$LOG"
""",
    "ray": f'[[ "$*" != *--head* ]] && name="node $NODE" || name="head $NODE"\n{WAITS}',
    "python": """
echo "asked $NODE" >>"$LOG"
[ "$NODE" != "${BAD_NODE:-}" ] || exit 1
[ -e "$LOG.$NODE" ] || { touch "$LOG.$NODE"; exit 1; }
until grep -qE "^(head|node) $NODE$" "$LOG"; do sleep 0.01; done  # no node is well before it starts
""",
    "eigensweep": f'name="$1 $EIGENSWEEP_RAY_ADDRESS $EIGENSWEEP_TOKEN"\n{WAITS}',
}


class Allocation:
    """One run of the script; several have the same home folder and log."""

    def __init__(self, folder: Path) -> None:
        self.home, self.log = folder / "home", folder / "log"
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name, text in PROGRAMS.items():
            path = self.programs / name
            path.write_text(f"#!/bin/bash\n{text}")
            path.chmod(0o755)
        self.running: list[subprocess.Popen[str]] = []

    def start(self, **variables: str) -> subprocess.Popen[str]:
        here = {n: v for n, v in os.environ.items() if not n.startswith("EIGENSWEEP_")}
        process = subprocess.Popen(
            ["bash", str(SCRIPT)],
            env={
                **here,
                "PATH": f"{self.programs}:{os.environ['PATH']}",
                "LOG": str(self.log),
                "EIGENSWEEP_HOME": str(self.home),
                "EIGENSWEEP_SLURM_PAUSE": "0",
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NODELIST": "node[1-3]",
                "SLURM_CPUS_PER_TASK": "8",
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for(self, line: str, times: int = 1) -> None:
        def is_there() -> bool:
            return sum(each.startswith(line) for each in self.lines()) >= times

        wait_until(is_there, lambda: (line, self.lines()))

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def allocation(tmp_path: Path) -> Iterator[Allocation]:
    made = Allocation(tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_head_nodes_and_service_start_one_after_another(allocation: Allocation) -> None:
    allocation.start()

    allocation.wait_for("serve first:6379")

    kinds = [re.sub(r" [0-9a-f]{64}$", "", line) for line in allocation.lines()]
    started = [line for line in kinds if not line.startswith("asked")]
    assert started == ["head first", "node second", "node third", "serve first:6379"]
    for before, after in pairwise(started):
        node = before.split()[1]
        last_asked = max(k for k, line in enumerate(kinds) if line == f"asked {node}")
        assert last_asked < kinds.index(after), f"{after} was started before {node} was well"


def test_when_time_is_over_the_next_allocation_goes_on(
    allocation: Allocation,
) -> None:
    first = allocation.start()
    allocation.wait_for("serve")

    first.send_signal(signal.SIGUSR1)
    said, _ = first.communicate()

    assert first.returncode == 0, said
    *_, requeued = lines = allocation.lines()
    assert requeued == "scontrol requeue 7"
    ended = [line for line in lines if line.endswith(" ended")]
    assert ended[0].startswith("serve first:6379")
    assert sorted(ended[1:]) == ["head first ended", "node second ended", "node third ended"]

    allocation.start()
    allocation.wait_for("serve", times=3)  # started, ended, started again
    tokens = {line.split()[2] for line in allocation.lines() if line.startswith("serve")}
    assert tokens == {(allocation.home / "token").read_text()}, "the secret stays the same"


def test_secrets_and_results_are_the_user_s_alone(allocation: Allocation) -> None:
    allocation.start()
    allocation.wait_for("serve")

    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in [allocation.home, *allocation.home.iterdir()]
    }
    assert modes == {
        **{"home": 0o700, "storage": 0o700, "data": 0o700},
        **{"token": 0o600, "ray-token": 0o600},
    }


def test_a_node_that_does_not_join_is_named_and_others_go_on(allocation: Allocation) -> None:
    process = allocation.start(BAD_NODE="second")
    allocation.wait_for("serve")
    process.terminate()
    said, _ = process.communicate()

    assert process.returncode == 143
    assert "second did not join Ray at first:6379" in said
    assert "third has joined" in said
    assert "scontrol requeue 7" not in allocation.lines(), "a cancelled job is not queued again"


def test_a_service_that_ends_ends_the_job_with_its_status(allocation: Allocation) -> None:
    (allocation.programs / "eigensweep").write_text("#!/bin/bash\necho serve >>$LOG\nexit 2\n")
    process = allocation.start()
    said, _ = process.communicate()

    assert process.returncode == 2
    assert "the service ended with status 2" in said
    assert "head first ended" in allocation.lines()


def test_nodes_have_the_ports_of_the_page() -> None:
    def ports(text: str) -> set[tuple[str, str]]:
        return set(re.findall(r"--([a-z-]+-port)=(\d+)", text))

    assert ports(SCRIPT.read_text()) == ports((ROOT / "docker-compose.yml").read_text())
    assert len(ports(SCRIPT.read_text())) == 8


def test_shellcheck_has_nothing_to_say() -> None:
    program = Path(sys.executable).parent / "shellcheck"

    done = subprocess.run([str(program), str(SCRIPT)], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "")
