"""Experiments that ship with the project: published grids and settings, with their numbers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from eigensweep.search_spaces.errors import UnknownPresetError, did_you_mean, shorten
from eigensweep.search_spaces.spec import ExperimentSpec, read_spec


def preset_names() -> list[str]:
    """Return the names of all presets, such as `enrnn/copying`, in order."""
    return sorted(_files())


@cache
def load_preset(name: str) -> ExperimentSpec:
    """Return a preset by its name.

    Raises:
        UnknownPresetError: if there is none. Names are looked up in a list and never become paths.
    """
    known = _files()
    if name not in known:
        raise UnknownPresetError(
            "preset",
            f"there is no preset '{shorten(name)}'{did_you_mean(name, known)}",
            expected="the name of a preset",
            got=shorten(name),
            available=sorted(known),
        )
    return read_spec(known[name].read_text(encoding="utf-8"))


def _files() -> dict[str, Traversable]:
    folder = files("eigensweep.search_spaces") / "presets"
    return dict(_walk(folder, ""))


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            found.append((prefix + entry.name.removesuffix(".yaml"), entry))
    return found
