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

IN_A_THREAD = """
import resource, torch
from threading import Thread
from eigensweep.training.memory import use_one_heap

use_one_heap()
found = []

def train():
    for _ in range(60):
        block = torch.ones(12 << 20)
        del block
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

thread = Thread(target=train)
thread.start()
thread.join()
print(found[-1] - found[39])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is that of Linux")
def test_a_large_block_of_a_thread_is_kept():
    run = subprocess.run(
        [sys.executable, "-c", IN_A_THREAD], check=True, capture_output=True, text=True
    )
    block = (12 << 22) // resource.getpagesize()  # 48 MB: glibc keeps none so large by itself
    assert int(run.stdout) < 4 * block, "of the last twenty blocks"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is that of Linux")
def test_the_memory_of_a_step_is_there_for_the_next_one():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    assert int(run.stdout) < 200
