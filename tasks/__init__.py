"""The tasks that can be asked for by name; an installed package adds its own by an entry point."""

from __future__ import annotations

from tasks.adding import Adding
from tasks.copying import Copying
from tasks.denoise import Denoise
from tasks.pixel_mnist import PixelMnist
from tasks.ptb_chars import PtbChars
from tasks.registry import Registry
from tasks.speech_frames import SpeechFrames
from tasks.variable_copying import VariableCopying

TASKS = Registry(
    "eigensweep.tasks",
    {
        "adding": Adding,
        "copying": Copying,
        "variable_copying": VariableCopying,
        "denoise": Denoise,
        "pixel_mnist": PixelMnist,
        "ptb_chars": PtbChars,
        "speech_frames": SpeechFrames,
    },
)
