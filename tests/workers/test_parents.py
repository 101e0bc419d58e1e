"""A process that is to end with the one that started it."""

from __future__ import annotations

import subprocess
import sys

import psutil
from helpers.waiting import wait_until

CHILD = """
import time
from eigensweep.common.parents import end_with_parent

end_with_parent()
print("watches", flush=True)
time.sleep(3600)
"""
PARENT = """
import subprocess, sys, time

child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(child.pid, flush=True)
time.sleep(3600)
"""


def test_it_ends_when_its_parent_was_killed_and_not_before():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert parent.stdout.readline() == "watches\n"
        assert child.is_running()
        parent.kill()
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
