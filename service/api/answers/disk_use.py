"""What takes disk space, measured now and then. Runs in the service's process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from eigensweep.service.api.answers.shared_answers import TimedCache
from eigensweep.service.settings import Settings
from eigensweep.store.places.disk_use import StoreUse, measure, measure_store
from eigensweep.store.upkeep import corpora

FRESH_SECONDS: Final = 5.0
"""Seconds for which what was measured is shown again at least."""
SHARE: Final = 0.02
"""The most of the time that measuring takes, however often it is asked for."""


@dataclass(frozen=True)
class UsedBytes:
    """Bytes of each part of what the service keeps, with its place, and of each experiment."""

    parts: dict[str, tuple[str, int]]
    experiments: dict[str, StoreUse]


def measure_now_and_then(settings: Settings) -> TimedCache[UsedBytes]:
    """Return what measures all that the service keeps, at most so often."""
    return TimedCache(partial(measure_all, settings), seconds=FRESH_SECONDS, share=SHARE)


def measure_all(settings: Settings) -> UsedBytes:
    """Return the bytes of each part of the home folder, and of each experiment."""
    home, storage = settings.home, settings.storage_folder
    stored = measure_store(storage)
    experiments = {id: use for id, use in stored.items() if not id.startswith(".")}
    record = [*home.glob("eigensweep.db*")]
    logs = [home / "mlflow" / "server.log"]
    places = {
        "record": (home / "eigensweep.db", record),
        "mlflow": (home / "mlflow", [home / "mlflow"]),
        "logs": (logs[0], logs),
        "analyses": (home / "analyses", [home / "analyses"]),
        "reproductions": (home / "reproductions", [home / "reproductions"]),
        "ray": (home / "ray", [home / "ray"]),
        "corpora": (settings.corpora, [settings.corpora]),
    }
    sizes = {name: sum(map(measure, paths)) for name, (_, paths) in places.items()}
    sizes["mlflow"] -= sizes["logs"]
    parts = {name: (str(path), sizes[name]) for name, (path, _) in places.items()}
    for name in ("checkpoints", "weights", "curves"):
        parts[name] = (storage, sum(getattr(each, name) for each in experiments.values()))
    if (packed := stored.get(corpora.FOLDER)) is not None:
        parts["packed corpora"] = (f"{storage}/{corpora.FOLDER}", packed.total)
    return UsedBytes(parts, experiments)
