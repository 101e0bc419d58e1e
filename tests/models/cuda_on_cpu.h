// Runs a CUDA kernel on a CPU: each thread of a cluster is a fiber, and all take turns.
//
// A fiber runs until it meets a barrier or asks a neighbour for a value; then the next one runs. The
// turns are always in the same order, so giving up the turn is a barrier of the whole cluster.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define ON_CPU
#define __device__
#define __global__
#define __launch_bounds__(...)
#define CLUSTERS

struct alignas(16) float4 { float x, y, z, w; };
struct Index { int x, y; };

namespace fibers {
constexpr int BLOCK = 512, STACK = 64 << 10, SHARED_BYTES = 64 << 10;
inline Index thread, block;
inline int current, count;
inline ucontext_t outside;
inline std::vector<ucontext_t> contexts;
inline std::vector<float> offered;
inline std::vector<char> memory;

inline void turn_to(int next) {
    const int before = current;
    const Index at = block;
    current = next;
    swapcontext(&contexts[before], &contexts[next]);
    thread = {before % BLOCK, 0};
    block = at;
}
inline void yield() { turn_to((current + 1) % count); }
inline char* of_block(int rank) {
    char* start = memory.data();
    start += -reinterpret_cast<std::size_t>(start) & 63;
    return start + static_cast<std::size_t>(rank) * SHARED_BYTES;
}
}  // namespace fibers

#define threadIdx fibers::thread
#define blockIdx fibers::block
#define SHARED(type, name, ...)                                          \
    typedef type name##_type __VA_ARGS__;                                \
    static_assert(sizeof(name##_type) <= fibers::SHARED_BYTES);          \
    auto& name = *reinterpret_cast<name##_type*>(fibers::of_block(rank_in_cluster()))

inline int rank_in_cluster() { return fibers::current / fibers::BLOCK; }
inline void meet() { fibers::yield(); }
inline void store_in_block(float* place, int rank, float value) {
    const auto offset = reinterpret_cast<char*>(place) - fibers::of_block(rank_in_cluster());
    std::memcpy(fibers::of_block(rank) + offset, &value, sizeof value);
}
inline float from_neighbour(float value, int distance) {
    fibers::offered[fibers::current] = value;
    fibers::yield();
    const float theirs = fibers::offered[fibers::current ^ distance];
    fibers::yield();
    return theirs;
}

// Run `kernel` for clusters (0 ... across) x lanes, each of `blocks` blocks.
template <class Kernel> void run_grid(int across, int lanes, int blocks, Kernel kernel) {
    using namespace fibers;
    static Kernel* running;
    static std::vector<char> stacks;
    running = &kernel;
    count = blocks * BLOCK;
    contexts.resize(count);
    offered.assign(count, 0.0f);
    memory.assign(static_cast<std::size_t>(blocks) * SHARED_BYTES + 64, 0);
    stacks.resize(static_cast<std::size_t>(count) * STACK);
    for (int lane = 0; lane < lanes; ++lane)
        for (int cluster = 0; cluster < across; ++cluster) {
            static int at_cluster, at_lane;
            at_cluster = cluster, at_lane = lane;
            for (int i = 0; i < count; ++i) {
                getcontext(&contexts[i]);
                contexts[i].uc_stack.ss_sp = stacks.data() + static_cast<std::size_t>(i) * STACK;
                contexts[i].uc_stack.ss_size = STACK;
                contexts[i].uc_link = i + 1 < count ? &contexts[i + 1] : &outside;
                makecontext(&contexts[i], (void (*)())(+[] {
                    thread = {current % BLOCK, 0};
                    block = {at_cluster * (count / BLOCK) + current / BLOCK, at_lane};
                    (*running)();
                    ++current;  // the next fiber follows in its last turn
                    thread = {current % BLOCK, 0};
                }), 0);
            }
            current = 0;
            swapcontext(&outside, &contexts[0]);
        }
}
