// How compiled steps share their work among threads.

#pragma once

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels.h"

namespace {

constexpr double WORTH_A_THREAD = 4e6;  // multiplications

// The first entry of `memory` on a line of cache; 64 bytes more than are wanted must be there.
template <class T> T* aligned(std::vector<T>& memory) {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (64 - address % 64) % 64 / sizeof(T);
}

// Run work(next) in each thread; next() hands out the jobs 0, 1, ... and then -1. Where the system
// has no more threads to give, those there are do the work.
template <class F> void share(long jobs, long threads, F work) {
    std::atomic<long> handed{0};
    const auto next = [&] {
        const long job = handed++;
        return job < jobs ? job : -1;
    };
#if defined(__SSE__)
    const unsigned mode = _mm_getcsr();  // so that every thread treats denormals alike
#endif
    std::vector<std::thread> others;
    others.reserve(std::max(0L, std::min(threads, jobs)));
    try {
        for (long i = 1; i < std::min(threads, jobs); ++i)
            others.emplace_back([&] {
#if defined(__SSE__)
                _mm_setcsr(mode);
#endif
                work(next);
            });
    } catch (const std::system_error&) {
    }
    work(next);
    for (auto& other : others) other.join();
}

// How lanes of a batch are cut into jobs: some rows of one lane each.
struct Jobs {
    const long batch, threads;
    long rows, parts, count;

    Jobs(double multiplications, long lanes, long batch, long most)
        : batch(batch), threads(std::min<long>(most, 1 + multiplications / WORTH_A_THREAD)) {
        const long tiles = (batch + ROWS - 1) / ROWS, wanted = (threads - 1) / lanes + 1;
        rows = ((tiles - 1) / wanted + 1) * ROWS;
        parts = (batch - 1) / rows + 1;
        count = lanes * parts;
    }

    // Call work(job, lane, first row, rows) for all jobs, in some threads.
    template <class F> void run(F work) const {
        share(count, threads, [&](auto next) {
            for (long job = next(); job >= 0; job = next()) {
                const long first = job % parts * rows;
                work(job, job / parts, first, std::min(rows, batch - first));
            }
        });
    }
};

}  // namespace
