// The equations of the cells: one unit of one row, forward and backward.
//
// A step is made in two parts, between which stands the product of the matrix called `late`, where a
// cell has one: `begin` returns what it is of, `finish` takes the unit's part of it. `a` are the
// kept values, `s` the states and `d` their gradients, in the order of gated_steps.py and
// ode_steps.py. `given` is what else a unit has: peepholes, a threshold, or the constants of an ODE.
#pragma once
#include "products.h"

#define LSTM 0
#define LSTM_DIAGONAL 1
#define LSTM_FULL 2
#define GRU 3
#define GRU_CHO 4
#define GORU 5
#define CORNN 6
#define LEM 7

#define IS_LSTM (CELL <= LSTM_FULL)
#define IS_GRU (CELL >= GRU && CELL <= GORU)
#define HAS_LATE (CELL == LSTM_FULL || CELL == GRU_CHO || CELL == LEM)

constexpr int GATES = IS_LSTM          ? 4  // gates that see the states before the step
                      : CELL == CORNN  ? 1
                      : CELL == GRU_CHO ? 2
                                        : 3;
constexpr int STATES = IS_GRU ? 1 : 2;
constexpr int SEEN = CELL == CORNN ? 2 : 1;  // states that these gates see
constexpr int MET = GATES + (CELL == GRU_CHO || CELL == LEM);  // parts of A that come with the input
constexpr int KEPT = MET + (CELL == GRU || CELL == GORU);      // parts of A, and of G
constexpr int MATRICES = CELL == CORNN ? 2 : MET;              // of R
constexpr int GIVEN = CELL == LSTM_DIAGONAL || CELL == CORNN ? 3 : 1;
constexpr int SUMS = MET + (CELL == LSTM_DIAGONAL ? 3 : CELL == GORU);  // of gradients

// Which states of the step before are read again for the backward pass.
constexpr int OLD = IS_LSTM ? 1 : 0, OLDS = CELL == CORNN ? 0 : CELL == LEM ? 2 : 1;

__device__ inline float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

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

// `a` comes with U x_t + b in its first parts, `z` is the product with the states before the step.
__device__ inline float begin(float (&a)[KEPT], const float (&z)[GATES], float (&s)[STATES],
                              const float (&given)[GIVEN]) {
#if IS_LSTM
    if (CELL == LSTM_DIAGONAL) a[0] += given[0] * s[1], a[1] += given[GIVEN / 2] * s[1];
    a[0] = sigmoid(a[0] + z[0]), a[1] = sigmoid(a[1] + z[1]), a[3] = tanhf(a[3] + z[3]);
    s[1] = a[1] * s[1] + a[0] * a[3];
    a[2] += z[2];
    if (CELL == LSTM_DIAGONAL) a[2] += given[GIVEN - 1] * s[1];
    return s[1];
#elif IS_GRU
    a[0] = sigmoid(a[0] + z[0]), a[1] = sigmoid(a[1] + z[1]);
    if (CELL != GRU_CHO) a[KEPT - 1] = z[GATES - 1];
    return a[0] * s[0];
#elif CELL == CORNN
    a[0] = tanhf(a[0] + z[0]);
    return 0.0f;
#else
    a[0] = sigmoid(a[0] + z[0]), a[1] = sigmoid(a[1] + z[1]), a[2] = tanhf(a[2] + z[2]);
    s[1] += given[0] * a[0] * (a[2] - s[1]);
    return s[1];
#endif
}

__device__ inline void finish(float (&a)[KEPT], float late, float (&s)[STATES],
                              const float (&given)[GIVEN]) {
#if IS_LSTM
    a[2] = sigmoid(a[2] + late);
    s[0] = a[2] * tanhf(s[1]);
#elif IS_GRU
    a[2] = squash(a[2] + (CELL == GRU_CHO ? late : a[0] * a[KEPT - 1]), given[0]);
    s[0] = a[1] * s[0] + (1.0f - a[1]) * a[2];
#elif CELL == CORNN
    s[1] += given[0] * (a[0] - given[1] * s[0] - given[2] * s[1]);
    s[0] += given[0] * s[1];
#else
    a[3] = tanhf(a[3] + late);
    s[0] += given[0] * a[1] * (a[3] - s[0]);
#endif
}

// `z` are the gradients of the gates' arguments. `old` are the states before the step, and `after`
// is LSTM's c behind it.
__device__ inline float begin_back(float (&z)[KEPT], const float (&a)[KEPT],
                                   const float (&old)[OLDS + 1], float after, float (&d)[STATES],
                                   const float (&given)[GIVEN]) {
#if IS_LSTM
    const float o = a[2], squashed = tanhf(after);
    z[2] = d[0] * (squashed * (o - o * o));
    d[1] += d[0] * (o - o * squashed * squashed);
    if (CELL == LSTM_DIAGONAL) d[1] += z[2] * given[GIVEN - 1];
    return z[2];
#elif IS_GRU
    z[1] = d[0] * ((old[0] - a[2]) * (a[1] - a[1] * a[1]));
    z[2] = d[0] * ((1.0f - a[1]) * slope(a[2]));
    return z[2];
#elif CELL == CORNN
    return 0.0f;
#else
    z[1] = given[0] * d[0] * ((a[3] - old[0]) * (a[1] - a[1] * a[1]));
    z[3] = given[0] * d[0] * (a[1] * (1.0f - a[3] * a[3]));
    return z[3];
#endif
}

// `d` ends with what reaches the states before the step otherwise than through the gates. `sums`
// adds up the gradients of b, and behind them those of peepholes or a threshold.
__device__ inline void finish_back(float (&z)[KEPT], const float (&a)[KEPT],
                                   const float (&old)[OLDS + 1], float after, float late,
                                   float (&d)[STATES], const float (&given)[GIVEN],
                                   float (&sums)[SUMS]) {
#if IS_LSTM
    const float i = a[0], f = a[1], g = a[3];
    d[1] += late;
    z[0] = d[1] * (g * (i - i * i));
    z[1] = d[1] * (old[0] * (f - f * f));
    z[3] = d[1] * (i * (1.0f - g * g));
    d[0] = 0.0f;
    d[1] *= f;
#if CELL == LSTM_DIAGONAL
    d[1] += z[0] * given[0] + z[1] * given[1];
    sums[MET] += z[0] * old[0], sums[MET + 1] += z[1] * old[0], sums[MET + 2] += z[2] * after;
#endif
#elif CELL == GRU_CHO
    z[0] = late * (old[0] * (a[0] - a[0] * a[0]));
    d[0] = d[0] * a[1] + late * a[0];
#elif IS_GRU
    z[3] = z[2] * a[0];
    z[0] = z[3] * (1.0f - a[0]) * a[3];
    d[0] *= a[1];
#if CELL == GORU
    sums[MET] += a[2] < 0.0f ? -z[2] : a[2] > 0.0f ? z[2] : 0.0f;
#endif
#elif CELL == CORNN
    d[1] += given[0] * d[0];
    z[0] = given[0] * d[1] * (1.0f - a[0] * a[0]);
    d[0] -= given[0] * given[1] * d[1];
    d[1] *= 1.0f - given[0] * given[2];
#else
    d[1] += late;
    z[0] = given[0] * d[1] * ((a[2] - old[1]) * (a[0] - a[0] * a[0]));
    z[2] = given[0] * d[1] * (a[0] * (1.0f - a[2] * a[2]));
    d[0] *= 1.0f - given[0] * a[1];
    d[1] *= 1.0f - given[0] * a[0];
#endif
#pragma unroll
    for (int k = 0; k < MET; ++k) sums[k] += z[k];
}
