// The linear kernels of one path for quantised weights (compiled once per path, see path.h).
#include "linear_driver.h"
#include "quantise.h"

#if defined(OCTAVO_PATH_AVX512_BF16)
#include "quantised_lanes_avx512.h"
#elif defined(OCTAVO_PATH_AVX2) || defined(OCTAVO_PATH_AVX2_VNNI)
#include "quantised_lanes_avx2.h"
#else
#include "quantised_lanes_portable.h"
#endif

#if !defined(OCTAVO_PATH_PORTABLE)
#include "quantised_rows_avx2.h"
#endif
#include "quantised_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

template <class Tiles, int R>
TileFunction find_tile(int rows) {
    if constexpr (R == 0) {
        return nullptr;
    } else {
        return rows == R ? &Tiles::template multiply<R> : find_tile<Tiles, R - 1>(rows);
    }
}

// 8-bit codes of unsigned lanes are stored 128 higher than they are.
constexpr std::uint8_t kCodeFlip = Lanes::unsigned_codes ? 0x80 : 0;
constexpr std::int32_t kByteOffset = Lanes::unsigned_codes ? 128 : 0;
constexpr std::int64_t kInterleaved = 4;

template <bool FourBits, bool HasMinimum, bool PerOutput, std::int32_t Offset>
struct Packed {
    using Tiles = QuantisedTiles<FourBits, HasMinimum, PerOutput>;
    static constexpr std::int64_t panel = Lanes::panel, group = Tiles::group;
    static constexpr std::int64_t x_group_bytes = Tiles::x_group_bytes;
    static constexpr std::int64_t weight_group_bytes = Tiles::weight_group_bytes;
    static constexpr std::int64_t weight_panel_bytes = PerOutput ? 4 * panel : 0;
    // One panel at a time even for a single row: two were a quarter slower with blocks of four bits.
    static constexpr std::int64_t max_rows = Tiles::Dot::rows, lone_rows = max_rows, few_rows = 0, few_rows_panels = 1;

    static TileFunction tile(int rows, bool) { return find_tile<Tiles, max_rows>(rows); }

    static void pack(const LinearArgs& args, std::int64_t begin, std::int64_t rows, std::int64_t groups, char* out) {
        for (std::int64_t r = 0; r < rows; ++r) {
            const float* x = args.x + (begin + r) * args.x_stride;
            for (std::int64_t g = 0; g < groups; ++g) {
                const std::int64_t left = args.in_features - g * group, count = left < group ? left : group;
                char* to = out + (g * rows + r) * x_group_bytes;
                Quantised q;
#if !defined(OCTAVO_PATH_PORTABLE)
                const std::int32_t correction =
                    round_group<Tiles::Dot::words, group, Offset>(x + g * group, count, to, q);
#else
                auto* codes = reinterpret_cast<std::int8_t*>(to);
                const float factor = reciprocal(largest_magnitude_bits(x + g * group, count), q);
                q.sum = quantise_run(x + g * group, count, factor, codes);
                for (std::int64_t i = count; i < group; ++i) codes[i] = 0;
                const std::int32_t correction = -Offset * q.sum;
#endif
                const Scale scale{q.scale, correction, q.scale * static_cast<float>(q.sum), 0.0f};
                __builtin_memcpy(to + x_group_bytes - sizeof scale, &scale, sizeof scale);
            }
        }
    }
};

}  // namespace

extern const QuantisedKernels quantised_kernels = {
    kernels_of<Packed<false, false, true, kByteOffset>>(kInterleaved, kCodeFlip),
    kernels_of<Packed<true, false, false, 8>>(kInterleaved, 0),
    kernels_of<Packed<true, true, false, 0>>(kInterleaved, 0),
    kernels_of<Packed<false, false, false, kByteOffset>>(kInterleaved, kCodeFlip),
};

}  // namespace octavo::OCTAVO_PATH
