// The recurrence of a network with gates, or of an ODE, as one persistent kernel, forward or backward.
//
// Shapes are those of gated_steps.py and ode_steps.py; lanes are lane_* entries apart, the states of
// a lane `state` entries. Forward, S comes with the states before the chunk and A with U x_t + b in
// its first parts; the states and the kept values are written. Backward, G, the carry and `sums` are
// written: dL/db over the steps (lanes, batch, SUMS * N), of which the sum over the batch is meant,
// and the gradients of what LSTM_DIAGONAL and GORU have in `other`. R is (lanes, MATRICES * N, N).
// `other` is what else a cell has: the peephole of LSTM_FULL (lanes, N, N), those of LSTM_DIAGONAL
// (lanes, 3 N) in the order i, f, o, the threshold of GORU (lanes, N), or the constants of an ODE
// (lanes, GIVEN).
//
// A cluster of CLUSTER blocks owns ROWS rows of one lane's batch for all time steps. Each block owns
// N / CLUSTER units. Forward it makes all gates of its units from the states that they see, which
// every block has whole; backward it makes the gradients of its units' states from the gradients of
// all gates. Some cells have a second product within each step, of the matrix called `late` here.
//
// What others need is sent to the shared memory of all blocks of the cluster, where an mbarrier
// counts the bytes, as in scan.cu. A block that has all of a step knows that the others have read
// what it will write next: they send behind their own product.
//
// Each block keeps its part of the matrices in registers, and what exceeds them in shared memory.
//
// Given when it is compiled: N, ROWS, CLUSTER, BACKWARD (0 or 1), CELL (a Cell of gated.py) and
// SHARED_BYTES, what a block can have. Never compile with --use_fast_math: NaN passes through.

#include "cells.h"

constexpr int OWN = (N + CLUSTER - 1) / CLUSTER;  // units of a block
constexpr int BUFFERS = HAS_LATE ? 1 : 2;         // with two barriers a step, one copy is enough
constexpr int SENT = BACKWARD ? GATES : SEEN;     // numbers of a unit that all blocks need
static_assert(ROWS * OWN <= THREADS, "each thread finishes one unit of one row at most");

// Matrix entries that a thread keeps in registers: more where that makes shared memory needless.
constexpr int MAIN_OUTPUTS = BACKWARD ? SEEN * OWN : GATES * OWN;
constexpr int MAIN_INPUTS = SENT * N;
constexpr int ENTRIES = held(MAIN_OUTPUTS, MAIN_INPUTS, best_slices(MAIN_OUTPUTS, MAIN_INPUTS)) +
                        (HAS_LATE ? held(OWN, N, best_slices(OWN, N)) : 0);
constexpr int FITTING_REGISTERS = HAS_LATE ? 64 : 72;
constexpr int REGISTERS = ENTRIES <= FITTING_REGISTERS           ? FITTING_REGISTERS
                          : HAS_LATE && !IS_GRU && ROWS == 4     ? 48
                          : HAS_LATE || (ROWS == 4 && !BACKWARD) ? 56
                                                                 : 64;

typedef Product<MAIN_OUTPUTS, MAIN_INPUTS, REGISTERS> Main;
typedef Product<OWN, N, Main::LEFT_FREE> Late;

struct Shared {
    float seen[BUFFERS][ROWS][Main::DEPTH];  // states, or the gradients of the gates
    float made[ROWS][MAIN_OUTPUTS];
#if HAS_LATE
    alignas(16) float late_seen[ROWS][Late::DEPTH];
    float late_made[ROWS][OWN];
    alignas(16) Late::Rest late;
#endif
    alignas(16) Main::Rest rest;
    MBarrier came[BUFFERS], late_came;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the matrices do not fit into shared memory");

extern "C" __global__ void CLUSTERS __launch_bounds__(THREADS, 1)
gated(float* S, float* A, float* G, float* carry, const float* D, const float* R,
      const float* other, float* sums_of_rows, long long lane_S, long long state, long long lane_A,
      long long lane_G, long long lane_D, int steps, int batch, int seen_state) {
    MUCH_SHARED(Shared, shared);
    const int thread = threadIdx.x, rank = rank_in_cluster(), cluster = blockIdx.x / CLUSTER;
    const int clusters_of_lane = (batch + ROWS - 1) / ROWS, lane = cluster / clusters_of_lane;
    const int first = cluster % clusters_of_lane * ROWS;

    // Each of the first ROWS * OWN threads finishes one unit of one row.
    const int row = thread / OWN, own = thread % OWN, unit = rank * OWN + own;
    const int sequence = first + row;
    const bool mine = row < ROWS && unit < N && sequence < batch;
    const int step = batch * N;  // numbers of one time step of a state
    const long long place = (long long)sequence * N + unit;
    S += lane * lane_S;
    A += lane * lane_A + (long long)sequence * KEPT * N + unit;
    R += (long long)lane * MATRICES * N * N;
    other += (long long)lane * (CELL == LSTM_FULL ? N * N : IS_LSTM || IS_GRU ? GIVEN * N : GIVEN);

    Main main;
    main.load(thread, shared.rest, [&](int output, int k) {
        const int part = output / OWN, of_block = rank * OWN + output % OWN;
        if (of_block >= N) return 0.0f;
        if (BACKWARD) return R[(part * N + k) * N + of_block];
        return R[(part * N + of_block) * N + k + (SEEN == 1 || k < N ? 0 : N * N - N)];
    });
#if HAS_LATE
    const float* const late_matrix = CELL == LSTM_FULL ? other : R + GATES * N * N;
    Late late;
    late.load(thread, shared.late, [&](int output, int k) {
        const int of_block = rank * OWN + output;
        return of_block < N ? late_matrix[BACKWARD ? k * N + of_block : of_block * N + k] : 0.0f;
    });
#endif

    for (int i = thread; i < BUFFERS * ROWS * Main::DEPTH; i += THREADS)
        (&shared.seen[0][0][0])[i] = 0.0f;
#if HAS_LATE
    for (int i = thread; i < ROWS * Late::DEPTH; i += THREADS)
        (&shared.late_seen[0][0])[i] = 0.0f;
#endif
    float given[GIVEN];
#pragma unroll
    for (int k = 0; k < GIVEN; ++k) {
        given[k] = 0.0f;
        if (CELL == CORNN || CELL == LEM) given[k] = other[k];
        if (mine && (CELL == LSTM_DIAGONAL || CELL == GORU)) given[k] = other[k * N + unit];
    }

    // Each warp arrives once for all that are sent of a step, each unit of each row to each block.
    if (thread < BUFFERS) prepare(&shared.came[thread], THREADS / 32);
    if (HAS_LATE && thread == 0) prepare(&shared.late_came, THREADS / 32);
    const int rows = batch - first < ROWS ? batch - first : ROWS;
    const int bytes = thread == 0 ? 4 * N * rows : 0;
    meet_in_block();

    // Return this unit's part of the late product, with what all units have of it.
    int number = 0;  // of the step, counted from 0
    const auto late_product = [&](float value) {
#if HAS_LATE
        arrive_together(thread, &shared.late_came, bytes);
        if (mine) send_to_all(&shared.late_seen[row][unit], &shared.late_came, value);
        wait_for(&shared.late_came, number % 2);
        late.multiply(thread, shared.late, shared.late_seen, shared.late_made);
        meet_in_block();
        return mine ? shared.late_made[row][own] : 0.0f;
#else
        return 0.0f;
#endif
    };

#if BACKWARD
    carry += (long long)lane * STATES * step + place;
    S += (long long)steps * step + place;
    A += (long long)steps * step * KEPT;
    G += lane * lane_G + ((long long)steps * batch + sequence) * KEPT * N + unit;
    if (D) D += lane * lane_D + (long long)steps * step + place;
    float d[STATES], sums[SUMS], coming[KEPT], before[OLDS + 1], from_readout = 0.0f;
#pragma unroll
    for (int j = 0; j < STATES; ++j) d[j] = mine ? carry[j * step] : 0.0f;
#pragma unroll
    for (int k = 0; k < SUMS; ++k) sums[k] = 0.0f;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) coming[k] = 0.0f;
#pragma unroll
    for (int j = 0; j <= OLDS; ++j) before[j] = 0.0f;
    float after = IS_LSTM && mine ? S[state] : 0.0f;
    const auto fetch_earlier = [&] {
        S -= step, A -= step * KEPT;
        if (!mine) return;
#pragma unroll
        for (int k = 0; k < KEPT; ++k) coming[k] = A[k * N];
#pragma unroll
        for (int j = 0; j < OLDS; ++j) before[j] = S[(OLD + j) * state];
        if (D) from_readout = *(D -= step);
    };
    if (steps > 0) fetch_earlier();
    meet();

    for (int now = 0; number < steps; ++number, now = BUFFERS - 1 - now) {
        float a[KEPT], z[KEPT], old[OLDS + 1];
#pragma unroll
        for (int k = 0; k < KEPT; ++k) a[k] = coming[k];
#pragma unroll
        for (int j = 0; j <= OLDS; ++j) old[j] = before[j];
        (seen_state == 0 ? d[0] : d[STATES - 1]) += from_readout;
        if (number + 1 < steps) fetch_earlier();  // arrives while this step is computed
        G -= step * KEPT;
        const float reached = late_product(begin_back(z, a, old, after, d, given));
        finish_back(z, a, old, after, reached, d, given, sums);
        after = old[0];
        MBarrier* const came = &shared.came[now];
        arrive_together(thread, came, SENT * bytes);
        if (mine) {
            float* const to = &shared.seen[now][row][unit];
#pragma unroll
            for (int k = 0; k < KEPT; ++k) G[k * N] = z[k];
#pragma unroll
            for (int k = 0; k < GATES; ++k)  // R h reaches the candidate of GRU and GORU through r
                send_to_all(to + k * N, came, z[KEPT > MET && k == 2 ? 3 : k]);
        }
        wait_for(came, number / BUFFERS % 2);
        main.multiply(thread, shared.rest, shared.seen[now], shared.made);
        meet_in_block();
#pragma unroll
        for (int j = 0; j < SEEN; ++j)
            if (mine) d[j] += shared.made[row][j * OWN + own];
    }
    if (!mine) return;
    sums_of_rows += ((long long)lane * batch + sequence) * SUMS * N + unit;
#pragma unroll
    for (int k = 0; k < SUMS; ++k) sums_of_rows[k * N] = sums[k];
#pragma unroll
    for (int j = 0; j < STATES; ++j) carry[j * step] = d[j];
#else
    for (int i = thread; i < ROWS * MAIN_INPUTS; i += THREADS) {
        const int r = i / MAIN_INPUTS, k = i % MAIN_INPUTS;
        if (first + r < batch)
            shared.seen[0][r][k] = S[k / N * state + (long long)(first + r) * N + k % N];
    }
    S += place;
    float s[STATES], coming[MET];
#pragma unroll
    for (int j = 0; j < STATES; ++j) s[j] = mine ? S[j * state] : 0.0f;
#pragma unroll
    for (int k = 0; k < MET; ++k) coming[k] = mine && steps > 0 ? A[k * N] : 0.0f;
    meet();

    for (int now = 0; number < steps; ++number, now = BUFFERS - 1 - now) {
        float a[KEPT], z[GATES];
        float* const out = A;
        S += step, A += step * KEPT;
#pragma unroll
        for (int k = 0; k < MET; ++k) {
            a[k] = coming[k];  // the next one arrives while this step is computed
            if (mine && number + 1 < steps) coming[k] = A[k * N];
        }
        main.multiply(thread, shared.rest, shared.seen[now], shared.made);
        meet_in_block();
#pragma unroll
        for (int k = 0; k < GATES; ++k) z[k] = mine ? shared.made[row][k * OWN + own] : 0.0f;
        const float reached = late_product(begin(a, z, s, given));
        finish(a, reached, s, given);
        MBarrier* const came = &shared.came[BUFFERS - 1 - now];
        arrive_together(thread, came, SENT * bytes);
        if (mine) {
#pragma unroll
            for (int k = 0; k < KEPT; ++k) out[k * N] = a[k];
#pragma unroll
            for (int j = 0; j < STATES; ++j) S[j * state] = s[j];
#pragma unroll
            for (int j = 0; j < SEEN; ++j)
                send_to_all(&shared.seen[BUFFERS - 1 - now][row][j * N + unit], came, s[j]);
        }
        wait_for(came, number / BUFFERS % 2);
    }
#endif
}
