"""What a training process does with memory that was given back."""

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is that of Linux")
def test_the_memory_of_a_step_is_there_for_the_next_one():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    assert int(run.stdout) < 200
