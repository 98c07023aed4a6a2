// From a format's tiles to its two kernels. Included by kernel files only (see path.h).
//
// A ``Format`` has the sizes of ``LinearKernels`` as constants, ``pack`` for a row block, and ``tile(rows, wide)``. It may
// have ``pass_bytes``: so many bytes of packed rows are multiplied with all of a call's panels before the next rows are;
// and ``finish``, called when a thread has done its panels.
#pragma once

#include "linear.h"
#include "linear_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

// Rows are cut evenly: 15 rows are 8 + 7, not 14 + 1.
struct RowBlocks {
    std::int64_t count, base, longer;

    RowBlocks(std::int64_t rows, std::int64_t count) : count(count), base(rows / count), longer(rows % count) {}
    std::int64_t begin(std::int64_t block) const { return block * base + (block < longer ? block : longer); }
    std::int64_t rows(std::int64_t block) const { return base + (block < longer); }
};

template <class Format>
std::int64_t groups_of(const LinearArgs& args) {
    return (args.in_features + Format::group - 1) / Format::group;
}

template <class Format>
RowBlocks row_blocks_of(const LinearArgs& args) {
    return RowBlocks(args.rows, row_blocks(args.rows, Format::lone_rows, Format::max_rows));
}

template <class Format>
std::int64_t panel_bytes_of(const LinearArgs& args) {
    return groups_of<Format>(args) * Format::weight_group_bytes + Format::weight_panel_bytes;
}

template <class Format>
void pack_rows(const LinearArgs& args, std::int64_t block) {
    const RowBlocks blocks = row_blocks_of<Format>(args);
    const std::int64_t begin = blocks.begin(block), groups = groups_of<Format>(args);
    char* out = static_cast<char*>(args.packed_x) + begin * groups * Format::x_group_bytes;
    Format::pack(args, begin, blocks.rows(block), groups, out);
}

// The row blocks, cut into passes as rows are cut into blocks.
template <class Format>
RowBlocks passes_of(std::int64_t blocks, std::int64_t groups) {
    std::int64_t most = blocks;
    if constexpr (requires { Format::pass_bytes; }) {
        most = Format::pass_bytes / (Format::max_rows * groups * Format::x_group_bytes);
        if (most < 1) most = 1;
    }
    return RowBlocks(blocks, (blocks + most - 1) / most);
}

// From so many row blocks on ``out`` does not lie in the nearest caches, and storing a tile would wait for its lines.
constexpr std::int64_t kFetchOutBlocks = 4;

template <class Format>
void fetch_out(const Tile& tile, std::int64_t rows) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t column = 0; column < Format::panel; column += 16)
            __builtin_prefetch(tile.out + r * tile.out_stride + column, 1);
}

// Row blocks [begin, end) with panels [first, last). Every panel is used by all row blocks before the next one; few rows
// take several panels at a time.
template <class Format>
void multiply_pass(const LinearArgs& args, const RowBlocks& blocks, std::int64_t begin, std::int64_t end,
                   std::int64_t first, std::int64_t last, const char* then) {
    Tile tile{};
    tile.groups = groups_of<Format>(args);
    tile.panel_bytes = panel_bytes_of<Format>(args);
    tile.out_stride = args.out_stride;
    const std::int64_t count = end - begin;
    tile.shared = count > 1 ? (kPairBytes + count - 1) / count : 0;
    for (std::int64_t panel = first; panel < last;) {
        const bool wide = args.rows <= Format::few_rows && last - panel >= Format::few_rows_panels;
        const std::int64_t next = panel + (wide ? Format::few_rows_panels : 1);
        tile.weight = static_cast<const char*>(args.weight) + panel * tile.panel_bytes;
        tile.next = next < last ? tile.weight + (next - panel) * tile.panel_bytes : then;
        tile.bias = args.bias ? args.bias + panel * Format::panel : nullptr;
        tile.columns = args.out_features - panel * Format::panel;
        for (std::int64_t block = begin; block < end; ++block) {
            const std::int64_t row = blocks.begin(block);
            tile.x = static_cast<const char*>(args.packed_x) + row * tile.groups * Format::x_group_bytes;
            tile.shared_from = (block - begin) * tile.panel_bytes / count;
            tile.out = args.out + row * args.out_stride + panel * Format::panel;
            if (count >= kFetchOutBlocks) fetch_out<Format>(tile, blocks.rows(block));
            Format::tile(static_cast<int>(blocks.rows(block)), wide)(tile);
        }
        panel = next;
    }
}

template <class Format>
void multiply(const LinearArgs& args, std::int64_t begin, std::int64_t end, const void* then) {
    const RowBlocks blocks = row_blocks_of<Format>(args);
    const RowBlocks passes = passes_of<Format>(blocks.count, groups_of<Format>(args));
    for (std::int64_t pass = 0; pass < passes.count; ++pass) {
        const std::int64_t first_block = passes.begin(pass);
        const bool last = pass + 1 == passes.count;
        const char* first_panel = static_cast<const char*>(args.weight) + begin * panel_bytes_of<Format>(args);
        multiply_pass<Format>(args, blocks, first_block, first_block + passes.rows(pass), begin, end,
                              last ? static_cast<const char*>(then) : first_panel);
    }
    if constexpr (requires { Format::finish(); }) Format::finish();
}

template <class Format>
constexpr LinearKernels kernels_of(std::int64_t interleaved, std::uint8_t code_flip) {
    return {Format::panel,
            Format::group,
            Format::x_group_bytes,
            Format::weight_group_bytes,
            Format::weight_panel_bytes,
            Format::lone_rows,
            Format::max_rows,
            Format::few_rows,
            Format::few_rows_panels,
            interleaved,
            code_flip,
            pack_rows<Format>,
            multiply<Format>};
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
