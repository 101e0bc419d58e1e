"""Eigensweep: hyperparameter search for long-memory recurrent networks, as a service.

`train` trains one configuration in this process, without a service. `Client` posts experiments to
a service over HTTP. `load` returns the network of a file of weights. Each is imported when it is
first used, so `import eigensweep` loads neither torch nor Ray.

In the repository, models, tasks, search_spaces, workers and service are symbolic links to the
folders beside this one; the other rooms lie here. An installed package holds all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eigensweep.client import Client as Client
    from eigensweep.training.notebook import train as train
    from eigensweep.training.weights import load as load

__all__ = ["Client", "load", "train"]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from eigensweep.client import Client

        return Client
    if name == "train":
        from eigensweep.training.notebook import train

        return train
    if name == "load":
        from eigensweep.training.weights import load

        return load
    raise AttributeError(f"module 'eigensweep' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
