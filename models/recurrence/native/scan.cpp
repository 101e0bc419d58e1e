// The steps h_t = a_t ⊙ h_{t-1} + b_t and their adjoint, in float and double. Where units go in pairs,
// real and imaginary part stand side by side and a is the same at every step.
//
// A job owns some units of some rows of one lane and runs all time steps for them, so jobs never wait
// for one another. A multiplication is P h, and for pairs P h + Q h', where h' has the two parts of
// each pair exchanged: P is (re, re), Q is (-im, im).
// Never compile with -ffast-math: NaN and infinity must pass through.

#include <utility>

#include "jobs.h"

namespace {

constexpr long BLOCK = 2048;  // numbers of a job: a few of its rows stay in the first cache

// What one call works on. All are (lanes, steps, size), but `start` and Q, (lanes, size), and, where a
// is the same at every step, P and dP, too.
template <class T> struct Call {
    T *H, *G, *dP, *dQ;
    const T *B, *P, *Q, *start;
    int64_t lanes, steps, size, constant, threads;
};

// W numbers side by side.
template <class T, int W> struct Pack {
    typedef T V __attribute__((vector_size(W * sizeof(T))));
    static V load(const T* p) {
        V v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static void store(T* p, V v) { std::memcpy(p, &v, sizeof v); }
    template <int... I> static V exchange(V v, std::integer_sequence<int, I...>) {
        return __builtin_shufflevector(v, v, (I ^ 1)...);
    }
    static V exchanged(V v) { return exchange(v, std::make_integer_sequence<int, W>()); }
};
template <class T> struct Pack<T, 1> {
    using V = T;
    static V load(const T* p) { return *p; }
    static void store(T* p, V v) { *p = v; }
    static V exchanged(V v) { return v; }
};

// Call f(pack, i) for the numbers from `first` on: whole vectors, and then one number or pair each.
template <class T, bool paired, class F> void each(long first, long last, F f) {
    constexpr int W = BYTES / sizeof(T), least = paired ? 2 : 1;
    long i = first;
    for (; i + W <= last; i += W) f(Pack<T, W>{}, i);
    for (; i < last; i += least) f(Pack<T, least>{}, i);
}

template <class T, bool paired> void forward(const Call<T>& call, long lane, long first, long last) {
    const long K = call.size, whole = lane * call.steps * K, step = call.constant ? 0 : K;
    const T *h = call.start + lane * K, *b = call.B + whole, *q = paired ? call.Q + lane * K : nullptr;
    const T* p = call.P + (call.constant ? lane * K : whole);
    T* to = call.H + whole;
    for (long t = 0; t < call.steps; ++t, h = to, to += K, b += K, p += step)
        each<T, paired>(first, last, [&](auto pack, long i) {
            using X = decltype(pack);
            const auto before = X::load(h + i);
            auto now = X::load(p + i) * before + X::load(b + i);
            if constexpr (paired) now += X::load(q + i) * X::exchanged(before);
            X::store(to + i, now);
        });
}

template <class T, bool paired> void backward(const Call<T>& call, long lane, long first, long last) {
    const long K = call.size, end = call.steps - 1, whole = lane * call.steps * K;
    const T *q = paired ? call.Q + lane * K : nullptr, *start = call.start + lane * K;
    const T *P = call.P + (call.constant ? lane * K : whole), *B = call.B + whole, *H = call.H + whole;
    T *G = call.G + whole, *dP = call.dP + (call.constant ? lane * K : whole);
    T* dq = paired ? call.dQ + lane * K : nullptr;
    for (long t = end; t >= 0; --t) {
        const T *h = t ? H + (t - 1) * K : start, *d = B + t * K, *later = G + (t + 1) * K;
        const T* p = call.constant ? P : P + (t + 1) * K;
        T *g = G + t * K, *dp = call.constant ? dP : dP + t * K;
        each<T, paired>(first, last, [&](auto pack, long i) {
            using X = decltype(pack);
            auto sum = X::load(d + i);
            if (t < end) {
                const auto after = X::load(later + i);
                sum += X::load(p + i) * after;
                if constexpr (paired) sum -= X::load(q + i) * X::exchanged(after);
            }
            X::store(g + i, sum);
            const auto before = X::load(h + i);
            X::store(dp + i, call.constant ? X::load(dp + i) + before * sum : before * sum);
            if constexpr (paired) X::store(dq + i, X::load(dq + i) + X::exchanged(before) * sum);
        });
    }
}

template <class T> int step(const Call<T>& call) {
    const long blocks = (call.size + BLOCK - 1) / BLOCK;
    const double size = 4.0 * call.lanes * call.steps * call.size;
    const long threads = std::min<long>(call.threads, 1 + size / WORTH_A_THREAD);
    share(blocks * call.lanes, threads, [&](auto next) {
        for (long job = next(); job >= 0; job = next()) {
            const long lane = job / blocks, first = job % blocks * BLOCK;
            const long last = std::min<long>(first + BLOCK, call.size);
            if (call.G) (call.Q ? backward<T, true> : backward<T, false>)(call, lane, first, last);
            else (call.Q ? forward<T, true> : forward<T, false>)(call, lane, first, last);
        }
    });
    return 0;
}

}  // namespace

extern "C" {
int vector_bytes() { return BYTES; }

// With G null, make H from `start` and B. Else make in G the gradient to b from that to H, which is in
// B, and in dP the gradient to P. Where a is the same at every step, add to dP and dQ.
int step_float(const Call<float>* call) { return step(*call); }
int step_double(const Call<double>* call) { return step(*call); }
}
