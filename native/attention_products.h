// The two products of attention on full tiles: scores = q . keys and acc = scale * acc + p . values.
// Included by attention_kernels.cpp alone.
//
// A *row* is one (query, head) pair. Both products take a few rows at a time and walk the same packed storage: one step
// is one vector of 16 lanes (tokens for keys, dimensions for values) times one broadcast operand. Every output element
// has one accumulator that adds the steps in order, so the grouping of rows and vectors never shows in the result.
#pragma once

#include "attention_lanes.h"

#include <type_traits>

namespace octavo::OCTAVO_PATH {
namespace {

// How one element type is multiplied. `Operand` is what a row broadcasts: of q one a step, of p one a step.
template <KvType type>
struct Product;

template <>
struct Product<KvType::f32> {
    using Element = float;
    using Operand = float;
    static constexpr int per_step = 1;           // dimensions of a key, tokens of values
    static constexpr int operands_per_step = 1;
    static constexpr int vector_elements = 16;   // elements of a step's vector
    static constexpr bool scaled = false;        // whether each token has a scale
    static constexpr bool pooled = true;         // whether tiles lie in the pool: the next are then fetched ahead
    static constexpr bool narrow = false;        // whether blocks have fewer tokens than a tile
    struct Vector {
        Lanes x;
    };
    OCTAVO_INLINE static Vector load_vector(const float* p) { return {load(p)}; }
    OCTAVO_INLINE static Vector load_half_vector(const float* p) { return {load_half(p)}; }
    OCTAVO_INLINE static Lanes multiply_add(Lanes sum, const Vector& v, const float* operand) {
        return fma(broadcast(*operand), v.x, sum);
    }
#if defined(OCTAVO_PATH_AVX2)
    template <int part>
    OCTAVO_INLINE static __m256 column(const Element* p, __m256) {
        return _mm256_loadu_ps(p);
    }
#endif
};

#if defined(OCTAVO_PATH_AVX512_BF16)

template <>
struct Product<KvType::bf16> {
    using Element = std::uint16_t;
    using Operand = std::uint32_t;  // two bf16
    static constexpr int per_step = 2;
    static constexpr int operands_per_step = 1;
    static constexpr int vector_elements = 32;
    static constexpr bool scaled = false;
    static constexpr bool pooled = true;
    static constexpr bool narrow = false;
    struct Vector {
        __m512i x;
    };
    OCTAVO_INLINE static Vector load_vector(const Element* p) { return {_mm512_loadu_si512(p)}; }
    OCTAVO_INLINE static Vector load_half_vector(const Element* p) { return {_mm512_maskz_loadu_epi32(0xff, p)}; }
    OCTAVO_INLINE static Lanes multiply_add(Lanes sum, const Vector& v, const Operand* operand) {
        return {_mm512_dpbf16_ps(sum.v, (__m512bh)v.x, (__m512bh)_mm512_set1_epi32(int(*operand)))};
    }
};

#else

// Without the instruction, bf16 is widened (exactly) and multiplied in float32; q and p are not rounded.
template <>
struct Product<KvType::bf16> {
    using Element = std::uint16_t;
    using Operand = float;
    static constexpr int per_step = 2;
    static constexpr int operands_per_step = 2;
    static constexpr int vector_elements = 32;
    static constexpr bool scaled = false;
    static constexpr bool pooled = true;
    static constexpr bool narrow = false;
#if defined(OCTAVO_PATH_AVX2)
    // Eight pairs: the even ones widened, then the odd ones, whose low halves are the zeros of the even ones.
    template <int part>
    OCTAVO_INLINE static __m256 column(const Element* p, __m256 even) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm256_castsi256_ps(part == 0 ? _mm256_slli_epi32(x, 16)
                                             : _mm256_blend_epi16(_mm256_castps_si256(even), x, 0xaa));
    }
#else
    struct Vector {
        Lanes even, odd;
    };
    OCTAVO_INLINE static Lanes multiply_add(Lanes sum, const Vector& v, const float* operand) {
        return fma(broadcast(operand[1]), v.odd, fma(broadcast(operand[0]), v.even, sum));
    }

    // The machine is little-endian: the even element is the low half of its pair.
    OCTAVO_INLINE static Quad even(QuadBits x) { return (Quad)(x << 16); }
    OCTAVO_INLINE static Quad odd(QuadBits x) { return (Quad)(x & std::int32_t(0xffff0000)); }
    OCTAVO_INLINE static QuadBits bits(const Element* p) {
        QuadBits x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    OCTAVO_INLINE static Vector load_vector(const Element* p) {
        const QuadBits a = bits(p), b = bits(p + 8), c = bits(p + 16), d = bits(p + 24);
        return {{even(a), even(b), even(c), even(d)}, {odd(a), odd(b), odd(c), odd(d)}};
    }
    OCTAVO_INLINE static Vector load_half_vector(const Element* p) {
        const QuadBits a = bits(p), b = bits(p + 8);
        return {{even(a), even(b), Quad{}, Quad{}}, {odd(a), odd(b), Quad{}, Quad{}}};
    }
#endif
};

#endif

}  // namespace
}  // namespace octavo::OCTAVO_PATH

#include "attention_byte_products.h"

namespace octavo::OCTAVO_PATH {
namespace {

// Of blocks of fewer tokens than a tile.
template <class P>
struct Narrow : P {
    static constexpr bool narrow = true;
};

// What is read next where blocks are narrow: keys or values of tiles, each in pieces.
struct PiecesAhead {
    const char* const* pieces;   // [tiles][1 << shift]
    int shift;

    // A tile's lines: the first of each piece, then the second of each. Where a piece begins the machine reads on by
    // itself, so that its other lines are near when their turn comes; piece after piece was up to a quarter slower.
    OCTAVO_INLINE const char* line(int tile, std::size_t index) const {
        const std::size_t piece = index & ((std::size_t(1) << shift) - 1);
        return pieces[(std::size_t(tile) << shift) + piece] + (index >> shift) * 64;
    }
};

// A step's vectors that one line of the cache holds: what is fetched ahead is fetched once.
template <class P>
constexpr int line_vectors = 64 / (P::vector_elements * int(sizeof(typename P::Element)));

// Operands of one row of p in a chunk.
template <class P>
constexpr int p_stride = chunk_tokens / P::per_step * P::operands_per_step;

template <class P>
using TileList = const typename P::Element* const*;

template <class P>
struct ScoreTask {
    TileList<P> keys;                     // [tiles]; where blocks are narrow, with AVX2, [tiles][2 columns]
    TileList<P> ahead;                    // [tiles] read next: the first rows fetch them meanwhile
    const float* const* scales;           // [tiles] of keys, of 16 tokens each, where there are any
    int tiles;
    int steps;                            // of a key: head_dim / per_step
    const typename P::Operand* q;         // [rows][steps x operands_per_step]
    float* scores;                        // [rows][chunk_tokens]
    PiecesAhead pieces_ahead = {};        // where blocks are narrow, in place of `ahead`
    int key_step = 0;                     // elements from one step of a column to the next, likewise
};

template <class P>
struct WeighTask {
    TileList<P> values;                   // [tiles]; where blocks are narrow, [tiles][steps]
    TileList<P> ahead;                    // [tiles]
    int tiles;
    int head_dim;
    const typename P::Operand* p;         // [rows][p_stride]
    const float* scale;                   // [rows]
    float* acc;                           // [rows][acc_stride]
    int acc_stride;                       // head_dim rounded up to whole vectors
    bool few_rows = false;                // so few that memory is what takes time
    PiecesAhead pieces_ahead = {};        // where blocks are narrow, in place of `ahead`
};

// How far ahead tiles are fetched, and to where: far enough for the memory's latency, near enough to be there still. On
// AVX-512 (a Zen 4) half a chunk ahead into L2: of lines on their way to L1 a core has room for so few that they were 0.8
// times as fast. Elsewhere L1 was the better place.
constexpr int chunk_tiles = chunk_tokens / tile_tokens;
#if defined(OCTAVO_PATH_AVX512_BF16)
constexpr int tiles_ahead = chunk_tiles;
constexpr int fetched_to = 2;          // L2, as __builtin_prefetch counts
constexpr bool values_near = true;     // whether values are fetched from L2 to L1 a tile before they are read
#else
constexpr int tiles_ahead = 4;
constexpr int fetched_to = 3;
constexpr bool values_near = false;
#endif
constexpr int narrow_tiles_ahead = 4;  // where blocks are narrow

// What comes so many tiles after a tile: of `count` tiles, then of those that are read next.
template <class P>
OCTAVO_INLINE const typename P::Element* tile_ahead(TileList<P> tiles, TileList<P> next, int tile, int count) {
    if constexpr (tiles_ahead == chunk_tiles) return next[tile];
    const int ahead = tile + tiles_ahead;
    return ahead < count ? tiles[ahead] : next[ahead - count];
}

// Where blocks are narrow: what to fetch while `at` of a tile is read.
template <class P, class Task>
OCTAVO_INLINE const void* ahead_of(const Task& task, int tile, std::size_t at) {
    return task.pieces_ahead.line(tile, at * sizeof(typename P::Element) / 64);
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH

#if defined(OCTAVO_PATH_AVX2)
#include "attention_products_avx2.h"
#endif

namespace octavo::OCTAVO_PATH {
namespace {

#if !defined(OCTAVO_PATH_AVX2)

// Vectors side by side for so many rows: enough independent sums to hide the latency of a multiply-add, few enough to
// stay in registers.
#if defined(OCTAVO_PATH_AVX512_BF16)
constexpr int vectors_for(int rows) { return rows == 1 ? 8 : 4; }
#else
constexpr int vectors_for(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#endif
constexpr int row_group = 4;

template <class P, int rows, int vectors>
OCTAVO_INLINE void score_group(const ScoreTask<P>& task, int row, int tile) {
    const int q_stride = task.steps * P::operands_per_step;
    const typename P::Operand* q = task.q + std::size_t(row) * q_stride;
    const typename P::Element *keys[vectors], *ahead[vectors];
    Lanes sum[rows][vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
        keys[v] = task.keys[tile + v];
        ahead[v] = P::narrow ? nullptr : tile_ahead<P>(task.keys, task.ahead, tile + v, task.tiles);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) sum[r][v] = broadcast(0.0f);
    }
    for (int step = 0; step < task.steps; ++step) {
        const std::size_t at = std::size_t(step) * P::vector_elements;
        typename P::Vector k[vectors];
        if (P::pooled && row == 0 && step % line_vectors<P> == 0)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v)
                __builtin_prefetch(P::narrow ? ahead_of<P>(task, tile + v, at) : ahead[v] + at, 0, fetched_to);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) k[v] = P::load_vector(keys[v] + at);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v)
                sum[r][v] = P::multiply_add(sum[r][v], k[v], q + r * q_stride + step * P::operands_per_step);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            if constexpr (P::scaled) sum[r][v] = mul(sum[r][v], load(task.scales[tile + v]));
            store(task.scores + std::size_t(row + r) * chunk_tokens + (tile + v) * tile_tokens, sum[r][v]);
        }
}

// Where a step of a tile's values lies, and what is read next.
template <class P, bool narrow = P::narrow>
struct Position {
    const typename P::Element *values_, *ahead_, *near_;
    OCTAVO_INLINE Position(const WeighTask<P>& task, int tile, std::size_t x)
        : values_(task.values[tile] + x), ahead_(tile_ahead<P>(task.values, task.ahead, tile, task.tiles) + x),
          near_((tile + 1 < task.tiles ? task.values[tile + 1] : task.ahead[0]) + x) {}
    OCTAVO_INLINE const typename P::Element* values(int) const { return values_; }
    OCTAVO_INLINE void fetch(int elements) const {
        if constexpr (values_near) __builtin_prefetch(near_ + elements);
        __builtin_prefetch(ahead_ + elements, 0, fetched_to);
    }
    OCTAVO_INLINE void advance(std::size_t elements) {
        values_ += elements;
        ahead_ += elements;
        near_ += elements;
    }
};
template <class P>
struct Position<P, true> {
    const WeighTask<P>& task_;
    const int tile_;
    const std::size_t x_;
    std::size_t at_;
    OCTAVO_INLINE Position(const WeighTask<P>& task, int tile, std::size_t x) : task_(task), tile_(tile), x_(x), at_(x) {}
    OCTAVO_INLINE const typename P::Element* values(int step) const {
        return task_.values[tile_ * (tile_tokens / P::per_step) + step] + x_;
    }
    OCTAVO_INLINE void fetch(int elements) const {
        __builtin_prefetch(ahead_of<P>(task_, tile_, at_ + elements), 0, fetched_to);
    }
    OCTAVO_INLINE void advance(std::size_t elements) { at_ += elements; }
};

template <class P, int rows, int vectors, bool half>
OCTAVO_INLINE void weigh_group(const WeighTask<P>& task, int row, int x, int begin, int end) {
    constexpr int tile_steps = tile_tokens / P::per_step;
    const std::size_t step_elements = std::size_t(task.head_dim) * P::per_step;
    const typename P::Operand* p = task.p + std::size_t(row) * p_stride<P> + begin * tile_steps * P::operands_per_step;
    float* acc = task.acc + std::size_t(row) * task.acc_stride + x;
    Lanes sum[rows][vectors];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            sum[r][v] = mul(broadcast(begin == 0 ? task.scale[row + r] : 1.0f), load(acc + r * task.acc_stride + v * lane_count));
    for (int tile = begin; tile < end; ++tile, p += tile_steps * P::operands_per_step) {
        Position<P> at(task, tile, std::size_t(x) * P::per_step);
#pragma GCC unroll 2
        for (int step = 0; step < tile_steps; ++step, at.advance(step_elements)) {
            typename P::Vector w[vectors];
            const typename P::Element* values = at.values(step);
            if (P::pooled && row == 0)
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v += line_vectors<P>) at.fetch(v * P::vector_elements);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v)
                w[v] = half ? P::load_half_vector(values) : P::load_vector(values + v * P::vector_elements);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < vectors; ++v)
                    sum[r][v] = P::multiply_add(sum[r][v], w[v], p + r * p_stride<P> + step * P::operands_per_step);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) store(acc + r * task.acc_stride + v * lane_count, sum[r][v]);
}

#endif

// A pass over the values takes `wide` vectors of each step. Of few rows, narrow passes take a few tiles at a time, so that
// these are read nearly in order and every line while it is still near; four vectors are a run that memory reads well. Of
// many rows (prefill), all tiles: sums leave their registers less often.
template <class P, int rows>
void weigh_rows(const WeighTask<P>& task, int row) {
    constexpr int wide = vectors_for(rows);
    const int vectors = task.head_dim / lane_count;
    const int tiles = !task.few_rows || wide >= 4 ? task.tiles : task.head_dim > 64 ? 2 : 4;
    for (int begin = 0; begin < task.tiles; begin += tiles) {
        const int end = begin + tiles < task.tiles ? begin + tiles : task.tiles;
        int v = 0;
        for (; v + wide <= vectors; v += wide) weigh_group<P, rows, wide, false>(task, row, v * lane_count, begin, end);
        if constexpr (wide > 4)
            for (; v + 4 <= vectors; v += 4) weigh_group<P, rows, 4, false>(task, row, v * lane_count, begin, end);
        if constexpr (wide > 2)
            for (; v + 2 <= vectors; v += 2) weigh_group<P, rows, 2, false>(task, row, v * lane_count, begin, end);
        for (; v < vectors; ++v) weigh_group<P, rows, 1, false>(task, row, v * lane_count, begin, end);
        if (task.head_dim % lane_count) weigh_group<P, rows, 1, true>(task, row, v * lane_count, begin, end);
    }
}

template <class P, int rows>
void score_rows(const ScoreTask<P>& task, int row) {
    constexpr int wide = vectors_for(rows);
    int tile = 0;
    for (; tile + wide <= task.tiles; tile += wide) score_group<P, rows, wide>(task, row, tile);
    if constexpr (wide > 4)
        for (; tile + 4 <= task.tiles; tile += 4) score_group<P, rows, 4>(task, row, tile);
    if constexpr (wide > 2)
        for (; tile + 2 <= task.tiles; tile += 2) score_group<P, rows, 2>(task, row, tile);
    for (; tile < task.tiles; ++tile) score_group<P, rows, 1>(task, row, tile);
}

// Calls body.template operator()<rows>(first row) for groups that cover [0, rows).
template <class Body>
OCTAVO_INLINE void in_row_groups(int rows, Body&& body) {
    int row = 0;
    for (; row + row_group <= rows; row += row_group) body.template operator()<row_group>(row);
    switch (rows - row) {
        case 5: if constexpr (row_group > 5) body.template operator()<5>(row); break;
        case 4: if constexpr (row_group > 4) body.template operator()<4>(row); break;
        case 3: body.template operator()<3>(row); break;
        case 2: body.template operator()<2>(row); break;
        case 1: body.template operator()<1>(row); break;
        default: break;
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
