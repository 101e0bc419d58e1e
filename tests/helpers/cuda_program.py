"""Compiles a CUDA kernel as a program for the CPU, by `cuda_on_cpu.h`."""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1] / "models"
PROGRAM = """
#include "cuda_on_cpu.h"
#include "{source}"
extern "C" __attribute__((visibility("default"))) void start_{kernel}(void** places, int blocks) {{
    if (blocks % CLUSTER) fibers::fail("a cluster is not whole");
    run_grid(blocks / CLUSTER, CLUSTER, [&] {{ fibers::call(&{kernel}, places); }});
}}
"""
OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-w")


def compile_once(made, *words):
    """Compile into the file `made`, unless it is there; other processes may do so at once."""
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            new = Path(folder) / made.name
            done = subprocess.run(["g++", *OPTIONS, *words, "-o", str(new)], capture_output=True)
            assert done.returncode == 0, done.stderr.decode()
            os.replace(new, made)
    return str(made)


def compile_fibers(folder):
    """Return the library of what all kernels need, compiled once; they share its memory."""
    words = ("-shared", "-fvisibility=default", str(HERE / "cuda_on_cpu.cpp"))
    return compile_once(folder / "fibers.so", *words)


def compile_kernel(source, definitions, folder):
    """Return the path of a library whose `start_` and kernel's name takes places and blocks."""
    stem = "-".join([source.stem, *(str(value) for _, value in sorted(definitions))])
    program = folder / f"{source.stem}.cpp"
    if not program.exists():
        text = PROGRAM.format(source=source.name, kernel=source.stem)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as new:
            new.write(text)
        os.replace(new.name, program)
    folders = (f"-I{HERE}", f"-I{source.parent}")
    defines = [f"-D{name}={value}" for name, value in definitions]
    links = ("-shared", "-nostdlib")  # with all of C++, linking takes as long as compiling
    words = (*links, *folders, *defines, str(program), compile_fibers(folder), "-lm")
    return compile_once(folder / f"{stem}.so", *words)


class OnCpu:
    """The kernels of one source as functions on a CPU; a subclass has what stands for `launch`."""

    def __init__(self, folder, source, types):
        self.folder, self.source, self.types = folder, source, types
        self.shapes, self._programs = [], {}

    def start(self, shape, definitions, clusters, arguments):
        """Run the kernel for a shape, and note that it was asked for."""
        self.shapes.append(shape)
        if shape not in self._programs:
            library = ctypes.CDLL(compile_kernel(self.source, definitions, self.folder))
            self._programs[shape] = getattr(library, f"start_{self.source.stem}")
        values = [kind(value) for kind, value in zip(self.types, arguments, strict=True)]
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._programs[shape](places, ctypes.c_int(clusters * shape.blocks))
