"""What a zygote is asked for, and what the driver that it forks is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eigensweep.protocol.ledger import Ledger
from eigensweep.protocol.messages import DriverOptions, SpecJson

TITLE: Final = "eigensweep::Driver"
"""How the command line of a driver begins, as `ps` shows it."""


@dataclass(frozen=True)
class DriverOrder:
    """What a driver is told, once it was forked."""

    experiment: str
    spec: SpecJson
    ledger: Ledger
    options: DriverOptions
    address: str
    """Where Ray's control process listens."""


@dataclass(frozen=True)
class Request:
    """What a zygote is asked for: one driver."""

    number: int
    """Names the request in what is told of it."""
    order: bytes
    """A pickled `DriverOrder`, which only the driver reads."""
    log: str
    """File for what the driver writes to standard output and standard error."""
