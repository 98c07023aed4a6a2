// Tiles of up to 14 rows x 32 columns (28 accumulators of the 32 registers). One panel at a time even for a single row: two
// beside each other were slower once weights were fetched into the second cache.
#pragma once

#include <immintrin.h>

#include "linear_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int kPanel = 32;
constexpr int kLoneRows = 14;
constexpr int kMaxRows = 8;  // of many rows: smaller blocks stay in the nearest cache
constexpr int kFewRows = 0;
constexpr int kFewRowsPanels = 1;

template <int R>
inline void store_tile(const Tile& tile, const __m512 (&sum)[R][2]) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
        const std::int64_t left = tile.columns - v * 16;
        if (left <= 0) return;
        const __mmask16 mask = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
        const __m512 bias = tile.bias ? _mm512_maskz_loadu_ps(mask, tile.bias + v * 16) : _mm512_setzero_ps();
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r) {
            const __m512 value = tile.bias ? _mm512_add_ps(sum[r][v], bias) : sum[r][v];
            _mm512_mask_storeu_ps(tile.out + r * tile.out_stride + v * 16, mask, value);
        }
    }
}

struct F32 {
    static constexpr int panel = kPanel;
    static constexpr int group = 16;
    static constexpr int group_bytes = group * panel * 4;

    static void pack_group(const float* x, std::int64_t count, char* out) {
        const __mmask16 mask = count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1);
        _mm512_store_ps(out, _mm512_maskz_loadu_ps(mask, x));
    }

    template <int R>
    static void multiply(const Tile& tile) {
        __m512 sum[R][2];
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < 2; ++v) sum[r][v] = _mm512_setzero_ps();
        const float* x = reinterpret_cast<const float*>(tile.x);
        const char* weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g) {
            Fetcher<2, 1> fetcher(tile, weight);
            for (int quarter = 0; quarter < 4; ++quarter) {
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) {
                    fetcher.next();
                    __m512 w[2];
#pragma GCC unroll 2
                    for (int v = 0; v < 2; ++v)
                        w[v] = _mm512_load_ps(weight + k * 128 + v * 64);
#pragma GCC unroll 14
                    for (int r = 0; r < R; ++r) {
                        const __m512 value = _mm512_set1_ps(x[r * 16 + k]);
#pragma GCC unroll 2
                        for (int v = 0; v < 2; ++v) sum[r][v] = _mm512_fmadd_ps(w[v], value, sum[r][v]);
                    }
                }
                x += 4;
                weight += 4 * 128;
            }
            x += (R - 1) * 16;
        }
        store_tile<R>(tile, sum);
    }
};

struct BF16 {
    static constexpr int panel = kPanel;
    static constexpr int group = 32;
    static constexpr int group_bytes = group * panel * 2;

    static void pack_group(const float* x, std::int64_t count, char* out) {
        const std::uint32_t mask = count >= 32 ? 0xffffffffu : (1u << count) - 1;
        const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x);
        const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + 16);
        _mm512_store_si512(out, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }

    template <int R>
    static void multiply(const Tile& tile) {
        __m512 sum[R][2];
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < 2; ++v) sum[r][v] = _mm512_setzero_ps();
        const int* x = reinterpret_cast<const int*>(tile.x);  // pairs of bf16
        const char* weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g) {
            Fetcher<2, 1> fetcher(tile, weight);
            for (int quarter = 0; quarter < 4; ++quarter) {
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) {
                    fetcher.next();
                    __m512bh w[2];
#pragma GCC unroll 2
                    for (int v = 0; v < 2; ++v)
                        w[v] = (__m512bh)_mm512_load_si512(weight + k * 128 + v * 64);
#pragma GCC unroll 14
                    for (int r = 0; r < R; ++r) {
                        const __m512bh pair = (__m512bh)_mm512_set1_epi32(x[r * 16 + k]);
#pragma GCC unroll 2
                        for (int v = 0; v < 2; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], w[v], pair);
                    }
                }
                x += 4;
                weight += 4 * 128;
            }
            x += (R - 1) * 16;
        }
        store_tile<R>(tile, sum);
    }
};

// bf16 weights widened to float32 in registers, for processors whose vdpbf16ps is slow (paths.cpp chooses). A pair
// (k, k + 1) is one 32-bit lane: k is its low half shifted up, k + 1 is loaded with the low halves masked to zero.
struct WidenedBF16 {
    static constexpr int panel = kPanel;
    static constexpr int group = 16;
    static constexpr int group_bytes = group * panel * 2;

    static void pack_group(const float* x, std::int64_t count, char* out) { F32::pack_group(x, count, out); }

    template <int R>
    static void accumulate(__m512 (&sum)[R][2], const __m512 (&w)[2], const float* x) {
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r) {
            const __m512 value = _mm512_set1_ps(x[r * 16]);
#pragma GCC unroll 2
            for (int v = 0; v < 2; ++v) sum[r][v] = _mm512_fmadd_ps(w[v], value, sum[r][v]);
        }
    }

    template <int R>
    static void multiply(const Tile& tile) {
        constexpr __mmask32 high_halves = 0xaaaaaaaa;
        __m512 sum[R][2];
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < 2; ++v) sum[r][v] = _mm512_setzero_ps();
        const float* x = reinterpret_cast<const float*>(tile.x);
        const char* weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g) {
            Fetcher<2, 1> fetcher(tile, weight);
            for (int quarter = 0; quarter < 4; ++quarter) {
#pragma GCC unroll 2
                for (int pair = 0; pair < 2; ++pair) {
                    fetcher.next();
                    __m512 w[2];
#pragma GCC unroll 2
                    for (int v = 0; v < 2; ++v)
                        w[v] = _mm512_castsi512_ps(_mm512_slli_epi32(
                            _mm512_load_si512(weight + pair * 128 + v * 64), 16));
                    accumulate<R>(sum, w, x + 2 * pair);
#pragma GCC unroll 2
                    for (int v = 0; v < 2; ++v)
                        w[v] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(
                            high_halves, weight + pair * 128 + v * 64));
                    accumulate<R>(sum, w, x + 2 * pair + 1);
                }
                x += 4;
                weight += 2 * 128;
            }
            x += (R - 1) * 16;
        }
        store_tile<R>(tile, sum);
    }
};

template <class Format>
constexpr TileFunction kTiles[kLoneRows + 1] = {
    nullptr,
    Format::template multiply<1>, Format::template multiply<2>, Format::template multiply<3>,
    Format::template multiply<4>, Format::template multiply<5>, Format::template multiply<6>,
    Format::template multiply<7>, Format::template multiply<8>, Format::template multiply<9>,
    Format::template multiply<10>, Format::template multiply<11>, Format::template multiply<12>,
    Format::template multiply<13>, Format::template multiply<14>,
};
template <class Format>
constexpr TileFunction kWideTiles[kFewRows + 1] = {nullptr};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
