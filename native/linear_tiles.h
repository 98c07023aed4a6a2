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
};

using TileFunction = void (*)(const Tile&);

// Every step over k fetches the weights that it will want so many bytes later, a line or two at a time. Evenly spaced
// fetches are what counts: a burst of a whole group fills the line buffers and holds up the loads behind it, which cost
// 10 % at one row and 30 % at sixteen. They run past a panel's end into the next one, which is wanted next, and at the
// end of all past the memory, which is harmless.
constexpr std::int64_t kAheadBytes = 4096;

// Of P panels side by side each goes on P panels further: past its end lies what its neighbour has read already.
template <int P>
inline std::int64_t bytes_ahead(const Tile& tile, const char* weight) {
    if (P == 1 || weight + kAheadBytes < tile.weight + tile.panel_bytes) return kAheadBytes;
    return kAheadBytes + (P - 1) * tile.panel_bytes;
}

template <int Lines, int P>
inline void prefetch(const char* weight, std::int64_t panel_bytes, std::int64_t ahead) {
    for (int panel = 0; panel < P; ++panel)
        for (int line = 0; line < Lines; ++line) __builtin_prefetch(weight + panel * panel_bytes + ahead + line * 64);
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
