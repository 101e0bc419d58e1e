"""Runs the whole host path of the kernels without a GPU, in a process of its own.

`python stand_in.py FOLDER` puts `stand_in_driver.c` in the place of NVIDIA's driver: choice of a
shape, loading, arguments, contexts, streams and launches are ours, by the bindings that we use, and
the kernels run on this CPU by `cuda_on_cpu.h`. It prints, as JSON, why each scene failed; None
where it went well. Tensors are in main memory, so what PyTorch says of CUDA is played, too.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import test_cuda_gated
import test_cuda_scan
import torch
from helpers.agreement import assert_close, recur_readably
from helpers.cuda_program import compile_fibers, compile_kernel

from eigensweep.models.recurrence.cuda import gated, kernels, scan
from eigensweep.models.recurrence.native.gated import Cell
from eigensweep.models.recurrence.ungated import recur
from eigensweep.training.errors import is_of_the_device, is_out_of_memory

HERE = Path(__file__).parent
OUT_OF_MEMORY, LAUNCH_FAILED = 2, 719
STREAM = 77


def build_driver(folder: Path) -> Path:
    """Return the stand-in, compiled."""
    library = folder / "libcuda.so.1"
    name = "-Wl,-soname,libcuda.so.1"
    source = str(HERE / "stand_in_driver.c")
    command = ["gcc", "-O1", "-fPIC", "-shared", name, source, "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


FOLDER = Path(sys.argv[1])
DRIVER = ctypes.CDLL(str(build_driver(FOLDER)), mode=ctypes.RTLD_GLOBAL)
DRIVER.stand_in_told.restype = ctypes.c_char_p

SIZE = 19
CELLS = ("lstm", "lstm diagonal", "lstm full", "gru", "gru cho", "goru", "cornn", "lem")


def load_cubin(cache, source, definitions, architecture):
    """Return, in place of device code, the path of a program for this CPU."""
    assert architecture == "sm_90"
    library = compile_kernel(source, list(definitions.items()), FOLDER)
    return library.encode() + b"\0"


def told() -> list[str]:
    """Return the calls of the driver since this was last asked."""
    lines = DRIVER.stand_in_told().decode().splitlines()
    DRIVER.stand_in_forget()
    return lines


def launches() -> list[str]:
    return [line for line in told() if line.startswith("cuLaunchKernel")]


def forget() -> None:
    """Let everything be loaded and asked anew."""
    for known in (
        *(kernels.load_kernel, kernels._context_of, scan._is_loaded, scan._count_clusters),
        *(gated._is_loaded, gated._count_clusters),
    ):
        known.cache_clear()
    told()


def scene_scan(n: int, activation: str) -> None:
    x, leaves = test_cuda_scan.draw(n, batch=5, steps=4)
    assert_close(
        test_cuda_scan.results(recur, x, leaves, activation=activation, backend="cuda"),
        test_cuda_scan.results(recur_readably, x, leaves, activation=activation),
        1e-4,
    )
    assert len(launches()) == 2


def scene_pairs() -> None:
    x, leaves = test_cuda_scan.draw_pairs(6)
    options = {"activation": "smoothed_modrelu"}
    assert_close(
        test_cuda_scan.results(recur, x, leaves, backend="cuda", **options),
        test_cuda_scan.results(recur, x, leaves, backend="torch", **options),
        1e-4,
    )
    assert len(launches()) == 2


def scene_cell(name: str) -> None:
    test_cuda_gated.check(test_cuda_gated.KINDS[name], (4, 5, SIZE, 3, 2), "symbols", "last")
    assert len(launches()) == 2


def scene_lanes() -> None:
    x, leaves = test_cuda_scan.draw(SIZE)
    W = torch.stack([leaves[1].detach(), 0.5 * leaves[1].detach()])
    U, _, b, V, c, h0 = (leaf.detach() for leaf in leaves)

    def one(W, backend="cuda"):
        return recur(x, U, W, b, V, c, h0=h0, activation="tanh", backend=backend)[0]

    assert_close(torch.vmap(one)(W), [one(each, "torch") for each in W], 1e-4)


def scene_stream() -> None:
    """PyTorch's current stream is the one that kernels are launched on, forward and backward."""
    with mock.patch.object(torch.cuda, "current_stream", return_value=stream(STREAM)):
        scene_scan(SIZE, "tanh")
        x, leaves = test_cuda_scan.draw(SIZE)
        told()
        test_cuda_scan.results(recur, x, leaves, activation="tanh", backend="cuda")
    found = launches()
    assert len(found) == 2
    assert all(f"stream={STREAM} " in line for line in found), found


def scene_clusters() -> None:
    """How many clusters run at once is the driver's answer, and decides how many rows they take."""
    x, leaves = test_cuda_scan.draw(250, batch=5, steps=2)
    test_cuda_scan.results(recur, x, leaves, activation="leaky_relu", backend="cuda")
    found = [line for line in launches() if "threads=512" in line]
    assert all("blocks=2 " in line for line in found), found  # one cluster of two blocks at once


def scene_devices() -> None:
    """A device's kernel is loaded and launched in its own context, also from the other one's."""
    shape = scan.ScanShape(SIZE, 1, 1, False, "identity")
    for number in (0, 1):
        W = torch.eye(SIZE).expand(1, SIZE, SIZE).contiguous()
        Y = torch.ones(1, 3, 1, SIZE)
        there = SimpleNamespace(data_ptr=W.data_ptr, device=torch.device("cuda", number))
        scan.launch(shape, Y, Y, there, torch.zeros(1, SIZE), torch.zeros(0))
        assert Y[0, 2, 0].tolist() == [3.0] * SIZE
        assert f"device={number}" in launches()[0]


def scene_failing(call: str, status: int, is_of: Callable[[BaseException], bool]) -> None:
    """A call that fails is read rightly, leaves no context behind, and may go well later."""
    in_gated = call == "cuFuncSetAttribute"
    forget()
    DRIVER.stand_in_fail(call.encode(), status)
    caught = None
    try:
        load_and_run(in_gated)
    except RuntimeError as error:
        caught = error
    assert caught is not None, f"{call} failed, and nobody noticed"
    assert is_of(caught), caught
    assert DRIVER.stand_in_depth() == 0
    load_and_run(in_gated)
    forget()


def scene_refusing() -> None:
    """A driver that takes no kernel leaves the size to the loop, with a line of log."""
    forget()
    DRIVER.stand_in_fail(b"cuModuleLoadData", LAUNCH_FAILED)
    assert not scan._is_loaded(SIZE, "tanh", 0)
    assert DRIVER.stand_in_depth() == 0
    forget()


@mock.patch.object(scan, "ROWS", (1, 2))
@mock.patch.object(kernels, "ROWS", (1, 2))
def load_and_run(in_gated: bool) -> None:
    """Do what the first step of a network does: load all kernels of its size, and run them."""
    if in_gated:
        assert gated._is_loaded(Cell.GRU, SIZE, 0)
        return
    assert scan._is_loaded(SIZE, "tanh", 0)
    x, leaves = test_cuda_scan.draw(SIZE)
    test_cuda_scan.results(recur, x, leaves, activation="tanh", backend="cuda")


def stream(number: int) -> SimpleNamespace:
    return SimpleNamespace(cuda_stream=number)


CALLS = (
    *("cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction"),
    *("cuFuncSetAttribute", "cuLaunchKernel"),
)
SCENES = {
    "scan": lambda: scene_scan(50, "modrelu"),
    "scan in clusters": lambda: scene_scan(250, "leaky_relu"),
    "scan of pairs": scene_pairs,
    **{name: lambda name=name: scene_cell(name) for name in CELLS},
    "lanes": scene_lanes,
    "stream": scene_stream,
    "clusters": scene_clusters,
    "two devices": scene_devices,
    **{
        f"no memory in {call}": lambda call=call: scene_failing(
            call, OUT_OF_MEMORY, is_out_of_memory
        )
        for call in CALLS
    },
    "a dead device": lambda: scene_failing("cuLaunchKernel", LAUNCH_FAILED, is_of_the_device),
    "a driver that refuses a kernel": scene_refusing,
}
PLAYED = (
    mock.patch.object(kernels, "load_cubin", load_cubin),
    mock.patch.object(kernels, "count_processors", return_value=4),
    mock.patch.object(kernels, "_number_of", lambda device: device.index or 0),
    mock.patch.object(torch.cuda, "init"),
    mock.patch.object(torch.cuda, "current_stream", return_value=SimpleNamespace(cuda_stream=0)),
    mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=False),
    mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
    mock.patch.object(scan, "is_available", return_value=True),
    mock.patch.object(gated, "is_available", return_value=True),
)


def compile_ahead() -> None:
    """Compile what the scenes need side by side, since that takes most of the time."""
    sizes = {(50, 2, "modrelu"), (250, 5, "leaky_relu"), (6, 2, "smoothed_modrelu")}
    sizes |= {(SIZE, 1, "identity"), (SIZE, 1, "tanh"), (SIZE, 2, "tanh")}
    cells = {(cell, 2) for cell in Cell} | {(Cell.GRU, 1)}
    jobs = []
    for is_backward in (False, True):
        for n, rows, activation in sizes:
            shape = scan.ScanShape(n, rows, scan.count_blocks(n), is_backward, activation)
            jobs.append((scan.SOURCE, shape.definitions))
        for cell, rows in cells:
            gate = gated.GatedShape(cell, SIZE, rows, 1, is_backward)
            jobs.append((gated.SOURCE, gate.definitions(227 << 10)))
    compile_fibers(FOLDER)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda job: load_cubin(None, job[0], dict(job[1]), "sm_90"), jobs))


def main() -> None:
    for each in PLAYED:
        each.start()
    compile_ahead()
    answers = {}
    for name, scene in SCENES.items():
        told()
        try:
            scene()
        except Exception:
            answers[name] = traceback.format_exc()
        else:
            answers[name] = None
    print("\n" + json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
