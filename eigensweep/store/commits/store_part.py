"""Where a store is, and what all parts of it share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from eigensweep.store.commits.heads import Heads
from eigensweep.store.places.files import open_files

KEY: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


class StorePart:
    """A part of a store below a folder or a URL such as `s3://bucket/prefix`."""

    def __init__(self, place: Path | str) -> None:
        self.files = open_files(place)
        self.place = self.files.place
        """Where it is, for a person to read: a folder or a URL."""
        self.heads = Heads(self.files)


def check_key(key: str) -> str:
    """Return a key that leads to no other place.

    Raises:
        ValueError: if it is no key.
    """
    if not KEY.fullmatch(key):
        raise ValueError(f"a key is names joined by slashes, such as e7/00012/0; got {key!r}")
    return key
