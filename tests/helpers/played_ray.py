"""Plays the process that holds Ray for the service; a file says that Ray is away.

Another file says that it stands still: then it tells nothing.
Started as `python -m played_ray DESCRIPTOR SETTINGS`, like the real one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from eigensweep.workers.cluster.nodes import Amounts, ClusterSnapshot, Node, RayPlace

AMOUNTS = {"CPU": 4.0, "memory": 8e9}
LOOK = ClusterSnapshot(
    [Node("ab12", "here", True, Amounts.of(AMOUNTS), None)],
    [{"NodeID": "ab12", "Alive": True, "Resources": AMOUNTS}],
    may_change=False,
)


def look(pipe: Connection, still: Path, away: Path) -> None:
    while not still.exists():
        if away.exists():
            pipe.send(("lost", "Ray's control process does not answer"))
            os._exit(1)
        pipe.send(("seen", LOOK))
        time.sleep(0.02)


def main() -> None:
    pipe, settings = Connection(int(sys.argv[1])), json.loads(sys.argv[2])
    away = Path(settings["away"])
    slow = away.with_name("slow")
    if slow.exists() and (left := int(slow.read_text())):
        slow.write_text(str(left - 1))
        pipe.send(("slow", "Ray did not start in 30 s: the machine may be busy"))
        if away.with_name("hangs").exists():
            time.sleep(600)
        return
    if away.exists():
        pipe.send(("failed", "no Ray answers at 10.0.0.7:6379: it is away"))
        return
    pipe.send(("seen", replace(LOOK, drivers=frozenset(settings.get("drivers", ())))))
    pipe.send(("ready", RayPlace("10.0.0.7:6379", str(away.with_name("logs")))))
    still = Path(settings.get("still", "nothing"))
    told = (pipe, still, away)
    if "drivers" not in settings:
        threading.Thread(target=look, args=told, daemon=True).start()
    pipe.recv()


if __name__ == "__main__":
    main()
