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

// Few rows: the weights stream past once, prefetched a little ahead of their use.
template <class Format>
void multiply_few_rows(const LinearArgs& args, Tile tile, std::int64_t panels) {
    constexpr std::int64_t ahead_bytes = 2048;
    const auto rows = args.rows;
    tile.x = static_cast<const char*>(args.packed_x);
    tile.streaming = true;
    tile.line_end = Format::group_bytes / 64;
    while (panels > 0) {
        const bool wide = panels >= kFewRowsPanels;
        const std::int64_t width = wide ? kFewRowsPanels : 1;
        tile.ahead = tile.weight + ahead_bytes;
        (wide ? kWideTiles<Format> : kTiles<Format>)[rows](tile);
        tile.weight += width * tile.panel_bytes;
        tile.out += width * kPanel;
        tile.columns -= width * kPanel;
        if (tile.bias) tile.bias += width * kPanel;
        panels -= width;
    }
}

// Many rows: a panel is reused by every row block while the next one is fetched, a share of it by each block.
template <class Format>
void multiply_many_rows(const LinearArgs& args, Tile tile, std::int64_t panels) {
    const RowBlocks blocks(args.rows);
    constexpr std::int64_t lines = Format::group_bytes / 64;
    float* const out = tile.out;
    tile.streaming = false;
    for (std::int64_t panel = 0; panel < panels; ++panel) {
        tile.ahead = tile.weight + tile.panel_bytes;
        tile.columns = args.out_features - (tile.out - args.out);
        for (std::int64_t block = 0; block < blocks.count; ++block) {
            const std::int64_t begin = blocks.begin(block);
            Tile part = tile;
            part.x = static_cast<const char*>(args.packed_x) + begin * tile.groups * 64;
            part.out = out + panel * kPanel + begin * args.out_stride;
            part.line_begin = static_cast<int>(lines * block / blocks.count);
            part.line_end = static_cast<int>(lines * (block + 1) / blocks.count);
            kTiles<Format>[blocks.rows(block)](part);
        }
        tile.weight += tile.panel_bytes;
        tile.out += kPanel;
        if (tile.bias) tile.bias += kPanel;
    }
}

template <class Format>
void multiply(const LinearArgs& args, std::int64_t begin, std::int64_t end) {
    Tile tile{};
    tile.groups = groups_of<Format>(args);
    tile.panel_bytes = tile.groups * Format::group_bytes;
    tile.weight = static_cast<const char*>(args.weight) + begin * tile.panel_bytes;
    tile.bias = args.bias ? args.bias + begin * kPanel : nullptr;
    tile.out = args.out + begin * kPanel;
    tile.out_stride = args.out_stride;
    tile.columns = args.out_features - begin * kPanel;
    if (args.rows <= kFewRows) {
        multiply_few_rows<Format>(args, tile, end - begin);
    } else {
        multiply_many_rows<Format>(args, tile, end - begin);
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

}  // namespace octavo::OCTAVO_PATH
