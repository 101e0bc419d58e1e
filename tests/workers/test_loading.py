"""What a process loads once: Python's garbage collector leaves it alone."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from eigensweep.common.loading import load_for_good

SERVICE = """
from eigensweep.common.loading import load_for_good
with load_for_good():
    from eigensweep.service.api import app
    app._make_routes()
"""
TRIAL = """
from eigensweep.workers.processes.fork_server import load
from eigensweep.protocol.code import own_code
assert load(own_code().digest)
"""
COUNTS = """
import gc
print(gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled())
"""


@pytest.mark.parametrize("program", [SERVICE, TRIAL], ids=["a service", "a fork server"])
@pytest.mark.quick_cases(1)
def test_nobody_looks_at_what_a_process_has_loaded(program):
    said = subprocess.run(
        [sys.executable, "-c", program + COUNTS], check=True, capture_output=True, text=True
    )
    left_out, looked_at, is_on = said.stdout.split()
    assert int(left_out) > 100_000
    assert int(looked_at) < 1_000
    assert is_on == "True"


def test_the_collector_goes_on_where_loading_failed():
    with suppress(ImportError), load_for_good():
        raise ImportError("no disk")
    assert gc.isenabled()
