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

#include "quantised_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

template <class Tiles, int P, int R>
TileFunction find_tile(int rows) {
    if constexpr (R == 0) {
        return nullptr;
    } else {
        return rows == R ? &Tiles::template multiply<R, P> : find_tile<Tiles, P, R - 1>(rows);
    }
}

// 8-bit codes of unsigned lanes are stored 128 higher than they are.
constexpr std::uint8_t kCodeFlip = Lanes::unsigned_codes ? 0x80 : 0;
constexpr std::int32_t kByteOffset = Lanes::unsigned_codes ? 128 : 0;
constexpr std::int64_t kInterleaved = 4;

void pack_codes(const float* x, std::int64_t count, std::int64_t group, float factor, char* out, Quantised& result) {
    auto* codes = reinterpret_cast<std::int8_t*>(out);
    result.sum += quantise_run(x, count, factor, codes);
    for (std::int64_t i = count; i < group; ++i) codes[i] = 0;
}

Scale scale_of(const Quantised& q, std::int32_t offset) {
    return {q.scale, -offset * q.sum, q.scale * static_cast<float>(q.sum), 0.0f};
}

struct Int8 {
    static constexpr std::int64_t panel = Lanes::panel, group = 64;
    static constexpr std::int64_t x_row_bytes = sizeof(Scale), x_group_bytes = 64;
    static constexpr std::int64_t weight_group_bytes = group * panel, weight_panel_bytes = 4 * panel;
    static constexpr std::int64_t max_rows = Lanes::byte_rows, few_rows = Lanes::byte_few_rows, few_rows_panels = 2;

    static TileFunction tile(int rows, bool wide) {
        return wide ? find_tile<ByteTiles, few_rows_panels, few_rows>(rows) : find_tile<ByteTiles, 1, max_rows>(rows);
    }

    static void pack(const LinearArgs& args, std::int64_t begin, std::int64_t rows, std::int64_t groups, char* out) {
        char* codes = out + rows * x_row_bytes;
        for (std::int64_t r = 0; r < rows; ++r) {
            const float* x = args.x + (begin + r) * args.x_stride;
            Quantised q;
            const float factor = reciprocal(largest_magnitude_bits(x, args.in_features), q);
            for (std::int64_t g = 0; g < groups; ++g) {
                const std::int64_t left = args.in_features - g * group;
                pack_codes(x + g * group, left < group ? left : group, group, factor, codes + (g * rows + r) * group, q);
            }
            const Scale scale = scale_of(q, kByteOffset);
            __builtin_memcpy(out + r * x_row_bytes, &scale, sizeof scale);
        }
    }
};

template <bool FourBits, bool HasMinimum, std::int32_t Offset>
struct Block {
    using Tiles = BlockTiles<FourBits, HasMinimum>;
    static constexpr std::int64_t panel = Lanes::panel, group = 32;
    static constexpr std::int64_t x_row_bytes = 0, x_group_bytes = Tiles::x_group_bytes;
    static constexpr std::int64_t weight_group_bytes = panel * (Tiles::code_bytes + 2 + 2 * HasMinimum);
    static constexpr std::int64_t weight_panel_bytes = 0;
    static constexpr std::int64_t max_rows = Lanes::block_rows, few_rows = Lanes::block_few_rows, few_rows_panels = 2;

    static TileFunction tile(int rows, bool wide) {
        return wide ? find_tile<Tiles, few_rows_panels, few_rows>(rows) : find_tile<Tiles, 1, max_rows>(rows);
    }

    static void pack(const LinearArgs& args, std::int64_t begin, std::int64_t rows, std::int64_t groups, char* out) {
        for (std::int64_t r = 0; r < rows; ++r) {
            const float* x = args.x + (begin + r) * args.x_stride;
            for (std::int64_t g = 0; g < groups; ++g) {
                char* to = out + (g * rows + r) * x_group_bytes;
                Quantised q;
                const float factor = reciprocal(largest_magnitude_bits(x + g * group, group), q);
                pack_codes(x + g * group, group, group, factor, to, q);
                const Scale scale = scale_of(q, Offset);
                __builtin_memcpy(to + group, &scale, sizeof scale);
            }
        }
    }
};

}  // namespace

extern const QuantisedKernels quantised_kernels = {
    kernels_of<Int8>(kInterleaved, kCodeFlip),
    kernels_of<Block<true, false, 8>>(kInterleaved, 0),
    kernels_of<Block<true, true, 0>>(kInterleaved, 0),
    kernels_of<Block<false, false, kByteOffset>>(kInterleaved, kCodeFlip),
};

}  // namespace octavo::OCTAVO_PATH
