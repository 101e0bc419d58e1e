// The fibers of cuda_on_cpu.h, which says how they take turns.
#undef _FORTIFY_SOURCE  // its longjmp refuses another fiber's stack
#include "cuda_on_cpu.h"
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <utility>
#include <vector>

namespace fibers {
constexpr int STACK = 64 << 10;
struct Sent { float* place; MBarrier* barrier; float value; };

Index thread, block;
int current;
static int blocks, first_block, turn;  // fibers take turns upwards, or downwards by -1

// A place to go on from. setjmp makes no call of the system, as swapcontext does at each turn.
struct Fiber { ucontext_t start; jmp_buf left; bool began; };
static jmp_buf outside;
static std::vector<Fiber> all;
static std::vector<float> offered;
static std::vector<int> meeting;  // of each fiber: what it waits at
static std::vector<char> memory;
static std::vector<Wait> waits;  // of each warp
static std::vector<std::pair<MBarrier*, int>> awaited;  // of each warp: a barrier, and a parity
static std::vector<Sent> sent;                          // and not there yet

void fail(const char* why) {
    std::fprintf(stderr, "a GPU would fail here: %s\n", why);
    std::abort();
}
static void resume(int fiber) {
    current = fiber;
    thread = {fiber % BLOCK, 0};
    block = {first_block + fiber / BLOCK, 0};
}
// Go on with a fiber, from its beginning or where it was left.
[[noreturn]] static void enter(int fiber) {
    resume(fiber);
    if (all[fiber].began) _longjmp(all[fiber].left, 1);
    all[fiber].began = true;
    setcontext(&all[fiber].start);
    std::abort();
}
static void turn_to(int next) {
    if (!_setjmp(all[current].left)) enter(next);
}
static int first_of(int warp) { return warp * WARP + (turn > 0 ? 0 : WARP - 1); }
static bool is_last() { return first_of(current / WARP) == current - turn * (WARP - 1); }
// Wait until all fibers of the warp are here; then its first one goes on.
void meet_in_warp(int what) {
    meeting[current] = what;
    if (what != meeting[first_of(current / WARP)]) fail("threads of a warp parted");
    turn_to(is_last() ? first_of(current / WARP) : current + turn);
}
void wait_at(Wait what) {
    meeting[current] = what;
    if (what != meeting[first_of(current / WARP)]) fail("threads of a warp parted");
    if (is_last()) {
        waits[current / WARP] = what;
        if (!_setjmp(all[current].left)) _longjmp(outside, 1);
    } else {
        turn_to(current + turn);
    }
}
static bool all_wait(int block, Wait what) {
    for (int warp = 0; warp < WARPS; ++warp)
        if (waits[block * WARPS + warp] != what) return false;
    return true;
}
static void release(int block) {
    for (int warp = 0; warp < WARPS; ++warp) waits[block * WARPS + warp] = NOTHING;
}
char* of_block(int rank) {
    char* start = memory.data();
    start += -reinterpret_cast<std::size_t>(start) & 63;
    return start + static_cast<std::size_t>(rank) * MOST_SHARED;
}
static int block_of(const void* place) {
    const auto offset = static_cast<const char*>(place) - of_block(0);
    return static_cast<int>(offset / static_cast<long>(MOST_SHARED));
}
static void end_phase_if_complete(MBarrier* barrier) {
    if (barrier->pending || barrier->bytes) return;
    barrier->pending = barrier->arrivals;
    ++barrier->phase;
}
// Let what was sent last come. Return whether there was any.
static bool deliver() {
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
static void release_complete() {
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

Place in_block(float* place, int rank) {
    const auto offset = reinterpret_cast<char*>(place) - fibers::of_block(rank_in_cluster());
    return reinterpret_cast<Place>(fibers::of_block(rank) + offset);
}

void prepare(MBarrier* barrier, int arrivals) { *barrier = {arrivals, arrivals, 0, 0}; }
void arrive(MBarrier* barrier, int bytes) {
    if (--barrier->pending < 0) fibers::fail("more arrivals than a barrier has");
    barrier->bytes += bytes;
    fibers::end_phase_if_complete(barrier);
}
void send(Place place, int further, int barrier, float value) {
    fibers::sent.push_back(
        {place + further, reinterpret_cast<MBarrier*>(place + barrier), value});
    if (fibers::turn > 0) fibers::deliver();
}
void wait_for(MBarrier* barrier, int parity) {
    fibers::awaited[fibers::current / fibers::WARP] = {barrier, parity};
    fibers::wait_at(fibers::OF_PHASE);
}
float from_neighbour(float value, int distance) {
    fibers::offered[fibers::current] = value;
    fibers::meet_in_warp(-1);
    const float theirs = fibers::offered[fibers::current ^ distance];
    fibers::meet_in_warp(-2);
    return theirs;
}

void run_grid(int clusters, int size, void (*kernel)(void*), void* of_it) {
    using namespace fibers;
    static void (*running)(void*);
    static void* its;
    static std::unique_ptr<char[]> stacks;  // never written as a whole: most of it takes no memory
    static std::size_t room;
    running = kernel;
    its = of_it;
    blocks = size;
    const int count = blocks * BLOCK, warps = blocks * WARPS;
    all.resize(count);
    offered.resize(count);
    meeting.resize(count);
    memory.resize(static_cast<std::size_t>(blocks) * MOST_SHARED + 64);
    const auto needed = static_cast<std::size_t>(count) * STACK;
    if (needed > room) stacks.reset(new char[room = needed]);
    for (int cluster = 0; cluster < clusters; ++cluster) {
        first_block = cluster * blocks;
        turn = cluster % 2 ? -1 : 1;
        waits.assign(warps, NOTHING);
        awaited.assign(warps, {});
        std::vector<bool> began(blocks, false);
        for (int i = 0; i < count; ++i) {
            ucontext_t& start = all[i].start;
            all[i].began = false;
            getcontext(&start);
            start.uc_stack.ss_sp = stacks.get() + static_cast<std::size_t>(i) * STACK;
            start.uc_stack.ss_size = STACK;
            makecontext(&start, (void (*)())(+[] {
                running(its);
                if (!is_last()) enter(current + turn);  // in its last turn
                waits[current / WARP] = ENDED;
                _longjmp(outside, 1);
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
            if (!_setjmp(outside)) enter(first_of(next));
        }
    }
}
