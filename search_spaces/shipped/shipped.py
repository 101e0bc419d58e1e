"""The YAML files that ship with the package, found by their names: presets and suites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from eigensweep.search_spaces.errors import SpecError, did_you_mean, shorten


@dataclass(frozen=True)
class Shelf:
    """The files in one folder of the package, and how a name that is not there is refused."""

    folder: str
    kind: str
    """What a message calls a file."""
    field: str
    """The field of a request that holds the name."""
    expected: str
    error: type[SpecError]

    @property
    def names(self) -> list[str]:
        """The names of all files, such as `enrnn/copying`, in order."""
        return sorted(_list_files(self.folder))

    def read(self, name: str) -> str:
        """Return the text of a file by its name.

        Raises:
            SpecError: of the kind `error`, if there is none. Names are looked up in a list and
                never become paths.
        """
        known = _list_files(self.folder)
        if name not in known:
            raise self.error(
                self.field,
                f"there is no {self.kind} '{shorten(name)}'{did_you_mean(name, known)}",
                expected=self.expected,
                got=shorten(name),
                available=self.names,
            )
        return known[name].read_text(encoding="utf-8")


@cache
def _list_files(folder: str) -> dict[str, Traversable]:
    return dict(_walk(files("eigensweep.search_spaces") / folder, ""))


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield prefix + entry.name.removesuffix(".yaml"), entry
