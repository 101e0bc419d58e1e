"""What tests ask of the machine's compilers.

A machine without a compiler skips a test. A source that its compiler refuses fails it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from eigensweep.models.recurrence.native.library import find_compiler, load_library


def need_compiler() -> None:
    """Skip the test where there is no C++ compiler."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler here")


def need_libraries(*sources: Path) -> None:
    """Skip the test where there is no C++ compiler; fail it where a source has no library."""
    need_compiler()
    for source in sources:
        assert load_library(source) is not None, f"{source.name} has no library; see the log"


def need_nvrtc() -> None:
    """Skip the test where NVRTC, which compiles kernels, is not installed."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"no NVRTC here: {error}")
