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
from torch import Tensor
from torch.nn.functional import pad

from eigensweep.models.recurrence.steps import ACTIVATIONS, LEAK, Activation, Parameters

logger = logging.getLogger(__name__)

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in ("native.cpp", "native_jobs.cpp", "native_kernels.cpp")
)
OPTIONS = (
    *("-std=c++17", "-O2", "-march=native", "-mprefer-vector-width=512"),
    *("-fno-math-errno", "-fPIC", "-shared", "-pthread"),
)
COMPILERS = ("g++", "clang++", "c++")

WIDE = 256
"""Units from which on PyTorch's one product makes dL/dW faster than the compiled steps."""


class NativeSteps:
    """The steps as compiled loops, in float32 or float64; threads share lanes and batch."""

    def __init__(self, parameters: Parameters, activation: Activation) -> None:
        library = load_library()
        assert library is not None
        self.parameters = U, W, b, _, c = parameters
        self.lanes, self.n, self.m = U.shape
        self.panel = library.vector_bytes() // W.element_size()
        self.row = row_length(self.n, self.panel)
        self.b, self.c, self.table = self._padded(b), c.contiguous(), self._padded(U.mT)
        self.activation = ACTIVATIONS.index(activation)
        self.run = library.step_float if W.dtype == torch.float32 else library.step_double
        self.sums: tuple[Tensor, ...] = ()
        self.packed: Tensor | None = None

    def forward(self, H: Tensor, x: Tensor, logits: Tensor | None) -> None:
        if self.packed is None:  # [h, x] meets [W, U], and [V, 0] for the readout
            U, W, _, V, _ = self.parameters
            Ut = U.mT if x.is_floating_point() else U.mT[:, :0]
            parts = [torch.cat((W.mT, Ut), 1)]
            if logits is not None:
                parts.append(pad(V.mT, (0, 0, 0, Ut.shape[1])))
            self.packed = torch.cat([pack(part, self.panel) for part in parts], 1)
        if not self.m:
            H[:, 1:, :, : self.n] = x
        self._call(H=H, x=x, logits=logits, W=self.packed)

    def backward(self, G: Tensor, H: Tensor, x: Tensor, d_logits: Tensor | None) -> None:
        if self.packed is None:  # [dL/dz, dL/dlogits] meets [W; V]
            U, W, b, V, _ = self.parameters
            self.packed = pack(W if d_logits is None else torch.cat((W, V), 1), self.panel)
            shapes = (t.shape[1:-1] for t in (U.mT, W, b, V))
            self.sums = tuple(W.new_zeros(self.lanes, *shape, self.row) for shape in shapes)
        self._call(H=H, x=x, logits=d_logits, W=self.packed, G=G)
        if self.n >= WIDE:
            dz, before = G[:, :-1, :, : self.n].flatten(1, 2), H[:, :-1].flatten(1, 2)
            self.sums[1].baddbmm_(dz.mT, before)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dUt, dW, db, dV = (t[..., : self.n] for t in self.sums)
        return dUt.mT, dW, db, dV

    def _padded(self, rows: Tensor) -> Tensor:
        return pad(rows, (0, self.row - self.n)).contiguous()

    def _call(
        self, *, H: Tensor, x: Tensor, logits: Tensor | None, W: Tensor, G: Tensor | None = None
    ) -> None:
        values, symbols = (x, None) if x.is_floating_point() else (None, x)
        if not self.m:
            values = None
        dU, dW, db, dV = self.sums or (None,) * 4
        if self.n >= WIDE:
            dW = None
        tensors = (H, G, W, self.b, self.c, values, self.table, symbols, logits, dW, db, dU, dV)
        assert all(t is None or t[0].is_contiguous() for t in tensors)
        strides = (0 if t is None else t.stride(0) for t in (H, G, x, logits))
        _, length, batch, _ = H.shape
        p = self.parameters.V.shape[1]
        call = Call(
            *(None if t is None else t.data_ptr() for t in tensors),
            *strides,
            *(self.lanes, length - 1, batch, self.n, self.row, self.m, p),
            *(self.activation, torch.get_num_threads()),
            LEAK,
        )
        self.run(ctypes.byref(call))


class Call(ctypes.Structure):
    """`struct Call` of the source, field by field."""

    _fields_ = (
        *((f"tensor_{i}", ctypes.c_void_p) for i in range(13)),
        *((f"size_{i}", ctypes.c_int64) for i in range(13)),
        ("leak", ctypes.c_double),
    )


def row_length(n: int, panel: int) -> int:
    """Return n in whole panels, and one more where rows would crowd into the same cache sets.

    >>> row_length(138, 16), row_length(512, 16)
    (144, 528)
    """
    whole = n + -n % panel
    return whole + panel if whole % (16 * panel) == 0 else whole


def pack(W: Tensor, panel: int) -> Tensor:
    """Return the columns of W, (M, k, n), in panels: (M, panels, k, panel), the last padded by 0.

    >>> pack(torch.tensor([[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]), 2).tolist()
    [[[[1, 2], [4, 5], [7, 8]], [[3, 0], [6, 0], [9, 0]]]]
    """
    padded = pad(W, (0, -W.shape[-1] % panel)).contiguous()
    return padded.view(*W.shape[:2], -1, panel).transpose(1, 2).contiguous()


def is_available(W: Tensor) -> bool:
    """Return whether the native steps can run with W; compiles them if they have yet to be."""
    return fits(W) and load_library() is not None


def fits(W: Tensor) -> bool:
    """Return whether W is where compiled steps can work, and of a dtype that they know."""
    return W.device.type == "cpu" and W.dtype in (torch.float32, torch.float64)


@functools.cache
def load_library(sources: tuple[Path, ...] = SOURCES) -> ctypes.CDLL | None:
    """Return the compiled library, or None, with one line of log, where it cannot be had."""
    try:
        library = ctypes.CDLL(str(compiled(cache_folder(), sources)))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("recurrence runs in PyTorch, several times slower: %s", error)
        return None
    return library


def cache_folder() -> Path:
    """Return where a user's programs keep what they can make again (XDG's rule)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eigensweep"


def compiled(folder: Path, sources: tuple[Path, ...] = SOURCES) -> Path:
    """Return the library's path in `folder`, compiled from the first source if it is not there.

    Of many processes one compiles while the others wait. A library appears whole or not at all.

    Raises:
        OSError: where there is no compiler or the folder cannot be written.
        subprocess.SubprocessError: if the compiler fails.
    """
    key = hashlib.sha256(repr((OPTIONS, processor())).encode())
    for source in sources:
        key.update(source.read_bytes())
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
                command = [compiler, *OPTIONS, str(sources[0]), "-o", str(made)]
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
