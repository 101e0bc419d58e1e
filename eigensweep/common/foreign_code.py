"""What code of installed packages may set for a whole process, and what is put back after it.

Importing this loads no torch.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self


@dataclass(frozen=True)
class TorchSettings:
    """What holds for all of PyTorch in a process or thread; by default as PyTorch begins."""

    dtype: str = "float32"
    """The default type of numbers."""
    device: str = "cpu"
    """Where tensors are made by default."""
    has_gradients: bool = True
    precision: str = "highest"
    """Of products of matrices."""
    backends: tuple[str, ...] = ("none",) * 4
    """What PyTorch's libraries may take for float32, of `_list_backends`; `none`: nothing less."""
    is_deterministic: bool = False
    finds_anomalies: bool = False

    @classmethod
    def read(cls) -> Self:
        """Return those of now; as PyTorch begins, if it is not loaded."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return cls()
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # it was set in two ways, which PyTorch refuses to tell
            precision = "mixed"
        return cls(
            str(torch.get_default_dtype()).removeprefix("torch."),
            str(torch.get_default_device()),
            torch.is_grad_enabled(),
            precision,
            tuple(_read_precision(each) for each in _list_backends(torch)),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_anomaly_enabled(),
        )

    def put(self) -> None:
        """Let them hold again. Only what differs is set: that takes longer than to look."""
        torch: Any = sys.modules.get("torch")
        if torch is None or (now := self.read()) == self:
            return
        torch.set_default_dtype(getattr(torch, self.dtype))
        torch.set_grad_enabled(self.has_gradients)
        if now.device != self.device:
            torch.set_default_device(None if self.device == "cpu" else self.device)
        if (now.precision, now.backends) != (self.precision, self.backends):
            torch.set_float32_matmul_precision(
                "highest" if self.precision == "mixed" else self.precision
            )
            for each, wanted in zip(_list_backends(torch), self.backends, strict=True):
                if _read_precision(each) != wanted:
                    each.fp32_precision = wanted
        if now.is_deterministic != self.is_deterministic:
            torch.use_deterministic_algorithms(self.is_deterministic)
        torch.autograd.set_detect_anomaly(self.finds_anomalies)


def _list_backends(torch: Any) -> tuple[Any, ...]:
    """Return what has a precision: all libraries, and those of products and recurrences."""
    of = torch.backends
    return of, of.mkldnn.rnn, of.mkldnn.matmul, of.cuda.matmul


def _read_precision(backend: Any) -> str:
    """Return the precision of a library; PyTorch has two words for that of float32."""
    return "none" if backend.fp32_precision == "ieee" else str(backend.fp32_precision)


TRAINING: Final = TorchSettings()
"""Those with which everything is trained."""


@contextmanager
def keep_settings() -> Iterator[None]:
    """Undo what code of a package sets for all of PyTorch."""
    before = TorchSettings.read()
    try:
        yield
    finally:
        before.put()


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Put this process's signal handlers back after other code may have set its own."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if is_main:
            for kind, handler in before.items():
                signal.signal(kind, handler)
