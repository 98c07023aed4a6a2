// The two products of attention with AVX2: how a step is held in sixteen registers. Included by attention_products.h
// alone; the order of every sum is the one of the other paths.
#pragma once

#include "attention_lanes.h"

namespace octavo::OCTAVO_PATH {
namespace {

// Sums of some rows: twelve of them hide the latency of a multiply-add (eight is the least that can), and leave room for
// what is multiplied. A vector is two columns of eight lanes.
constexpr int row_group = 6;
constexpr int vectors_for(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

template <int rows, int columns>
using Sums = __m256[rows][columns];

// A row's operand times some columns, each sum in its own register. Left to choose, the compiler (gcc 12) fetched operands
// early, moved sums about for them and spilled some.
OCTAVO_INLINE void multiply_row(const float* operand, const __m256 (&w)[1], __m256* sum) {
    __m256 x;
    asm("vbroadcastss %2, %1\n\tvfmadd231ps %3, %1, %0" : "+x"(sum[0]), "=&x"(x) : "m"(*operand), "x"(w[0]));
}
OCTAVO_INLINE void multiply_row(const float* operand, const __m256 (&w)[2], __m256* sum) {
    __m256 x;
    asm("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
        : "+x"(sum[0]), "+x"(sum[1]), "=&x"(x)
        : "m"(*operand), "x"(w[0]), "x"(w[1]));
}

// What is read through `x` from here on is read from memory again: loads are to spare, registers are not.
template <class T>
OCTAVO_INLINE void forget(T& x) {
    asm("" : "+r"(x));
}

// `wide` columns of one part of a step (one dimension or token), times each row's operand.
template <class P, int part, int rows, int columns, int wide, int stride>
OCTAVO_INLINE void multiply_part(Sums<rows, columns>& sum, int c, const typename P::Element* const (&from)[columns],
                                 std::size_t at, const float* operand, __m256 (&w)[wide]) {
#pragma GCC unroll 8
    for (int i = 0; i < wide; ++i) w[i] = P::template column<part>(from[c + i] + at, w[i]);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) multiply_row(operand + r * stride + part, w, &sum[r][c]);
}

// A step of bf16 or bytes is two parts.
template <class P, int rows, int columns, int stride>
OCTAVO_INLINE void multiply_step(Sums<rows, columns>& sum, const typename P::Element* const (&from)[columns],
                                 std::size_t& at, const float*& operand) {
    constexpr int wide = columns == 1 ? 1 : 2;
#pragma GCC unroll 8
    for (int c = 0; c < columns; c += wide) {
        __m256 w[wide];
        multiply_part<P, 0, rows, columns, wide, stride>(sum, c, from, at, operand, w);
        if constexpr (P::per_step == 2) {
            forget(at);
            multiply_part<P, 1, rows, columns, wide, stride>(sum, c, from, at, operand, w);
        }
    }
}

// Rows of q in a group lie side by side, eight dimensions at a time: [head_dim / 8][rows][8].
constexpr int q_run = 8;

template <int rows>
OCTAVO_INLINE void pack_queries(const float* const (&sources)[rows], float scale, int head_dim, float* out) {
    for (int x = 0; x < head_dim; x += q_run)
        for (int r = 0; r < rows; ++r, out += q_run)
            _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_loadu_ps(sources[r] + x), _mm256_set1_ps(scale)));
}

// Not inline, nor is weigh_group: within their caller, sums were spilled.
template <class P, int rows, int vectors>
[[gnu::noinline]] void score_group(const ScoreTask<P>& task, int row, int tile) {
    constexpr int columns = 2 * vectors, column_elements = P::vector_elements / 2, run_steps = q_run / P::per_step;
    const float* q = task.q + std::size_t(row) * task.steps * P::operands_per_step;
    const typename P::Element* keys[columns];
    Sums<rows, columns> sum;
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) {
        keys[c] = P::narrow ? task.keys[tile * 2 + c] : task.keys[tile + c / 2] + c % 2 * column_elements;
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) sum[r][c] = _mm256_setzero_ps();
    }
    const typename P::Element* ahead[vectors];
    if constexpr (!P::narrow)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) ahead[v] = tile_ahead<P>(task.keys, task.ahead, tile + v, task.tiles);
    std::size_t at = 0;
    const int steps = task.steps;
    const std::size_t key_step = P::narrow ? task.key_step : P::vector_elements;
    for (int step = 0; step < steps; step += run_steps, q += rows * q_run) {
        const float* run = q;
#pragma GCC unroll 8
        for (int i = 0; i < run_steps; ++i, at += key_step, run += P::operands_per_step) {
            if (P::pooled && row == 0 && i % line_vectors<P> == 0) {
#pragma GCC unroll 4
                for (int v = 0; v < vectors; ++v)
                    if constexpr (P::narrow)
                        __builtin_prefetch(task.pieces_ahead.line(tile + v, (step + i) / line_vectors<P>));
                    else
                        __builtin_prefetch(ahead[v] + at);
            }
            multiply_step<P, rows, columns, q_run>(sum, keys, at, run);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < columns; ++c) {
            if constexpr (P::scaled)
                sum[r][c] = _mm256_mul_ps(sum[r][c], _mm256_loadu_ps(task.scales[tile + c / 2] + c % 2 * 8));
            _mm256_storeu_ps(task.scores + std::size_t(row + r) * chunk_tokens + tile * tile_tokens + c * 8, sum[r][c]);
        }
}

// A tile of values in pieces, from dimension `x` on.
template <class P, int rows, int columns>
OCTAVO_INLINE void weigh_pieces(Sums<rows, columns>& sum, const WeighTask<P>& task, int tile, bool fetch, int x,
                                const float* p) {
    constexpr int tile_steps = tile_tokens / P::per_step;
    const std::size_t step_elements = std::size_t(task.head_dim) * P::per_step;
    TileList<P> steps = task.values + tile * tile_steps;
    std::size_t at = std::size_t(x) * P::per_step, ahead = at;
#pragma GCC unroll 4
    for (int step = 0; step < tile_steps; ++step, ahead += step_elements, p += P::operands_per_step) {
        const typename P::Element* values[columns];
#pragma GCC unroll 8
        for (int c = 0; c < columns; ++c) values[c] = steps[step] + c * (P::vector_elements / 2);
        if (P::pooled && fetch)
#pragma GCC unroll 4
            for (int v = 0; v < columns / 2; v += line_vectors<P>)
                __builtin_prefetch(ahead_of<P>(task, tile, ahead + v * P::vector_elements));
        multiply_step<P, rows, columns, p_stride<P>>(sum, values, at, p);
    }
}

template <class P, int rows, int vectors, bool half>
[[gnu::noinline]] void weigh_group(const WeighTask<P>& task, int row, int x, int begin, int end) {
    constexpr int columns = half ? 1 : 2 * vectors, column_elements = P::vector_elements / 2;
    constexpr int tile_steps = tile_tokens / P::per_step;
    const std::size_t step_elements = std::size_t(task.head_dim) * P::per_step;
    const float* p = task.p + std::size_t(row) * p_stride<P> + begin * tile_tokens;
    float* acc = task.acc + std::size_t(row) * task.acc_stride + x;
    Sums<rows, columns> sum;
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < columns; ++c)
            sum[r][c] = _mm256_mul_ps(_mm256_set1_ps(begin == 0 ? task.scale[row + r] : 1.0f),
                                      _mm256_loadu_ps(acc + r * task.acc_stride + c * 8));
    for (int tile = begin; tile < end; ++tile) {
        if constexpr (P::narrow) {
            weigh_pieces<P, rows, columns>(sum, task, tile, row == 0, x, p);
            p += tile_steps * P::operands_per_step;
            continue;
        }
        const typename P::Element* values[columns];
#pragma GCC unroll 8
        for (int c = 0; c < columns; ++c)
            values[c] = task.values[tile] + std::size_t(x) * P::per_step + c * column_elements;
        const typename P::Element* ahead =
            tile_ahead<P>(task.values, task.ahead, tile, task.tiles) + std::size_t(x) * P::per_step;
        std::size_t at = 0;
#pragma GCC unroll 4
        for (int step = 0; step < tile_steps; ++step, at += step_elements, p += P::operands_per_step) {
            if (P::pooled && row == 0)
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v += line_vectors<P>)
                    __builtin_prefetch(ahead + at + v * P::vector_elements);
            multiply_step<P, rows, columns, p_stride<P>>(sum, values, at, p);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < columns; ++c) _mm256_storeu_ps(acc + r * task.acc_stride + c * 8, sum[r][c]);
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
