"""Plays the process that holds Ray for the service; a file says that Ray is away.

Started as `python -m played_ray DESCRIPTOR SETTINGS`, like the real one.
"""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path


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
    pipe.send((None, "ready", "here"))
    while (request := pipe.recv())[1] != "stop":
        number, name, *_ = request
        if name == "look_for_room":
            away.touch()
            pipe.send((None, "lost", "Ray's control process does not answer"))
            return
        answers = {"launch": "driver", "find": "driver", "state": ("running", None)}
        pipe.send((number, "answer", answers.get(name)))


if __name__ == "__main__":
    main()
