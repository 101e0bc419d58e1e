"""What a training process does with memory that was given back."""

import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from eigensweep.training.memory import keep_freed_memory

keep_freed_memory()

def step():
    return [torch.ones(1 << 20) for _ in range(30)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    step()
before = faults()
for _ in range(3):
    step()
print(faults() - before)
"""

IN_THREADS = """
import resource, torch
from threading import Barrier, Thread
from eigensweep.training.memory import use_one_heap

use_one_heap()
together = Barrier(3)

def train():
    for _ in range(24):
        together.wait()
        blocks = [torch.ones(12 << 20), *(torch.ones(1 << 20) for _ in range(30))]
        together.wait()
        del blocks

def step():
    together.wait()
    together.wait()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

threads = [Thread(target=train) for _ in range(2)]
for each in threads:
    each.start()
faults = [step() for _ in range(24)]
print(faults[-1] - faults[11])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is that of Linux")
def test_large_blocks_and_those_of_threads_are_kept():
    run = subprocess.run(
        [sys.executable, "-c", IN_THREADS], check=True, capture_output=True, text=True
    )
    block = (12 << 22) // resource.getpagesize()  # 48 MB: glibc keeps none so large by itself
    assert int(run.stdout) < 1.5 * block


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is that of Linux")
def test_the_memory_of_a_step_is_there_for_the_next_one():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    assert int(run.stdout) < 200
