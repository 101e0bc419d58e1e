"""Plays the process that holds Ray for the service; a file says that Ray is away.

Another file says that it stands still: then it looks at nothing and answers nothing.
Started as `python -m played_ray DESCRIPTOR SETTINGS`, like the real one.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from eigensweep.workers.cluster.nodes import Amounts, Look, Node

AMOUNTS = {"CPU": 4.0, "memory": 8e9}
LOOK = Look(
    [Node("ab12", "here", True, Amounts.of(AMOUNTS), None)],
    [{"NodeID": "ab12", "Alive": True, "Resources": AMOUNTS}],
    may_change=False,
)


def look(pipe: Connection, still: Path) -> None:
    while not still.exists():
        pipe.send((None, "seen", LOOK))
        time.sleep(0.02)


def main() -> None:
    pipe, settings = Connection(int(sys.argv[1])), json.loads(sys.argv[2])
    away = Path(settings["away"])
    slow = away.with_name("slow")
    if slow.exists() and (left := int(slow.read_text())):
        slow.write_text(str(left - 1))
        pipe.send((None, "slow", "Ray did not start in 30 s: the machine may be busy"))
        return
    if away.exists():
        pipe.send((None, "failed", "no Ray answers at 10.0.0.7:6379: it is away"))
        return
    still = Path(settings.get("still", "nothing"))
    if "still" in settings:
        pipe.send((None, "seen", LOOK))
        threading.Thread(target=look, args=[pipe, still], daemon=True).start()
    pipe.send((None, "ready", "here"))
    while (request := pipe.recv())[1] != "stop":
        number, name, *_ = request
        if still.exists():
            continue
        if name == "lose_ray":
            away.touch()
            pipe.send((None, "lost", "Ray's control process does not answer"))
            return
        answers = {"launch": "driver", "find": "driver", "state": ("running", None)}
        pipe.send((number, "answer", answers.get(name)))


if __name__ == "__main__":
    main()
