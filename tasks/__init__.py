"""The tasks that can be asked for by name; an installed package adds its own by an entry point."""

from __future__ import annotations

from importlib.metadata import entry_points

from tasks.adding import Adding
from tasks.base import Task
from tasks.copying import Copying
from tasks.denoise import Denoise
from tasks.pixel_mnist import PixelMnist
from tasks.ptb_chars import PtbChars
from tasks.speech_frames import SpeechFrames
from tasks.variable_copying import VariableCopying

TASKS: dict[str, type[Task]] = {
    "adding": Adding,
    "copying": Copying,
    "variable_copying": VariableCopying,
    "denoise": Denoise,
    "pixel_mnist": PixelMnist,
    "ptb_chars": PtbChars,
    "speech_frames": SpeechFrames,
}


def add_installed(tasks: dict[str, type[Task]]) -> None:
    """Add what installed packages offer under the entry point group `eigensweep.tasks`.

    Raises:
        ValueError: if a name is taken already.
    """
    for entry in entry_points(group="eigensweep.tasks"):
        if entry.name in tasks:
            raise ValueError(
                f"the entry point '{entry.name} = {entry.value}' in eigensweep.tasks takes the "
                f"name of the task in {tasks[entry.name].__module__}; "
                "rename it or uninstall its package"
            )
        tasks[entry.name] = entry.load()


add_installed(TASKS)
