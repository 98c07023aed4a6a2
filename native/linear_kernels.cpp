// The linear kernels of one path (compiled once per path, see path.h).
#include "linear.h"

#if defined(OCTAVO_PATH_AVX512_BF16)
#include "linear_tiles_avx512.h"
#elif defined(OCTAVO_PATH_AVX2)
#include "linear_tiles_avx2.h"
#else
#include "linear_tiles_portable.h"
#endif

namespace octavo::OCTAVO_PATH {
namespace {

// Rows are cut into as few blocks of at most kMaxRows as possible, and evenly: 15 rows are 8 + 7, not 14 + 1.
struct RowBlocks {
    std::int64_t count, base, longer;

    explicit RowBlocks(std::int64_t rows)
        : count((rows + kMaxRows - 1) / kMaxRows), base(rows / count), longer(rows % count) {}
    std::int64_t begin(std::int64_t block) const { return block * base + (block < longer ? block : longer); }
    std::int64_t rows(std::int64_t block) const { return base + (block < longer); }
};

template <class Format>
std::int64_t groups_of(const LinearArgs& args) {
    return (args.in_features + Format::group - 1) / Format::group;
}

template <class Format>
void pack_rows(const LinearArgs& args, std::int64_t block) {
    const RowBlocks blocks(args.rows);
    const std::int64_t begin = blocks.begin(block), rows = blocks.rows(block), groups = groups_of<Format>(args);
    char* out = static_cast<char*>(args.packed_x) + begin * groups * 64;
    for (std::int64_t r = 0; r < rows; ++r) {
        const float* x = args.x + (begin + r) * args.x_stride;
        for (std::int64_t g = 0; g < groups; ++g)
            Format::pack_group(x + g * Format::group, args.in_features - g * Format::group, out + (g * rows + r) * 64);
    }
}

// Every panel is used by all row blocks before the next one; few rows take several panels at a time.
template <class Format>
void multiply(const LinearArgs& args, std::int64_t begin, std::int64_t end) {
    const RowBlocks blocks(args.rows);
    Tile tile{};
    tile.groups = groups_of<Format>(args);
    tile.panel_bytes = tile.groups * Format::group_bytes;
    for (std::int64_t panel = begin; panel < end;) {
        const bool wide = args.rows <= kFewRows && end - panel >= kFewRowsPanels;
        const auto* tiles = wide ? kWideTiles<Format> : kTiles<Format>;
        tile.weight = static_cast<const char*>(args.weight) + panel * tile.panel_bytes;
        tile.bias = args.bias ? args.bias + panel * kPanel : nullptr;
        tile.columns = args.out_features - panel * kPanel;
        tile.out_stride = args.out_stride;
        for (std::int64_t block = 0; block < blocks.count; ++block) {
            const std::int64_t row = blocks.begin(block);
            tile.x = static_cast<const char*>(args.packed_x) + row * tile.groups * 64;
            tile.out = args.out + row * args.out_stride + panel * kPanel;
            tiles[blocks.rows(block)](tile);
        }
        panel += wide ? kFewRowsPanels : 1;
    }
}

template <class Format>
constexpr LinearKernels kernels_of() {
    return {Format::panel, Format::group, Format::element_size, kMaxRows, kFewRows, kFewRowsPanels,
            pack_rows<Format>, multiply<Format>};
}

}  // namespace

extern const LinearKernels linear_f32_kernels = kernels_of<F32>();
extern const LinearKernels linear_bf16_kernels = kernels_of<BF16>();
#if defined(OCTAVO_PATH_AVX512_BF16)
extern const LinearKernels linear_widened_bf16_kernels = kernels_of<WidenedBF16>();
#endif

}  // namespace octavo::OCTAVO_PATH
