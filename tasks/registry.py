"""Tasks by name: the project's own, and those that installed packages add by an entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import entry_points

from eigensweep.tasks.base import Task


class Registry(MutableMapping[str, type[Task]]):
    """The tasks that can be asked for.

    Packages are loaded at the first look, not when `tasks` is imported: a module of theirs may do
    that, which holds a model too and is only half loaded then.

    Raises:
        ValueError: at the first look, if a package takes a name that is taken already.

    >>> from eigensweep.tasks.copying import Copying
    >>> Registry("eigensweep.tasks", {"copying": Copying})["copying"].__name__
    'Copying'
    """

    def __init__(self, group: str, own: Mapping[str, type[Task]]) -> None:
        """Make it of the project's own classes and the group of entry points that adds to them."""
        self.group = group
        self._classes, self._is_whole = dict(own), False

    def __getitem__(self, name: str) -> type[Task]:
        return self._whole()[name]

    def __setitem__(self, name: str, cls: type[Task]) -> None:
        self._whole()[name] = cls

    def __delitem__(self, name: str) -> None:
        del self._whole()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def _whole(self) -> dict[str, type[Task]]:
        if not self._is_whole:
            installed: dict[str, type[Task]] = {}
            for entry in entry_points(group=self.group):
                taken = {**self._classes, **installed}.get(entry.name)
                if taken is not None:
                    raise ValueError(
                        f"the entry point '{entry.name} = {entry.value}' in {self.group} takes the "
                        f"name of {taken.__module__}.{taken.__qualname__}; "
                        "rename it or uninstall its package"
                    )
                installed[entry.name] = entry.load()
            self._classes |= installed
            self._is_whole = True
        return self._classes
