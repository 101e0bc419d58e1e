// The sum of a matrix and its transpose, and what lies above the diagonal mirrored below it, tile by
// tile: a plain loop misses the cache at every entry.

#include <algorithm>
#include <cstdint>

namespace {

constexpr long TILE = 32;

// Copy the tile of M with its first entry at (i, j) to `tile`.
template <class T> void fetch(const T* M, long n, long i, long j, long rows, long columns, T* tile) {
    for (long r = 0; r < rows; ++r)
        for (long c = 0; c < columns; ++c) tile[r * TILE + c] = M[(i + r) * n + j + c];
}

// out = factor (M + sign M^T).
template <class T> void combine(const T* M, T* out, long n, T sign, T factor) {
    T A[TILE * TILE], B[TILE * TILE];
    const auto do_tile = [&](long i, long j, long rows, long columns) {
        fetch(M, n, i, j, rows, columns, A);
        fetch(M, n, j, i, columns, rows, B);
        for (long r = 0; r < rows; ++r)
            for (long c = 0; c < columns; ++c)
                out[(i + r) * n + j + c] = factor * (A[r * TILE + c] + sign * B[c * TILE + r]);
        for (long c = 0; c < columns; ++c)
            for (long r = 0; r < rows; ++r)
                out[(j + c) * n + i + r] = factor * (B[c * TILE + r] + sign * A[r * TILE + c]);
    };
    for (long i = 0; i < n; i += TILE)
        for (long j = 0; j <= i; j += TILE)
            do_tile(i, j, std::min(TILE, n - i), std::min(TILE, n - j));
}

// Make M symmetric (sign 1) or skew-symmetric (sign -1) from what lies above its diagonal.
template <class T> void reflect(T* M, long n, T sign) {
    T B[TILE * TILE];
    for (long i = 0; i < n; i += TILE)
        for (long j = 0; j <= i; j += TILE) {
            const long rows = std::min(TILE, n - i), columns = std::min(TILE, n - j);
            fetch(M, n, j, i, columns, rows, B);
            for (long r = 0; r < rows; ++r)
                for (long c = 0; c < std::min(columns, i + r - j); ++c)
                    M[(i + r) * n + j + c] = sign * B[c * TILE + r];
        }
    if (sign < 0)
        for (long i = 0; i < n; ++i) M[i * n + i] *= 0;  // what is not a number stays
}

}  // namespace

extern "C" {
void combine_float(const float* M, float* out, int64_t n, double sign, double factor) {
    combine<float>(M, out, n, sign, factor);
}
void reflect_float(float* M, int64_t n, double sign) { reflect<float>(M, n, sign); }
void reflect_double(double* M, int64_t n, double sign) { reflect<double>(M, n, sign); }
void combine_double(const double* M, double* out, int64_t n, double sign, double factor) {
    combine<double>(M, out, n, sign, factor);
}
}
