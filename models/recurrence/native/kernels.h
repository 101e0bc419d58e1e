// Vectors, activations and products, for all compiled steps.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr long BYTES = 64, ROWS = 14;  // 32 registers hold 14 x 2 sums
#elif defined(__AVX__)
constexpr long BYTES = 32, ROWS = 6;  // 16 registers hold 6 x 2 sums
#else
constexpr long BYTES = 16, ROWS = 6;
#endif

template <class T> struct Format;
template <> struct Format<float> {
    using Int = int32_t;
    static constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    static constexpr int mantissa = 23, bias = 127, terms = 8;
    static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860682030941723e-6f;
};
template <> struct Format<double> {
    using Int = int64_t;
    static constexpr double rounder = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr int mantissa = 52, bias = 1023, terms = 13;
    static constexpr double ln2_high = 6.93147180369123816490e-1, ln2_low = 1.90821492927058770002e-10;
};

constexpr double factorial(int i) { return i < 2 ? 1 : i * factorial(i - 1); }

// Keep a compiler from making v anew, or reading it again, wherever it is used.
template <class V> inline V in_register(V v) {
#if defined(__x86_64__)
    if constexpr (std::is_integral_v<V>) asm("" : "+r"(v));
    else asm("" : "+v"(v));
#endif
    return v;
}

template <class T> struct Vector {
    typedef T V __attribute__((vector_size(BYTES)));
    typedef typename Format<T>::Int Ints __attribute__((vector_size(BYTES)));
    static constexpr long N = BYTES / sizeof(T);

    static V load(const T* p) {
        V v;
        std::memcpy(&v, p, BYTES);
        return v;
    }
    static void store(T* p, V v) { std::memcpy(p, &v, BYTES); }

    // v, whose first `units` entries belong to units, with zeros in the padding after them.
    static V without_padding(V v, long units) {
        return units < N ? cut(v, units, std::make_integer_sequence<int, N>()) : v;
    }
    template <int... I> static V cut(V v, long units, std::integer_sequence<int, I...>) {
        const Ints place = {I...};
        return place < static_cast<typename Format<T>::Int>(units) ? v : V{};
    }

    static V tanh(V z) {  // (e - 1) / (e + 1) with e = exp(2|z|), through exp(y) - 1 near zero
        using F = Format<T>;
        V y = z < 0 ? -z : z;
        y = y > 20 ? V{} + 20 : y;
        y = y + y;
        V shifted = y * T(1.44269504088896340736) + F::rounder, k = shifted - F::rounder;
        V r = y - k * F::ln2_high - k * F::ln2_low, sum = {};
#pragma GCC unroll 16
        for (int i = F::terms; i > 0; --i) sum = (sum + T(1 / factorial(i))) * r;
        Ints power = (((Ints)shifted) + F::bias) << F::mantissa;
        V scale = (V)power, less = scale * sum + (scale - 1);
        V value = less / (less + 2);
        return z < 0 ? -value : value;
    }
};

// f(z; b), and from h = f(z; b) alone: the gradients to z and to b.
template <class T> struct Identity {
    using V = typename Vector<T>::V;
    static V value(V z, V b, T) { return z + b; }
    static V to_z(V g, V, T) { return g; }
    static V to_b(V d, V) { return d; }
};
template <class T> struct ReLU : Identity<T> {
    using V = typename Vector<T>::V;
    static V value(V z, V b, T) { return z + b < 0 ? V{} : z + b; }
    static V to_z(V g, V h, T) { return h <= 0 ? V{} : g; }
};
template <class T> struct LeakyReLU : Identity<T> {
    using V = typename Vector<T>::V;
    static V value(V z, V b, T leak) { return z + b < 0 ? (z + b) * leak : z + b; }
    static V to_z(V g, V h, T leak) { return h > 0 ? g : g * leak; }
};
template <class T> struct Tanh : Identity<T> {
    using V = typename Vector<T>::V;
    static V value(V z, V b, T) { return Vector<T>::tanh(z + b); }
    static V to_z(V g, V h, T) { return g * (1 - h * h); }
};
template <class T> struct ModReLU {
    using V = typename Vector<T>::V;
    static V value(V z, V b, T) {
        const V size = (z < 0 ? -z : z) + b;
        return (size <= 0) | (z == 0) ? V{} : z < 0 ? -size : size;
    }
    static V to_z(V g, V h, T) { return h == 0 ? V{} : g; }
    static V to_b(V d, V h) { return h < 0 ? -d : d; }
};

// Rows of a matrix on the left of a product, `stride` entries apart.
template <class T> struct Left {
    const T* rows;
    long stride, columns;
};

// sum[r] += A[r] w for R rows and C panels. Few rows have a pointer each and go four columns at a
// time; of many three share one: there are few registers.
template <class T, int R, int C>
inline __attribute__((always_inline)) const T* accumulate(
    typename Vector<T>::V (&sum)[R][C], const Left<T>& A, long first, const T* w, long panel_size) {
    using X = Vector<T>;
    constexpr int SHARED = R <= 6 ? 1 : 3, POINTERS = (R + SHARED - 1) / SHARED;
    const long stride = A.stride;
    const T* rows[POINTERS];
#pragma GCC unroll 8
    for (int q = 0; q < POINTERS; ++q) rows[q] = A.rows + (first + SHARED * q) * stride;
    const auto add = [&](long k, long i) __attribute__((always_inline)) {
        typename X::V panel[C];
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c)
            panel[c] = in_register(X::load(w + c * panel_size + i * X::N));
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c)
                sum[r][c] = in_register(sum[r][c] +
                                        panel[c] * rows[r / SHARED][r % SHARED * stride + k + i]);
    };
    long k = 0;
    if constexpr (SHARED == 1)
        for (; k + 4 <= A.columns; k = in_register(k + 4), w += 4 * X::N)
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) add(k, i);
    for (; k < A.columns; ++k, w += X::N) add(k, 0);
    return w;
}

// P[r] = [A, B][first + r] W for R rows and C panels of W.
template <class T, int R, int C>
void product(const Left<T>& A, const Left<T>& B, long first, const T* W, long panel_size, T* P,
             long width) {
    using X = Vector<T>;
    typename X::V sum[R][C] = {};
    const T* w = accumulate<T, R, C>(sum, A, first, W, panel_size);
    accumulate<T, R, C>(sum, B, first, w, panel_size);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) X::store(P + r * width + c * X::N, sum[r][c]);
}

// to += A^T B for R columns of A and C panels of B.
template <class T, int R, int C>
void outer(const T* A, long stride, const T* B, long width, long length, T* to) {
    using X = Vector<T>;
    typename X::V sum[R][C] = {};
    const auto add = [&](long i) __attribute__((always_inline)) {
        typename X::V panel[C];
        for (int c = 0; c < C; ++c) panel[c] = in_register(X::load(B + i * width + c * X::N));
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c)
                sum[r][c] = in_register(sum[r][c] + panel[c] * A[i * stride + r]);
    };
    long k = 0;
    if constexpr (R <= 6)
        for (; k + 2 <= length; k += 2, A += 2 * stride, B += 2 * width)
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) add(i);
    for (; k < length; ++k, A += stride, B += width) add(0);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            T* entry = to + r * width + c * X::N;
            X::store(entry, X::load(entry) + sum[r][c]);
        }
}

// Call f(R, C) with constants: R = rows, at most ROWS, and C = 2 or 1 panels.
template <int R = ROWS, class F> void sized(long rows, bool pair, F f) {
    if constexpr (R > 1)
        if (rows < R) return sized<R - 1>(rows, pair, f);
    if (pair) f(std::integral_constant<int, R>{}, std::integral_constant<int, 2>{});
    else f(std::integral_constant<int, R>{}, std::integral_constant<int, 1>{});
}

}  // namespace
