"""Compiles a CUDA kernel as a program for the CPU, by `cuda_on_cpu.h`."""

import ctypes
import subprocess
from pathlib import Path

HERE = Path(__file__).parents[1] / "models"
PROGRAM = """
#include "cuda_on_cpu.h"
#include "{source}"
extern "C" void run({parameters}, int clusters) {{
    run_grid(clusters, CLUSTER, [&] {{ {kernel}({names}); }});
}}
"""


def compile_for_cpu(source, definitions, parameters, types, folder):
    """Return the kernel as a function of its arguments and the number of clusters.

    `parameters` are those of the kernel as C++ has them, `types` the same for ctypes.
    """
    stem = "-".join([source.stem, *(str(value) for _, value in definitions)])
    program, library = folder / f"{stem}.cpp", folder / f"{stem}.so"
    names = ", ".join(each.split()[-1].lstrip("*") for each in parameters.split(","))
    program.write_text(
        PROGRAM.format(source=source.name, parameters=parameters, kernel=source.stem, names=names)
    )
    folders = (f"-I{HERE}", f"-I{source.parent}")
    defines = [f"-D{name}={value}" for name, value in definitions]
    options = ("-std=c++17", "-O1", "-fPIC", "-shared", "-w")
    command = ["g++", *options, *folders, *defines, str(program), "-o", str(library)]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    run = ctypes.CDLL(str(library)).run
    run.argtypes, run.restype = [*types, ctypes.c_int], None
    return run


class OnCpu:
    """The kernels of one source as functions on a CPU; a subclass has what stands for `launch`."""

    def __init__(self, folder, source, parameters, types):
        self.folder, self.source, self.parameters, self.types = folder, source, parameters, types
        self.shapes, self._programs = [], {}

    def program(self, shape, definitions):
        """Return the kernel for a shape, and note that it was asked for."""
        self.shapes.append(shape)
        if shape not in self._programs:
            self._programs[shape] = compile_for_cpu(
                self.source, definitions, self.parameters, self.types, self.folder
            )
        return self._programs[shape]
