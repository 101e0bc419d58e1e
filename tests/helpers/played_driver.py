"""Plays what a driver does, in a zygote that was told to load this: its spec says what."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from eigensweep.protocol import code
from eigensweep.protocol.ledger import SupersededError
from eigensweep.store.places.durable_files import StoreAwayError
from eigensweep.workers.driver.process import drive, zygote
from eigensweep.workers.driver.process.driver_order import DriverOrder

ERRORS: dict[str, BaseException] = {
    "failure": ValueError("a bug"),
    "memory": MemoryError(),
    "store": StoreAwayError("cannot list s3://lab/x"),
    "superseded": SupersededError("it has a successor"),
    "words": ValueError("\N{GRINNING FACE}" * 20_000 + "\ud83d"),
}


def play(order: DriverOrder) -> None:
    does: Any = order.spec["does"]
    sys.stdout.write(f"it drives {order.experiment}\n")
    sys.stdout.flush()
    if does in ERRORS:
        raise ERRORS[does]
    while does != "end" and Path(does).exists():
        time.sleep(0.01)


def connect(experiment: str, address: str) -> None:
    """Play a connection to Ray, which may say why it fails, or end the process."""
    if experiment == "unconnected":
        raise ConnectionError(f"no Ray answers at {address}")
    if experiment == "ended":
        os._exit(1)


def is_edited() -> bool:
    """Return whether the code has changed: a file beside the log says so."""
    return Path("edited").exists()


spec = sys.modules["__main__"].__spec__
if spec is not None and spec.name == zygote.__name__:  # pytest imports this, too, for its doctests
    drive.connect = connect
    drive.run_traced = play
    code.has_changed = is_edited
