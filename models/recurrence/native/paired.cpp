// The steps h_t = f(U x_t + W h_{t-1}; b) with f = modReLU of complex numbers, and their adjoint, in
// float and double. Real and imaginary part of a unit stand side by side.
//
// A job owns some rows of one lane's batch and runs all time steps for them, so jobs never wait for
// one another. Matrices come packed in panels as wide as a vector. Rows are padded to whole vectors;
// what stands in the padding has no effect on the units.
// Never compile with -ffast-math: NaN and infinity must pass through.

#include <cmath>
#include <utility>
#include <vector>

#include "jobs.h"

namespace {

// What one call works on. H and G are (lanes, steps + 1, batch, 2 half), their lanes `lane_*` apart;
// a row of H is h and, `half` further, z.
template <class T> struct Call {
    T *H, *G, *db;
    const T *W, *b;
    int64_t lane_H, lane_G, lane_W, lanes, steps, batch, n, half, threads;
    double inside, shift, below;  // |z|₊ = sqrt(|z|² + inside) + shift
};

// Complex numbers in a vector: N / 2 pairs.
template <class T> struct Pairs : Vector<T> {
    using typename Vector<T>::V;
    using Vector<T>::N;

    template <int... I> static V swapped(V v, std::integer_sequence<int, I...>) {
        return __builtin_shufflevector(v, v, (I ^ 1)...);
    }
    // The sum of the two entries of a pair, in both places.
    static V summed(V v) { return v + swapped(v, std::make_integer_sequence<int, N>()); }

    static V sqrt(V v) {
#if defined(__AVX512F__)
        if constexpr (sizeof(T) == 4) return (V)_mm512_sqrt_ps((__m512)v);
        else return (V)_mm512_sqrt_pd((__m512d)v);
#elif defined(__AVX__)
        if constexpr (sizeof(T) == 4) return (V)_mm256_sqrt_ps((__m256)v);
        else return (V)_mm256_sqrt_pd((__m256d)v);
#else
        for (long i = 0; i < N; ++i) v[i] = std::sqrt(v[i]);
        return v;
#endif
    }
};

// z · max(|z|₊ + b, 0) / (|z|₊ + below), and back.
template <class T> struct ModReLUOfPairs {
    using X = Pairs<T>;
    using V = typename X::V;
    const T inside, shift, below;

    V value(V z, V b) const {
        const V size = X::sqrt(X::summed(z * z) + inside) + shift, over = size + b;
        return over <= 0 ? V{} : z * (over / (size + below));
    }
    // dL/dz given g = dL/dh; and dL/db, in both places of a pair.
    std::pair<V, V> slopes(V g, V z, V b) const {
        const V length = X::sqrt(X::summed(z * z) + inside), size = length + shift;
        const V over = size + b, inverse = 1 / (size + below), along = X::summed(g * z) * inverse;
        const V turn = length == 0 ? V{} : along * (below - b) * inverse / length;
        return {over <= 0 ? V{} : g * (over * inverse) + z * turn, over <= 0 ? V{} : along};
    }
};

template <class T> Jobs jobs_of(const Call<T>& call) {
    const double size = double(call.lanes) * call.steps * call.batch * call.n * call.n;
    return Jobs(size, call.lanes, call.batch, call.threads);
}

// Call f(row, j, product) for all rows of A W and the columns of W, a vector from j on each.
template <class T, class F> void each(long rows, const Left<T>& A, const T* W, long n, F f) {
    constexpr long N = Vector<T>::N;
    const long size = A.columns * N, tiles = (rows + ROWS - 1) / ROWS;
    const long height = (rows + tiles - 1) / tiles;
    alignas(64) T P[ROWS * 2 * N];
    for (long j = 0; j < n; j += 2 * N)
        for (long i = 0; i < rows; i += height)
            sized(std::min(height, rows - i), n - j > N, [&](auto R, auto C) {
                product<T, R, C>(A, {nullptr, 0, 0}, i, W + j / N * size, size, P, C * N);
                for (long r = 0; r < R; ++r)
                    for (long c = 0; c < C; ++c)
                        f(i + r, j + c * N, Vector<T>::load(P + (r * C + c) * N));
            });
}

template <class T> void forward(const Call<T>& call) {
    using X = Vector<T>;
    const long n = call.n, half = call.half, row = 2 * half, step = call.batch * row;
    const ModReLUOfPairs<T> f{T(call.inside), T(call.shift), T(call.below)};
    jobs_of(call).run([&](long, long lane, long first, long rows) {
        const T *W = call.W + lane * call.lane_W, *b = call.b + lane * half;
        T* h = call.H + lane * call.lane_H + first * row;
        for (long t = 0; t < call.steps; ++t, h += step)
            each<T>(rows, {h, row, n}, W, n, [&](long i, long j, auto Wh) {
                T* to = h + step + i * row + j;
                const auto z = Wh + X::load(to + half);
                X::store(to + half, z);
                X::store(to, f.value(z, X::load(b + j)));
            });
    });
}

template <class T> void backward(const Call<T>& call) {
    using X = Vector<T>;
    const long n = call.n, half = call.half, row = 2 * half, step = call.batch * row;
    const ModReLUOfPairs<T> f{T(call.inside), T(call.shift), T(call.below)};
    const Jobs jobs = jobs_of(call);
    std::vector<T> sums(jobs.count * half);
    jobs.run([&](long job, long lane, long first, long rows) {
        const T *W = call.W + lane * call.lane_W, *b = call.b + lane * half;
        const T* h = call.H + lane * call.lane_H + call.steps * step + first * row;
        T* g = call.G + lane * call.lane_G + call.steps * step + first * row;
        T* sum = sums.data() + job * half;
        for (long t = call.steps; t > 0; --t, h -= step, g -= step)
            each<T>(rows, {g, row, n}, W, n, [&](long i, long j, auto later) {
                T* to = g - step + i * row + j;
                const auto z = X::load(h + half + i * row + j);
                const auto [dz, db] = f.slopes(X::load(to) + later, z, X::load(b + j));
                X::store(to, dz);
                X::store(sum + j, X::load(sum + j) + db);
            });
    });
    for (long job = 0; job < jobs.count; ++job)
        for (long j = 0; j < n; ++j) call.db[job / jobs.parts * half + j] += sums[job * half + j];
}

template <class T> int step(const Call<T>& call) {
    (call.G ? backward<T> : forward<T>)(call);
    return 0;
}

}  // namespace

extern "C" {
// Bytes of a vector: rows are padded to a multiple, matrices packed in panels of so many.
int vector_bytes() { return BYTES; }

// With G null, make h and z in H[1:] from H[0] on, where U x_t stands in place of z. Else make dL/dz
// in G[:-1], where the rest of dL/dh stands, from dL/dz of the step after in G[-1], and add to dL/db.
int step_float(const Call<float>* call) { return step(*call); }
int step_double(const Call<double>* call) { return step(*call); }
}
