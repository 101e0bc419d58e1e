"""CUDA kernels compiled at their first use, by the NVRTC that PyTorch's CUDA packages bring along.

No CUDA toolkit is needed. A compiled kernel is kept in the user's cache folder, under a name made
from its source, its definitions, the architecture and NVRTC's version.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

OPTIONS = ("-std=c++17", "-default-device", "--ptxas-options=-v")
"""Without `-default-device`, NVRTC before 13.2 takes a generic lambda for the host's."""


class CompileError(RuntimeError):
    """A kernel could not be compiled; the message is the compiler's log."""


@dataclass(frozen=True)
class Compiled:
    """A kernel as the device's own code, and what the compiler says of it."""

    cubin: bytes
    log: str

    @property
    def registers(self) -> int:
        """Registers that one thread uses."""
        return self._number(r"Used (\d+) registers")

    @property
    def spilled_bytes(self) -> int:
        """Bytes that one thread stores and loads because the registers are not enough."""
        return self._number(r"(\d+) bytes spill stores") + self._number(r"(\d+) bytes spill loads")

    def _number(self, pattern: str) -> int:
        return sum(int(number) for number in re.findall(pattern, self.log))


def compile_kernel(source: Path, definitions: Mapping[str, int], architecture: str) -> Compiled:
    """Compile a CUDA source for an architecture such as `sm_90`; it needs no GPU.

    Raises:
        ImportError: if the package cuda-bindings is not installed.
        CompileError: if NVRTC is not found or refuses the source or the architecture.
    """
    from cuda.bindings import nvrtc

    headers = list_headers(source)
    defines = [f"-D{name}={value}" for name, value in sorted(definitions.items())]
    options = [each.encode() for each in (f"-arch={architecture}", *OPTIONS, *defines)]
    try:
        program = _answer(
            nvrtc.nvrtcCreateProgram(
                source.read_bytes(),
                source.name.encode(),
                len(headers),
                [header.read_bytes() for header in headers],
                [header.name.encode() for header in headers],
            )
        )
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = b" " * _answer(nvrtc.nvrtcGetProgramLogSize(program))
        _answer(nvrtc.nvrtcGetProgramLog(program, log))
        words = log.decode(errors="replace").strip("\0 \n")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC refuses {source.name} for {architecture}: {words}")
        cubin = b" " * _answer(nvrtc.nvrtcGetCUBINSize(program))
        _answer(nvrtc.nvrtcGetCUBIN(program, cubin))
        _answer(nvrtc.nvrtcDestroyProgram(program))
    except RuntimeError as error:
        if isinstance(error, CompileError):
            raise
        raise CompileError(f"NVRTC cannot be used: {error}") from error
    return Compiled(cubin, words)


def list_headers(source: Path) -> list[Path]:
    """Return the files that a kernel may include: those beside its source."""
    return sorted(source.parent.glob("*.h"))


def load_cubin(
    folder: Path, source: Path, definitions: Mapping[str, int], architecture: str
) -> bytes:
    """Return the device code from `folder`; compile it if it is not there.

    Where the folder cannot be written, one line of log says so, and nothing is kept.

    Raises:
        ImportError, CompileError: as `compile_kernel` does.
    """
    from cuda.bindings import nvrtc

    key = hashlib.sha256(source.read_bytes())
    for header in list_headers(source):
        key.update(header.read_bytes())
    version = nvrtc.nvrtcVersion()[1:]
    key.update(repr((sorted(definitions.items()), architecture, OPTIONS, version)).encode())
    path = folder / f"{source.stem}-{architecture}-{key.hexdigest()[:16]}.cubin"
    with suppress(OSError):
        return path.read_bytes()
    cubin = compile_kernel(source, definitions, architecture).cubin
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            made.write_bytes(cubin)
            made.replace(path)  # it appears whole or not at all
    except OSError as error:
        _warn_of_folder(folder, str(error))
    return cubin


@functools.cache
def _warn_of_folder(folder: Path, error: str) -> None:
    words = "kernels are compiled anew in each process: %s takes no file: %s"
    logger.warning(words, folder, error)


def _answer(returned: tuple[Any, ...]) -> Any:
    """Return the value of a call to NVRTC, without its status.

    Raises:
        CompileError: if the status is an error.
    """
    status, *values = returned
    if status.value:
        raise CompileError(f"NVRTC answers {status.name}")
    return values[0] if values else None
