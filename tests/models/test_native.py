"""How compiled steps are made, and what happens where they cannot be."""

import ctypes
import logging
import multiprocessing
import os
import platform
import re
import stat

import pytest
import torch

from eigensweep.models.recurrence.gated import gru
from eigensweep.models.recurrence.native import gated, paired, ungated
from eigensweep.models.recurrence.native.library import (
    CompilationError,
    compile_library,
    find_compiler,
    load_library,
    source_files,
    use_native,
)
from eigensweep.models.recurrence.ungated import recur

MODULES = [ungated, gated, paired]
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")


@pytest.fixture
def source(tmp_path):
    """Return a source that compiles at once."""
    path = tmp_path / "source" / "toy.cpp"
    path.parent.mkdir()
    path.write_text('#include "toy.h"\nextern "C" int answer() { return ANSWER; }\n')
    path.with_name("toy.h").write_text("#define ANSWER 42\n")
    return path


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """Return a function that sets up a compiler which refuses some options, and its list of calls.

    It passes everything else to the real compiler.
    """
    real = find_compiler()

    def make(*refused):
        calls, script = tmp_path / "calls", tmp_path / "compiler"
        calls.write_text("")
        tests = "".join(
            f'case "$*" in *" {option}"*) echo "unknown option {option}" >&2; exit 1;; esac\n'
            for option in refused
        )
        script.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n{tests}exec {real} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", os.fspath(script))
        return calls

    return make


def answer_of(library):
    return ctypes.CDLL(os.fspath(library)).answer()


@needs_compiler
class TestCompiling:
    def test_where_there_is_a_compiler_there_are_native_steps(self):
        for module in MODULES:
            assert use_native(module.SOURCE, None, W=torch.zeros(1))

    def test_a_changed_source_or_header_gives_another_library(self, source, tmp_path):
        first = compile_library(source, tmp_path)
        assert answer_of(first) == 42
        assert compile_library(source, tmp_path) == first
        source.with_name("toy.h").write_text("#define ANSWER 43\n")
        second = compile_library(source, tmp_path)
        assert second != first
        assert answer_of(second) == 43

    @pytest.mark.slow
    def test_four_processes_at_once_make_one_library_for_all(self, source, tmp_path):
        folder = tmp_path / "new"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["eigensweep.models.recurrence.native.library"])
        running = [context.Process(target=compile_library, args=(source, folder)) for _ in range(4)]
        for process in running:
            process.start()
        for process in running:
            process.join()
        assert [process.exitcode for process in running] == [0] * 4
        (library,) = folder.glob("*.so")
        assert answer_of(library) == 42
        assert {path.suffix for path in folder.iterdir()} <= {".so", ".lock"}

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 alone knows the option")
    def test_x86_prefers_wide_vectors(self, source, tmp_path, fake_compiler):
        calls = fake_compiler()
        compile_library(source, tmp_path)
        (call,) = calls.read_text().splitlines()
        assert "-march=native -mprefer-vector-width=512" in call

    def test_a_compiler_without_that_option_compiles_without_it(
        self, source, tmp_path, fake_compiler, monkeypatch
    ):
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        calls = fake_compiler("-mprefer-vector-width")
        assert answer_of(compile_library(source, tmp_path)) == 42
        first, second = calls.read_text().splitlines()
        assert "-mprefer-vector-width" in first
        assert "-mprefer-vector-width" not in second

    def test_on_arm_the_option_of_x86_is_never_given(
        self, source, tmp_path, fake_compiler, monkeypatch
    ):
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        calls = fake_compiler("-mprefer-vector-width", "-march=native", "-mcpu=native")
        assert answer_of(compile_library(source, tmp_path)) == 42
        made = calls.read_text()
        assert "-mprefer-vector-width" not in made
        assert [line for line in made.splitlines() if "native" in line] == made.splitlines()[:2]

    def test_a_hopeless_source_fails_with_the_compilers_words(self, source, tmp_path):
        source.write_text("int answer() { return nothing_like_it; }\n")
        with pytest.raises(CompilationError, match=r"toy\.cpp \(exit status 1\): .*nothing_like"):
            compile_library(source, tmp_path)


class TestWithoutACompiler:
    @pytest.fixture(autouse=True)
    def no_compiler(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", os.fspath(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        load_library.cache_clear()
        yield
        load_library.cache_clear()

    @pytest.mark.parametrize("cell", ["ungated", "gated"])
    def test_pytorch_takes_over_with_one_line_of_log(self, caplog, cell):
        def run(backend=None):
            torch.manual_seed(0)
            gates = 1 if cell == "ungated" else 3
            shapes = [(gates * 9, 2), (gates * 9, 9), (gates * 9,), (2, 9), (2,)]
            x, *leaves = (torch.randn(*shape) for shape in [(5, 3, 2), *shapes])
            if cell == "ungated":
                return recur(x, *leaves, activation="tanh", backend=backend)[0]
            return gru(x, *leaves, backend=backend)[0]

        with caplog.at_level(logging.WARNING):
            made = [run() for _ in range(2)]
        assert [r.name for r in caplog.records] == ["eigensweep.models.recurrence.native.library"]
        assert "no C++ compiler" in caplog.text
        assert torch.equal(made[1], run("torch"))
        with pytest.raises(ValueError, match=r"float64 on a CPU and a C\+\+ compiler"):
            run("native")


@pytest.mark.parametrize("module", MODULES)
class TestSources:
    def test_a_library_is_named_by_all_that_is_compiled_into_it(self, module):
        seen, waiting = set(), [module.SOURCE]
        while waiting:
            source = waiting.pop()
            seen.add(source)
            included = re.findall(r'#include "(.*)"', source.read_text())
            waiting += [source.with_name(name) for name in included]
        assert seen <= set(source_files(module.SOURCE))

    def test_a_calls_arguments_are_named_and_ordered_as_the_source(self, module):
        """Pointers, int64_t and doubles are eight bytes each, so order and kind are all."""
        name = "gated_kernels.h" if module is gated else module.SOURCE.name
        text = module.SOURCE.with_name(name).read_text()
        body = re.search(r"struct Call \{(.*?)(?:\n\n|\n\};)", text, re.DOTALL)[1]
        expected = []
        for line in re.findall(r"^ +(.*?);", body, re.MULTILINE):
            kind, names = re.fullmatch(r"(?:const )?(int64_t|T|double)\b(.*)", line).groups()
            for name in names.split(","):
                pointer = "*" in name or kind == "T"
                number = ctypes.c_int64 if kind == "int64_t" else ctypes.c_double
                expected.append((name.strip(" *"), ctypes.c_void_p if pointer else number))
        assert list(module.Call._fields_) == expected


def test_the_numbers_of_cells_are_those_of_the_source():
    text = gated.SOURCE.with_name("gated_kernels.h").read_text()
    names = re.search(r"enum Cell \{(.*?)\}", text)[1]
    assert [cell.name for cell in gated.Cell] == [name.strip() for name in names.split(",")]
