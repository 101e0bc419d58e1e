// As many multiplications and additions as a core can make: chains of x = x a + b in registers, so
// many that no unit waits for a result. All loops over them are unrolled: else they live in memory.

#include <cstdint>

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
constexpr int CHAINS = 12;

typedef float Vector __attribute__((vector_size(BYTES)));

}  // namespace

extern "C" {
// Operations of one round of `multiply_add`: a multiplication and an addition for each number.
int64_t operations() { return 2 * CHAINS * (BYTES / sizeof(float)); }

// Run so many rounds; the result keeps a compiler from leaving them out.
float multiply_add(int64_t rounds) {
    Vector x[CHAINS], a = Vector{} + 0.5f, b = Vector{} + 1.0f;
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; ++c) x[c] = Vector{} + float(c);
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; ++c) {
            x[c] = x[c] * a + b;
#if defined(__x86_64__)
            asm volatile("" : "+v"(x[c]));
#elif defined(__aarch64__)
            asm volatile("" : "+w"(x[c]));
#endif
        }
    }
    float sum = 0;
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; ++c) sum += x[c][0];
    return sum;
}
}
