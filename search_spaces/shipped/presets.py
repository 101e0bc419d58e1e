"""Experiments that ship with the project: published grids and settings, with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from eigensweep.search_spaces.errors import UnknownPresetError
from eigensweep.search_spaces.sections import PublishedNumber
from eigensweep.search_spaces.shipped.shipped import Shelf
from eigensweep.search_spaces.spec import ExperimentSpec, read_spec

PRESETS: Final = Shelf("presets", "preset", "preset", "the name of a preset", UnknownPresetError)


def preset_names() -> list[str]:
    """Return the names of all presets, such as `enrnn/copying`, in order."""
    return PRESETS.names


@cache
def load_preset(name: str) -> ExperimentSpec:
    """Return a preset by its name.

    Raises:
        UnknownPresetError: if there is none.
    """
    return read_spec(PRESETS.read(name))


def find_preset(published: Sequence[PublishedNumber]) -> ExperimentSpec | None:
    """Return the preset that carries these numbers of a paper; None if no preset does."""
    numbers = list(published)
    presets = (load_preset(name) for name in preset_names()) if numbers else iter(())
    return next((preset for preset in presets if preset.published == numbers), None)
