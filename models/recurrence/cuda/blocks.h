// What the kernels share: a barrier and stores for the blocks of a cluster, and shared memory.
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

#if CLUSTER > 1
__device__ inline int rank_in_cluster() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return int(rank);
}

// Store where `place`, in shared memory, is in the block with number `rank`.
__device__ inline void store_in_block(float* place, int rank, float value) {
    unsigned local = unsigned(__cvta_generic_to_shared(place)), remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
}

// A barrier of all threads of the cluster. What they stored before can be read behind it.
__device__ inline void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#else
__device__ inline int rank_in_cluster() { return 0; }
__device__ inline void store_in_block(float* place, int, float value) { *place = value; }
__device__ inline void meet() { __syncthreads(); }
#endif
#endif

__device__ inline void store_in_all_blocks(float* place, float value) {
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block) store_in_block(place, block, value);
}

constexpr int THREADS = 512;  // of a block
