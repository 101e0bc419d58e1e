// The steps of GRU and GORU and their adjoint.

#pragma once

#include <type_traits>
#include <vector>

#include "gated_kernels.h"

namespace {

template <class T, int CELL> void gru_forward(const Call<T>& call) {
    using X = Vector<T>;
    constexpr long N = X::N;
    constexpr bool CHO = CELL == GRU_CHO;
    constexpr int C = CHO ? 2 : 3;
    const long n = call.n, row = call.row, width = call.kept * row;
    share(call, [&](const Job<T>& job) {
        alignas(64) T P[ROWS * C * N];
        std::vector<T> memory(CHO ? job.rows * row + 64 / sizeof(T) : 0);
        T* reset = aligned(memory);
        const T* b = job.bias();
        for (long t = 0; t < call.steps; ++t) {
            const T* h = job.state(0, t);
            T *h_new = job.state(0, t + 1), *kept = job.kept(t);
            const auto squash = [&](auto argument, long j) {
                if constexpr (CELL == GORU)
                    return ModReLU<T>::value(argument, X::load(job.other() + j), 0);
                else
                    return tanh<T>(argument);
            };
            const auto finish = [&](long i, long j, auto argument, auto z) {
                const auto before = X::load(h + i * row + j), made = squash(argument, j);
                X::store(kept + i * width + 2 * row + j, made);
                X::store(h_new + i * row + j, made + z * (before - made));
            };
            for (long j = 0; j < n; j += N)
                tiled(job.rows, [&](long first, auto R) {
                    multiply<T, R, C>({h, row, n}, nothing<T>(), first, job.R() + C * j * n, P);
                    for (long r = 0; r < R; ++r) {
                        const long i = first + r;
                        T* to = kept + i * width + j;
                        const T* Ux = job.input(t, i, kept + i * width) + j;
                        const auto met = [&](long k) {
                            return X::load(Ux + k * row) + X::load(b + k * row + j);
                        };
                        const auto sum = [&](long k) { return X::load(P + (C * r + k) * N); };
                        const auto gate = sigmoid<T>(met(0) + sum(0));
                        const auto z = sigmoid<T>(met(1) + sum(1)), candidate = met(2);
                        X::store(to, gate);
                        X::store(to + row, z);
                        if constexpr (CHO) {
                            X::store(to + 2 * row, candidate);
                            X::store(reset + i * row + j, gate * X::load(h + i * row + j));
                        } else {
                            X::store(to + 3 * row, sum(2));
                            finish(i, j, candidate + gate * sum(2), z);
                        }
                    }
                });
            if constexpr (CHO)
                each<T>(job.rows, n, {reset, row, n}, nothing<T>(), job.other(),
                        [&](long i, long j, auto sum) {
                            const T* a = kept + i * width + j;
                            finish(i, j, X::load(a + 2 * row) + sum, X::load(a + row));
                        });
        }
    });
}

template <class T, int CELL> void gru_backward(const Call<T>& call) {
    using X = Vector<T>;
    constexpr long N = X::N;
    constexpr bool CHO = CELL == GRU_CHO;
    const long n = call.n, row = call.row, width = call.kept * row;
    const std::vector<T> zero(row);
    share(call, [&](const Job<T>& job) {
        T* dh = job.carry(0);
        for (long t = call.steps - 1; t >= 0; --t) {
            const T *h = job.state(0, t), *kept = job.kept(t);
            T* g = job.back(t);
            for (long i = 0; i < job.rows; ++i) {
                const T *a = kept + i * width, *d = call.D ? job.readout(t) + i * row : zero.data();
                T* to = g + i * width;
                for (long j = 0; j < n; j += N) {
                    const auto z = X::load(a + row + j), made = X::load(a + 2 * row + j);
                    const auto by_h = X::load(dh + i * row + j) + X::load(d + j);
                    auto candidate = by_h * (1 - z);
                    if constexpr (CELL == GORU) candidate = ModReLU<T>::to_z(candidate, made, 0);
                    else candidate *= 1 - made * made;
                    const auto by_z = by_h * (X::load(h + i * row + j) - made) * z * (1 - z);
                    X::store(to + row + j, X::without_padding(by_z, n - j));
                    X::store(to + 2 * row + j, X::without_padding(candidate, n - j));
                    X::store(dh + i * row + j, by_h * z);
                    if constexpr (!CHO) {
                        const auto r = X::load(a + j), product = X::load(a + 3 * row + j);
                        const auto by_r = candidate * product * r * (1 - r);
                        X::store(to + j, X::without_padding(by_r, n - j));
                        X::store(to + 3 * row + j, X::without_padding(candidate * r, n - j));
                    }
                }
            }
            if constexpr (CHO)
                each<T>(job.rows, n, {g + 2 * row, width, row}, nothing<T>(), job.other(),
                        [&](long i, long j, auto sum) {
                            const auto r = X::load(kept + i * width + j);
                            const auto before = X::load(h + i * row + j);
                            const auto by_r = sum * before * r * (1 - r);
                            X::store(g + i * width + j, X::without_padding(by_r, n - j));
                            T* to = dh + i * row + j;
                            X::store(to, X::load(to) + sum * r);
                        });
            const Left<T> rest = CHO ? nothing<T>() : Left<T>{g + 3 * row, width, row};
            each<T>(job.rows, n, {g, width, 2 * row}, rest, job.R(), [&](long i, long j, auto sum) {
                T* to = dh + i * row + j;
                X::store(to, X::load(to) + sum);
            });
        }
    });
}

}  // namespace
