// What a tile of a path's linear kernel is given. Included by kernel files only (see path.h).
#pragma once

#include <cstdint>

#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

// A tile multiplies R rows with P panels lying ``panel_bytes`` apart, over all of K.
struct Tile {
    const char* x;       // packed row block
    const char* weight;  // first panel
    std::int64_t groups;
    std::int64_t panel_bytes;
    const float* bias;  // or null
    float* out;
    std::int64_t out_stride;
    std::int64_t columns;  // outputs that exist from ``out`` on; the rest of the panels is padding
    // Prefetching: of each group of the panels at ``ahead``, this tile fetches lines [line_begin, line_end).
    const char* ahead;
    int line_begin;
    int line_end;
    bool streaming;  // into the nearest cache: the lines are used at once
};

using TileFunction = void (*)(const Tile&);

template <int Panels, int GroupBytes>
inline void prefetch_group(const Tile& tile, std::int64_t group) {
    const char* line = tile.ahead + group * GroupBytes;
    for (int panel = 0; panel < Panels; ++panel, line += tile.panel_bytes) {
        if (tile.streaming) {
            for (int i = tile.line_begin; i < tile.line_end; ++i) __builtin_prefetch(line + i * 64, 0, 3);
        } else {
            for (int i = tile.line_begin; i < tile.line_end; ++i) __builtin_prefetch(line + i * 64, 0, 2);
        }
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
