// Tiles of up to 32 rows x 32 columns in AMX's eight tile registers. Included by kernel files only (see path.h).
//
// Rows and weights are packed as for vdpbf16ps, and that is what AMX wants: 32 inputs of each row, 64 bytes, are the rows
// of a left operand; 16 pairs of inputs times 16 columns are a right one, its rows 128 bytes apart.
//
// Order of accumulation: one instruction takes a group. It sums the products of even inputs and those of odd ones, each
// from first to last, adds the two, and adds that to the output (Intel's manual, TDPBF16PS). The order depends on
// nothing but the inputs' number, so that a row has the same bits in any company.
#pragma once

#include <utility>

#include "amx_registers.h"
#include "linear_tiles_avx512.h"

namespace octavo::OCTAVO_PATH {
namespace {

// The number of a register is part of the instruction, and GCC takes it from the source's text.
template <int accumulator>
inline void store_sums(float* out, std::int64_t row_bytes) {
    if constexpr (accumulator == 0) _tile_stored(0, out, row_bytes);
    if constexpr (accumulator == 1) _tile_stored(1, out, row_bytes);
    if constexpr (accumulator == 2) _tile_stored(2, out, row_bytes);
    if constexpr (accumulator == 3) _tile_stored(3, out, row_bytes);
}

// Sums without a bias go where they belong; others, and those of a ragged last panel, by way of the stack.
template <int accumulator, int rows>
void put_sums(const Tile& tile, int first_row, int first_column) {
    const std::int64_t left = tile.columns - first_column;
    float* out = tile.out + first_row * tile.out_stride + first_column;
    if (left <= 0) return;
    if (left >= kTileRows && !tile.bias)
        return store_sums<accumulator>(out, tile.out_stride * std::int64_t{sizeof(float)});
    alignas(64) float sums[rows * kTileRows];
    store_sums<accumulator>(sums, kTileRowBytes);
    const __mmask16 mask = left >= kTileRows ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
    const __m512 bias = tile.bias ? _mm512_maskz_loadu_ps(mask, tile.bias + first_column) : _mm512_setzero_ps();
    for (int r = 0; r < rows; ++r) {
        const __m512 sum = _mm512_load_ps(sums + r * kTileRows);
        _mm512_mask_storeu_ps(out + r * tile.out_stride, mask, tile.bias ? _mm512_add_ps(sum, bias) : sum);
    }
}

template <int times, class Fetching>
inline void fetch(Fetching& fetcher) {
#pragma GCC unroll 8
    for (int i = 0; i < times; ++i) fetcher.next();
}

struct TileBF16 : BF16 {
    static constexpr int max_rows = 2 * kTileRows, few_rows = kTileRows, few_rows_panels = 2;
    static constexpr int pairs = group / 2;             // fetches a group: one for each pair of inputs
    static constexpr std::int64_t right_stride = panel * 4;  // bytes

    // One left operand, and P panels.
    template <int R, int P>
    static void multiply_few(const Tile& tile) {
        const char *x = tile.x, *weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g, x += R * kTileRowBytes, weight += group_bytes) {
            Fetcher<2, P> fetcher(tile, weight);
            _tile_loadd(4, x, kTileRowBytes);
            _tile_loadd(6, weight, right_stride);
            _tile_dpbf16ps(0, 4, 6);
            fetch<pairs / (2 * P)>(fetcher);
            _tile_loadd(7, weight + kTileRowBytes, right_stride);
            _tile_dpbf16ps(1, 4, 7);
            fetch<pairs / (2 * P)>(fetcher);
            if constexpr (P == 2) {
                _tile_loadd(6, weight + tile.panel_bytes, right_stride);
                _tile_dpbf16ps(2, 4, 6);
                fetch<pairs / 4>(fetcher);
                _tile_loadd(7, weight + tile.panel_bytes + kTileRowBytes, right_stride);
                _tile_dpbf16ps(3, 4, 7);
                fetch<pairs / 4>(fetcher);
            }
        }
        put_sums<0, R>(tile, 0, 0);
        put_sums<1, R>(tile, 0, kTileRows);
        if constexpr (P == 2) {
            put_sums<2, R>(tile, 0, panel);
            put_sums<3, R>(tile, 0, panel + kTileRows);
        }
    }

    // Two left operands, and a panel.
    template <int R>
    static void multiply_many(const Tile& tile) {
        const char *x = tile.x, *weight = tile.weight;
        for (std::int64_t g = 0; g < tile.groups; ++g, x += R * kTileRowBytes, weight += group_bytes) {
            Fetcher<2, 1> fetcher(tile, weight);
            _tile_loadd(4, x, kTileRowBytes);
            _tile_loadd(6, weight, right_stride);
            _tile_dpbf16ps(0, 4, 6);
            fetch<pairs / 4>(fetcher);
            _tile_loadd(7, weight + kTileRowBytes, right_stride);
            _tile_dpbf16ps(1, 4, 7);
            fetch<pairs / 4>(fetcher);
            _tile_loadd(5, x + kTileRows * kTileRowBytes, kTileRowBytes);
            _tile_dpbf16ps(2, 5, 6);
            fetch<pairs / 4>(fetcher);
            _tile_dpbf16ps(3, 5, 7);
            fetch<pairs / 4>(fetcher);
        }
        put_sums<0, kTileRows>(tile, 0, 0);
        put_sums<1, kTileRows>(tile, 0, kTileRows);
        put_sums<2, R - kTileRows>(tile, kTileRows, 0);
        put_sums<3, R - kTileRows>(tile, kTileRows, kTileRows);
    }

    // Accumulators begin at zero whether or not loading the shapes has just cleared them.
    template <int R, int P>
    static void multiply(const Tile& tile) {
        shape_tiles<R>();
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        if constexpr (R <= kTileRows) multiply_few<R, P>(tile);
        else multiply_many<R>(tile);
    }

    template <int P, int... R>
    static TileFunction of_rows(int rows, std::integer_sequence<int, R...>) {
        static constexpr TileFunction functions[] = {multiply<R + 1, P>...};
        return functions[rows - 1];
    }
    static TileFunction tile(int rows, bool wide) {
        return wide ? of_rows<few_rows_panels>(rows, std::make_integer_sequence<int, few_rows>())
                    : of_rows<1>(rows, std::make_integer_sequence<int, max_rows>());
    }
    static void finish() { release_tiles(); }
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
