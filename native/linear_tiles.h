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
    const char* fetch;     // where to begin with fetching the next panel, if other row blocks help; else null
};

using TileFunction = void (*)(const Tile&);

// Every step over k fetches the weights that it will want so many bytes later, a line or two at a time. Evenly spaced
// fetches are what counts: a burst of a whole group fills the line buffers and holds up the loads behind it, which cost
// 10 % at one row and 30 % at sixteen. They run past a panel's end into the next one, which is wanted next, and at the
// end of all past the memory, which is harmless.
constexpr std::int64_t kAheadBytes = 4096;

// With several row blocks a panel is read as often, but only once from memory. Were it fetched as above, the first block
// would wait for memory and the others would leave it idle; so each fetches a share of the next panel (half a line for a
// line read: two blocks fetch all of it, more of them overlap).
//
// Of P panels side by side (one row block) each goes on P panels further: past its end lies what its neighbour has read.
//
// ``next`` is called for every ``Lines`` lines of weights; a Fetcher serves a group.
template <int Lines, int P, std::int64_t Ahead = kAheadBytes>
class Fetcher {
public:
    Fetcher(const Tile& tile, const char* weight) : panel_bytes_(tile.panel_bytes) {
        const bool shared = P == 1 && tile.fetch;
        step_ = shared ? Lines * 32 : Lines * 64;
        second_ = shared ? 0 : 64;
        const bool near_end = P > 1 && weight + Ahead >= tile.weight + tile.panel_bytes;
        at_ = shared     ? tile.fetch + (weight - tile.weight) / 2
              : near_end ? weight + Ahead + (P - 1) * tile.panel_bytes
                         : weight + Ahead;
    }

    void next() {
        for (int panel = 0; panel < P && Lines > 0; ++panel)
            for (int line = 0; line < Lines; ++line) __builtin_prefetch(at_ + panel * panel_bytes_ + line * second_);
        at_ += step_;
    }

private:
    const char* at_;
    std::int64_t step_, second_, panel_bytes_;
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
