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
    const char* next;      // what this thread reads after this panel (P panels)
    std::int64_t shared;   // bytes of ``next`` to fetch for each ``kPairBytes`` read, if other row blocks help; else 0 ...
    std::int64_t shared_from;  // ... and where in it to begin
};

using TileFunction = void (*)(const Tile&);

constexpr std::int64_t kPairBytes = 128;  // two lines

// Every step over k fetches the weights that it will want so many bytes later, a line or two at a time. Evenly spaced
// fetches are what counts: a burst of a whole group fills the line buffers and holds up the loads behind it, which cost
// 10 % at one row and 30 % at sixteen. At a panel's end they go on in what is read next, and at the end of all past the
// memory, which is harmless.
//
// AVX-512 fetches into the second cache: it multiplies so fast that the first one's line buffers (24 on Zen 4) are too few to
// wait for memory in; from there the processor's own fetching suffices.
#if defined(OCTAVO_PATH_AVX512_BF16)
constexpr std::int64_t kAheadBytes = 6144;
constexpr int kFetchLocality = 2;
#else
constexpr std::int64_t kAheadBytes = 4096;
constexpr int kFetchLocality = 3;
#endif

// With several row blocks a panel is read as often, but only once from memory. Were it fetched as above, the first block
// would wait for memory and the others would leave it idle; so each fetches its share of what is read next.
//
// ``next`` is called for every ``Lines`` lines of weights of each of P panels; a Fetcher serves a group.
template <int Lines, int P, std::int64_t Ahead = kAheadBytes>
class Fetcher {
public:
    Fetcher(const Tile& tile, const char* weight) : panel_bytes_(tile.panel_bytes), shared_(P == 1 && tile.shared) {
        const std::int64_t offset = weight - tile.weight, ahead = offset + Ahead;
        if (shared_) {
            step_ = tile.shared * Lines / 2;
            at_ = tile.next + tile.shared_from + offset / kPairBytes * tile.shared;
        } else {
            step_ = Lines * 64;
            at_ = ahead < panel_bytes_ ? tile.weight + ahead : tile.next + (ahead - panel_bytes_);
        }
    }

    void next() {
        if (Lines == 0) return;
        if (shared_)
            __builtin_prefetch(at_, 0, kFetchLocality);
        else
            for (int panel = 0; panel < P; ++panel)
                for (int line = 0; line < Lines; ++line)
                    __builtin_prefetch(at_ + panel * panel_bytes_ + line * 64, 0, kFetchLocality);
        at_ += step_;
    }

private:
    const char* at_;
    std::int64_t step_, panel_bytes_;
    bool shared_;
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
