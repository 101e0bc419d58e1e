// The steps of coRNN and their adjoint. The other weights are dt, gamma and epsilon.

#pragma once

#include <vector>

#include "gated_kernels.h"

namespace {

template <class T> void cornn_forward(const Call<T>& call) {
    using X = Vector<T>;
    const long n = call.n, row = call.row;
    share(call, [&](const Job<T>& job) {
        const T *b = job.bias(), dt = job.other()[0];
        const T gamma = job.other()[1], epsilon = job.other()[2];
        for (long t = 0; t < call.steps; ++t) {
            const T *y = job.state(0, t), *z = job.state(1, t);
            T *y_new = job.state(0, t + 1), *z_new = job.state(1, t + 1), *kept = job.kept(t);
            each<T>(job.rows, n, {y, row, n}, {z, row, n}, job.R(), [&](long i, long j, auto sum) {
                const long at = i * row + j;
                const auto Ux = X::load(job.input(t, i, kept + i * row) + j);
                const auto force = tanh<T>(sum + Ux + X::load(b + j));
                const auto before = X::load(y + at), speed = X::load(z + at);
                const auto now = speed + dt * (force - gamma * before - epsilon * speed);
                X::store(kept + at, force);
                X::store(z_new + at, now);
                X::store(y_new + at, before + dt * now);
            });
        }
    });
}

template <class T> void cornn_backward(const Call<T>& call) {
    using X = Vector<T>;
    constexpr long N = X::N;
    const long n = call.n, row = call.row, size = (n + N - 1) / N * N * row;
    const std::vector<T> zero(row);
    share(call, [&](const Job<T>& job) {
        const T *of_y = job.R(), *of_z = of_y + size;
        const T dt = job.other()[0], gamma = job.other()[1], epsilon = job.other()[2];
        T *dy = job.carry(0), *dz = job.carry(1);
        for (long t = call.steps - 1; t >= 0; --t) {
            const T* kept = job.kept(t);
            T* g = job.back(t);
            for (long i = 0; i < job.rows; ++i) {
                const T* d = call.D ? job.readout(t) + i * row : zero.data();
                for (long j = 0; j < n; j += N) {
                    const long at = i * row + j;
                    const auto by_y = X::load(dy + at) + X::load(d + j);
                    const auto by_z = X::load(dz + at) + dt * by_y, force = X::load(kept + at);
                    const auto by_force = dt * by_z * (1 - force * force);
                    X::store(g + at, X::without_padding(by_force, n - j));
                    X::store(dy + at, by_y - dt * gamma * by_z);
                    X::store(dz + at, by_z - dt * epsilon * by_z);
                }
            }
            const auto add = [&](const T* R, T* to) {
                each<T>(job.rows, n, {g, row, row}, nothing<T>(), R, [&](long i, long j, auto sum) {
                    T* entry = to + i * row + j;
                    X::store(entry, X::load(entry) + sum);
                });
            };
            add(of_y, dy);
            add(of_z, dz);
        }
    });
}

}  // namespace
