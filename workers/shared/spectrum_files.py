"""Spectra that a trial keeps while it trains: one file for each evaluation, beside its curve.

A file is named by its step and written whole, so an attempt that goes over the same steps again
writes the same file again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from eigensweep.workers.shared.durable_files import storage_error, write_whole
from eigensweep.workers.shared.messages import Json

if TYPE_CHECKING:
    from eigensweep.models.analysis.spectra import Spectrum

FOLDER = "spectra"


def to_json(spectra: Mapping[str, Spectrum]) -> Json:
    """Return spectra by name as JSON holds them: eigenvalues are pairs, real part first."""
    return {
        name: {
            "eigenvalues": [[z.real, z.imag] for z in one.eigenvalues.tolist()],
            "singular_values": one.singular_values.tolist(),
        }
        for name, one in spectra.items()
    }


def write(replicate: Path, step: int, content: Json) -> None:
    """Keep the spectra of one step in a replicate's folder.

    Raises:
        StorageError: if that cannot be written.
    """
    folder = replicate / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("write", folder, error) from error
    write_whole(folder / f"{step:09d}.json", json.dumps(content, allow_nan=False).encode())


def read(replicate: Path) -> list[tuple[int, Json]]:
    """Return the step and the spectra of every evaluation that is kept, in order.

    Raises:
        StorageError: if a file cannot be read.
    """
    found = []
    for path in sorted((replicate / FOLDER).glob("*.json")):
        try:
            found.append((int(path.stem), json.loads(path.read_bytes())))
        except (OSError, ValueError) as error:
            raise storage_error("read", path, error) from error
    return found
