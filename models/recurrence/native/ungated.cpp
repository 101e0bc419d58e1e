// The steps h_t = f(U x_t + W h_{t-1}; b), read out as V h_t + c, and their adjoint, in float and
// double.
//
// A job owns some rows of one lane's batch and runs all time steps for them, so jobs never wait for
// one another. A row's state and input, [h, x], meet [W, U] in one product, and the readout rides
// along as more columns of it; backward the same with [dL/dz, dL/dlogits] and [W; V]. Matrices come
// packed in panels as wide as a vector, (panels, columns of [h, x], N), and stay in cache. Rows of H
// and G are padded to whole vectors; what stands in the padding has no effect.
// Never compile with -ffast-math: NaN and infinity must pass through.

#include <cmath>
#include <initializer_list>
#include <vector>

#include "jobs.h"

namespace {

constexpr long DEPTH = 128;         // rows of dz and h that dW gains from at a time
constexpr long CACHED = 384 << 10;  // a W of more bytes is read once a step, not once a tile

// What one call works on. H and G are (lanes, steps + 1, batch, row), their lanes `lane_*` entries
// apart; x is values (lanes, steps, batch, m), symbols that name rows of the table, or neither where
// what enters h stands in H already.
template <class T> struct Call {
    T *H, *G;
    const T *W, *b, *c, *values, *table;
    const int64_t* symbols;
    T* logits;  // backward: dL/dlogits
    T *dW, *db, *dU, *dV;
    int64_t lane_H, lane_G, lane_x, lane_logits, lanes, steps, batch, n, row, m, p;
    int64_t activation, threads;
    double leak;

    static long panels(long columns) { return (columns + Vector<T>::N - 1) / Vector<T>::N; }
};

// z, scaled down to the length b[0] where it is longer. The scale of each h stands behind it.
template <class T> struct Clipped : Identity<T> {
    using V = typename Vector<T>::V;
    static V value(V z, V, T) { return z; }
    static V to_b(V, V) { return V{}; }
};
template <class T, template <class> class A> constexpr bool clips = std::is_same_v<A<T>, Clipped<T>>;

template <class T> T dot(const T* a, const T* b, long n) {
    using X = Vector<T>;
    typename X::V sums = {};
    for (long j = 0; j < n; j += X::N)
        sums += X::without_padding(X::load(a + j) * X::load(b + j), n - j);
    T sum = 0;
    for (long i = 0; i < X::N; ++i) sum += sums[i];
    return sum;
}

// Turn z into h, in place.
template <class T> void clip(T* z, long n, T limit) {
    using X = Vector<T>;
    const T length = std::sqrt(dot(z, z, n)), scale = length > limit ? limit / length : 1;
    for (long j = 0; j < n; j += X::N) X::store(z + j, X::load(z + j) * scale);
    z[n] = scale;
}

// Turn dL/dh into dL/dz, in place.
template <class T> void unclip(T* g, const T* h, long n, T limit) {
    using X = Vector<T>;
    const T scale = h[n];
    if (!(scale < 1)) return;
    const T radial = dot(g, h, n) / (limit * limit);
    for (long j = 0; j < n; j += X::N)
        X::store(g + j, scale * (X::load(g + j) - X::load(h + j) * radial));
}

// How a batch is cut: tiles of `height` rows, `tiles` of them in a part, `parts` in a lane.
struct Plan {
    long height, tiles, parts, rows;
    Plan(long batch, long threads, long bytes) {
        const long all = (batch + ROWS - 1) / ROWS;
        height = (batch + all - 1) / all;
        tiles = bytes <= CACHED ? 1 : (all + threads - 1) / threads;
        rows = height * tiles;
        parts = (batch + rows - 1) / rows;
    }
};

// Room for the product of a part's rows. The number of its panels is odd: rows a power of two apart
// would crowd into the same cache sets.
template <class T> class Product {
    using X = Vector<T>;
    const long height, width;
    std::vector<T> memory;
    T* const P;

  public:
    Product(const Plan& plan, long panels)
        : height(plan.height), width((panels | 1) * X::N), memory(plan.rows * width + 64 / sizeof(T)),
          P(aligned(memory)) {}

    const T* row(long i) const { return P + i * width; }

    // P = [A, B] W in the panels from `first` to before `last`; a panel of W has K rows. Meanwhile
    // as many rows as A has are fetched from each place in `ahead`: they are wanted next. Steps that
    // take the panels to and fro by turns find the last ones of a large W still in cache.
    void make(const Left<T>& A, const Left<T>& B, const T* W, long K, long rows, long first,
              long last, std::initializer_list<const T*> ahead, bool fro = false) {
        const long piece = 2 * rows * A.stride / (last - first) + 1;
        const long pairs = (last - first + 1) / 2, tiles = (rows + height - 1) / height;
        for (long q = 0; q < pairs; ++q) {
            for (const T* place : ahead)
                for (long j = 0; j < piece; j += X::N)
                    __builtin_prefetch(place + q * piece + j, 1);
            const long p = first + 2 * (fro ? pairs - 1 - q : q);
            for (long tile = 0, i = 0, count; tile < tiles; ++tile, i += count) {
                count = (rows - i) / (tiles - tile);
                sized(count, last - p > 1, [&](auto R, auto C) {
                    product<T, R, C>(A, B, i, W + p * K * X::N, K * X::N, P + i * width + p * X::N,
                                     width);
                });
            }
        }
    }
};

template <class T, template <class> class A> void forward(const Call<T>& call) {
    using X = Vector<T>;
    const long n = call.n, p = call.p, row = call.row, step = call.batch * row;
    const long m = call.symbols ? 0 : call.m, K = n + m, panels = call.panels(n);
    const long all = panels + (call.logits ? call.panels(p) : 0);
    const Plan plan(call.batch, call.threads, K * all * BYTES);
    const std::vector<T> zero(row);
    const T leak = call.leak;
    share(call.lanes * plan.parts, call.threads, [&](auto next) {
        Product<T> product(plan, all);
        for (long job = next(); job >= 0; job = next()) {
            const long lane = job / plan.parts, first = job % plan.parts * plan.rows;
            const long rows = std::min<long>(plan.rows, call.batch - first);
            const T *W = call.W + lane * K * all * X::N, *b = call.b + lane * row;
            const T* table = call.table + lane * call.m * row;
            T* h = call.H + lane * call.lane_H + first * row;
            const auto read_out = [&](long t) {
                T* y = call.logits + lane * call.lane_logits + (t * call.batch + first) * p;
                for (long i = 0; i < rows; ++i, y += p)
                    for (long j = 0; j < p; ++j)
                        y[j] = product.row(i)[panels * X::N + j] + call.c[lane * p + j];
            };
            for (long t = 0; t < call.steps; ++t, h += step) {
                const long from = t * call.batch + first;
                const T* x = call.values + lane * call.lane_x + from * m;
                const int64_t* symbols = call.symbols + lane * call.lane_x + from;
                product.make({h, row, n}, {x, m, m}, W, K, rows, 0, t && !m ? all : panels,
                             {h + step}, t % 2);
                if (t && all > panels) {
                    if (m) product.make({h, row, n}, {h, 0, 0}, W, K, rows, panels, all, {});
                    read_out(t - 1);
                }
                for (long i = 0; i < rows; ++i) {
                    const T* z = product.row(i);
                    T* to = h + step + i * row;
                    const T* Ux = call.symbols  ? table + symbols[i] * row
                                  : call.values ? zero.data()
                                                : to;
                    for (long j = 0; j < n; j += X::N)
                        X::store(to + j, A<T>::value(X::load(z + j) + X::load(Ux + j),
                                                     X::load(b + j), leak));
                    if constexpr (clips<T, A>) clip(to, n, b[0]);
                }
            }
            if (all > panels) {
                product.make({h, row, n}, {h, 0, 0}, W, K, rows, panels, all, {});
                read_out(call.steps - 1);
            }
        }
    });
}

template <class T, template <class> class A> void backward(const Call<T>& call) {
    using X = Vector<T>;
    const long n = call.n, row = call.row, step = call.batch * row;
    const long p = call.logits ? call.p : 0, K = n + p, panels = call.panels(n);
    const Plan plan(call.batch, call.threads, K * panels * BYTES);
    const long jobs = call.lanes * plan.parts;
    const std::vector<T> zero(row);
    std::vector<T> sums(jobs * row);
    const T leak = call.leak;
    share(jobs, call.threads, [&](auto next) {
        Product<T> product(plan, panels);
        for (long job = next(); job >= 0; job = next()) {
            const long lane = job / plan.parts, first = job % plan.parts * plan.rows;
            const long rows = std::min<long>(plan.rows, call.batch - first);
            const T* W = call.W + lane * K * panels * X::N;
            const T* h = call.H + lane * call.lane_H + call.steps * step + first * row;
            T* g = call.G + lane * call.lane_G + call.steps * step + first * row;
            T* sum = sums.data() + job * row;
            for (long t = call.steps - 1; t >= 0; --t, h -= step, g -= step) {
                const T* y = call.logits + lane * call.lane_logits + (t * call.batch + first) * p;
                product.make({g, row, n}, {y, p, p}, W, K, rows, 0, panels, {h, g - step}, t % 2);
                for (long i = 0; i < rows; ++i) {
                    const T *d = product.row(i), *from = h + i * row;
                    T* to = g - step + i * row;
                    const T* more = t == call.steps - 1 ? to : zero.data();
                    for (long j = 0; j < n; j += X::N) {
                        const auto made = X::load(from + j);
                        const auto dz =
                            A<T>::to_z(X::load(d + j) + X::load(more + j), made, leak);
                        X::store(to + j, dz);
                        X::store(sum + j, X::load(sum + j) + A<T>::to_b(dz, made));
                    }
                    if constexpr (clips<T, A>) unclip(to, from, n, call.b[lane * row]);
                }
            }
        }
    });
    for (long job = 0; job < jobs; ++job)
        for (long j = 0; j < n; ++j)
            call.db[job / plan.parts * row + j] += sums[job * row + j];
}

// to += A^T B, for `count` columns of A and n of B.
template <class T>
void add_outer(const T* A, long stride, long count, const T* B, long row, long n, long length, T* to) {
    constexpr long N = Vector<T>::N;
    for (long k = 0; k < length; k += DEPTH)
        for (long j = 0; j < n; j += 2 * N)
            for (long i = 0; i < count; i += ROWS)
                sized(count - i, n - j > N, [&](auto R, auto C) {
                    outer<T, R, C>(A + k * stride + i, stride, B + k * row + j, row,
                                   std::min(DEPTH, length - k), to + i * row + j);
                });
}

// Add to dW, if given, dU and dV the sums of dz h^T, x dz^T and dy h^T over steps and batch.
template <class T> void matrix_gradients(const Call<T>& call) {
    using X = Vector<T>;
    const long n = call.n, m = call.m, p = call.p, row = call.row;
    const long length = call.steps * call.batch;
    const long tiles = (n + ROWS - 1) / ROWS;
    const long parts = call.dW ? std::min<long>(call.threads, tiles) : 0;
    const long columns = parts ? (tiles + parts - 1) / parts * ROWS : 0;
    share(call.lanes * (parts + 1), call.threads, [&](auto next) {
        for (long job = next(); job >= 0; job = next()) {
            const long lane = job / (parts + 1), first = job % (parts + 1) * columns;
            const T *G = call.G + lane * call.lane_G, *H = call.H + lane * call.lane_H;
            if (job % (parts + 1) < parts) {
                add_outer(G + first, row, std::min(columns, n - first), H, row, n, length,
                          call.dW + (lane * n + first) * row);
                continue;
            }
            T* dU = call.dU + lane * m * row;
            if (!call.symbols)
                add_outer(call.values + lane * call.lane_x, m, m, G, row, n, length, dU);
            else
                for (long k = 0; k < length; ++k) {
                    T* to = dU + call.symbols[lane * call.lane_x + k] * row;
                    for (long j = 0; j < n; j += X::N)
                        X::store(to + j, X::load(to + j) + X::load(G + k * row + j));
                }
            if (call.logits)
                add_outer(call.logits + lane * call.lane_logits, p, p, H + call.batch * row, row, n,
                          length, call.dV + lane * p * row);
        }
    });
}

template <class T, template <class> class A> void step(const Call<T>& call) {
    if (call.G == nullptr) return forward<T, A>(call);
    backward<T, A>(call);
    matrix_gradients(call);
}

template <class T> int step(Call<T> call) {
    const double work = double(call.lanes) * call.steps * call.batch * call.n * (call.n + call.m);
    call.threads = std::min<long>(call.threads, 1 + work / WORTH_A_THREAD);
    switch (call.activation) {
        case 0: return step<T, ModReLU>(call), 0;
        case 1: return step<T, Tanh>(call), 0;
        case 2: return step<T, ReLU>(call), 0;
        case 3: return step<T, Identity>(call), 0;
        case 4: return step<T, LeakyReLU>(call), 0;
        case 5: return step<T, Clipped>(call), 0;
        default: return 1;
    }
}

}  // namespace

extern "C" {
// Bytes of a vector: rows are padded to a multiple, matrices packed in panels of so many.
int vector_bytes() { return BYTES; }

// With G null, make h in H[1:] from H[0] on, and the logits if there is room for them. Else make
// dL/dz in G[:-1] from H, dL/dlogits, dL/dz of the step after in G[-1], and what else reaches the
// last h in G[-2]; and add to the gradients of the parameters.
int step_float(const Call<float>* call) { return step(*call); }
int step_double(const Call<double>* call) { return step(*call); }
}
