"""How much of a machine a process may use, where Slurm, systemd or a container gives it less."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from eigensweep.common import machine
from eigensweep.common.machine import (
    count_processors,
    find_crowd,
    find_free_memory,
    find_memory,
    find_thread_limit,
)
from eigensweep.workers.cluster.threads import find_thread_problem

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


@pytest.mark.parametrize(
    ("version", "path", "files", "most"),
    [
        (f"0::{JOB}\n", JOB, {"cpu.max": "150000 100000"}, 1),
        (f"0::{JOB}\n", JOB, {"cpu.max": "50000 100000"}, 1),
        (f"0::{JOB}\n", JOB, {"cpu.max": "max 100000"}, None),
        (f"0::{JOB}\n", "/system.slice", {"cpu.max": "100000 100000"}, 1),
        (
            "4:cpu,cpuacct:/docker/a1\n",
            "/cpu,cpuacct/docker/a1",
            {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"},
            1,
        ),
        (
            "4:cpu,cpuacct:/docker/a1\n",
            "/cpu,cpuacct/docker/a1",
            {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_a_quota_of_time_counts_as_processors(groups, version, path, files, most):
    machine.OWN_GROUPS.write_text(version)
    for name, words in files.items():
        limit(groups, path, words, name)
    assert count_processors() == (most or len(os.sched_getaffinity(0)))


def test_free_is_what_a_group_has_not_taken_but_for_caches(groups):
    machine.OWN_GROUPS.write_text(f"0::{JOB}\n")
    limit(groups, JOB, str(2**28))
    limit(groups, JOB, str(2**27), "memory.current")
    limit(groups, JOB, f"anon 9\ninactive_file {2**20}", "memory.stat")
    assert find_free_memory() == 2**28 - 2**27 + 2**20
    limit(groups, "/system.slice", str(2**20))
    limit(groups, "/system.slice", str(2**21), "memory.current")
    limit(groups, "/system.slice", "anon 9", "memory.stat")
    assert find_free_memory() == 0


def test_free_memory_of_the_older_tree_is_read_too(groups):
    machine.OWN_GROUPS.write_text("4:memory:/docker/a1\n")
    limit(groups, "/memory/docker/a1", str(2**28), "memory.limit_in_bytes")
    limit(groups, "/memory/docker/a1", str(2**27), "memory.usage_in_bytes")
    limit(groups, "/memory/docker/a1", "total_inactive_file 7\ninactive_file 3", "memory.stat")
    assert find_free_memory() == 2**28 - 2**27 + 7


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


class TestThreads:
    """Linux may let fewer processes and threads run than Ray and the trials need."""

    @pytest.fixture(autouse=True)
    def as_root(self, monkeypatch):
        """Root is not bound by `ulimit -u`."""
        monkeypatch.setattr(machine.os, "getuid", lambda: 0)

    @staticmethod
    def allow(groups: Path, most: int | str, running: int, group: str = JOB) -> None:
        """Write the limit of a control group of version 2, and how many threads it has."""
        machine.OWN_GROUPS.write_text(f"0::{JOB}\n")
        limit(groups, group, str(most), "pids.max")
        limit(groups, group, str(running), "pids.current")

    def test_without_a_limit_nothing_is_missing(self, groups):
        self.allow(groups, "max", 90)
        assert find_thread_limit() is None
        assert (find_thread_problem(64), find_crowd()) == (None, None)

    def test_the_limit_that_leaves_the_fewest_counts(self, groups):
        self.allow(groups, 500, 90)
        self.allow(groups, 1000, 950, "/system.slice")
        found = find_thread_limit()
        assert (found.most, found.left) == (1000, 50)
        assert found.name == str(groups / "system.slice" / "pids.max")

    def test_the_smallest_limit_tells_what_can_never_run(self, groups):
        self.allow(groups, 150, 20)
        self.allow(groups, 4000, 3990, "/system.slice")
        assert "allows 150 processes and threads" in (find_thread_problem(2) or "")

    def test_root_of_a_container_is_bound_as_its_user_is(self, groups, monkeypatch, tmp_path):
        self.allow(groups, "max", 90)
        monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (3, 3))
        assert find_thread_limit() is None
        monkeypatch.setattr(machine, "OWN_USERS", tmp_path / "uid_map")
        machine.OWN_USERS.write_text("         0       1000          1\n")
        found = find_thread_limit()
        assert (found.most, found.name) == (3, "ulimit -u")

    def test_many_trials_need_more_threads_than_few(self, groups):
        self.allow(groups, 300, 20)
        assert find_thread_problem(2) is None
        assert find_thread_problem(8) == (
            f"{groups}{JOB}/pids.max allows 300 processes and threads, and trials on 8 processors "
            "need about 460 with all around them"
        )

    def test_where_few_are_left_it_is_crowded(self, groups):
        self.allow(groups, 300, 150)
        assert find_crowd() is None
        self.allow(groups, 300, 250)
        assert find_crowd() == (
            f"250 processes and threads run of 300 that {groups}{JOB}/pids.max allows"
        )

    def test_those_of_a_user_count_against_the_limit_of_a_user(self, groups, monkeypatch):
        mine = psutil.Process().uids().real or 4711  # root's uid would have no limit
        monkeypatch.setattr(machine.os, "getuid", lambda: mine)
        monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (4096, 4096))
        found = find_thread_limit()
        assert (found.most, found.name) == (4096, "ulimit -u")
        assert found.running >= (mine != 4711)
