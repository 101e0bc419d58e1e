"""What a trial's process is given, without a driver that makes it."""

from __future__ import annotations

from typing import Any

from eigensweep.protocol.code import own_code
from eigensweep.protocol.messages import Order


def make_order(**fields: Any) -> Order:
    """Return an order with these fields, and the first attempt at trial 3 of `e1` in the rest."""
    rest = {
        "experiment": "e1",
        "number": 3,
        "attempt": 1,
        "config": {},
        "rungs": (5, 10, 15, 20),
        "storage": "/nowhere",
        "resources": {"CPU": 1},
        "code": own_code(),
    }
    return Order(**{**rest, **fields})
