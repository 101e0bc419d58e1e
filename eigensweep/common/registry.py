"""Classes by name: the project's own, and those that installed packages add by entry points.

`eigensweep.models.MODELS` and `eigensweep.tasks.TASKS` are registries. Both follow the same rules:

- Packages are loaded when a registry is first read, not when it is imported. So a package's module
  may itself import `eigensweep.models` and `eigensweep.tasks`.
- An entry point that cannot be used is left out, with a warning in the log. `Registry.problems`
  keeps the reason. Nothing else is affected.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from math import isfinite
from typing import Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel

from eigensweep.common.foreign_code import keep_settings, keep_signal_handlers
from eigensweep.common.own_packages import digest_all, digest_package, find_plugins

logger = logging.getLogger(__name__)

Base = TypeVar("Base")


SLOW_SECONDS: Final = 5.0
"""A package that takes longer to load is named in the log: it may hang there."""


@contextmanager
def _warn_if_slow(module: str) -> Iterator[None]:
    """Say in the log that a module is still being loaded, if that takes long."""
    timer = threading.Timer(SLOW_SECONDS, logger.warning, ["%s is still being loaded", module])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a process that forks has one thread


class UnknownNameError(KeyError):
    """No class of a registry has this name; the message says which names exist, or why not."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the quoted form


class Registry(MutableMapping[str, type[Base]], Generic[Base]):
    """The classes of one kind, such as the models, by the name that a spec gives.

    Each class is a subclass of `base`. Its `Config` is a subclass of `config` and declares the
    name, as in `name: Literal["scornn"] = "scornn"`. The entry point group is `eigensweep.models`
    for the kind `model`. The project's own classes come first, in their order.

    Raises:
        TypeError: if one of the project's own classes does not meet this.

    >>> from eigensweep.tasks.base import Task, TaskConfig
    >>> from eigensweep.tasks.copying import Copying
    >>> tasks = Registry("task", Task, TaskConfig, {"copying": Copying})
    >>> tasks["copying"].__name__
    'Copying'
    """

    def __init__(
        self, kind: str, base: type, config: type[BaseModel], own: Mapping[str, type[Base]]
    ) -> None:
        self.kind, self.base, self.config = kind, base, config
        self.group = f"eigensweep.{kind}s"
        self._classes = {name: self._check(name, cls) for name, cls in own.items()}
        self._problems: dict[str, tuple[str, str]] = {}
        self._packages: dict[str, str] = {}
        """By name, the package that brought the class."""
        self._codes: dict[str, str] = {}
        """By name, a digest of that package's files when it was loaded."""
        self._lock, self._has_begun = threading.RLock(), False

    @property
    def problems(self) -> dict[str, str]:
        """Why an entry point was left out, by the entry point: `toy = lab:Toy (lab 1.0)`."""
        self._load()
        return {entry: reason for entry, (_, reason) in self._problems.items()}

    def explain_absence(self, name: str) -> str | None:
        """Return why the entry points called `name` were left out; None if there was none."""
        self._load()
        reasons = [
            f"{entry} was left out: {reason}"
            for entry, (offered, reason) in self._problems.items()
            if offered == name and name not in self._classes
        ]
        return "; ".join(reasons) or None

    def code_of(self, name: str, *, now: bool = False) -> str | None:
        """Return a digest of the files of the installed package that brought a class.

        They are read before the package is loaded; with `now` as they are on the disk by now. None
        for the project's own classes, and for those that this process has registered itself.
        """
        self._load()
        if now and name in self._packages:
            return digest_all(digest_package(self._packages[name]))
        return self._codes.get(name)

    def __getitem__(self, name: str) -> type[Base]:
        classes = self._load()
        if name not in classes:
            reason = self.explain_absence(name)
            raise UnknownNameError(
                f"there is no {self.kind} '{name}'{f' ({reason})' if reason else ''}; "
                f"there are {', '.join(sorted(classes))}"
            )
        return classes[name]

    def __setitem__(self, name: str, cls: type[Base]) -> None:
        self._load()[name] = cls
        self._packages.pop(name, None)
        self._codes.pop(name, None)

    def __delitem__(self, name: str) -> None:
        del self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def _load(self) -> dict[str, type[Base]]:
        """Return the classes, with those of installed packages.

        A package that reads the registry while it is being loaded sees what is there so far. Other
        threads wait until all are loaded.
        """
        with self._lock:
            if not self._has_begun:
                self._has_begun = True
                with keep_settings(), keep_signal_handlers():
                    # Sorted, so that all machines choose the same of two that offer one name.
                    for entry in sorted(find_plugins()):
                        if entry.group == self.group:
                            self._add(entry)
        return self._classes

    def _add(self, entry: EntryPoint) -> None:
        try:
            taken = self._classes.get(entry.name)
            if taken is not None:
                raise ValueError(
                    f"the name '{entry.name}' belongs to {_path(taken)}; choose another name"
                )
            package = entry.module.partition(".")[0]
            code = digest_all(digest_package(package))
            with _warn_if_slow(entry.module):
                loaded = entry.load()
            cls = self._check(entry.name, loaded)
            cls.Config.model_json_schema()  # the API's description of a spec contains it
            self._classes[entry.name] = cls
            self._packages[entry.name], self._codes[entry.name] = package, code
        except (Exception, SystemExit) as error:  # whatever a foreign module does at its import
            text = f"{entry.name} = {entry.value}{_distribution(entry)}"
            reason = f"{type(error).__name__}: {error}"
            self._problems[text] = (entry.name, reason)
            logger.warning("%s left out entry_point=%r reason=%s", self.kind, text, reason)

    def _check(self, name: str, cls: Any) -> Any:
        """Return `cls` if it can have the name `name` here.

        Raises:
            TypeError: if not, with what to write.
        """
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise TypeError(f"{cls!r} is not a subclass of {_path(self.base)}")
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        if missing:
            raise TypeError(f"{_path(cls)} does not define {missing}")
        config = getattr(cls, "Config", None)
        if not (isinstance(config, type) and issubclass(config, self.config)):
            raise TypeError(f"{_path(cls)}.Config must be a subclass of {_path(self.config)}")
        required: tuple[str, ...] = getattr(self.config, "required", ())
        lacking = [each for each in required if getattr(config, each) is getattr(self.config, each)]
        if lacking:
            raise TypeError(f"{_path(config)} does not define {', '.join(lacking)}")
        if hidden := ", ".join(each for each in required if each in config.model_fields):
            raise TypeError(f"{_path(config)} has {hidden} as a field: write it as a property")
        for field, info in config.model_fields.items():
            if info.alias or info.validation_alias or info.serialization_alias:
                raise TypeError(f"{_path(config)}.{field} has an alias, by which no spec finds it")
            if isinstance(info.default, float) and not isfinite(info.default):
                raise TypeError(
                    f"{_path(config)}.{field} is {info.default} by default, which JSON cannot "
                    "hold: take None for it"
                )
        declared: Any = config.model_fields["name"].annotation
        if declared != Literal[name]:
            raise TypeError(
                f"{_path(config)} must declare `name: Literal[{name!r}] = {name!r}`, "
                f"so that a spec can name this {self.kind}"
            )
        return cls


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _distribution(entry: EntryPoint) -> str:
    return "" if entry.dist is None else f" ({entry.dist.name} {entry.dist.version})"
