"""How much of a machine a process may use, where Slurm, systemd or a container gives it less."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eigensweep.common import machine
from eigensweep.common.machine import count_processors, find_memory

JOB = "/system.slice/slurmstepd.scope/job_7"


@pytest.fixture
def groups(tmp_path, monkeypatch) -> Path:
    """The folder of control groups, empty."""
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    return tmp_path / "groups"


def limit(groups: Path, group: str, words: str, name: str = "memory.max") -> None:
    """Write the limit of a control group."""
    folder = groups / group.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{words}\n")


def test_processors_are_those_that_taskset_leaves():
    assert count_processors() == len(os.sched_getaffinity(0))
    one = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{one}}})\n"
        "from eigensweep.common.machine import count_processors; print(count_processors())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_memory_is_what_the_job_or_what_is_around_it_may_have(groups):
    machine.OWN_GROUPS.write_text(f"0::{JOB}/step_0/user/task_0\n")
    everything = find_memory()
    assert everything > 2**30
    limit(groups, f"{JOB}/step_0/user/task_0", "max")
    assert find_memory() == everything
    limit(groups, JOB, str(2**29))
    assert find_memory() == 2**29
    limit(groups, f"{JOB}/step_0", str(2**28))
    assert find_memory() == 2**28


def test_a_container_sees_its_own_group_at_the_top(groups):
    machine.OWN_GROUPS.write_text("0::/\n")
    limit(groups, "/", str(2**28))
    assert find_memory() == 2**28


def test_the_older_tree_of_memory_is_read_too(groups):
    machine.OWN_GROUPS.write_text("7:cpu,cpuacct:/docker/a1\n4:memory:/docker/a1\n0::/\n")
    limit(groups, "/cpu,cpuacct/docker/a1", "1", "memory.limit_in_bytes")  # of no memory
    everything = find_memory()
    assert everything > 2**30
    limit(groups, "/memory", str(2**28), "memory.limit_in_bytes")  # seen from within
    assert find_memory() == 2**28


def test_without_control_groups_all_memory_counts(groups):
    assert not machine.OWN_GROUPS.exists()
    assert find_memory() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
