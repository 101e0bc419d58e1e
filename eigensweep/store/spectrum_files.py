"""Spectra that a trial keeps while it trains: one file for each evaluation, beside its curve.

A file is named by its step and written whole, so an attempt that goes over the same steps again
writes the same file again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TypedDict

from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import DamagedError

FOLDER = "spectra"


class SpectrumJson(TypedDict):
    """The spectrum of one matrix."""

    eigenvalues: list[list[float]]
    """Pairs, real part first."""
    singular_values: list[float]


SpectraJson = dict[str, SpectrumJson]
"""Spectra by the name of the matrix."""


def write(store: Store, key: str, attempt: int, step: int, content: SpectraJson) -> None:
    """Keep the spectra of one step of the replicate with this key.

    Raises:
        StaleAttemptError: if a later attempt has begun.
        StorageError: if that cannot be written.
    """
    content_bytes = json.dumps(content, allow_nan=False).encode()
    store.kept.write(key, attempt, f"{FOLDER}/{step:09d}.json", content_bytes)


def copy(store: Store, donor: str, key: str, attempt: int) -> None:
    """Keep the spectra of the replicate `donor` for another one, which goes on from there.

    Raises:
        StaleAttemptError: if a later attempt has begun.
        StorageError: if they cannot be read or written.
    """
    for name in store.kept.names(donor, FOLDER):
        with suppress(FileNotFoundError):  # its experiment is being deleted
            path = f"{FOLDER}/{name}"
            store.kept.write(key, attempt, path, store.kept.read(donor, path))


def has_any(store: Store, key: str) -> bool:
    """Return whether spectra of this replicate are kept.

    Raises:
        StorageError: if the store cannot be read.
    """
    return bool(store.kept.names(key, FOLDER))


def read(store: Store, key: str) -> list[tuple[int, SpectraJson]]:
    """Return the step and the spectra of every evaluation that is kept, in order.

    Raises:
        DamagedError: if a file is not what was written.
        StorageError: if a file cannot be read.
    """
    found = []
    for name in store.kept.names(key, FOLDER):
        stem, _, kind = name.partition(".")
        if kind != "json":
            continue
        try:
            found.append((int(stem), json.loads(store.kept.read(key, f"{FOLDER}/{name}"))))
        except (FileNotFoundError, ValueError) as error:
            path = f"{store.place}/{key}/{FOLDER}/{name}"
            raise DamagedError(f"cannot read {path}: {error}") from error
    return found
