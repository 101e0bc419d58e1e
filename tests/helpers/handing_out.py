"""How `make test` hands tests to its processes: first what starts Ray, to one; all else by file."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from helpers import ray_mark
from xdist.scheduler import LoadFileScheduling

OFTEN_WAIT = ("tests/service/", "tests/workers/")
"""Where tests wait for servers, browsers and other processes, which others beside them fill."""


def rank(item: pytest.Item) -> int:
    """Return 0 for a test that starts Ray, 1 for one that may often wait, 2 for all others.

    So those come last that need nothing but a processor: then no processor waits for others' ends.
    """
    if item.get_closest_marker("ray"):
        return 0
    return 1 if item.nodeid.startswith(OFTEN_WAIT) else 2


class RayTogether(LoadFileScheduling):
    """Hands out all files that have tests of Ray at once, and each other file by itself."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._has_marked = cache(lambda file: ray_mark.has_marked(config.rootpath / file))

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "ray" if self._has_marked(file) else file
