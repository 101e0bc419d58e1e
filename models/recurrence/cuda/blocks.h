// What the kernels share: barriers and stores for the blocks of a cluster, shared memory, and sums.
//
// The tests run the kernels on a CPU, with their own form of what stands here. CLUSTER, the number
// of blocks in a cluster, is given when a kernel is compiled. SHARED holds up to 48 KB a block, and
// MUCH_SHARED what the launch asks for.
#ifndef ON_CPU
#define SHARED(type, name) __shared__ type name
#define MUCH_SHARED(type, name)                            \
    extern __shared__ __align__(16) char bytes_of_block[]; \
    type& name = *reinterpret_cast<type*>(bytes_of_block)
#if CLUSTER > 1
#define CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERS
#endif

// Return `value` of the thread whose number differs in the bit `distance`, at most 16.
__device__ inline float from_neighbour(float value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}

__device__ inline void meet_in_block() { __syncthreads(); }
__device__ inline void meet_in_warp() { __syncwarp(); }

#if CLUSTER > 1
__device__ inline int rank_in_cluster() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return int(rank);
}

// A place in the shared memory of some block of the cluster.
typedef unsigned Place;

// Return where `place` is in the block with number `rank`.
__device__ inline Place in_block(float* place, int rank) {
    unsigned local = unsigned(__cvta_generic_to_shared(place)), remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
    return remote;
}

// A barrier of all threads of the cluster. What they stored before can be read behind it.
__device__ inline void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A barrier in shared memory. A phase of it ends when all arrivals and all bytes that were expected
// have come. Needs compute capability 9.0, as clusters do.
typedef unsigned long long MBarrier;

// Begin the first phase, 0. Other blocks may send after the cluster has met.
__device__ inline void prepare(MBarrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n"
                 "fence.mbarrier_init.release.cluster;" ::"r"(
                     unsigned(__cvta_generic_to_shared(barrier))),
                 "r"(arrivals)
                 : "memory");
}

// Count one arrival, and expect so many bytes more in this phase.
__device__ inline void arrive(MBarrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     unsigned(__cvta_generic_to_shared(barrier))),
                 "r"(bytes)
                 : "memory");
}

// Store `further` numbers after `place`, some time. Then the barrier that stands `barrier` numbers
// after `place` counts four bytes.
__device__ inline void send(Place place, int further, int barrier, float value) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                     place + 4 * further),
                 "f"(value), "r"(place + 4 * barrier)
                 : "memory");
}

// Wait until a phase has ended: `parity` is its number's. What was sent can be read then. The fence
// is of shared memory alone, and costs no instruction.
__device__ inline void wait_for(MBarrier* barrier, int parity) {
    unsigned is_over;
    do
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(is_over)
                     : "r"(unsigned(__cvta_generic_to_shared(barrier))), "r"(parity)
                     : "memory");
    while (!is_over);
    asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
}
#else
__device__ inline int rank_in_cluster() { return 0; }
typedef float* Place;
__device__ inline Place in_block(float* place, int) { return place; }
__device__ inline void meet() { __syncthreads(); }

// Within one block, its own barrier is enough.
typedef unsigned long long MBarrier;
__device__ inline void prepare(MBarrier*, int) {}
__device__ inline void arrive(MBarrier*, int) {}
__device__ inline void send(Place place, int further, int, float value) { place[further] = value; }
__device__ inline void wait_for(MBarrier*, int) { __syncthreads(); }
#endif
#endif

// Send to the same place of all blocks, where the barrier `came` counts it.
__device__ inline void send_to_all(float* place, MBarrier* came, float value) {
    const int apart = int(reinterpret_cast<float*>(came) - place);
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block) send(in_block(place, block), 0, apart, value);
}

// Arrive for a warp, when all its threads have read what may be overwritten behind the barrier.
__device__ inline void arrive_together(int thread, MBarrier* barrier, int bytes) {
    meet_in_warp();
    if (thread % 32 == 0) arrive(barrier, bytes);
}

constexpr int THREADS = 512;  // of a block

// Adds up sums over the threads that share them. A thread has a slice, of which the bits DISTANCE
// down to above LAST are used here; the threads lie STEP apart. There are COUNT parts of SIZE sums;
// each thread ends with at most LEFT parts, and COPIES of them with the same.
template <int COUNT, int DISTANCE, int LAST, int STEP, int SIZE = 1> struct Sharing {
    static constexpr int HALF = (COUNT + 1) / 2;
    typedef Sharing<HALF, DISTANCE / 2, LAST, STEP, SIZE> Rest;
    static constexpr int LEFT = Rest::LEFT, COPIES = (COUNT == 1 ? 2 : 1) * Rest::COPIES;

    // Tell which parts a slice ends with: `left`, none if it is not positive, from `first` on. It is
    // number `copy` of those that end with the same. Begin with 0, COUNT and 0.
    static __device__ void find(int slice, int& first, int& left, int& copy) {
        const bool upper = slice & DISTANCE;
        if (COUNT == 1)
            copy = 2 * copy + upper;
        else if (upper)
            first += HALF, left -= HALF;
        else if (left > HALF)
            left = HALF;
        Rest::find(slice, first, left, copy);
    }

    static __device__ void run(float* sums, int slice) {
        const bool upper = slice & DISTANCE;
#pragma unroll
        for (int i = 0; i < HALF * SIZE; ++i) {
            constexpr int APART = HALF * SIZE;
            const float low = sums[i], high = APART + i < COUNT * SIZE ? sums[APART + i] : 0.0f;
            if (COUNT == 1)
                sums[i] = low + from_neighbour(low, STEP * DISTANCE);
            else
                sums[i] = (upper ? high : low) + from_neighbour(upper ? low : high, STEP * DISTANCE);
        }
        Rest::run(sums, slice);
    }
};
template <int COUNT, int LAST, int STEP, int SIZE> struct Sharing<COUNT, LAST, LAST, STEP, SIZE> {
    static constexpr int LEFT = COUNT, COPIES = 1;
    static __device__ void find(int, int&, int&, int&) {}
    static __device__ void run(float*, int) {}
};
