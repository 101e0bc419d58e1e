// A matrix that a block keeps for all time steps, in registers and shared memory, and its products.
//
// ROWS, the number of vectors in a product, is given when a kernel is compiled.
#pragma once
#include "blocks.h"

constexpr int MOST_SUMS = 56;  // of a thread; more and its part of the matrix exceed its registers

__device__ constexpr int up(int number, int step) { return (number + step - 1) / step; }
__device__ constexpr int held(int outputs, int inputs, int slices) {
    return up(outputs, THREADS / slices) * up(inputs, 4 * slices) * 4;
}
__device__ constexpr int best_slices(int outputs, int inputs) {
    int best = 8;
    for (int slices = 16; slices <= 32; slices *= 2)
        if (held(outputs, inputs, slices) < held(outputs, inputs, best) &&
            ROWS * up(outputs, THREADS / slices) <= MOST_SUMS)
            best = slices;
    return best;
}

// A block's part of a matrix, and its product with a vector for each row.
template <int OUTPUTS, int INPUTS, int FREE> struct Product {
    static constexpr int SLICES = best_slices(OUTPUTS, INPUTS);  // threads that share an output
    static constexpr int GROUPS = THREADS / SLICES;
    static constexpr int SIDE = SLICES < 32 ? 2 : 1;  // neighbours that read the same inputs
    static constexpr int EACH = up(OUTPUTS, GROUPS);             // outputs of a thread
    static constexpr int PIECES = up(INPUTS, 4 * SLICES);        // of four inputs, of a thread
    static constexpr int DEPTH = PIECES * 4 * SLICES;            // inputs, padded by zeros
    static constexpr int FITTING = FREE / (4 * EACH);
    static constexpr int IN_REGISTERS = PIECES < FITTING ? PIECES : FITTING;  // pieces kept there
    static constexpr int IN_SHARED = PIECES - IN_REGISTERS;
    static constexpr int LEFT_FREE = FREE - 4 * EACH * IN_REGISTERS;
    typedef float4 Rest[IN_SHARED > 0 ? IN_SHARED : 1][EACH][THREADS];

    float4 kept[IN_REGISTERS > 0 ? IN_REGISTERS : 1][EACH];

    static __device__ int slice_of(int thread) { return thread / SIDE % SLICES; }
    static __device__ int group_of(int thread) {
        return thread / (SIDE * SLICES) * SIDE + thread % SIDE;
    }

    // entry(output, input) is an entry of the matrix.
    template <class Entry> __device__ void load(int thread, Rest& rest, Entry entry) {
        const int slice = slice_of(thread), group = group_of(thread);
#pragma unroll
        for (int p = 0; p < PIECES; ++p)
#pragma unroll
            for (int u = 0; u < EACH; ++u) {
                const int output = u * GROUPS + group, k = 4 * (slice + SLICES * p);
                float four[4];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    four[i] = output < OUTPUTS && k + i < INPUTS ? entry(output, k + i) : 0.0f;
                const float4 made = {four[0], four[1], four[2], four[3]};
                if (p < IN_REGISTERS)
                    kept[p][u] = made;
                else
                    rest[p - IN_REGISTERS][u][thread] = made;
            }
    }

    // Write matrix times vector of each row. The block meets before `to` can be read.
    __device__ void multiply(int thread, const Rest& rest, const float (&of)[ROWS][DEPTH],
                             float (&to)[ROWS][OUTPUTS]) const {
        constexpr int SUMS = ROWS * EACH;
        const int slice = slice_of(thread), group = group_of(thread);
        float sums[SUMS];
#pragma unroll
        for (int s = 0; s < SUMS; ++s) sums[s] = 0.0f;
        const auto add = [&](int piece, const auto& entries) {
            float4 v[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                v[r] = *reinterpret_cast<const float4*>(&of[r][4 * (slice + SLICES * piece)]);
#pragma unroll
            for (int u = 0; u < EACH; ++u) {
                const float4 m = entries(u);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    float& sum = sums[r * EACH + u];
                    sum = fmaf(m.x, v[r].x, sum);
                    sum = fmaf(m.y, v[r].y, sum);
                    sum = fmaf(m.z, v[r].z, sum);
                    sum = fmaf(m.w, v[r].w, sum);
                }
            }
        };
#pragma unroll
        for (int p = 0; p < IN_REGISTERS; ++p) add(p, [&](int u) { return kept[p][u]; });
#pragma unroll 1  // more at once would take registers from the matrix
        for (int p = 0; p < IN_SHARED; ++p)
            add(IN_REGISTERS + p, [&](int u) { return rest[p][u][thread]; });
        typedef Sharing<SUMS, SLICES / 2, 0, SIDE> Shares;
        int first = 0, left = SUMS, copy = 0;
        Shares::find(slice, first, left, copy);
        Shares::run(sums, slice);
#pragma unroll
        for (int i = 0; i < Shares::LEFT; ++i) {
            const int sum = first + i, output = sum % EACH * GROUPS + group;
            if (i < left && !copy && output < OUTPUTS) to[sum / EACH][output] = sums[i];
        }
    }
};
