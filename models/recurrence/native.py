"""The steps of the fast recurrence on a CPU, compiled at first use for the machine at hand.

The library goes to the user's cache folder, under a name made from source, options and processor.
Where it cannot be made, one line of log says so and the PyTorch form is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from platformdirs import user_cache_path
from torch import Tensor
from torch.nn import functional as F

from models.recurrence.steps import ACTIVATIONS, LEAK, Activation

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("native.cpp")
OPTIONS = (
    *("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512"),
    *("-fno-math-errno", "-fPIC", "-shared", "-pthread"),
)
COMPILERS = ("g++", "clang++", "c++")


class NativeSteps:
    """The steps as compiled loops, in float32 or float64; threads share the batch."""

    def __init__(self, W: Tensor, b: Tensor, activation: Activation) -> None:
        library = load_library()
        assert library is not None
        self.W, self.b = W, b.contiguous()
        self.activation = ACTIVATIONS.index(activation)
        self.panel = library.vector_bytes() // W.element_size()
        self.step = library.step_float if W.dtype == torch.float32 else library.step_double

    def forward(self, H: Tensor) -> None:
        self._run(H, None, self._forward_panels, None)

    def backward(self, G: Tensor, H: Tensor) -> Tensor:
        db = torch.zeros_like(self.b)
        self._run(H, G, self._backward_panels, db)
        return db

    @functools.cached_property
    def _forward_panels(self) -> Tensor:
        return pack(self.W.mT, self.panel)

    @functools.cached_property
    def _backward_panels(self) -> Tensor:
        return pack(self.W, self.panel)

    def _run(self, H: Tensor, G: Tensor | None, panels: Tensor, db: Tensor | None) -> None:
        lanes, length, batch, n = H.shape
        tensors = [t for t in (H, G, panels, self.b, db) if t is not None]
        assert all(t.dtype == self.W.dtype and t[0].is_contiguous() for t in tensors)
        self.step(
            self.activation,
            *(None if t is None else t.data_ptr() for t in (H, G, panels, self.b, db)),
            *(lanes, H.stride(0), 0 if G is None else G.stride(0), length - 1, batch, n),
            *(LEAK, torch.get_num_threads()),
        )


def pack(W: Tensor, panel: int) -> Tensor:
    """Return the columns of W, (M, n, n), in panels: (M, panels, n, panel), the last padded by 0.

    >>> pack(torch.tensor([[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]), 2).tolist()
    [[[[1, 2], [4, 5], [7, 8]], [[3, 0], [6, 0], [9, 0]]]]
    """
    padded = F.pad(W, (0, -W.shape[-1] % panel))
    return padded.unflatten(-1, (-1, panel)).transpose(1, 2).contiguous()


def is_available(W: Tensor) -> bool:
    """Return whether the native steps can run with W; compiles them if they have yet to be."""
    fits = W.device.type == "cpu" and W.dtype in (torch.float32, torch.float64)
    return fits and load_library() is not None


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled library, or None, with one line of log, where it cannot be had."""
    try:
        library = ctypes.CDLL(str(compiled(user_cache_path("eigensweep"))))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("recurrence runs in PyTorch, several times slower: %s", error)
        return None
    pointers, longs = [ctypes.c_void_p] * 5, [ctypes.c_long] * 6
    for step, real in (
        (library.step_float, ctypes.c_float),
        (library.step_double, ctypes.c_double),
    ):
        step.argtypes = [ctypes.c_int, *pointers, *longs, real, ctypes.c_long]
    return library


def compiled(folder: Path) -> Path:
    """Return the library's path in `folder`, compiled if it is not there.

    Of many processes one compiles while the others wait. A library appears whole or not at all.

    Raises:
        OSError: where there is no compiler or the folder cannot be written.
        subprocess.SubprocessError: if the compiler fails.
    """
    key = hashlib.sha256(SOURCE.read_bytes() + repr((OPTIONS, processor())).encode())
    path = folder / f"recurrence-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))), None)
    if compiler is None:
        raise FileNotFoundError("no C++ compiler found; install g++ or set CXX")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                made = Path(scratch) / path.name
                command = [compiler, *OPTIONS, str(SOURCE), "-o", str(made)]
                subprocess.run(command, check=True, capture_output=True, timeout=300)
                made.replace(path)
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock, which the system drops if this process dies."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def processor() -> str:
    """Return what the compiler's -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = ("model name", "flags", "Features", "CPU part")
    seen = {line for line in lines if line.startswith(named)}
    return "\n".join([platform.machine(), platform.processor(), *sorted(seen)])
