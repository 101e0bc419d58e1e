"""Eigensweep: hyperparameter search for long-memory recurrent networks, as a service.

`train` trains one configuration in this process, without a service. `Client` speaks to a service.
Neither is imported before it is used, so importing this package loads neither torch nor Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eigensweep.service.client import Client as Client
    from eigensweep.workers import train as train

__all__ = ["Client", "train"]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from eigensweep.service.client import Client

        return Client
    if name == "train":
        from eigensweep.workers import train

        return train
    raise AttributeError(f"module 'eigensweep' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
