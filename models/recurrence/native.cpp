// Time steps of h_t = f(z_t + W h_{t-1}) and of their adjoint, in float and double.
//
// A job owns some rows of one lane's batch and runs all time steps for them, so jobs never wait for
// one another. W comes packed in panels as wide as a vector, (panels, n, N), and stays in cache. The
// rows' states lie in blocks of 256 columns with a fixed stride, so that the inner loop reaches every
// row from one pointer. Never compile with -ffast-math: NaN and infinity must pass through.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
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
constexpr long BLOCK = 256, STRIDE = BLOCK + 16;  // this stride spreads the rows over cache sets
constexpr long CACHED = 384 << 10;  // a W of more bytes is read once a step, not once a tile of rows

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

struct Whole {};  // in place of a count: all entries of a vector

template <class T> struct Vector {
    typedef T V __attribute__((vector_size(BYTES)));
    typedef typename Format<T>::Int I __attribute__((vector_size(BYTES)));
    static constexpr long N = BYTES / sizeof(T);

    static V load(const T* p, Whole = {}) {
        V v;
        std::memcpy(&v, p, BYTES);
        return v;
    }
    static void store(T* p, V v, Whole = {}) { std::memcpy(p, &v, BYTES); }

#if defined(__AVX512F__)
    static V load(const T* p, long count) {
        if constexpr (sizeof(T) == 4) return (V)_mm512_maskz_loadu_ps((1u << count) - 1, p);
        else return (V)_mm512_maskz_loadu_pd((1u << count) - 1, p);
    }
    static void store(T* p, V v, long count) {
        if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(p, (1u << count) - 1, (__m512)v);
        else _mm512_mask_storeu_pd(p, (1u << count) - 1, (__m512d)v);
    }
#else
    static V load(const T* p, long count) {
        V v = {};
        for (long j = 0; j < count; ++j) v[j] = p[j];
        return v;
    }
    static void store(T* p, V v, long count) {
        for (long j = 0; j < count; ++j) p[j] = v[j];
    }
#endif

    static V tanh(V z) {  // (e - 1) / (e + 1) with e = exp(2|z|), through exp(y) - 1 near zero
        using F = Format<T>;
        V y = z < 0 ? -z : z;
        y = y > 20 ? V{} + 20 : y;
        y = y + y;
        V shifted = y * T(1.44269504088896340736) + F::rounder, k = shifted - F::rounder;
        V r = y - k * F::ln2_high - k * F::ln2_low, sum = {};
        for (int i = F::terms; i > 1; --i) sum = (sum + 1) * r / T(i);
        I power = (((I)shifted) + F::bias) << F::mantissa;
        V scale = (V)power, less = scale * ((sum + 1) * r) + (scale - 1);
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

// P[r] = S[r] W for R rows and C panels; S in blocks.
template <class T, int R, int C>
void product(const T* S, const T* W, long n, T* P, long width) {
    using X = Vector<T>;
    typename X::V sum[R][C] = {};
    for (long first = 0; first < n; first += BLOCK, S += ROWS * STRIDE) {
        const long count = std::min(BLOCK, n - first);
        const T* w = W + first * X::N;
        for (long k = 0; k < count; ++k, w += X::N) {
            typename X::V panel[C];
            for (int c = 0; c < C; ++c) panel[c] = X::load(w + c * n * X::N);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) sum[r][c] += panel[c] * S[r * STRIDE + k];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) X::store(P + r * width + c * X::N, sum[r][c]);
}

template <class T, int R = ROWS>
void product(long rows, int panels, const T* S, const T* W, long n, T* P, long width) {
    if (rows < R) {
        if constexpr (R > 1) product<T, R - 1>(rows, panels, S, W, n, P, width);
    } else if (panels == 2) {
        product<T, R, 2>(S, W, n, P, width);
    } else {
        product<T, R, 1>(S, W, n, P, width);
    }
}

template <class T> T* aligned(std::vector<T>& memory) {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (64 - address % 64) % 64 / sizeof(T);
}

// Rows of one lane: S is their state, P = S W, both in tiles of at most ROWS rows.
template <class T> class Rows {
    using X = Vector<T>;
    long n, panels, width, height, tiles, in_tile, in_product;
    std::vector<T> states, products;
    T *S, *P;

  public:
    Rows(long n, long height, long tiles)
        : n(n), panels((n + X::N - 1) / X::N), width(panels * X::N), height(height), tiles(tiles),
          in_tile((n + BLOCK - 1) / BLOCK * ROWS * STRIDE), in_product(height * width),
          states(tiles * in_tile + X::N), products(tiles * in_product + X::N), S(aligned(states)),
          P(aligned(products)) {}

    void multiply(const T* W, long rows) {
        for (long p = 0; p < panels; p += 2)
            for (long i = 0, left = rows; left > 0; ++i, left -= height)
                product<T>(std::min(left, height), panels - p > 1 ? 2 : 1, S + i * in_tile,
                           W + p * n * X::N, n, P + i * in_product + p * X::N, width);
    }

    // Put f(row, column, count, P) into S, vector by vector; the last count may be a part.
    template <class F> void update(long rows, F f) {
        const long whole = n / X::N * X::N;
        for (long row = 0; row < rows; ++row) {
            const T* p = P + row * width;
            T* s = S + row / height * in_tile + row % height * STRIDE;
            for (long j = 0; j < whole; j += X::N)
                X::store(at(s, j), f(row, j, Whole{}, X::load(p + j)));
            if (whole < n) X::store(at(s, whole), f(row, whole, n - whole, X::load(p + whole)));
        }
    }

  private:
    static T* at(T* s, long column) { return s + column / BLOCK * ROWS * STRIDE + column % BLOCK; }
};

// What one call works on: H and G are (lanes, steps + 1, batch, n), their lanes some entries apart.
template <class T> struct Call {
    T *H, *G;
    const T *W, *b;
    T* db;
    long lanes, lane_H, lane_G, steps, batch, n;
    T leak;
    long threads;
};

// Run job(lane, part, first row, rows, scratch) for each lane and each part of its batch.
template <class T, class F> void run(const Call<T>& call, long height, long tiles, F job) {
    const long parts = (call.batch + height * tiles - 1) / (height * tiles);
    std::atomic<long> next{0};
#if defined(__SSE__)
    const unsigned mode = _mm_getcsr();  // so that every thread treats denormals alike
#endif
    auto work = [&] {
#if defined(__SSE__)
        _mm_setcsr(mode);
#endif
        Rows<T> scratch(call.n, height, tiles);
        for (long i = next++; i < call.lanes * parts; i = next++) {
            const long first = i % parts * height * tiles;
            job(i / parts, i % parts, first, std::min(height * tiles, call.batch - first), scratch);
        }
    };
    std::vector<std::thread> others;
    for (long i = 1; i < std::min(call.threads, call.lanes * parts); ++i) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
}

template <class T> struct Plan {
    long height, tiles, width;
    Plan(const Call<T>& call) : width((call.n + Vector<T>::N - 1) / Vector<T>::N * Vector<T>::N) {
        const long all = (call.batch + ROWS - 1) / ROWS;
        height = (call.batch + all - 1) / all;
        const bool cached = call.n * width * static_cast<long>(sizeof(T)) <= CACHED;
        tiles = cached ? 1 : (all + call.threads - 1) / call.threads;
    }
};

template <class T, template <class> class A> void forward(const Call<T>& call) {
    using X = Vector<T>;
    const Plan<T> plan(call);
    run(call, plan.height, plan.tiles, [&](long lane, long, long first, long rows, Rows<T>& state) {
        const long n = call.n;
        std::vector<T> bias(plan.width);
        std::copy_n(call.b + lane * n, n, bias.data());
        const T* W = call.W + lane * n * plan.width;
        T* h = call.H + lane * call.lane_H + first * n;
        state.update(rows, [&](long row, long j, auto count, auto) {
            return X::load(h + row * n + j, count);
        });
        for (long t = 0; t < call.steps; ++t) {
            h += call.batch * n;
            state.multiply(W, rows);
            state.update(rows, [&](long row, long j, auto count, auto product) {
                T* z = h + row * n + j;
                const auto value =
                    A<T>::value(X::load(z, count) + product, X::load(bias.data() + j), call.leak);
                X::store(z, value, count);
                return value;
            });
        }
    });
}

template <class T, template <class> class A> void backward(const Call<T>& call) {
    using X = Vector<T>;
    const Plan<T> plan(call);
    const long parts = (call.batch + plan.height * plan.tiles - 1) / (plan.height * plan.tiles);
    std::vector<T> sums(call.lanes * parts * plan.width);
    run(call, plan.height, plan.tiles, [&](long lane, long part, long first, long rows, Rows<T>& state) {
        const long n = call.n;
        std::vector<T> sum(plan.width);
        const T* W = call.W + lane * n * plan.width;
        const T* h = call.H + lane * call.lane_H + (call.steps * call.batch + first) * n;
        T* g = call.G + lane * call.lane_G + (call.steps * call.batch + first) * n;
        state.update(rows, [&](long row, long j, auto count, auto) {
            return X::load(g + row * n + j, count);
        });
        for (long t = call.steps; t > 0; --t, h -= call.batch * n) {
            g -= call.batch * n;
            state.multiply(W, rows);
            state.update(rows, [&](long row, long j, auto count, auto product) {
                T* to = g + row * n + j;
                const auto state = X::load(h + row * n + j, count);
                const auto d = A<T>::to_z(X::load(to, count) + product, state, call.leak);
                X::store(to, d, count);
                X::store(sum.data() + j, X::load(sum.data() + j) + A<T>::to_b(d, state));
                return d;
            });
        }
        std::copy(sum.begin(), sum.end(), sums.begin() + (lane * parts + part) * plan.width);
    });
    for (long lane = 0; lane < call.lanes; ++lane)
        for (long part = 0; part < parts; ++part)
            for (long j = 0; j < call.n; ++j)
                call.db[lane * call.n + j] += sums[(lane * parts + part) * plan.width + j];
}

template <class T, template <class> class A> void step(const Call<T>& call) {
    call.G ? backward<T, A>(call) : forward<T, A>(call);
}

template <class T> int step(int activation, const Call<T>& call) {
    switch (activation) {
        case 0: step<T, ModReLU>(call); return 0;
        case 1: step<T, Tanh>(call); return 0;
        case 2: step<T, ReLU>(call); return 0;
        case 3: step<T, Identity>(call); return 0;
        case 4: step<T, LeakyReLU>(call); return 0;
        default: return 1;
    }
}

}  // namespace

extern "C" {
// Bytes of a vector: W is packed in panels of so many.
int vector_bytes() { return BYTES; }

// With G null, turn z in H[1:] into h, from H[0] on. Else turn dL/dh in G[:-1] into dL/dz, from
// dL/dz in G[-1] back, given H[1:], and add dL/db to db. W is packed W^T forward, W backward.
int step_float(int activation, float* H, float* G, const float* W, const float* b, float* db,
               long lanes, long lane_H, long lane_G, long steps, long batch, long n, float leak,
               long threads) {
    return step<float>(activation, {H, G, W, b, db, lanes, lane_H, lane_G, steps, batch, n, leak, threads});
}
int step_double(int activation, double* H, double* G, const double* W, const double* b, double* db,
                long lanes, long lane_H, long lane_G, long steps, long batch, long n, double leak,
                long threads) {
    return step<double>(activation, {H, G, W, b, db, lanes, lane_H, lane_G, steps, batch, n, leak, threads});
}
}
