// The steps of the LSTM, with or without peepholes, and their adjoint.

#pragma once

#include <vector>

#include "gated_kernels.h"

namespace {

template <class T, int CELL> void lstm_forward(const Call<T>& call) {
    using X = Vector<T>;
    constexpr long N = X::N;
    const long n = call.n, row = call.row, width = 4 * row;
    share(call, [&](const Job<T>& job) {
        alignas(64) T P[ROWS * 4 * N];
        const T *b = job.bias(), *seen = job.other();
        for (long t = 0; t < call.steps; ++t) {
            const T *h = job.state(0, t), *c = job.state(1, t);
            T *h_new = job.state(0, t + 1), *c_new = job.state(1, t + 1), *kept = job.kept(t);
            for (long j = 0; j < n; j += N)
                tiled(job.rows, [&](long first, auto R) {
                    multiply<T, R, 4>({h, row, n}, nothing<T>(), first, job.R() + 4 * j * n, P);
                    for (long r = 0; r < R; ++r) {
                        T *to = kept + (first + r) * width + j, *hs = h_new + (first + r) * row + j;
                        T* cs = c_new + (first + r) * row + j;
                        const T* Ux = job.input(t, first + r, kept + (first + r) * width) + j;
                        const auto z = [&](long k) {
                            return X::load(P + (4 * r + k) * N) + X::load(Ux + k * row) +
                                   X::load(b + k * row + j);
                        };
                        const auto before = X::load(c + (first + r) * row + j);
                        auto zi = z(0), zf = z(1), zo = z(2);
                        if constexpr (CELL == LSTM_DIAGONAL) {
                            zi += X::load(seen + j) * before;
                            zf += X::load(seen + row + j) * before;
                        }
                        const auto in = sigmoid<T>(zi), forget = sigmoid<T>(zf);
                        const auto g = tanh<T>(z(3)), now = forget * before + in * g;
                        if constexpr (CELL == LSTM_DIAGONAL)
                            zo += X::load(seen + 2 * row + j) * now;
                        X::store(to, in);
                        X::store(to + row, forget);
                        X::store(to + 3 * row, g);
                        X::store(cs, now);
                        if constexpr (CELL == LSTM_FULL) {
                            X::store(to + 2 * row, zo);
                        } else {
                            const auto out = sigmoid<T>(zo);
                            X::store(to + 2 * row, out);
                            X::store(hs, out * tanh<T>(now));
                        }
                    }
                });
            if constexpr (CELL == LSTM_FULL)
                each<T>(job.rows, n, {c_new, row, n}, nothing<T>(), seen,
                        [&](long i, long j, auto more) {
                            T* to = kept + i * width + 2 * row + j;
                            const auto out = sigmoid<T>(X::load(to) + more);
                            X::store(to, out);
                            X::store(h_new + i * row + j, out * tanh<T>(X::load(c_new + i * row + j)));
                        });
        }
    });
}

template <class T, int CELL> void lstm_backward(const Call<T>& call) {
    using X = Vector<T>;
    constexpr long N = X::N;
    const long n = call.n, row = call.row, width = 4 * row;
    const std::vector<T> zero(row);
    share(call, [&](const Job<T>& job) {
        std::vector<T> memory(CELL == LSTM_FULL ? job.rows * row + 64 / sizeof(T) : 0);
        T *more = aligned(memory), *dh = job.carry(0), *dc = job.carry(1);
        const T* seen = job.other();
        for (long t = call.steps - 1; t >= 0; --t) {
            const T *c = job.state(1, t), *c_new = job.state(1, t + 1), *kept = job.kept(t);
            T* g = job.back(t);
            const T* d = call.D ? job.readout(t) : nullptr;
            const auto reached = [&](long which, long i) {
                return d && call.seen == which ? d + i * row : zero.data();
            };
            if constexpr (CELL == LSTM_FULL) {
                for (long i = 0; i < job.rows; ++i)
                    for (long j = 0; j < n; j += N) {
                        const auto o = X::load(kept + i * width + 2 * row + j);
                        const auto to_h = X::load(dh + i * row + j) + X::load(reached(0, i) + j);
                        const auto zo = to_h * tanh<T>(X::load(c_new + i * row + j)) * o * (1 - o);
                        X::store(g + i * width + 2 * row + j, X::without_padding(zo, n - j));
                    }
                each<T>(job.rows, n, {g + 2 * row, width, row}, nothing<T>(), seen,
                        [&](long i, long j, auto sum) { X::store(more + i * row + j, sum); });
            }
            for (long i = 0; i < job.rows; ++i) {
                const T *a = kept + i * width, *to_h = reached(0, i), *to_c = reached(1, i);
                T* to = g + i * width;
                for (long j = 0; j < n; j += N) {
                    const auto in = X::load(a + j), forget = X::load(a + row + j);
                    const auto out = X::load(a + 2 * row + j), made = X::load(a + 3 * row + j);
                    const auto squashed = tanh<T>(X::load(c_new + i * row + j));
                    const auto by_h = X::load(dh + i * row + j) + X::load(to_h + j);
                    const auto zo = by_h * squashed * out * (1 - out);
                    auto by_c = X::load(dc + i * row + j) + X::load(to_c + j) +
                                by_h * out * (1 - squashed * squashed);
                    if constexpr (CELL == LSTM_FULL) by_c += X::load(more + i * row + j);
                    if constexpr (CELL == LSTM_DIAGONAL)
                        by_c += X::load(seen + 2 * row + j) * zo;
                    const auto zi = by_c * made * in * (1 - in);
                    const auto zf = by_c * X::load(c + i * row + j) * forget * (1 - forget);
                    const auto zg = by_c * in * (1 - made * made);
                    X::store(to + j, X::without_padding(zi, n - j));
                    X::store(to + row + j, X::without_padding(zf, n - j));
                    X::store(to + 2 * row + j, X::without_padding(zo, n - j));
                    X::store(to + 3 * row + j, X::without_padding(zg, n - j));
                    by_c *= forget;
                    if constexpr (CELL == LSTM_DIAGONAL)
                        by_c += X::load(seen + j) * zi + X::load(seen + row + j) * zf;
                    X::store(dc + i * row + j, by_c);
                }
            }
            each<T>(job.rows, n, {g, width, width}, nothing<T>(), job.R(),
                    [&](long i, long j, auto sum) { X::store(dh + i * row + j, sum); });
        }
    });
}

}  // namespace
