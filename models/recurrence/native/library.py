"""Compiles the steps of a recurrence and loads them.

A library goes to the user's cache folder, under a name made from sources, options and processor.
Where none can be made, one line in the log says so and the recurrence runs in PyTorch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from eigensweep.common.private_folders import cache_folder, make_private

logger = logging.getLogger(__name__)

OPTIONS = ("-std=c++17", "-O2", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
COMPILERS = ("g++", "clang++", "c++")
LONGEST_SECONDS = 300
"""After so long a compiler is given up."""


class CompilationError(OSError):
    """The compiler refused a source with every set of options."""


def use_native(source: Path, backend: str | None, **matrix: Tensor) -> bool:
    """Return whether compiled steps do the work for a recurrent matrix, given by its name.

    By default (`backend` None) they do where they can: float32 or float64 on a CPU, and a library
    that is compiled now if it was not before.

    Raises:
        ValueError: if `backend` is "native" and they cannot.
    """
    ((name, W),) = matrix.items()
    fits = W.device.type == "cpu" and W.dtype in (torch.float32, torch.float64)
    native = backend in (None, "native") and fits and load_library(source) is not None
    if backend == "native" and not native:
        raise ValueError(
            "the native recurrence needs float32 or float64 on a CPU and a C++ compiler; "
            f"{name} is {W.dtype} on {W.device}"
        )
    return native


@functools.cache
def load_library(source: Path) -> ctypes.CDLL | None:
    """Return the library of `source`, or None, with a warning in the log, if there can be none."""
    try:
        return ctypes.CDLL(str(compile_library(source, cache_folder())))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("recurrence runs in PyTorch, several times slower: %s", error)
        return None


def compile_library(source: Path, folder: Path) -> Path:
    """Return the path of the library of `source` in `folder`; compile it if it is not there.

    If several processes ask at once, one compiles and the others wait. The file appears complete
    or not at all.

    Raises:
        OSError: if there is no compiler, it refuses the source, or `folder` cannot be written or
            is not this user's alone.
        subprocess.TimeoutExpired: if the compiler takes longer than `LONGEST_SECONDS`.
    """
    tunings = tuning_options(platform.machine())
    key = hashlib.sha256(repr((OPTIONS, tunings, describe_processor())).encode())
    for file in source_files(source):
        key.update(file.read_bytes())
    path = folder / f"recurrence-{source.stem}-{key.hexdigest()[:16]}.so"
    make_private(folder)  # whoever can write there runs code in this process
    if path.exists():
        return path
    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError("no C++ compiler found; install g++ or set CXX")
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                output = Path(scratch) / path.name
                _run_compiler(compiler, tunings, source, output)
                output.replace(path)
    return path


def find_compiler() -> str | None:
    """Return the path of the C++ compiler that `CXX` names, or of another one, if there is one."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))), None)


def source_files(source: Path) -> list[Path]:
    """Return the files that a library is compiled from: `source` and all headers beside it."""
    return [source, *sorted(source.parent.glob("*.h"))]


def tuning_options(machine: str) -> list[tuple[str, ...]]:
    """Return sets of options for the processor, the fastest first, for `platform.machine()`.

    A compiler that refuses one set is given the next. `-mprefer-vector-width` exists for x86 only;
    some compilers for ARM know `-mcpu=native` but not `-march=native`.

    >>> tuning_options("aarch64")
    [('-march=native',), ('-mcpu=native',), ()]
    """
    if machine.lower() in ("x86_64", "amd64", "i386", "i686"):
        return [("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ()]
    return [("-march=native",), ("-mcpu=native",), ()]


def _run_compiler(
    compiler: str, tunings: Sequence[tuple[str, ...]], source: Path, output: Path
) -> None:
    for tuning in tunings:
        command = [compiler, *OPTIONS, *tuning, str(source), "-o", str(output)]
        run = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
        if run.returncode == 0:
            return
        message = " ".join(run.stderr.split())[:400]  # one line, as the log wants it
        logger.info("compiler refused options=%s message=%s", " ".join(tuning), message)
    raise CompilationError(
        f"{compiler} could not compile {source.name} (exit status {run.returncode}): {message}"
    )


def describe_processor() -> str:
    """Return what the compiler's `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    labels = ("model name", "flags", "Features", "CPU part")
    found = {line for line in lines if line.startswith(labels)}
    return "\n".join([platform.machine(), platform.processor(), *sorted(found)])
