// The steps of LEM and their adjoint. R has the matrices that meet y, and behind them the one that
// meets z. The other weight is dt.

#pragma once

#include <vector>

#include "gated_kernels.h"

namespace {

template <class T> void lem_forward(const Call<T>& call) {
    using X = Vector<T>;
    constexpr long N = X::N;
    const long n = call.n, row = call.row, width = 4 * row, size = (n + N - 1) / N * N * n;
    share(call, [&](const Job<T>& job) {
        alignas(64) T P[ROWS * 3 * N];
        const T *b = job.bias(), dt = job.other()[0];
        for (long t = 0; t < call.steps; ++t) {
            const T *y = job.state(0, t), *z = job.state(1, t);
            T *y_new = job.state(0, t + 1), *z_new = job.state(1, t + 1), *kept = job.kept(t);
            for (long j = 0; j < n; j += N)
                tiled(job.rows, [&](long first, auto R) {
                    multiply<T, R, 3>({y, row, n}, nothing<T>(), first, job.R() + 3 * j * n, P);
                    for (long r = 0; r < R; ++r) {
                        const long i = first + r;
                        T* to = kept + i * width + j;
                        const T* Ux = job.input(t, i, kept + i * width) + j;
                        const auto met = [&](long k) {
                            return X::load(Ux + k * row) + X::load(b + k * row + j);
                        };
                        const auto sum = [&](long k) { return X::load(P + (3 * r + k) * N); };
                        const auto slow = sigmoid<T>(met(0) + sum(0));
                        const auto quick = sigmoid<T>(met(1) + sum(1));
                        const auto made = tanh<T>(met(2) + sum(2)), later = met(3);
                        const auto before = X::load(z + i * row + j);
                        X::store(to, slow);
                        X::store(to + row, quick);
                        X::store(to + 2 * row, made);
                        X::store(to + 3 * row, later);
                        X::store(z_new + i * row + j, before + dt * slow * (made - before));
                    }
                });
            each<T>(job.rows, n, {z_new, row, n}, nothing<T>(), job.R() + 3 * size,
                    [&](long i, long j, auto sum) {
                        T* a = kept + i * width + j;
                        const auto made = tanh<T>(X::load(a + 3 * row) + sum);
                        const auto before = X::load(y + i * row + j), quick = X::load(a + row);
                        X::store(a + 3 * row, made);
                        X::store(y_new + i * row + j, before + dt * quick * (made - before));
                    });
        }
    });
}

template <class T> void lem_backward(const Call<T>& call) {
    using X = Vector<T>;
    constexpr long N = X::N;
    const long n = call.n, row = call.row, width = 4 * row, size = (n + N - 1) / N * N * row;
    const std::vector<T> zero(row);
    share(call, [&](const Job<T>& job) {
        const T dt = job.other()[0];
        T *dy = job.carry(0), *dz = job.carry(1);
        for (long t = call.steps - 1; t >= 0; --t) {
            const T *y = job.state(0, t), *z = job.state(1, t), *kept = job.kept(t);
            T* g = job.back(t);
            for (long i = 0; i < job.rows; ++i) {
                const T *a = kept + i * width, *d = call.D ? job.readout(t) + i * row : zero.data();
                T* to = g + i * width;
                for (long j = 0; j < n; j += N) {
                    const auto quick = X::load(a + row + j), made = X::load(a + 3 * row + j);
                    const auto by_y = X::load(dy + i * row + j) + X::load(d + j);
                    const auto to_made = dt * quick * by_y * (1 - made * made);
                    const auto to_quick =
                        dt * by_y * (made - X::load(y + i * row + j)) * quick * (1 - quick);
                    X::store(to + row + j, X::without_padding(to_quick, n - j));
                    X::store(to + 3 * row + j, X::without_padding(to_made, n - j));
                    X::store(dy + i * row + j, by_y * (1 - dt * quick));
                }
            }
            each<T>(job.rows, n, {g + 3 * row, width, row}, nothing<T>(), job.R() + 3 * size,
                    [&](long i, long j, auto sum) {
                        const T* a = kept + i * width + j;
                        T *to = g + i * width + j, *carried = dz + i * row + j;
                        const auto slow = X::load(a), made = X::load(a + 2 * row);
                        const auto by_z = X::load(carried) + sum;
                        const auto to_made = dt * slow * by_z * (1 - made * made);
                        const auto to_slow =
                            dt * by_z * (made - X::load(z + i * row + j)) * slow * (1 - slow);
                        X::store(to, X::without_padding(to_slow, n - j));
                        X::store(to + 2 * row, X::without_padding(to_made, n - j));
                        X::store(carried, by_z * (1 - dt * slow));
                    });
            each<T>(job.rows, n, {g, width, 3 * row}, nothing<T>(), job.R(),
                    [&](long i, long j, auto sum) {
                        T* to = dy + i * row + j;
                        X::store(to, X::load(to) + sum);
                    });
        }
    });
}

}  // namespace
