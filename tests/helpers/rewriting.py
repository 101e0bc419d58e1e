"""Compiles the tests once for all processes of a run.

pytest rewrites the assertions of each test file, and keeps what it has compiled. The processes of
one run begin together, so where nothing is kept yet each of them would compile every file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def compile_tests(folder: Path, config: pytest.Config) -> None:
    """Keep the compiled form of each test file of a folder that has none yet, or an older one."""
    if sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    state = config.stash[rewrite.assertstate_key]
    for path in (*folder.rglob("test_*.py"), *folder.rglob("conftest.py")):
        kept = rewrite.get_cache_dir(path)
        made = kept / (path.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(path, made) is None and rewrite.try_makedirs(kept):
            source, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(state, code, source, made)
