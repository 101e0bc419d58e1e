"""The tasks by name. An installed package adds its own tasks through an entry point."""

from __future__ import annotations

from eigensweep.common.registry import Registry
from eigensweep.tasks.adding import Adding
from eigensweep.tasks.base import Task, TaskConfig
from eigensweep.tasks.copying import Copying
from eigensweep.tasks.denoise import Denoise
from eigensweep.tasks.noisy_cifar import NoisyCifar
from eigensweep.tasks.pixel_cifar import PixelCifar
from eigensweep.tasks.pixel_mnist import PixelMnist
from eigensweep.tasks.ptb_chars import PtbChars
from eigensweep.tasks.selective_copying import SelectiveCopying
from eigensweep.tasks.speech_frames import SpeechFrames
from eigensweep.tasks.variable_copying import VariableCopying

TASKS: Registry[Task] = Registry(
    "task",
    Task,
    TaskConfig,
    {
        "adding": Adding,
        "copying": Copying,
        "variable_copying": VariableCopying,
        "denoise": Denoise,
        "selective_copying": SelectiveCopying,
        "pixel_mnist": PixelMnist,
        "pixel_cifar": PixelCifar,
        "noisy_cifar": NoisyCifar,
        "ptb_chars": PtbChars,
        "speech_frames": SpeechFrames,
    },
)
