// Plain loops over 16 columns that a compiler turns into whatever vectors the machine has.
#pragma once

#include "linear_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int kPanel = 16;
constexpr int kMaxRows = 4;
constexpr int kFewRows = 1;
constexpr int kFewRowsPanels = 1;

template <int R>
inline void store_tile(const Tile& tile, const float (&sum)[R][kPanel]) {
    const int columns = tile.columns < kPanel ? static_cast<int>(tile.columns) : kPanel;
    for (int r = 0; r < R; ++r) {
        float* out = tile.out + r * tile.out_stride;
        for (int n = 0; n < columns; ++n) out[n] = tile.bias ? sum[r][n] + tile.bias[n] : sum[r][n];
    }
}

inline void pack_f32_group(const float* x, std::int64_t count, char* out) {
    auto* to = reinterpret_cast<float*>(out);
    for (int i = 0; i < 16; ++i) to[i] = i < count ? x[i] : 0.0f;
}

inline float float_of(std::uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

struct F32 {
    static constexpr int panel = kPanel;
    static constexpr int group = 16;
    static constexpr int element_size = 4;
    static constexpr int group_bytes = group * panel * 4;

    static void pack_group(const float* x, std::int64_t count, char* out) { pack_f32_group(x, count, out); }

    template <int R, int P>
    static void multiply(const Tile& tile) {
        static_assert(P == 1);
        float sum[R][kPanel] = {};
        const float* x = reinterpret_cast<const float*>(tile.x);
        const float* weight = reinterpret_cast<const float*>(tile.weight);
        for (std::int64_t g = 0; g < tile.groups; ++g, x += R * 16) {
            for (int k = 0; k < 16; ++k, weight += kPanel)
                for (int r = 0; r < R; ++r)
                    for (int n = 0; n < kPanel; ++n) sum[r][n] += weight[n] * x[r * 16 + k];
        }
        store_tile<R>(tile, sum);
    }
};

struct BF16 {
    static constexpr int panel = kPanel;
    static constexpr int group = 16;
    static constexpr int element_size = 4;  // x stays float32
    static constexpr int group_bytes = group * panel * 2;

    static void pack_group(const float* x, std::int64_t count, char* out) { pack_f32_group(x, count, out); }

    template <int R, int P>
    static void multiply(const Tile& tile) {
        static_assert(P == 1);
        float sum[R][kPanel] = {};
        const float* x = reinterpret_cast<const float*>(tile.x);
        // A pair (k, k + 1) as one word, k in the low half: the packing copies words, so this needs a little-endian
        // machine, as all the supported ones are.
        const auto* weight = reinterpret_cast<const std::uint32_t*>(tile.weight);
        for (std::int64_t g = 0; g < tile.groups; ++g, x += R * 16) {
            for (int k = 0; k < 16; k += 2, weight += kPanel)
                for (int r = 0; r < R; ++r)
                    for (int n = 0; n < kPanel; ++n) {
                        sum[r][n] += float_of(weight[n] << 16) * x[r * 16 + k];
                        sum[r][n] += float_of(weight[n] & 0xffff0000u) * x[r * 16 + k + 1];
                    }
        }
        store_tile<R>(tile, sum);
    }
};

template <class Format>
constexpr TileFunction kTiles[kMaxRows + 1] = {
    nullptr,
    Format::template multiply<1, 1>, Format::template multiply<2, 1>, Format::template multiply<3, 1>,
    Format::template multiply<4, 1>,
};
template <class Format>
constexpr TileFunction kWideTiles[kFewRows + 1] = {nullptr, Format::template multiply<1, 1>};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
