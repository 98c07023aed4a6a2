// The shapes of AMX's tile registers. Included by kernel files of its path only (see path.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

// What ldtilecfg reads. Registers 0 to 3 are accumulators, 4 and 5 left operands, 6 and 7 right ones. Accumulators 0 and 1
// belong to left operand 4; 2 and 3 to operand 5, or, where the rows fit one operand, to that one again.
struct alignas(64) TileShapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    constexpr explicit TileShapes(int left_rows) {
        const int first = left_rows < kTileRows ? left_rows : kTileRows;
        const int second = left_rows > kTileRows ? left_rows - kTileRows : first;
        const int of_register[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
        for (int i = 0; i < 8; ++i) {
            row_bytes[i] = kTileRowBytes;
            rows[i] = static_cast<std::uint8_t>(of_register[i]);
        }
    }
};
static_assert(sizeof(TileShapes) == 64);

template <int left_rows>
constexpr TileShapes tile_shapes{left_rows};

// Of this thread; 0 while its tile registers hold nothing.
thread_local int shaped_rows = 0;

// Loading shapes takes as long as a good part of a small panel, and clears every register: done when they change.
template <int left_rows>
void shape_tiles() {
    if (shaped_rows == left_rows) return;
    _tile_loadconfig(&tile_shapes<left_rows>);
    shaped_rows = left_rows;
}

// To be called before a thread does anything else: registers in use are 8 KiB more for the system to save at a switch.
inline void release_tiles() {
    if (shaped_rows == 0) return;
    _tile_release();
    shaped_rows = 0;
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
