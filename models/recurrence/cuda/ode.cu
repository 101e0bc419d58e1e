// The recurrence of coRNN or LEM as one persistent kernel, forward or backward.
//
// Shapes are those of ode_steps.py, arguments those of gated.cu. R is (lanes, PRODUCTS * N, N), and
// `other` has the constants, (lanes, CONSTANTS).
//
// A cluster of CLUSTER blocks owns ROWS rows of one lane's batch for all time steps. Each block owns
// N / CLUSTER units. coRNN has one product a step: forward with y and z side by side, backward with
// the gradient of the argument of tanh. LEM has a second product within each step, of the matrix
// called `late` here: forward with z_t, backward with the gradient of the argument of its tanh.
//
// Each block keeps its part of the matrices in registers, and what exceeds them in shared memory. At
// most sizes a thread stores and loads up to half a kilobyte a step besides: how much of the matrices
// belongs into registers has not been measured yet.
//
// Given when it is compiled: N, ROWS, CLUSTER, BACKWARD (0 or 1), CELL (a Cell of gated.py) and
// SHARED_BYTES, what a block can have. Never compile with --use_fast_math: NaN passes through.

#include "products.h"

#define CORNN 6
#define LEM 7

#define IS_LEM (CELL == LEM)

constexpr int OWN = (N + CLUSTER - 1) / CLUSTER;  // units of a block
constexpr int PRODUCTS = IS_LEM ? 4 : 2, CONSTANTS = IS_LEM ? 1 : 3;
constexpr int KEPT = IS_LEM ? 4 : 1;              // parts of A, and of G
constexpr int GATES = IS_LEM ? 3 : 1;             // arguments that see the states before the step
constexpr int BUFFERS = IS_LEM ? 1 : 2;           // with two barriers a step, one copy is enough
static_assert(ROWS * OWN <= THREADS, "each thread finishes one unit of one row at most");

// Matrix entries that a thread keeps in registers: more where that makes shared memory needless.
constexpr int MAIN_OUTPUTS = IS_LEM ? (BACKWARD ? OWN : 3 * OWN) : (BACKWARD ? 2 * OWN : OWN);
constexpr int MAIN_INPUTS = IS_LEM ? (BACKWARD ? 3 * N : N) : (BACKWARD ? N : 2 * N);
constexpr int ENTRIES = held(MAIN_OUTPUTS, MAIN_INPUTS, best_slices(MAIN_OUTPUTS, MAIN_INPUTS)) +
                        (IS_LEM ? held(OWN, N, best_slices(OWN, N)) : 0);
constexpr int FITTING_REGISTERS = IS_LEM ? 64 : 72;
constexpr int REGISTERS = ENTRIES <= FITTING_REGISTERS ? FITTING_REGISTERS : IS_LEM ? 56 : 64;

typedef Product<MAIN_OUTPUTS, MAIN_INPUTS, REGISTERS> Main;
typedef Product<OWN, N, Main::LEFT_FREE> Late;

struct Shared {
    float seen[BUFFERS][ROWS][Main::DEPTH];  // states, or gradients of the arguments
    float made[ROWS][MAIN_OUTPUTS];
#if IS_LEM
    alignas(16) float late_seen[ROWS][Late::DEPTH];
    float late_made[ROWS][OWN];
    alignas(16) Late::Rest late;
#endif
    alignas(16) Main::Rest rest;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the matrices do not fit into shared memory");

extern "C" __global__ void CLUSTERS __launch_bounds__(THREADS, 1)
ode(float* S, float* A, float* G, float* carry, const float* D, const float* R,
    const float* other, long long lane_S, long long state, long long lane_A, long long lane_G,
    long long lane_D, int steps, int batch, int seen_state) {
    MUCH_SHARED(Shared, shared);
    const int thread = threadIdx.x, rank = rank_in_cluster(), cluster = blockIdx.x / CLUSTER;
    const int clusters_of_lane = (batch + ROWS - 1) / ROWS, lane = cluster / clusters_of_lane;

    // Each of the first ROWS * OWN threads finishes one unit of one row.
    const int row = thread / OWN, own = thread % OWN, unit = rank * OWN + own;
    const int sequence = cluster % clusters_of_lane * ROWS + row;
    const bool mine = row < ROWS && unit < N && sequence < batch;
    const int step = batch * N;  // numbers of one time step of a state
    const long long place = (long long)sequence * N + unit;
    S += lane * lane_S;
    A += lane * lane_A + (long long)sequence * KEPT * N + unit;
    R += (long long)lane * PRODUCTS * N * N;
    other += lane * CONSTANTS;
    const float dt = other[0];
#if !IS_LEM
    const float gamma = other[1], epsilon = other[2];
#endif

    Main main;
#if IS_LEM
    Late late;
#endif
    main.load(thread, shared.rest, [&](int output, int k) {
        const int of_block = rank * OWN + output % OWN, part = output / OWN;
        if (of_block >= N) return 0.0f;
#if BACKWARD
        return R[(part * N + k) * N + of_block];
#else
        return R[((part + k / N) * N + of_block) * N + k % N];
#endif
    });
#if IS_LEM
    late.load(thread, shared.late, [&](int output, int k) {
        const int of_block = rank * OWN + output;
        if (of_block >= N) return 0.0f;
        return BACKWARD ? R[(3 * N + k) * N + of_block] : R[(3 * N + of_block) * N + k];
    });
#endif

    for (int i = thread; i < BUFFERS * ROWS * Main::DEPTH; i += THREADS)
        (&shared.seen[0][0][0])[i] = 0.0f;
#if IS_LEM
    for (int i = thread; i < ROWS * Late::DEPTH; i += THREADS)
        (&shared.late_seen[0][0])[i] = 0.0f;
#endif
    meet_in_block();

#if BACKWARD
    carry += (long long)lane * 2 * step + place;
    float dy = mine ? carry[0] : 0.0f, dz = mine ? carry[step] : 0.0f;
    S += (long long)steps * step + place;
    A += (long long)steps * step * KEPT;
    G += lane * lane_G + ((long long)steps * batch + sequence) * KEPT * N + unit;
    if (D) D += lane * lane_D + (long long)steps * step + place;
    float coming[KEPT], y_before = 0.0f, z_before = 0.0f, from_readout = 0.0f;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) coming[k] = 0.0f;
    const auto fetch_earlier = [&] {
        S -= step, A -= step * KEPT;
        if (!mine) return;
#pragma unroll
        for (int k = 0; k < KEPT; ++k) coming[k] = A[k * N];
        if (IS_LEM) y_before = S[0], z_before = S[state];
        if (D) from_readout = *(D -= step);
    };
    if (steps > 0) fetch_earlier();
    meet();

    int now = 0;
    for (int t = steps - 1; t >= 0; --t, now = BUFFERS - 1 - now) {
        float a[KEPT], g[KEPT];
#pragma unroll
        for (int k = 0; k < KEPT; ++k) a[k] = coming[k];
        const float y = y_before, z = z_before;
        (seen_state == 0 ? dy : dz) += from_readout;
        if (t > 0) fetch_earlier();  // arrives while this step is computed
        G -= step * KEPT;
#if IS_LEM
        const float slow = a[0], quick = a[1], made_z = a[2], made_y = a[3];
        g[1] = dt * dy * ((made_y - y) * (quick - quick * quick));
        g[3] = dt * dy * (quick * (1.0f - made_y * made_y));
        if (mine) store_in_all_blocks(&shared.late_seen[row][unit], g[3]);
        meet();
        late.multiply(thread, shared.late, shared.late_seen, shared.late_made);
        meet_in_block();
        if (mine) dz += shared.late_made[row][own];
        g[0] = dt * dz * ((made_z - z) * (slow - slow * slow));
        g[2] = dt * dz * (slow * (1.0f - made_z * made_z));
        dy *= 1.0f - dt * quick;
        dz *= 1.0f - dt * slow;
#else
        dz += dt * dy;
        g[0] = dt * dz * (1.0f - a[0] * a[0]);
        dy -= dt * gamma * dz;
        dz *= 1.0f - dt * epsilon;
#endif
        if (mine) {
#pragma unroll
            for (int k = 0; k < KEPT; ++k) G[k * N] = g[k];
#pragma unroll
            for (int k = 0; k < GATES; ++k)
                store_in_all_blocks(&shared.seen[now][row][k * N + unit], g[k]);
        }
        meet();
        main.multiply(thread, shared.rest, shared.seen[now], shared.made);
        meet_in_block();
        if (mine) {
            dy += shared.made[row][own];
            if (!IS_LEM) dz += shared.made[row][OWN + own];
        }
    }
    if (mine) carry[0] = dy, carry[step] = dz;
#else
    const int first = cluster % clusters_of_lane * ROWS;
    for (int i = thread; i < ROWS * MAIN_INPUTS; i += THREADS) {
        const int r = i / MAIN_INPUTS, k = i % MAIN_INPUTS;
        if (first + r < batch)
            shared.seen[0][r][k] = S[k / N * state + (long long)(first + r) * N + k % N];
    }
    S += place;
    float y = mine ? S[0] : 0.0f, z = mine ? S[state] : 0.0f, coming[KEPT];
#pragma unroll
    for (int k = 0; k < KEPT; ++k) coming[k] = mine && steps > 0 ? A[k * N] : 0.0f;
    meet();

    int now = 0;
    for (int t = 0; t < steps; ++t, now = BUFFERS - 1 - now) {
        float in[KEPT], sums[GATES];
        float* const out = A;
        S += step, A += step * KEPT;
#pragma unroll
        for (int k = 0; k < KEPT; ++k) {
            in[k] = coming[k];  // the next one arrives while this step is computed
            if (mine && t + 1 < steps) coming[k] = A[k * N];
        }
        main.multiply(thread, shared.rest, shared.seen[now], shared.made);
        meet_in_block();
#pragma unroll
        for (int k = 0; k < GATES; ++k) sums[k] = mine ? shared.made[row][k * OWN + own] : 0.0f;
        float* const next = &shared.seen[BUFFERS - 1 - now][row][unit];
#if IS_LEM
        const float slow = sigmoid(in[0] + sums[0]), quick = sigmoid(in[1] + sums[1]);
        const float made_z = tanhf(in[2] + sums[2]);
        z += dt * slow * (made_z - z);
        if (mine) store_in_all_blocks(&shared.late_seen[row][unit], z);
        meet();
        late.multiply(thread, shared.late, shared.late_seen, shared.late_made);
        meet_in_block();
        const float made_y = tanhf(in[3] + (mine ? shared.late_made[row][own] : 0.0f));
        y += dt * quick * (made_y - y);
        if (mine) out[0] = slow, out[N] = quick, out[2 * N] = made_z, out[3 * N] = made_y;
#else
        const float force = tanhf(in[0] + sums[0]);
        z += dt * (force - gamma * y - epsilon * z);
        y += dt * z;
        if (mine) {
            out[0] = force;
            store_in_all_blocks(next + N, z);
        }
#endif
        if (mine) {
            S[0] = y, S[state] = z;
            store_in_all_blocks(next, y);
        }
        meet();
    }
#endif
}
