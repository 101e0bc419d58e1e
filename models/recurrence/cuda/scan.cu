// The recurrence of an ungated network as one persistent kernel, forward or backward.
//
//   forward   Y[t] = f(Y[t] + W Y[t-1]; b)                for t = 1 ... steps
//   backward  Y[t] = f'(H[t+1]) * (Y[t] + Wᵀ Y[t+1])      for t = steps-1 ... 0
//
// Y and H are (lanes, steps + 1, batch, ROW), W is (lanes, N, N), b is (lanes, N). On entry Y holds
// U x_t (forward) or what else reaches the state (backward), and at its first or last step the
// state that the scan starts from.
//
// Complex networks have PAIRED units: 2i and 2i + 1 are real and imaginary part of one. A row is
// then h and behind it z = U x_t + W h_{t-1}, and U x_t is expected in the place of z. The backward
// pass also adds up dL/db over the steps, into sums (lanes, batch, N).
//
// A cluster of CLUSTER blocks owns ROWS rows of one lane's batch for all time steps. Each block
// computes N / CLUSTER units and keeps its part of the matrix in registers: 8 threads share one
// unit. The state of the last step is in shared memory, twice, so that one barrier a step is
// enough. Clusters never wait for one another.
//
// Given when it is compiled: N, ROWS, CLUSTER, BACKWARD (0 or 1) and ACTIVATION (an index of
// KERNELS in scan.py). Never compile with --use_fast_math: NaN and infinity pass through.

#include "blocks.h"

#define PAIRED (ACTIVATION >= 5)

constexpr int ROW = PAIRED ? 2 * N : N;
constexpr int SLICES = 8;                 // threads that share a unit
constexpr int GROUPS = THREADS / SLICES;  // units that a block computes side by side
constexpr int OWN = (N + 2 * CLUSTER - 1) / (2 * CLUSTER) * 2;  // units of a block, whole pairs
constexpr int UNITS = (OWN + GROUPS - 1) / GROUPS;       // units of a thread
constexpr int DEPTH = (N + 4 * SLICES - 1) / (4 * SLICES) * (4 * SLICES);  // N, padded by zeros
constexpr int HELD = DEPTH / SLICES;                     // entries of a unit's row in one thread
constexpr int SUMS = ROWS * UNITS;                       // sums that 8 threads share
constexpr int ENDS = (SUMS + SLICES - 1) / SLICES;       // sums that one thread finishes

struct Shared {
    alignas(16) float state[2][ROWS][DEPTH];
};

struct Numbers {
    float leak;                  // slope of leaky ReLU below zero
    float inside, shift, below;  // of paired units: see Form in complex_reference.py
};

#if PAIRED
__device__ inline float size_of(float z, float other, Numbers given) {
    return sqrtf(z * z + other * other + given.inside) + given.shift;
}

__device__ inline float activate(float z, float other, float b, Numbers given) {
    const float size = size_of(z, other, given), kept = size + b;
    return z * ((kept < 0.0f ? 0.0f : kept) / (size + given.below));
}

// Return dL/dz; add this unit's half of dL/db to `sum`. `g` and `z` are the unit's own.
__device__ inline float slope_times(float g, float other_g, float z, float other_z, float b,
                                    Numbers given, float& sum) {
    const float size = size_of(z, other_z, given), length = size - given.shift;
    const float inverse = (size + b > 0.0f ? 1.0f : 0.0f) / (size + given.below);
    const float along = g * z + other_g * other_z;
    const float turn = length <= 0.0f ? 0.0f : (given.below - b) * inverse * inverse / length;
    sum += 0.5f * along * inverse;
    return g * ((size + b) * inverse) + z * (along * turn);
}
#else
__device__ inline float activate(float z, float b, float leak) {
#if ACTIVATION == 0  // modReLU
    const float size = fabsf(z) + b;
    return z == 0.0f || size < 0.0f ? 0.0f : copysignf(size, z);
#elif ACTIVATION == 1  // tanh
    return tanhf(z + b);
#elif ACTIVATION == 2  // relu
    return z + b < 0.0f ? 0.0f : z + b;
#elif ACTIVATION == 3  // identity
    return z + b;
#else  // leaky relu
    return z + b > 0.0f ? z + b : (z + b) * leak;
#endif
}

__device__ inline float slope_times(float g, float h, float leak) {
#if ACTIVATION == 0
    return h == 0.0f ? 0.0f : g;
#elif ACTIVATION == 1
    return g - g * h * h;
#elif ACTIVATION == 2
    return h <= 0.0f ? 0.0f : g;
#elif ACTIVATION == 3
    return g;
#else
    return h > 0.0f ? g : g * leak;
#endif
}
#endif

extern "C" __global__ void CLUSTERS __launch_bounds__(THREADS, 1)
scan(float* Y, const float* H, const float* W, const float* b, float* sums_of_b, long long lane_Y,
     long long lane_H, int steps, int batch, float leak, float inside, float shift, float below) {
    const Numbers given = {leak, inside, shift, below};
    SHARED(Shared, shared);
    auto& state = shared.state;
    const int thread = threadIdx.x, slice = thread % SLICES, group = thread / SLICES;
    const int rank = rank_in_cluster(), cluster = blockIdx.x / CLUSTER;
    const int clusters_of_lane = (batch + ROWS - 1) / ROWS, lane = cluster / clusters_of_lane;
    const int first_row = cluster % clusters_of_lane * ROWS;
    Y += lane * lane_Y;
    H += lane * lane_H;
    W += (long long)lane * N * N;
    b += (long long)lane * N;

    float w[UNITS][HELD];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int own = u * GROUPS + group, unit = rank * OWN + own;
        const bool is_there = own < OWN && unit < N;
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int k = 4 * (slice + SLICES * (i / 4)) + i % 4;
            w[u][i] = is_there && k < N ? W[BACKWARD ? k * N + unit : unit * N + k] : 0.0f;
        }
    }

    // What this thread finishes: some of the sums that it shares with its seven neighbours.
    int row[ENDS], unit[ENDS];
    bool mine[ENDS];
    float bias[ENDS], coming[ENDS], made[ENDS], gained[ENDS];
    const long long step = (long long)batch * ROW;
    const int from = BACKWARD ? steps : 0, to = BACKWARD ? -1 : steps + 1, ahead = BACKWARD ? -1 : 1;
#pragma unroll
    for (int e = 0; e < ENDS; ++e) {
        const int sum = e * SLICES + slice, own = sum % UNITS * GROUPS + group;
        row[e] = sum / UNITS;
        unit[e] = rank * OWN + own;
        mine[e] = sum < SUMS && own < OWN && unit[e] < N && first_row + row[e] < batch;
        bias[e] = mine[e] ? b[unit[e]] : 0.0f;
        coming[e] = made[e] = gained[e] = 0.0f;
    }
    constexpr int Z = PAIRED ? N : 0;  // where z stands in a row
    const auto place = [&](int t, int e) {
        return t * step + (long long)(first_row + row[e]) * ROW + unit[e];
    };
    const auto fetch = [&](int t) {
#pragma unroll
        for (int e = 0; e < ENDS; ++e)
            if (mine[e]) {
                coming[e] = Y[place(t, e) + (BACKWARD ? 0 : Z)];
                if (BACKWARD) made[e] = H[place(t + 1, e) + Z];
            }
    };

    for (int i = thread; i < ROWS * DEPTH; i += THREADS) {
        const int r = i / DEPTH, k = i % DEPTH;
        const bool is_there = k < N && first_row + r < batch;
        state[0][r][k] = is_there ? Y[from * step + (long long)(first_row + r) * ROW + k] : 0.0f;
        state[1][r][k] = 0.0f;
    }
    if (steps > 0) fetch(from + ahead);
    meet();

    int now = 0;
    for (int t = from + ahead; t != to; t += ahead, now ^= 1) {
        float in[ENDS], h[ENDS];
#pragma unroll
        for (int e = 0; e < ENDS; ++e) in[e] = coming[e], h[e] = made[e];
        if (t + ahead != to) fetch(t + ahead);  // arrives while this step is computed

        float sums[SUMS];
#pragma unroll
        for (int s = 0; s < SUMS; ++s) sums[s] = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; i += 4) {
            const int k = 4 * (slice + SLICES * (i / 4));
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float4 v = *reinterpret_cast<const float4*>(&state[now][r][k]);
#pragma unroll
                for (int u = 0; u < UNITS; ++u)
                    sums[r * UNITS + u] += w[u][i] * v.x + w[u][i + 1] * v.y + w[u][i + 2] * v.z +
                                           w[u][i + 3] * v.w;
            }
        }
#pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            sums[s] += from_neighbour(sums[s], 1);
            sums[s] += from_neighbour(sums[s], 2);
            sums[s] += from_neighbour(sums[s], 4);
        }
#pragma unroll
        for (int e = 0; e < ENDS; ++e) {
            float sum = 0.0f;
#pragma unroll
            for (int k = 0; k < SLICES; ++k)
                if (k == slice && e * SLICES + k < SUMS) sum = sums[e * SLICES + k];
            const float z = in[e] + sum;
#if PAIRED  // the other unit of the pair is one group further, or one before
            const float other = from_neighbour(z, SLICES);
#if BACKWARD
            const float other_h = from_neighbour(h[e], SLICES);
            const float y = slope_times(z, other, h[e], other_h, bias[e], given, gained[e]);
#else
            const float y = activate(z, other, bias[e], given);
            if (mine[e]) Y[place(t, e) + Z] = z;
#endif
#else
            const float y = BACKWARD ? slope_times(z, h[e], leak) : activate(z, bias[e], leak);
#endif
            if (!mine[e]) continue;
            Y[place(t, e)] = y;
            store_in_all_blocks(&state[now ^ 1][row[e]][unit[e]], y);
        }
        meet();
    }
#if PAIRED && BACKWARD
#pragma unroll
    for (int e = 0; e < ENDS; ++e)
        if (mine[e])
            sums_of_b[((long long)lane * batch + first_row + row[e]) * N + unit[e]] = gained[e];
#endif
}
