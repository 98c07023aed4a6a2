// Tiles of quantised weights, written once on the ``Lanes`` of a path. Included by kernel files only (see path.h).
#pragma once

#include "linear_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

// In front of a packed row (int8) or behind each group of its codes (the block formats).
struct Scale {
    float scale;
    std::int32_t correction;  // where weights are stored higher than they are: minus their offset times the sum of codes
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

// The v-th register of one k-quad of P panels.
inline Lanes::Words weights_at(const Tile& tile, const char* weight, int v) {
    return Lanes::load(weight + v / kVectors * tile.panel_bytes + v % kVectors * kVectorBytes);
}

inline Lanes::Floats halves_at(const Tile& tile, const char* weight, int v) {
    return Lanes::halves(weight + v / kVectors * tile.panel_bytes + v % kVectors * kVectorBytes / 2);
}

// Hides that what follows a loop reads the loop's accumulators: GCC 12 would keep two copies of each, one in memory.
template <int R, int V, class Vector>
inline void hold([[maybe_unused]] Vector (&sum)[R][V]) {
#if defined(__x86_64__)
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) asm("" : "+v"(sum[r][v]));
#endif
}

// One int32 accumulator an output, over all of K.
struct ByteTiles {
    template <int R, int P>
    static void multiply(const Tile& tile) {
        using Dot = Lanes::Bytes;
        constexpr int V = P * kVectors;
        const auto* scales = reinterpret_cast<const Scale*>(tile.x);
        Dot::Sum sum[R][V];
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = Dot::start(scales[r].correction);
        const char *x = tile.x + R * sizeof(Scale), *weight = tile.weight;
        for (std::int64_t group = 0; group < tile.groups; ++group) {
            const std::int64_t ahead = bytes_ahead<P>(tile, weight);
            // Four quads unrolled, sixteen not: more made GCC keep accumulators in memory.
            for (int quarter = 0; quarter < 4; ++quarter) {
#pragma GCC unroll 4
                for (int quad = 0; quad < 4; ++quad) {
                    prefetch<kQuadLines, P>(weight + quad * kQuadBytes, tile.panel_bytes, ahead);
                    Lanes::Words w[V];
#pragma GCC unroll 4
                    for (int v = 0; v < V; ++v) w[v] = weights_at(tile, weight + quad * kQuadBytes, v);
#pragma GCC unroll 14
                    for (int r = 0; r < R; ++r) {
                        const std::int32_t four = word_at(x + r * 64 + quad * 4);
#pragma GCC unroll 4
                        for (int v = 0; v < V; ++v) sum[r][v] = Dot::add(sum[r][v], w[v], four);
                    }
                }
                x += 16;
                weight += 4 * kQuadBytes;
            }
            x += (R - 1) * 64;
        }
        hold<R, V>(sum);
        Lanes::Floats result[R][V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            const Lanes::Floats scale =
                Lanes::floats(weight + v / kVectors * tile.panel_bytes + v % kVectors * kVectorBytes);
#pragma GCC unroll 14
            for (int r = 0; r < R; ++r) {
                const Lanes::Words whole = Dot::finish(sum[r][v], scales[r].correction);
                result[r][v] =
                    Lanes::product(Lanes::product(Lanes::to_floats(whole), scale), Lanes::all(scales[r].scale));
            }
        }
        store_tile<R, V>(tile, result);
    }
};

// GGUF's blocks: an int32 sum of 32 products, then a multiply-add to the float32 accumulator of the output.
template <bool FourBits, bool HasMinimum>
struct BlockTiles {
    static constexpr int code_bytes = FourBits ? 16 : 32;  // of a block and output
    static constexpr int x_group_bytes = 32 + sizeof(Scale);

    template <class Dot, int R, int P>
    static void dot_block(const Tile& tile, const char* x, const char* weight, typename Dot::Sum (&sum)[R][P * kVectors]) {
        constexpr int V = P * kVectors, halves = FourBits ? 2 : 1;
        const std::int64_t ahead = bytes_ahead<P>(tile, weight);
#pragma GCC unroll 8
        for (int step = 0; step < code_bytes / 4; ++step, weight += kQuadBytes) {
            prefetch<kQuadLines, P>(weight, tile.panel_bytes, ahead);
            Lanes::Words bytes[V], w[V];
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) bytes[v] = weights_at(tile, weight, v);
#pragma GCC unroll 2
            for (int half = 0; half < halves; ++half) {
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v)
                    w[v] = !FourBits ? bytes[v] : half ? Lanes::high(bytes[v]) : Lanes::low(bytes[v]);
#pragma GCC unroll 14
                for (int r = 0; r < R; ++r) {
                    const std::int32_t four = word_at(x + r * x_group_bytes + (step * halves + half) * 4);
#pragma GCC unroll 4
                    for (int v = 0; v < V; ++v) sum[r][v] = Dot::add(sum[r][v], w[v], four);
                }
            }
        }
    }

    template <int R, int P>
    static void multiply(const Tile& tile) {
        using Dot = Choice<FourBits, Lanes::Nibbles, Lanes::Bytes>::type;
        constexpr int V = P * kVectors;
        constexpr int block_bytes = Lanes::panel * (code_bytes + 2 + 2 * HasMinimum);
        Lanes::Floats result[R][V];
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) result[r][v] = Lanes::zero();
        const char *x = tile.x, *weight = tile.weight;
        for (std::int64_t group = 0; group < tile.groups; ++group, x += R * x_group_bytes, weight += block_bytes) {
            const auto scale_of = [&](int r) { return reinterpret_cast<const Scale*>(x + r * x_group_bytes + 32); };
            typename Dot::Sum sum[R][V];
#pragma GCC unroll 14
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) sum[r][v] = Dot::start(scale_of(r)->correction);
            dot_block<Dot, R, P>(tile, x, weight, sum);
            const char* scales = weight + Lanes::panel * code_bytes;
            prefetch<1 + HasMinimum, P>(scales, tile.panel_bytes, bytes_ahead<P>(tile, weight));
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) {
                const Lanes::Floats d = halves_at(tile, scales, v);
#pragma GCC unroll 14
                for (int r = 0; r < R; ++r) {
                    const Lanes::Words whole = Dot::finish(sum[r][v], scale_of(r)->correction);
                    result[r][v] = Lanes::multiply_add(
                        Lanes::to_floats(whole), Lanes::product(d, Lanes::all(scale_of(r)->scale)), result[r][v]);
                    if (HasMinimum)
                        result[r][v] = Lanes::multiply_add(halves_at(tile, scales + 2 * Lanes::panel, v),
                                                           Lanes::all(scale_of(r)->moved), result[r][v]);
                }
            }
        }
        store_tile<R, V>(tile, result);
    }

private:
    template <bool, class First, class Second>
    struct Choice { using type = First; };
    template <class First, class Second>
    struct Choice<false, First, Second> { using type = Second; };
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
