// Runs a CUDA kernel on a CPU: each thread of a cluster is a fiber, and they take turns.
//
// The fibers of a warp go from one meeting to the next together. A warp runs on until it meets a
// barrier, as far ahead of the others as barriers allow. In every second cluster the last warp goes
// first, and in each warp the last fiber: so of two that write to one place, either may be the last.
// Shared memory is NaN when a block begins. So what reads or writes too early makes a wrong result.
// What is sent to an mbarrier comes at once or, in every second cluster, when all warps wait, the
// last first.
// What a device would answer by a hang or a fault ends the process: a barrier that some never reach,
// and a store to a block that has ended.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define ON_CPU
#define __device__
#define __global__
#define __launch_bounds__(...)
#define CLUSTERS

struct alignas(16) float4 { float x, y, z, w; };
struct Index { int x, y; };

namespace fibers {
constexpr int WARP = 32, BLOCK = 512, WARPS = BLOCK / WARP, STACK = 64 << 10;
constexpr std::size_t MOST_SHARED = 227 << 10;
enum Wait { NOTHING, OF_BLOCK, OF_CLUSTER, OF_PHASE, ENDED };

// A barrier in shared memory that counts arrivals and bytes.
struct MBarrier { int arrivals, pending, bytes, phase; };
struct Sent { float* place; MBarrier* barrier; float value; };


inline Index thread, block;
inline int current, blocks, first_block, turn;  // fibers take turns upwards, or downwards by -1
inline ucontext_t outside;
inline std::vector<ucontext_t> contexts;
inline std::vector<float> offered;
inline std::vector<int> meeting;  // of each fiber: what it waits at
inline std::vector<char> memory;
inline std::vector<Wait> waits;  // of each warp
inline std::vector<std::pair<MBarrier*, int>> awaited;  // of each warp: a barrier, and a parity
inline std::vector<Sent> sent;                          // and not there yet

[[noreturn]] inline void fail(const char* why) {
    std::fprintf(stderr, "a GPU would fail here: %s\n", why);
    std::abort();
}
inline void resume(int fiber) {
    current = fiber;
    thread = {fiber % BLOCK, 0};
    block = {first_block + fiber / BLOCK, 0};
}
inline void turn_to(int next) {
    const int self = current;
    resume(next);
    swapcontext(&contexts[self], &contexts[next]);
    resume(self);
}
inline int first_of(int warp) { return warp * WARP + (turn > 0 ? 0 : WARP - 1); }
inline bool is_last() { return first_of(current / WARP) == current - turn * (WARP - 1); }
// Wait until all fibers of the warp are here; then its first one goes on.
inline void meet_in_warp(int what) {
    meeting[current] = what;
    if (what != meeting[first_of(current / WARP)]) fail("threads of a warp parted");
    turn_to(is_last() ? first_of(current / WARP) : current + turn);
}
inline void wait_at(Wait what) {
    meeting[current] = what;
    if (what != meeting[first_of(current / WARP)]) fail("threads of a warp parted");
    if (is_last()) {
        const int self = current;
        waits[self / WARP] = what;
        swapcontext(&contexts[self], &outside);
        resume(self);
    } else {
        turn_to(current + turn);
    }
}
inline bool all_wait(int block, Wait what) {
    for (int warp = 0; warp < WARPS; ++warp)
        if (waits[block * WARPS + warp] != what) return false;
    return true;
}
inline void release(int block) {
    for (int warp = 0; warp < WARPS; ++warp) waits[block * WARPS + warp] = NOTHING;
}
inline char* of_block(int rank) {
    char* start = memory.data();
    start += -reinterpret_cast<std::size_t>(start) & 63;
    return start + static_cast<std::size_t>(rank) * MOST_SHARED;
}
inline int block_of(const void* place) {
    const auto offset = static_cast<const char*>(place) - of_block(0);
    return static_cast<int>(offset / static_cast<long>(MOST_SHARED));
}
inline void end_phase_if_complete(MBarrier* barrier) {
    if (barrier->pending || barrier->bytes) return;
    barrier->pending = barrier->arrivals;
    ++barrier->phase;
}
// Let what was sent last come. Return whether there was any.
inline bool deliver() {
    if (sent.empty()) return false;
    const Sent last = sent.back();
    sent.pop_back();
    if (all_wait(block_of(last.place), ENDED)) fail("a store to a block that has ended");
    if (block_of(last.place) != block_of(last.barrier)) fail("a barrier of another block");
    *last.place = last.value;
    last.barrier->bytes -= 4;
    end_phase_if_complete(last.barrier);
    return true;
}
// Let the barriers that are complete go on.
inline void release_complete() {
    bool whole = true;
    for (int rank = 0; rank < blocks; ++rank) {
        whole = whole && all_wait(rank, OF_CLUSTER);
        if (all_wait(rank, OF_BLOCK)) release(rank);
    }
    for (int warp = 0; warp < blocks * WARPS; ++warp) {
        const auto [barrier, parity] = awaited[warp];
        if (waits[warp] == OF_PHASE && barrier->phase % 2 != parity) waits[warp] = NOTHING;
    }
    if (whole)
        for (int rank = 0; rank < blocks; ++rank) release(rank);
}
}  // namespace fibers

#define threadIdx fibers::thread
#define blockIdx fibers::block
#define SHARED(type, name)                              \
    static_assert(sizeof(type) <= fibers::MOST_SHARED); \
    type& name = *reinterpret_cast<type*>(fibers::of_block(rank_in_cluster()))
#define MUCH_SHARED SHARED

inline int rank_in_cluster() { return fibers::current / fibers::BLOCK; }
inline void meet() { fibers::wait_at(fibers::OF_CLUSTER); }
inline void meet_in_block() { fibers::wait_at(fibers::OF_BLOCK); }
inline void meet_in_warp() { fibers::meet_in_warp(-3); }
typedef float* Place;
inline Place in_block(float* place, int rank) {
    const auto offset = reinterpret_cast<char*>(place) - fibers::of_block(rank_in_cluster());
    return reinterpret_cast<Place>(fibers::of_block(rank) + offset);
}

using fibers::MBarrier;
inline void prepare(MBarrier* barrier, int arrivals) { *barrier = {arrivals, arrivals, 0, 0}; }
inline void arrive(MBarrier* barrier, int bytes) {
    if (--barrier->pending < 0) fibers::fail("more arrivals than a barrier has");
    barrier->bytes += bytes;
    fibers::end_phase_if_complete(barrier);
}
inline void send(Place place, int further, int barrier, float value) {
    fibers::sent.push_back(
        {place + further, reinterpret_cast<MBarrier*>(place + barrier), value});
    if (fibers::turn > 0) fibers::deliver();
}
inline void wait_for(MBarrier* barrier, int parity) {
    fibers::awaited[fibers::current / fibers::WARP] = {barrier, parity};
    fibers::wait_at(fibers::OF_PHASE);
}
inline float from_neighbour(float value, int distance) {
    fibers::offered[fibers::current] = value;
    fibers::meet_in_warp(-1);
    const float theirs = fibers::offered[fibers::current ^ distance];
    fibers::meet_in_warp(-2);
    return theirs;
}

// Run `kernel` for so many clusters, each of `size` blocks.
template <class Kernel> void run_grid(int clusters, int size, Kernel kernel) {
    using namespace fibers;
    static Kernel* running;
    static std::vector<char> stacks;
    running = &kernel;
    blocks = size;
    const int count = blocks * BLOCK, warps = blocks * WARPS;
    contexts.resize(count);
    offered.resize(count);
    meeting.resize(count);
    memory.resize(blocks * MOST_SHARED + 64);
    stacks.resize(static_cast<std::size_t>(count) * STACK);
    for (int cluster = 0; cluster < clusters; ++cluster) {
        first_block = cluster * blocks;
        turn = cluster % 2 ? -1 : 1;
        waits.assign(warps, NOTHING);
        awaited.assign(warps, {});
        std::vector<bool> began(blocks, false);
        for (int i = 0; i < count; ++i) {
            getcontext(&contexts[i]);
            contexts[i].uc_stack.ss_sp = stacks.data() + static_cast<std::size_t>(i) * STACK;
            contexts[i].uc_stack.ss_size = STACK;
            const int last = first_of(i / WARP) + turn * (WARP - 1);
            contexts[i].uc_link = i == last ? &outside : &contexts[i + turn];
            makecontext(&contexts[i], (void (*)())(+[] {
                (*running)();
                if (is_last()) waits[current / WARP] = ENDED;
                resume(current + turn);  // the next fiber of the warp follows in its last turn
            }), 0);
        }
        for (;;) {
            release_complete();
            int next = -1;
            for (int i = 0; i < warps && next < 0; ++i) {
                const int warp = cluster % 2 ? warps - 1 - i : i;
                if (waits[warp] == NOTHING) next = warp;
            }
            if (next < 0 && deliver()) continue;
            if (next < 0) {
                for (int rank = 0; rank < blocks; ++rank)
                    if (!all_wait(rank, ENDED)) fail("a barrier that some threads never reach");
                break;
            }
            if (!began[next / WARPS]) {
                std::memset(of_block(next / WARPS), 0xff, MOST_SHARED);
                began[next / WARPS] = true;
            }
            resume(first_of(next));
            swapcontext(&outside, &contexts[first_of(next)]);
        }
    }
}
