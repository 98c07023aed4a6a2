// Tiles of up to 6 rows x 16 columns (12 accumulators of the 16 registers). bf16 weights are widened in registers: a
// pair (k, k + 1) is one 32-bit lane, so k is its low half shifted up and k + 1 is its high half masked.
#pragma once

#include <immintrin.h>

#include "linear_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int kPanel = 16;
constexpr int kMaxRows = 6, kLoneRows = kMaxRows;
constexpr int kFewRows = 2;
constexpr int kFewRowsPanels = 2;
constexpr int kPassBytes = 256 << 10;  // half of a usual cache of one core: the other half is for weights

// Unrolled: an array that a loop indexes lives in memory, and then every multiply-add of the tile is stored as well.
template <int R, int P>
inline void store_tile(const Tile& tile, const __m256 (&sum)[R][2 * P]) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * P; ++v) {
        const std::int64_t left = tile.columns - v * 8;
        if (left <= 0) return;
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            __m256 value = sum[r][v];
            if (tile.bias) value = _mm256_add_ps(value, _mm256_loadu_ps(tile.bias + v * 8));
            float* out = tile.out + r * tile.out_stride + v * 8;
            if (left >= 8) {
                _mm256_storeu_ps(out, value);
            } else {
                alignas(32) float lanes[8];
                _mm256_store_ps(lanes, value);
                for (int i = 0; i < left; ++i) out[i] = lanes[i];
            }
        }
    }
}

template <int R, int P>
inline void clear(__m256 (&sum)[R][2 * P]) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < 2 * P; ++v) sum[r][v] = _mm256_setzero_ps();
}

// Of 10 and 12 accumulators, each is pinned to a register after its multiply-add. Left to itself GCC 12 loads several
// rows' values ahead, has no register for them beside 12 accumulators and 2 weights, and keeps two of the accumulators
// in memory: a third slower. Smaller tiles gain nothing.
template <int R, int P>
inline void accumulate(__m256 (&sum)[R][2 * P], const __m256 (&w)[2 * P], const float* x) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
        const __m256 value = _mm256_broadcast_ss(x + r * 16);
#pragma GCC unroll 4
        for (int v = 0; v < 2 * P; ++v) {
            sum[r][v] = _mm256_fmadd_ps(w[v], value, sum[r][v]);
            if (2 * R * P >= 10) asm volatile("" : "+x"(sum[r][v]));
        }
    }
}

inline void pack_f32_group(const float* x, std::int64_t count, char* out) {
    auto* to = reinterpret_cast<float*>(out);
    if (count >= 16) {
        _mm256_store_ps(to, _mm256_loadu_ps(x));
        _mm256_store_ps(to + 8, _mm256_loadu_ps(x + 8));
        return;
    }
    for (int i = 0; i < 16; ++i) to[i] = i < count ? x[i] : 0.0f;
}

struct F32 {
    static constexpr int panel = kPanel;
    static constexpr int group = 16;
    static constexpr int group_bytes = group * panel * 4;

    static void pack_group(const float* x, std::int64_t count, char* out) { pack_f32_group(x, count, out); }

    template <int R, int P>
    static void multiply(const Tile& tile) {
        __m256 sum[R][2 * P];
        clear<R, P>(sum);
        const float* x = reinterpret_cast<const float*>(tile.x);
        const char* weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g) {
            Fetcher<1, P> fetcher(tile, weight);
#pragma GCC unroll 4
            for (int k = 0; k < 16; ++k) {
                fetcher.next();
                __m256 w[2 * P];
#pragma GCC unroll 4
                for (int v = 0; v < 2 * P; ++v)
                    w[v] = _mm256_load_ps(
                        reinterpret_cast<const float*>(weight + v / 2 * tile.panel_bytes + k * 64 + v % 2 * 32));
                accumulate<R, P>(sum, w, x + k);
            }
            x += R * 16;
            weight += group_bytes;
        }
        store_tile<R, P>(tile, sum);
    }
};

struct BF16 {
    static constexpr int panel = kPanel;
    static constexpr int group = 16;
    static constexpr int group_bytes = group * panel * 2;

    static void pack_group(const float* x, std::int64_t count, char* out) { pack_f32_group(x, count, out); }

    template <int R, int P>
    static void multiply(const Tile& tile) {
        __m256 sum[R][2 * P];
        clear<R, P>(sum);
        const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
        const float* x = reinterpret_cast<const float*>(tile.x);
        const char* weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g) {
            Fetcher<1, P> fetcher(tile, weight);
#pragma GCC unroll 2
            for (int pair = 0; pair < 8; ++pair) {
                const auto load = [&](int v) __attribute__((always_inline)) {
                    return _mm256_load_si256(reinterpret_cast<const __m256i*>(
                        weight + v / 2 * tile.panel_bytes + pair * 64 + v % 2 * 32));
                };
                fetcher.next();
                __m256 w[2 * P];
#pragma GCC unroll 4
                for (int v = 0; v < 2 * P; ++v) w[v] = _mm256_castsi256_ps(_mm256_slli_epi32(load(v), 16));
                accumulate<R, P>(sum, w, x + 2 * pair);
#pragma GCC unroll 4
                for (int v = 0; v < 2 * P; ++v) w[v] = _mm256_castsi256_ps(_mm256_and_si256(load(v), high_half));
                accumulate<R, P>(sum, w, x + 2 * pair + 1);
            }
            x += R * 16;
            weight += group_bytes;
        }
        store_tile<R, P>(tile, sum);
    }
};

template <class Format>
constexpr TileFunction kTiles[kMaxRows + 1] = {
    nullptr,
    Format::template multiply<1, 1>, Format::template multiply<2, 1>, Format::template multiply<3, 1>,
    Format::template multiply<4, 1>, Format::template multiply<5, 1>, Format::template multiply<6, 1>,
};
template <class Format>
constexpr TileFunction kWideTiles[kFewRows + 1] = {
    nullptr, Format::template multiply<1, kFewRowsPanels>, Format::template multiply<2, kFewRowsPanels>,
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
