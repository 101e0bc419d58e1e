// The recurrence of an ungated network as one persistent kernel, forward or backward.
//
//   forward   Y[t] = f(Y[t] + W Y[t-1]; b)                for t = 1 ... steps
//   backward  Y[t] = f'(H[t+1]) * (Y[t] + Wᵀ Y[t+1])      for t = steps-1 ... 0
//
// Y and H are (lanes, steps + 1, batch, ROW), W is (lanes, N, N), b is (lanes, N). On entry Y holds
// U x_t (forward) or what else reaches the state (backward), and at its first or last step the
// state that the scan starts from.
//
// The backward pass also adds up dL/db over the steps, into sums (lanes, batch, N), of which the sum
// over the batch is meant: one row may hold the part of several.
//
// Complex networks have PAIRED units: 2i and 2i + 1 are real and imaginary part of one. A row is
// then h and behind it z = U x_t + W h_{t-1}, and U x_t is expected in the place of z.
//
// A cluster of CLUSTER blocks owns ROWS rows of one lane's batch for all time steps. Each block
// computes N / CLUSTER units and keeps its part of the matrix in registers: SLICES threads share
// one unit. Two neighbours of a warp have the same slice of two units, so they read the same states,
// which costs shared memory one read. The state of the last step is in shared memory, twice, so
// that one barrier a step is enough. Clusters never wait for one another.
//
// Blocks of a cluster send what they make to each other's shared memory, where an mbarrier counts
// the bytes: no block waits until its stores to global memory can be seen, as a barrier of the
// cluster would. A block that has all states of a step knows that all warps with units have read the
// step before, so that their half may be written again.
//
// Given when it is compiled: N, ROWS, CLUSTER, BACKWARD (0 or 1) and ACTIVATION (an index of
// KERNELS in scan.py). Never compile with --use_fast_math: NaN and infinity pass through.

#include "blocks.h"

#define PAIRED (ACTIVATION >= 5)

constexpr int ROW = PAIRED ? 2 * N : N;
constexpr int OWN = (N + 2 * CLUSTER - 1) / (2 * CLUSTER) * 2;  // units of a block, whole pairs

__device__ constexpr int up(int number, int step) { return (number + step - 1) / step; }

// Cycles that a row takes: of the arithmetic, and of the reads of shared memory, of which a warp
// takes two for sixteen bytes a thread. `slices` threads share a unit.
__device__ constexpr int cycles(int slices) {
    const int pieces = up(N, 4 * slices), reads = 32 * pieces;
    const int products = 16 * pieces * up(OWN, THREADS / slices);
    return products < reads ? reads : products;
}
constexpr int SLICES = cycles(16) < cycles(8) ? 16 : 8;  // threads that share a unit
constexpr int SIDE = 2;                                  // neighbours that read the same states
constexpr int GROUPS = THREADS / SLICES;                 // units that a block computes side by side
constexpr int UNITS = up(OWN, GROUPS);                   // units of a thread
constexpr int DEPTH = up(N, 4 * SLICES) * 4 * SLICES;    // N, padded by zeros
constexpr int HELD = DEPTH / SLICES;                     // entries of a unit's row in one thread

// The sums of all rows and units are shared out: rows first, then units. So a thread finishes one
// unit of some rows. Where several have the same sum, they send it to different blocks.
constexpr int distance_of_units() {
    int distance = SLICES / 2;
    for (int rows = ROWS; rows > 1 && distance >= UNITS; rows = (rows + 1) / 2) distance /= 2;
    return distance;
}
constexpr int MIDDLE = distance_of_units();
typedef Sharing<ROWS, SLICES / 2, MIDDLE, SIDE, UNITS> OverRows;
typedef Sharing<UNITS, MIDDLE, 0, SIDE> OverUnits;
static_assert(OverRows::COPIES == 1 && OverUnits::LEFT == 1);
constexpr int ENDS = OverRows::LEFT;  // rows of which one thread finishes a unit
constexpr int SENDERS = OverUnits::COPIES < CLUSTER ? OverUnits::COPIES : CLUSTER;
// A step more between load and use, where registers are left for it.
constexpr bool FURTHER = ENDS == 1 || (ENDS == 2 && ROWS <= 4);

// The states of one step, and the barrier that tells when all blocks have sent them.
struct Step {
    alignas(16) float state[ROWS][DEPTH];
    alignas(16) MBarrier came;
};
struct Shared {
    Step halves[2];
};
constexpr int APART = sizeof(Step) / sizeof(float);  // of the halves

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

// Return the part of dL/db, where `dz` is dL/dz.
__device__ inline float slope_of_b(float dz, float h) {
    return ACTIVATION == 0 && h < 0.0f ? -dz : dz;
}
#endif

extern "C" __global__ void CLUSTERS __launch_bounds__(THREADS, 1)
scan(float* Y, const float* H, const float* W, const float* b, float* sums_of_b, long long lane_Y,
     long long lane_H, int steps, int batch, float leak, float inside, float shift, float below) {
    const Numbers given = {leak, inside, shift, below};
    SHARED(Shared, shared);
    Step* const halves = shared.halves;
    const int thread = threadIdx.x, slice = thread / SIDE % SLICES;
    const int group = thread / (SIDE * SLICES) * SIDE + thread % SIDE;
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

    // What this thread finishes: a unit in `valid` rows.
    int row = 0, valid = ROWS, none = 0, unit_of_group = 0, units_left = UNITS, copy = 0;
    OverRows::find(slice, row, valid, none);
    OverUnits::find(slice, unit_of_group, units_left, copy);
    const int own = unit_of_group * GROUPS + group, unit = rank * OWN + own;
    if (batch - first_row - row < valid) valid = batch - first_row - row;
    if (units_left <= 0 || copy >= SENDERS || own >= OWN || unit >= N) valid = 0;
    const int of = (first_row + row) * ROW + unit;  // where its first row stands in a step of Y
    const float bias = valid > 0 ? b[unit] : 0.0f;
    float gained = 0.0f;
    const int to_came = (ROWS - row) * DEPTH - unit;  // from a state to the barrier behind all
    Place to[CLUSTER / SENDERS];
#pragma unroll
    for (int i = 0; i < CLUSTER / SENDERS; ++i)
        to[i] = in_block(&halves[0].state[row][unit], i * SENDERS + copy);

    // The step at hand, and what is fetched ahead for the next ones: a load takes about as long as
    // a step.
    constexpr int Z = PAIRED ? N : 0;  // where z stands in a row
    const long long step = (long long)batch * ROW, stride = BACKWARD ? -step : step;
    const int from = BACKWARD ? steps : 0;
    float* y_here = Y + from * step + stride;
    const float *y_ahead = y_here, *h_ahead = H + from * step;
    float next[ENDS], next_h[ENDS], later[ENDS], later_h[ENDS];
    const auto fetch = [&](float(&coming)[ENDS], float(&made)[ENDS]) {
#pragma unroll
        for (int e = 0; e < ENDS; ++e)
            if (e < valid) {
                coming[e] = y_ahead[of + e * ROW + (BACKWARD ? 0 : Z)];
                if (BACKWARD) made[e] = h_ahead[of + e * ROW + Z];
            }
        y_ahead += stride, h_ahead += stride;
    };

    for (int i = thread; i < ROWS * DEPTH; i += THREADS) {
        const int r = i / DEPTH, k = i % DEPTH;
        const bool is_there = k < N && first_row + r < batch;
        halves[0].state[r][k] =
            is_there ? Y[from * step + (long long)(first_row + r) * ROW + k] : 0.0f;
        halves[1].state[r][k] = 0.0f;
    }
    // Each warp arrives in each step, and each unit of each row is sent once to each block.
    const int rows = batch - first_row < ROWS ? batch - first_row : ROWS;
    const int bytes = thread == 0 ? 4 * N * rows : 0;
    if (thread < 2) prepare(&halves[thread].came, THREADS / 32);
#pragma unroll
    for (int e = 0; e < ENDS; ++e) next[e] = next_h[e] = later[e] = later_h[e] = 0.0f;
    if (steps > 0) fetch(next, next_h);
    if (FURTHER && steps > 1) fetch(later, later_h);
    meet();

    int now = 0;  // where the states of the last step are: in the first half, or second
    for (int ahead = steps; ahead > 0; --ahead) {
        float in[ENDS], h[ENDS];
#pragma unroll
        for (int e = 0; e < ENDS; ++e) in[e] = next[e], h[e] = next_h[e];
        if (FURTHER) {
#pragma unroll
            for (int e = 0; e < ENDS; ++e) next[e] = later[e], next_h[e] = later_h[e];
            if (ahead > 2) fetch(later, later_h);
        } else if (ahead > 1) {
            fetch(next, next_h);
        }

        float sums[ROWS * UNITS];
#pragma unroll
        for (int s = 0; s < ROWS * UNITS; ++s) sums[s] = 0.0f;
        const float* const seen = &halves[0].state[0][0] + now + 4 * slice;
#pragma unroll
        for (int i = 0; i < HELD; i += 4)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float4 v = *reinterpret_cast<const float4*>(seen + r * DEPTH + i * SLICES);
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    float& sum = sums[r * UNITS + u];
                    sum = fmaf(w[u][i], v.x, sum);
                    sum = fmaf(w[u][i + 1], v.y, sum);
                    sum = fmaf(w[u][i + 2], v.z, sum);
                    sum = fmaf(w[u][i + 3], v.w, sum);
                }
            }
        OverRows::run(sums, slice);
#pragma unroll
        for (int e = 0; e < ENDS; ++e) OverUnits::run(sums + e * UNITS, slice);
        now = APART - now;
        MBarrier* const all_came = &halves[now != 0].came;
        if (thread % 32 == 0) arrive(all_came, bytes);
#pragma unroll
        for (int e = 0; e < ENDS; ++e) {
            const float z = in[e] + sums[e * UNITS];
#if PAIRED  // the other unit of the pair is the neighbour's
            const float other = from_neighbour(z, 1);
#if BACKWARD
            const float other_h = from_neighbour(h[e], 1);
            const float y = slope_times(z, other, h[e], other_h, bias, given, gained);
#else
            const float y = activate(z, other, bias, given);
            if (e < valid && !copy) y_here[of + e * ROW + Z] = z;
#endif
#else
            const float y = BACKWARD ? slope_times(z, h[e], leak) : activate(z, bias, leak);
            if (BACKWARD) gained += slope_of_b(y, h[e]);
#endif
            if (e >= valid) continue;
            if (!copy) y_here[of + e * ROW] = y;
#pragma unroll
            for (int i = 0; i < CLUSTER / SENDERS; ++i)
                send(to[i], now + e * DEPTH, now + to_came, y);
        }
        y_here += stride;
        wait_for(all_came, (steps - ahead) / 2 % 2);
    }
#if BACKWARD
    sums_of_b += ((long long)lane * batch + first_row + row) * N + unit;
#pragma unroll
    for (int e = 0; e < ENDS; ++e)
        if (e < valid && !copy) sums_of_b[e * N] = e ? 0.0f : gained;
#endif
}
