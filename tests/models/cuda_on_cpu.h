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
//
// What stands here is read once for each kernel, so it is short, and needs no header of C++. The
// rest is compiled once, in cuda_on_cpu.cpp.
#pragma once

#define ON_CPU
#define __device__
#define __global__
#define __launch_bounds__(...)
#define CLUSTERS

extern "C" {
float copysignf(float, float) noexcept, expf(float) noexcept, fabsf(float) noexcept;
float fmaf(float, float, float) noexcept, sqrtf(float) noexcept, tanhf(float) noexcept;
}
struct alignas(16) float4 { float x, y, z, w; };
struct Index { int x, y; };

namespace fibers {
constexpr int WARP = 32, BLOCK = 512, WARPS = BLOCK / WARP, MOST_SHARED = 227 << 10;
enum Wait { NOTHING, OF_BLOCK, OF_CLUSTER, OF_PHASE, ENDED };

// A barrier in shared memory that counts arrivals and bytes.
struct MBarrier { int arrivals, pending, bytes, phase; };

extern Index thread, block;
extern int current;
[[noreturn]] void fail(const char* why);
void meet_in_warp(int what);  // wait until all fibers of the warp are here
void wait_at(Wait what);
char* of_block(int rank);
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
Place in_block(float* place, int rank);

using fibers::MBarrier;
void prepare(MBarrier* barrier, int arrivals);
void arrive(MBarrier* barrier, int bytes);
void send(Place place, int further, int barrier, float value);
void wait_for(MBarrier* barrier, int parity);
float from_neighbour(float value, int distance);

// Run `kernel` for so many clusters, each of `size` blocks.
void run_grid(int clusters, int size, void (*kernel)(void*), void* of_it);
template <class Kernel> void run_grid(int clusters, int size, Kernel kernel) {
    run_grid(clusters, size, [](void* its) { (*static_cast<Kernel*>(its))(); }, &kernel);
}

// Call a kernel with the values at these places.
namespace fibers {
template <int... i> struct Numbers {};
template <int count, int... i> struct Count : Count<count - 1, count - 1, i...> {};
template <int... i> struct Count<0, i...> : Numbers<i...> {};
template <class... Types, int... i>
void call(void (*kernel)(Types...), void** places, Numbers<i...>) {
    kernel(*static_cast<Types*>(places[i])...);
}
template <class... Types> void call(void (*kernel)(Types...), void** places) {
    call(kernel, places, Count<sizeof...(Types)>());
}
}  // namespace fibers
