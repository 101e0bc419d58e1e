// What all gated cells share: the arguments of a call and its jobs, sigmoid and tanh, and products
// of some rows.

#pragma once

#include <vector>

#include "jobs.h"

namespace {

enum Cell { LSTM, LSTM_DIAGONAL, LSTM_FULL, GRU, GRU_CHO, GORU, CORNN, LEM };

// What one call works on, shapes as in gated_steps.py. Lanes are `lane_*` entries apart, the second
// state `state` entries from the first. Symbols name rows of the table; without them A comes with
// U x_t in its first `met` parts.
template <class T> struct Call {
    T *S, *A, *G, *carry;
    const T *D, *R, *other, *b, *table;
    const int64_t* symbols;
    int64_t lane_S, lane_A, lane_G, lane_D, lane_R, lane_other, lane_symbols, state;
    int64_t lanes, steps, batch, n, row, m, states, kept, met, back, seen, cell, threads;
};

// exp(y) - 1 = scale (1 + more) - 1 for y between limits within which `scale` is a number.
template <class T> struct Exponential {
    using V = typename Vector<T>::V;
    V scale, more;

    inline __attribute__((always_inline)) Exponential(V y, T limit) {
        using F = Format<T>;
        constexpr int terms = F::terms - 1;
        y = y > limit ? V{} + limit : y;
        y = y < -limit ? V{} - limit : y;
        const V shifted = y * T(1.44269504088896340736) + F::rounder, k = shifted - F::rounder;
        const V r = y - k * F::ln2_high - k * F::ln2_low;
        more = V{} + T(1 / factorial(terms));
#pragma GCC unroll 16
        for (int i = terms - 1; i > 0; --i) more = more * r + T(1 / factorial(i));
        more *= r;
        scale = (V)((((typename Vector<T>::Ints)shifted) + F::bias) << F::mantissa);
    }
};

// 1 / (1 + exp(-z))
template <class T>
inline __attribute__((always_inline)) typename Vector<T>::V sigmoid(typename Vector<T>::V z) {
    const Exponential<T> e(-z, Format<T>::bias * T(0.69));
    return 1 / (1 + e.scale + e.scale * e.more);
}

// (exp(2z) - 1) / (exp(2z) + 1)
template <class T>
inline __attribute__((always_inline)) typename Vector<T>::V tanh(typename Vector<T>::V z) {
    const Exponential<T> e(z + z, 40);
    const auto less = e.scale * e.more + (e.scale - 1);
    return less / (less + 2);
}

// Some rows of a lane, and where they are at a step.
template <class T> struct Job {
    const Call<T>& call;
    const long lane, first, rows;

    long at(long t) const { return t * call.batch + first; }
    T* state(long which, long t) const {
        return call.S + lane * call.lane_S + which * call.state + at(t) * call.row;
    }
    T* kept(long t) const { return call.A + lane * call.lane_A + at(t) * call.kept * call.row; }
    T* back(long t) const { return call.G + lane * call.lane_G + at(t) * call.back * call.row; }
    const T* readout(long t) const { return call.D + lane * call.lane_D + at(t) * call.row; }
    T* carry(long which) const {
        return call.carry + ((lane * call.states + which) * call.batch + first) * call.row;
    }
    const T* R() const { return call.R + lane * call.lane_R; }
    const T* other() const { return call.other + lane * call.lane_other; }
    const T* bias() const { return call.b + lane * call.met * call.row; }

    // U x_t of a row, given where the row is kept.
    const T* input(long t, long i, const T* kept) const {
        if (!call.symbols) return kept;
        const int64_t symbol = call.symbols[lane * call.lane_symbols + at(t) + i];
        return call.table + (lane * call.m + symbol) * call.met * call.row;
    }
};

// Call work(job) for jobs that cover all rows of all lanes, in some threads.
template <class T, class F> void share(const Call<T>& call, F work) {
    const double size = double(call.lanes) * call.steps * call.batch * call.n * call.n * call.kept;
    Jobs(size, call.lanes, call.batch, call.threads)
        .run([&](long, long lane, long first, long rows) {
            work(Job<T>{call, lane, first, rows});
        });
}

// Call f(first row, R) for tiles of R rows, of about one height, that cover all rows.
template <class F> void tiled(long rows, F f) {
    const long tiles = (rows + ROWS - 1) / ROWS, height = (rows + tiles - 1) / tiles;
    for (long i = 0; i < rows; i += height)
        sized(std::min(height, rows - i), true, [&](auto R, auto C) {
            if constexpr (C == 2) f(i, R);
        });
}

// P[r] = [A, B][first + r] W for C panels of W; rows of P are C panels wide.
template <class T, int R, int C>
void multiply(const Left<T>& A, const Left<T>& B, long first, const T* W, T* P) {
    constexpr long N = Vector<T>::N;
    const long size = (A.columns + B.columns) * N;
    constexpr int pairs = C / 2;
    for (int c = 0; c < pairs; ++c)
        product<T, R, 2>(A, B, first, W + 2 * c * size, size, P + 2 * c * N, C * N);
    if constexpr (C % 2)
        product<T, R, 1>(A, B, first, W + (C - 1) * size, size, P + (C - 1) * N, C * N);
}

template <class T> Left<T> nothing() { return {nullptr, 0, 0}; }

// Call f(row, j, product) for all rows of [A, B] W and the columns of W, a vector from j on each.
template <class T, class F>
void each(long rows, long n, const Left<T>& A, const Left<T>& B, const T* W, F f) {
    constexpr long N = Vector<T>::N;
    const long size = (A.columns + B.columns) * N;
    alignas(64) T P[ROWS * 2 * N];
    for (long j = 0; j < n; j += 2 * N)
        tiled(rows, [&](long i, auto R) {
            const auto block = [&](auto C) {
                multiply<T, R, C>(A, B, i, W + j / N * size, P);
                for (long r = 0; r < R; ++r)
                    for (long c = 0; c < C; ++c)
                        f(i + r, j + c * N, Vector<T>::load(P + (r * C + c) * N));
            };
            if (n - j > N) block(std::integral_constant<int, 2>{});
            else block(std::integral_constant<int, 1>{});
        });
}

}  // namespace
