"""Sums that threads of a warp share: each sum ends in one thread, or in several alike."""

import ctypes
from pathlib import Path

import pytest
from helpers.cuda_program import compile_fibers, compile_once

from eigensweep.models.recurrence.cuda.scan import SOURCE

PROGRAM = """
#define CLUSTER 1
#include "cuda_on_cpu.h"
#include "blocks.h"
#include <vector>

// Return how many of COUNT sums end other than once, or wrong, in some group of threads.
template <int COUNT, int SLICES, int STEP> int wrong_sums() {
    typedef Sharing<COUNT, SLICES / 2, 0, STEP> Shares;
    std::vector<int> ended(THREADS / SLICES * COUNT), copies(ended);
    run_grid(2, 1, [&] {
        const int thread = threadIdx.x, slice = thread / STEP % SLICES;
        const int group = thread / (STEP * SLICES) * STEP + thread % STEP;
        float sums[COUNT];
        for (int i = 0; i < COUNT; ++i) sums[i] = (i + 1) * (slice + 1);
        int first = 0, left = COUNT, copy = 0;
        Shares::find(slice, first, left, copy);
        Shares::run(sums, slice);
        for (int e = 0; e < Shares::LEFT && e < left; ++e) {
            const int i = first + e;
            if (sums[e] != (i + 1) * SLICES * (SLICES + 1) / 2) continue;
            ended[group * COUNT + i] += copy == 0;
            copies[group * COUNT + i] += 1 << copy;
        }
    });
    int wrong = 0;
    for (int times : ended) wrong += times != 2;  // once in each cluster
    for (int bits : copies) wrong += bits != 2 * ((1 << Shares::COPIES) - 1);
    return wrong;
}
template <int COUNT> int wrong_of() {
    if constexpr (COUNT == 0) return 0;
    else return wrong_sums<COUNT, 8, 2>() + wrong_sums<COUNT, 16, 2>() +
                wrong_sums<COUNT, 32, 1>() + wrong_of<COUNT - 1>();
}
extern "C" __attribute__((visibility("default"))) int run() { return wrong_of<24>(); }
"""


@pytest.fixture
def program(kernels_folder):
    source = kernels_folder / "sums.cpp"
    source.write_text(PROGRAM)
    folders = (f"-I{Path(__file__).parent}", f"-I{SOURCE.parent}")
    words = ("-O0", "-shared", *folders, str(source), compile_fibers(kernels_folder))
    return ctypes.CDLL(compile_once(kernels_folder / "sums.so", *words))


def test_each_sum_ends_once_whatever_their_number(program):
    assert program.run() == 0
