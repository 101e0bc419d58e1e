"""Many posts at once: what the service does so that none of them waits for long."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress

from eigensweep.service.process.serve import load_for_good

LOADS = """
import gc
from eigensweep.service.process.serve import load_for_good
with load_for_good():
    from eigensweep.service.api import app
    app._make_routes()
print(gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled())
"""


class TestGarbageCollection:
    def test_looks_at_nothing_that_a_service_has_loaded(self):
        said = subprocess.run(
            [sys.executable, "-c", LOADS], check=True, capture_output=True, text=True
        )
        left_out, looked_at, is_on = said.stdout.split()
        assert int(left_out) > 100_000
        assert int(looked_at) < 1_000
        assert is_on == "True"

    def test_goes_on_where_loading_failed(self):
        with suppress(ImportError), load_for_good():
            raise ImportError("no disk")
        gc.unfreeze()
        assert gc.isenabled()
