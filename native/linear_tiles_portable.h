// Tiles of up to 4 rows x 8 columns in the compilers' own vectors of four floats, which every machine has: SSE2, NEON.
// (As plain loops GCC left the float32 tile scalar, ten times slower.) No fused multiply-add: SSE2 has none.
#pragma once

#include "linear_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int kPanel = 8;
constexpr int kMaxRows = 4, kLoneRows = kMaxRows;
constexpr int kFewRows = 2;
constexpr int kFewRowsPanels = 2;

typedef float Floats __attribute__((vector_size(16)));
typedef std::uint32_t Words __attribute__((vector_size(16)));

template <class Vector>
inline Vector load(const char* from) {
    Vector value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

template <int R, int P>
inline void store_tile(const Tile& tile, const Floats (&sum)[R][2 * P]) {
    const int columns = tile.columns < P * kPanel ? static_cast<int>(tile.columns) : P * kPanel;
    for (int r = 0; r < R; ++r) {
        float* out = tile.out + r * tile.out_stride;
        for (int n = 0; n < columns; ++n) {
            const float value = sum[r][n / 4][n % 4];
            out[n] = tile.bias ? value + tile.bias[n] : value;
        }
    }
}

template <int R, int P>
inline void accumulate(Floats (&sum)[R][2 * P], const Floats (&w)[2 * P], const float* x) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < 2 * P; ++v) sum[r][v] += w[v] * x[r * 16];
}

inline void pack_f32_group(const float* x, std::int64_t count, char* out) {
    auto* to = reinterpret_cast<float*>(out);
    for (int i = 0; i < 16; ++i) to[i] = i < count ? x[i] : 0.0f;
}

struct F32 {
    static constexpr int panel = kPanel;
    static constexpr int group = 16;
    static constexpr int group_bytes = group * panel * 4;

    static void pack_group(const float* x, std::int64_t count, char* out) { pack_f32_group(x, count, out); }

    template <int R, int P>
    static void multiply(const Tile& tile) {
        Floats sum[R][2 * P] = {};
        const float* x = reinterpret_cast<const float*>(tile.x);
        const char* weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g, x += R * 16) {
            for (int k = 0; k < 16; ++k, weight += kPanel * 4) {
                Floats w[2 * P];
#pragma GCC unroll 4
                for (int v = 0; v < 2 * P; ++v) w[v] = load<Floats>(weight + v / 2 * tile.panel_bytes + v % 2 * 16);
                accumulate<R, P>(sum, w, x + k);
            }
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
        Floats sum[R][2 * P] = {};
        const float* x = reinterpret_cast<const float*>(tile.x);
        const char* weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g, x += R * 16) {
            for (int k = 0; k < 16; k += 2, weight += kPanel * 4) {
                // A pair (k, k + 1) is one word, k in its low half: the packing copies words, so this needs a
                // little-endian machine, as all the supported ones are.
                Words pairs[2 * P];
                Floats w[2 * P];
#pragma GCC unroll 4
                for (int v = 0; v < 2 * P; ++v) pairs[v] = load<Words>(weight + v / 2 * tile.panel_bytes + v % 2 * 16);
#pragma GCC unroll 4
                for (int v = 0; v < 2 * P; ++v) w[v] = (Floats)(pairs[v] << 16);
                accumulate<R, P>(sum, w, x + k);
#pragma GCC unroll 4
                for (int v = 0; v < 2 * P; ++v) w[v] = (Floats)(pairs[v] & 0xffff0000u);
                accumulate<R, P>(sum, w, x + k + 1);
            }
        }
        store_tile<R, P>(tile, sum);
    }
};

template <class Format>
constexpr TileFunction kTiles[kMaxRows + 1] = {
    nullptr,
    Format::template multiply<1, 1>, Format::template multiply<2, 1>, Format::template multiply<3, 1>,
    Format::template multiply<4, 1>,
};
template <class Format>
constexpr TileFunction kWideTiles[kFewRows + 1] = {
    nullptr, Format::template multiply<1, kFewRowsPanels>, Format::template multiply<2, kFewRowsPanels>,
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
