"""Whose fault an error is: a trial's, the memory's, the node's, or that of the machine below.

Importing this loads no torch: an error of a package's own class comes from a process that has it.
"""

from __future__ import annotations

import errno
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from eigensweep.common.foreign_code import TRAINING, TorchSettings
from eigensweep.protocol.code import ForeignCodeError
from eigensweep.store.places.durable_files import StorageError, disk_failure

NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "_STATUS_ALLOC_FAILED",  # of cuBLAS, cuSOLVER and others
)
NO_THREAD = "can't start new thread"
DEVICE_LOST = (
    "CUDA error:",
    "CUDA driver error",
    "CUDA unknown error",
    "CUDA_ERROR_",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "CUSOLVER_STATUS",
    "No CUDA GPUs are available",
    "no NVIDIA driver",
    "cudaGetDeviceCount",
    "c10/cuda/",
    "ATen/cuda/",
    "ATen/native/cuda/",
)
"""The last ones are files that PyTorch names where it finds its own state inconsistent."""

LONGEST_ERROR = 2**16
"""Characters of an error that are kept; a message may hold a whole tensor."""
MARK_OF_RAY = "ray_terminate_msg"
"""An attribute of the `SystemExit` by which Ray ends a process of its own, in Ray 2.60."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the device, or the machine, had no memory left."""
    kinds: tuple[type[BaseException], ...] = (MemoryError, *_loaded("torch", "OutOfMemoryError"))
    return any(
        isinstance(each, kinds)
        or (isinstance(each, RuntimeError) and any(words in _words(each) for words in NO_MEMORY))
        for each in _causes(error)
    )


def is_out_of_threads(error: BaseException) -> bool:
    """Tell whether Linux let no further thread or process begin."""
    return any(
        NO_THREAD in _words(each) or (isinstance(each, OSError) and each.errno == errno.EAGAIN)
        for each in _causes(error)
    )


def is_of_the_device(error: BaseException) -> bool:
    """Tell whether the device is lost: nothing works on it until another process begins."""
    kinds = _loaded("torch", "AcceleratorError")
    return not is_out_of_memory(error) and any(
        isinstance(each, kinds)
        or (isinstance(each, RuntimeError) and any(words in _words(each) for words in DEVICE_LOST))
        for each in _causes(error)
    )


def is_of_the_disk(error: BaseException) -> bool:
    """Tell whether disk or store failed, which trials share.

    A file system that only reads, where code of a package wanted to write, is the package's affair.
    """
    causes = _causes(error)
    is_ours = any(isinstance(each, StorageError) for each in causes) or not any(
        isinstance(each, OSError) and each.errno == errno.EROFS for each in causes
    )
    return disk_failure(error) is not None and (is_ours or not _passed_a_package(causes))


def _passed_a_package(causes: list[BaseException]) -> bool:
    """Tell whether an error came through code of a package with models or tasks."""
    names = ("eigensweep.models", "MODELS"), ("eigensweep.tasks", "TASKS")
    registries = [getattr(sys.modules.get(module), name, {}) for module, name in names]
    packages = {cls.__module__.partition(".")[0] for each in registries for cls in each.values()}
    frames = (frame for each in causes for frame, _ in traceback.walk_tb(each.__traceback__))
    passed = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    return not (packages - {"eigensweep"}).isdisjoint(passed)


def is_of_the_node(error: BaseException) -> bool:
    """Tell whether another node might do better: this one has other code, or lacks something."""
    no_corpus = _loaded("eigensweep.tasks.corpus", "CorpusMissingError")
    no_device = _loaded("eigensweep.training.devices", "DeviceError")
    return isinstance(error, (ForeignCodeError, *no_corpus, *no_device))


@contextmanager
def contain() -> Iterator[None]:
    """Run code of a model or task, in a process that may train others, too.

    What would end the process or its thread becomes an error: `sys.exit`, and exceptions that are
    no `Exception`, but for an interrupt of the main thread. What the code has set for all of
    PyTorch is undone.
    """
    with_gradients = TorchSettings.read().has_gradients
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        is_main = threading.current_thread() is threading.main_thread()
        if hasattr(error, MARK_OF_RAY) or (is_main and isinstance(error, KeyboardInterrupt)):
            raise
        did = f"raised {type(error).__name__}: {_words(error)}"
        if isinstance(error, SystemExit):
            did = f"called sys.exit({error.code!r})"
        raise RuntimeError(f"the model or task has {did}") from error
    finally:
        replace(TRAINING, has_gradients=with_gradients).put()


def cut_middle(text: str) -> str:
    """Return a text of an error without its middle, if it is very long.

    >>> len(cut_middle("x" * 10**6)) < LONGEST_ERROR + 100
    True
    """
    if len(text) <= LONGEST_ERROR:
        return text
    half, left_out = LONGEST_ERROR // 2, len(text) - LONGEST_ERROR
    return f"{text[:half]}\n... {left_out:,} characters are left out ...\n{text[-half:]}"


def let_go(error: BaseException) -> None:
    """Drop what the functions that raised an error still hold: tensors of a device among it."""
    for each in _causes(error):
        traceback.clear_frames(each.__traceback__)


def _words(error: BaseException) -> str:
    """Return the words of an error; nothing where its class cannot say them."""
    try:
        return str(error)
    except Exception:
        return ""


def _loaded(module: str, name: str) -> tuple[type[BaseException], ...]:
    """Return a class of errors, if its module is loaded here."""
    found: type[BaseException] | None = getattr(sys.modules.get(module), name, None)
    return () if found is None else (found,)


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in causes:
        causes.append(each)
        each = each.__cause__
    return causes
