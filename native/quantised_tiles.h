// Tiles of quantised weights, written once on the ``Lanes`` of a path. Included by kernel files only (see path.h).
#pragma once

#include "linear_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

// Behind the codes of each group of a packed row.
struct Scale {
    float scale;
    std::int32_t correction;  // weights stored higher than they are: minus their offset times the sum of codes;
                              // codes kept as magnitudes and signs: minus the sum of the negative ones
    float moved;              // scale times the sum of codes: what a block's minimum is multiplied by
    float padding;
};
static_assert(sizeof(Scale) == 16);

constexpr int kVectors = Lanes::panel / Lanes::width;  // registers that hold one k-quad of a panel
constexpr int kVectorBytes = Lanes::width * 4;
constexpr int kQuadBytes = Lanes::panel * 4;
constexpr int kQuadLines = kQuadBytes / 64;

inline std::int32_t word_at(const char* from) {
    std::int32_t word;
    __builtin_memcpy(&word, from, 4);
    return word;
}

// Paths with few registers keep those for the sums of codes: between groups the float32 sums lie in memory.
template <int R, int V>
inline void put_aside(Lanes::Floats (&sum)[R][V]) {
    if constexpr (Lanes::few_registers) asm volatile("" : : "r"(&sum) : "memory");
}

template <int R, int V>
inline void store_tile(const Tile& tile, const Lanes::Floats (&sum)[R][V]) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
        const std::int64_t left = tile.columns - v * Lanes::width;
        if (left <= 0) return;
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r) {
            Lanes::Floats value = sum[r][v];
            if (tile.bias)
                value = Lanes::sum(value, Lanes::floats(reinterpret_cast<const char*>(tile.bias + v * Lanes::width)));
            Lanes::store(value, tile.out + r * tile.out_stride + v * Lanes::width, left);
        }
    }
}

// The v-th register of one k-quad.
inline Lanes::Words weights_at(const char* weight, int v) { return Lanes::load(weight + v * kVectorBytes); }

inline Lanes::Floats halves_at(const char* weight, int v) { return Lanes::halves(weight + v * kVectorBytes / 2); }

template <bool, class First, class Second>
struct Choice { using type = First; };
template <class First, class Second>
struct Choice<false, First, Second> { using type = Second; };

// Of a group: an int32 sum of its products, then a multiply-add to the float32 accumulator of the output. Groups are GGUF's
// blocks of 32, each with a scale an output, or (``PerOutput``, int8) runs of 64 and one scale an output for all.
template <bool FourBits, bool HasMinimum, bool PerOutput>
struct QuantisedTiles {
    static constexpr int group = PerOutput ? 64 : 32;
    static constexpr int code_bytes = FourBits ? group / 2 : group;  // of a group and output
    static constexpr int weight_group_bytes = Lanes::panel * (code_bytes + (PerOutput ? 0 : 2 + 2 * HasMinimum));

    using Dot = typename Choice<FourBits, Lanes::Nibbles,
                                typename Choice<PerOutput, Lanes::RoundedBytes, Lanes::Bytes>::type>::type;
    static constexpr int x_group_bytes = group * Dot::words + sizeof(Scale);
    static constexpr bool stored_higher = FourBits ? !HasMinimum : Lanes::unsigned_codes;
    static_assert(!FourBits || Dot::quads == 1);

    // One row of bytes takes so few instructions with magnitudes and signs that twice as far ahead is 2 % faster.
    using Ahead = Fetcher<kQuadLines, 1, Dot::words == 1 ? kAheadBytes : 2 * kAheadBytes>;

    static const Scale* scale_of(const char* x, int row) {
        return reinterpret_cast<const Scale*>(x + (row + 1) * x_group_bytes - sizeof(Scale));
    }

    template <int R>
    static void dot_group(const char* x, const char* weight, Ahead& fetcher,
                          typename Dot::Sum (&sum)[R][kVectors]) {
        constexpr int V = kVectors, halves = FourBits ? 2 : 1, quads = Dot::quads, words = Dot::words;
#pragma GCC unroll 16
        for (int step = 0; step < code_bytes / 4; step += quads, weight += quads * kQuadBytes) {
            Lanes::Words bytes[V][quads], w[V][quads];
#pragma GCC unroll 2
            for (int quad = 0; quad < quads; ++quad) {
                fetcher.next();
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) {
                    bytes[v][quad] = weights_at(weight + quad * kQuadBytes, v);
                    // Where memory is the limit, operations that wait for it themselves fill the schedulers.
                    if constexpr (Dot::words > 1 && R <= 2) Dot::hold(bytes[v][quad]);
                }
            }
#pragma GCC unroll 2
            for (int half = 0; half < halves; ++half) {
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v)
#pragma GCC unroll 2
                    for (int quad = 0; quad < quads; ++quad)
                        w[v][quad] = !FourBits ? bytes[v][quad]
                                     : half    ? Lanes::high(bytes[v][quad])
                                               : Lanes::low(bytes[v][quad]);
#pragma GCC unroll 14
                for (int r = 0; r < R; ++r) {
                    std::int32_t fours[quads * words];
#pragma GCC unroll 4
                    for (int word = 0; word < quads * words; ++word)
                        fours[word] = word_at(x + r * x_group_bytes + ((step * halves + half) * words + word) * 4);
#pragma GCC unroll 4
                    for (int v = 0; v < V; ++v) sum[r][v] = Dot::add(sum[r][v], w[v], fours);
                }
            }
        }
    }

    // ``scales`` are the block's, behind its codes.
    template <int R>
    static void fold_group(const char* x, const char* scales, const typename Dot::Sum (&sum)[R][kVectors], Lanes::Floats (&result)[R][kVectors]) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            const Lanes::Floats d = PerOutput ? Lanes::zero() : halves_at(scales, v);
#pragma GCC unroll 14
            for (int r = 0; r < R; ++r) {
                const Scale* scale = scale_of(x, r);
                const Lanes::Floats whole =
                    Lanes::to_floats(Dot::finish(sum[r][v], stored_higher ? scale->correction : 0));
                const Lanes::Floats factor =
                    PerOutput ? Lanes::all(scale->scale) : Lanes::product(d, Lanes::all(scale->scale));
                result[r][v] = Lanes::multiply_add(whole, factor, result[r][v]);
                if (HasMinimum)
                    result[r][v] = Lanes::multiply_add(halves_at(scales + 2 * Lanes::panel, v),
                                                       Lanes::all(scale->moved), result[r][v]);
            }
        }
    }

    template <int R>
    static void multiply(const Tile& tile) {
        constexpr int V = kVectors;
        Lanes::Floats result[R][V];
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) result[r][v] = Lanes::zero();
        put_aside(result);
        const char *x = tile.x, *weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g, x += R * x_group_bytes, weight += weight_group_bytes) {
            typename Dot::Sum sum[R][V];
#pragma GCC unroll 14
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) sum[r][v] = Dot::start(scale_of(x, r)->correction);
            Ahead fetcher(tile, weight);
            dot_group<R>(x, weight, fetcher, sum);
            const char* scales = weight + Lanes::panel * code_bytes;
            if (!PerOutput) fetcher.next();
            fold_group<R>(x, scales, sum, result);
            put_aside(result);
        }
        if (PerOutput) scale_outputs<R>(weight, result);
        store_tile<R, V>(tile, result);
    }

private:
    template <int R>
    static void scale_outputs(const char* scales, Lanes::Floats (&result)[R][kVectors]) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            const Lanes::Floats scale =
                Lanes::floats(scales + v * kVectorBytes);
#pragma GCC unroll 14
            for (int r = 0; r < R; ++r) result[r][v] = Lanes::product(result[r][v], scale);
        }
    }
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
