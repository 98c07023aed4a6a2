// Sizes that the plan and the kernels agree on: how much one item may hold, and where in a thread's scratch it lies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.h"

namespace octavo {

// A row is one (query, head) pair. A prefill item has about this many: each tile is then read once for all of them,
// and their scores of a chunk (32 KiB) stay near.
constexpr std::int32_t item_rows = 64;

OCTAVO_INLINE std::int32_t max_of(std::int32_t a, std::int32_t b) { return a > b ? a : b; }

// Most queries of an item, for so many query heads a kv head.
OCTAVO_INLINE std::int32_t item_queries(std::int32_t group) { return max_of(1, item_rows / group); }

// Most rows of an item, over all its kv heads: a decode item may have all of them.
OCTAVO_INLINE std::int32_t item_rows_max(std::int32_t heads) { return max_of(item_rows, heads); }

// head_dim in whole vectors of 16.
OCTAVO_INLINE std::int32_t acc_stride(std::int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Floats of one segment's partial result: acc [rows][acc_stride], maximum [rows], sum [rows].
OCTAVO_INLINE std::int64_t partial_floats(std::int32_t rows, std::int32_t head_dim) {
    return std::int64_t(rows) * (acc_stride(head_dim) + 2);
}

// Bytes kept for a gathered tile, keys and values, of any type: f32 takes the most (bytes and scales less).
OCTAVO_INLINE std::size_t scratch_tile_bytes(std::int32_t head_dim) {
    return 2 * std::size_t(tile_tokens) * head_dim * sizeof(float);
}
// Of all tiles of one head in one chunk.
OCTAVO_INLINE std::size_t scratch_chunk_bytes(std::int32_t head_dim) {
    return chunk_tokens / tile_tokens * scratch_tile_bytes(head_dim);
}

// Byte offsets of an item's arrays in its scratch; each starts on a cache line.
struct ScratchMap {
    std::size_t q, segment_acc, total_acc, state, rescale;
    std::size_t scores;    // of a chunk; its probabilities take their place
    std::size_t tiles;     // two chunks, gathered
    std::size_t widened;   // a chunk of bytes as bf16
    std::size_t bytes;     // of all

    OCTAVO_INLINE ScratchMap(std::int32_t heads, std::int32_t head_dim) : bytes(0) {
        const std::size_t rows = item_rows_max(heads), acc = rows * acc_stride(head_dim) * 4;
        q = take(rows * head_dim * 4);
        segment_acc = take(acc);
        total_acc = take(acc);
        state = take(4 * rows * 4);
        scores = take(rows * chunk_tokens * 4);
        rescale = take(2 * (rows + 16) * 4);
        tiles = take(2 * scratch_chunk_bytes(head_dim));
        widened = take(scratch_chunk_bytes(head_dim) / 2);
    }

private:
    OCTAVO_INLINE std::size_t take(std::size_t size) {
        const std::size_t begin = bytes;
        bytes += (size + 63) / 64 * 64;
        return begin;
    }
};

}  // namespace octavo
