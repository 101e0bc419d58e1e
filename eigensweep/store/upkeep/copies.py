"""Copies of what counts in the store, for backups; and what a store without any says."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.heads import MOST_TRIES
from eigensweep.store.commits.kept_files import BEST, PRINTED, find_kept
from eigensweep.store.places.durable_files import write_whole

STAGING: Final = ".backup-"
"""Begins the name of a folder beside the experiments in which a backup is made."""


def explain_emptiness(store: Store) -> str | None:
    """Return why trials cannot have trained in a store: it holds nothing at all. None: it does.

    Raises:
        StorageError: if it cannot be read.
    """
    if any(not name.startswith(".") for name in store.files.names("")):
        return None
    return (
        f"{store.place} is empty, and the record has trials that have trained: mount what belongs "
        "there, and set EIGENSWEEP_STORAGE everywhere to where they trained. If it was emptied on "
        "purpose, put a file into it whose name does not begin with a dot"
    )


def copy_out(store: Store, key: str, target: Path, attempt: int) -> None:
    """Copy what counts at `key` into an empty folder; nothing, if nothing was begun there.

    On the same disk files are linked, since none of them is ever written over. What is pruned
    meanwhile may be missing. If a later attempt than `attempt` has begun, the copy's head does not
    know of it.

    Raises:
        StorageError: if it cannot be read.
        OSError: if the copy cannot be written.
    """
    for _ in range(MOST_TRIES):  # a newer head may let a file go meanwhile
        head, seen = store.heads.read(key), True
        for name in head.files:
            try:
                store.files.fetch(f"{key}/{name}", target / name)
            except FileNotFoundError:
                seen = False
        if seen or store.heads.read(key).number == head.number:
            break
    if head.attempt == 0:
        return
    for folder in ("", "spectra/"):
        for given, names in find_kept(store.files.names(f"{key}/{folder}")).items():
            if folder or given in (BEST, PRINTED):
                name = f"{folder}{names[-1]}"
                with suppress(FileNotFoundError):  # pruned meanwhile, or its experiment deleted
                    store.files.fetch(f"{key}/{name}", target / name)
    known = replace(head, attempt=min(head.attempt, attempt), number=max(1, head.number))
    write_whole(target / known.file, known.write())
