// The recurrence of a gated network as one persistent kernel, forward or backward.
//
// Shapes are those of gated_steps.py; lanes are lane_* entries apart, the states of a lane `state`
// entries. Forward, S comes with the states before the chunk and A with U x_t + b in its first
// parts; the states and the kept values are written. Backward, G and the carry are written.
// R is (lanes, gates * N, N). `other` is what else a cell has: the peephole of LSTM_FULL
// (lanes, N, N), those of LSTM_DIAGONAL (lanes, 3 N) in the order i, f, o, or the threshold of GORU
// (lanes, N).
//
// A cluster of CLUSTER blocks owns ROWS rows of one lane's batch for all time steps. Each block owns
// N / CLUSTER units. Forward it makes all gates of its units from h, which every block has whole;
// backward it makes dL/dh of its units from the gradients of all gates. What others need goes to the
// shared memory of all blocks of the cluster. LSTM_FULL and GRU_CHO have a second product within
// each step, of the matrix called `late` here.
//
// Each block keeps its part of the matrices in registers, and what exceeds them in shared memory.
//
// Given when it is compiled: N, ROWS, CLUSTER, BACKWARD (0 or 1), CELL (a Cell of gated.py) and
// SHARED_BYTES, what a block can have. Never compile with --use_fast_math: NaN passes through.

#include "products.h"

#define LSTM 0
#define LSTM_DIAGONAL 1
#define LSTM_FULL 2
#define GRU 3
#define GRU_CHO 4
#define GORU 5

#define IS_LSTM (CELL <= LSTM_FULL)
#define HAS_LATE (CELL == LSTM_FULL || CELL == GRU_CHO)

constexpr int OWN = (N + CLUSTER - 1) / CLUSTER;             // units of a block
constexpr int GATES = IS_LSTM ? 4 : CELL == GRU_CHO ? 2 : 3;  // gates that see h itself
constexpr int STATES = IS_LSTM ? 2 : 1;
constexpr int MET = IS_LSTM ? 4 : 3;             // parts of A that come with the input
constexpr int KEPT = CELL == GRU_CHO ? 3 : 4;    // parts of A, and of G
constexpr int BUFFERS = HAS_LATE ? 1 : 2;        // with two barriers a step, one copy is enough
static_assert(ROWS * OWN <= THREADS, "each thread finishes one unit of one row at most");

// Matrix entries that a thread keeps in registers: more where that makes shared memory needless.
constexpr int MAIN_OUTPUTS = BACKWARD ? OWN : GATES * OWN, MAIN_INPUTS = BACKWARD ? GATES * N : N;
constexpr int ENTRIES = held(MAIN_OUTPUTS, MAIN_INPUTS, best_slices(MAIN_OUTPUTS, MAIN_INPUTS)) +
                        (HAS_LATE ? held(OWN, N, best_slices(OWN, N)) : 0);
constexpr int FITTING_REGISTERS = HAS_LATE ? 64 : 72;
constexpr int REGISTERS = ENTRIES <= FITTING_REGISTERS                ? FITTING_REGISTERS
                          : HAS_LATE || (ROWS == 4 && !BACKWARD) ? 56
                                                                 : 64;

typedef Product<MAIN_OUTPUTS, MAIN_INPUTS, REGISTERS> Main;
typedef Product<OWN, N, Main::LEFT_FREE> Late;

struct Shared {
    float seen[BUFFERS][ROWS][Main::DEPTH];  // h, or the gradients of the gates
    float made[ROWS][MAIN_OUTPUTS];
#if HAS_LATE
    alignas(16) float late_seen[ROWS][Late::DEPTH];
    float late_made[ROWS][OWN];
    alignas(16) Late::Rest late;
#endif
    alignas(16) Main::Rest rest;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the matrices do not fit into shared memory");

#if CELL == GORU
__device__ inline float squash(float z, float threshold) {
    const float size = fabsf(z) + threshold;
    return z == 0.0f || size < 0.0f ? 0.0f : copysignf(size, z);
}
__device__ inline float slope(float made) { return made == 0.0f ? 0.0f : 1.0f; }
#else
__device__ inline float squash(float z, float) { return tanhf(z); }
__device__ inline float slope(float made) { return 1.0f - made * made; }
#endif

extern "C" __global__ void CLUSTERS __launch_bounds__(THREADS, 1)
gated(float* S, float* A, float* G, float* carry, const float* D, const float* R,
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
    R += (long long)lane * (IS_LSTM ? 4 : 3) * N * N;
    other += (long long)lane * (CELL == LSTM_FULL ? N * N : CELL == LSTM_DIAGONAL ? 3 * N : N);

    Main main;
#if HAS_LATE
    const float* const late_matrix = CELL == LSTM_FULL ? other : R + 2 * N * N;
    Late late;
#endif
#if BACKWARD
    main.load(thread, shared.rest, [&](int output, int k) {
        const int column = rank * OWN + output;
        return column < N ? R[k * N + column] : 0.0f;
    });
#if HAS_LATE
    late.load(thread, shared.late, [&](int output, int k) {
        const int column = rank * OWN + output;
        return column < N ? late_matrix[k * N + column] : 0.0f;
    });
#endif
#else
    main.load(thread, shared.rest, [&](int output, int k) {
        const int of_gate = rank * OWN + output % OWN;
        return of_gate < N ? R[(output / OWN * N + of_gate) * N + k] : 0.0f;
    });
#if HAS_LATE
    late.load(thread, shared.late, [&](int output, int k) {
        const int of_gate = rank * OWN + output;
        return of_gate < N ? late_matrix[of_gate * N + k] : 0.0f;
    });
#endif
#endif

    for (int i = thread; i < BUFFERS * ROWS * Main::DEPTH; i += THREADS)
        (&shared.seen[0][0][0])[i] = 0.0f;
#if HAS_LATE
    for (int i = thread; i < ROWS * Late::DEPTH; i += THREADS)
        (&shared.late_seen[0][0])[i] = 0.0f;
#endif
    meet_in_block();

    float seen[3] = {0.0f, 0.0f, 0.0f};  // peepholes, or a threshold
    if (mine && CELL == LSTM_DIAGONAL)
#pragma unroll
        for (int k = 0; k < 3; ++k) seen[k] = other[k * N + unit];
    if (mine && CELL == GORU) seen[0] = other[unit];

#if BACKWARD
    carry += (long long)lane * STATES * step + place;
    float dh = mine ? carry[0] : 0.0f, dc = mine && IS_LSTM ? carry[step] : 0.0f;
    S += (IS_LSTM ? state : 0) + (long long)steps * step + place;  // c, or h, of the last step
    A += (long long)steps * step * KEPT;
    G += lane * lane_G + ((long long)steps * batch + sequence) * KEPT * N + unit;
    if (D) D += lane * lane_D + (long long)steps * step + place;
    float coming[KEPT], before = 0.0f, from_readout = 0.0f, after = mine ? *S : 0.0f;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) coming[k] = 0.0f;
    const auto fetch_earlier = [&] {
        S -= step, A -= step * KEPT;
        if (!mine) return;
#pragma unroll
        for (int k = 0; k < KEPT; ++k) coming[k] = A[k * N];
        before = *S;
        if (D) from_readout = *(D -= step);
    };
    if (steps > 0) fetch_earlier();
    meet();

    int now = 0;
    for (int t = steps - 1; t >= 0; --t, now = BUFFERS - 1 - now) {
        float a[KEPT], z[KEPT];
#pragma unroll
        for (int k = 0; k < KEPT; ++k) a[k] = coming[k];
        const float old = before;
        (seen_state == 0 ? dh : dc) += from_readout;
        if (t > 0) fetch_earlier();  // arrives while this step is computed
        G -= step * KEPT;
#if IS_LSTM
        const float i = a[0], f = a[1], o = a[2], g = a[3], squashed = tanhf(after);
        z[2] = dh * (squashed * (o - o * o));
        dc += dh * (o - o * squashed * squashed);
        if (CELL == LSTM_DIAGONAL) dc += z[2] * seen[2];
#if HAS_LATE
        if (mine) store_in_all_blocks(&shared.late_seen[row][unit], z[2]);
        meet();
        late.multiply(thread, shared.late, shared.late_seen, shared.late_made);
        meet_in_block();
        if (mine) dc += shared.late_made[row][own];
#endif
        z[0] = dc * (g * (i - i * i));
        z[1] = dc * (old * (f - f * f));
        z[3] = dc * (i * (1.0f - g * g));
        dc *= f;
        if (CELL == LSTM_DIAGONAL) dc += z[0] * seen[0] + z[1] * seen[1];
        after = old;
        const float carried = 0.0f;
#elif CELL == GRU_CHO
        const float r = a[0], u = a[1], made = a[2];
        z[1] = dh * ((old - made) * (u - u * u));
        z[2] = dh * ((1.0f - u) * slope(made));
        if (mine) store_in_all_blocks(&shared.late_seen[row][unit], z[2]);
        meet();
        late.multiply(thread, shared.late, shared.late_seen, shared.late_made);
        meet_in_block();
        const float reset = mine ? shared.late_made[row][own] : 0.0f;
        z[0] = reset * (old * (r - r * r));
        const float carried = dh * u + reset * r;
#else
        const float r = a[0], u = a[1], made = a[2], inner = a[3];
        z[1] = dh * ((old - made) * (u - u * u));
        z[2] = dh * ((1.0f - u) * slope(made));
        z[3] = z[2] * r;
        z[0] = z[3] * (1.0f - r) * inner;
        const float carried = dh * u;
#endif
        if (mine) {
            float* const to = &shared.seen[now][row][unit];
#pragma unroll
            for (int k = 0; k < KEPT; ++k) G[k * N] = z[k];
#pragma unroll
            for (int k = 0; k < GATES; ++k)  // R h reaches the candidate of GRU and GORU through r
                store_in_all_blocks(to + k * N, z[!IS_LSTM && k == 2 ? 3 : k]);
        }
        meet();
        main.multiply(thread, shared.rest, shared.seen[now], shared.made);
        meet_in_block();
        if (mine) dh = carried + shared.made[row][own];
    }
    if (mine) {
        carry[0] = dh;
        if (IS_LSTM) carry[step] = dc;
    }
#else
    const int first = cluster % clusters_of_lane * ROWS;
    for (int i = thread; i < ROWS * N; i += THREADS) {
        const int r = i / N, k = i % N;
        if (first + r < batch) shared.seen[0][r][k] = S[(long long)(first + r) * N + k];
    }
    S += place;
    float h = mine ? S[0] : 0.0f, c = mine && IS_LSTM ? S[state] : 0.0f;
    float coming[MET];
#pragma unroll
    for (int k = 0; k < MET; ++k) coming[k] = mine && steps > 0 ? A[k * N] : 0.0f;
    meet();

    int now = 0;
    for (int t = 0; t < steps; ++t, now = BUFFERS - 1 - now) {
        float in[MET];
        float* const out = A;
        S += step, A += step * KEPT;
#pragma unroll
        for (int k = 0; k < MET; ++k) {
            in[k] = coming[k];  // the next one arrives while this step is computed
            if (mine && t + 1 < steps) coming[k] = A[k * N];
        }
        main.multiply(thread, shared.rest, shared.seen[now], shared.made);
        meet_in_block();
        float z[GATES];
#pragma unroll
        for (int k = 0; k < GATES; ++k) z[k] = mine ? shared.made[row][k * OWN + own] : 0.0f;
#if IS_LSTM
        if (CELL == LSTM_DIAGONAL) in[0] += seen[0] * c, in[1] += seen[1] * c;
        const float i = sigmoid(in[0] + z[0]), f = sigmoid(in[1] + z[1]), g = tanhf(in[3] + z[3]);
        c = f * c + i * g;
        float to_o = in[2] + z[2];
        if (CELL == LSTM_DIAGONAL) to_o += seen[2] * c;
        if (mine) out[0] = i, out[N] = f, out[3 * N] = g, S[state] = c;
#if HAS_LATE
        if (mine) store_in_all_blocks(&shared.late_seen[row][unit], c);
        meet();
        late.multiply(thread, shared.late, shared.late_seen, shared.late_made);
        meet_in_block();
        if (mine) to_o += shared.late_made[row][own];
#endif
        const float o = sigmoid(to_o);
        h = o * tanhf(c);
        if (mine) out[2 * N] = o;
#else
        const float r = sigmoid(in[0] + z[0]), u = sigmoid(in[1] + z[1]);
#if HAS_LATE
        if (mine) store_in_all_blocks(&shared.late_seen[row][unit], r * h);
        meet();
        late.multiply(thread, shared.late, shared.late_seen, shared.late_made);
        meet_in_block();
        const float made = squash(in[2] + (mine ? shared.late_made[row][own] : 0.0f), 0.0f);
#else
        const float made = squash(in[2] + r * z[2], seen[0]);
        if (mine) out[3 * N] = z[2];
#endif
        h = u * h + (1.0f - u) * made;
        if (mine) out[0] = r, out[N] = u, out[2 * N] = made;
#endif
        if (mine) {
            S[0] = h;
            store_in_all_blocks(&shared.seen[BUFFERS - 1 - now][row][unit], h);
        }
        meet();
    }
#endif
}
