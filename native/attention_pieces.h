// Tiles of blocks that hold fewer than 16 tokens: 16 / block_size pieces, each in its block. Values are read where they
// lie; keys are copied side by side just before they are multiplied, a few tiles at a time, so that the copies never leave
// L1 and what is copied has been fetched ahead. Included by attention_kernels.cpp alone.
#pragma once

#include "attention_lanes.h"
#include "attention_products.h"
#include "attention_softmax.h"
#include "attention_tiles.h"

namespace octavo::OCTAVO_PATH {
namespace {

using Entries = std::uint32_t __attribute__((vector_size(16)));
using LongEntries = std::uint64_t __attribute__((vector_size(16)));

template <class Vector>
OCTAVO_INLINE Vector load_bits(const char* p) {
    Vector x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

// A square of entries, sixteen bytes wide: entry j of row i goes to entry i of row j. Wider entries are copied.
template <int entry_bytes>
OCTAVO_INLINE void transpose(const char* const* in, std::size_t at, char* out, std::size_t out_step) {
    if constexpr (entry_bytes == 8) {
        const auto a = load_bits<LongEntries>(in[0] + at), b = load_bits<LongEntries>(in[1] + at);
        const LongEntries rows[2] = {__builtin_shufflevector(a, b, 0, 2), __builtin_shufflevector(a, b, 1, 3)};
        for (int i = 0; i < 2; ++i) std::memcpy(out + i * out_step, &rows[i], sizeof rows[i]);
    } else if constexpr (entry_bytes == 4) {
        const auto a = load_bits<Entries>(in[0] + at), b = load_bits<Entries>(in[1] + at);
        const auto c = load_bits<Entries>(in[2] + at), d = load_bits<Entries>(in[3] + at);
        const auto ab = (LongEntries)__builtin_shufflevector(a, b, 0, 4, 1, 5);
        const auto cd = (LongEntries)__builtin_shufflevector(c, d, 0, 4, 1, 5);
        const auto ab2 = (LongEntries)__builtin_shufflevector(a, b, 2, 6, 3, 7);
        const auto cd2 = (LongEntries)__builtin_shufflevector(c, d, 2, 6, 3, 7);
        const LongEntries rows[4] = {__builtin_shufflevector(ab, cd, 0, 2), __builtin_shufflevector(ab, cd, 1, 3),
                                     __builtin_shufflevector(ab2, cd2, 0, 2), __builtin_shufflevector(ab2, cd2, 1, 3)};
        for (int i = 0; i < 4; ++i) std::memcpy(out + i * out_step, &rows[i], sizeof rows[i]);
    } else {
        std::memcpy(out, in[0] + at, entry_bytes);
    }
}

// Narrow tiles of keys, side by side. In words of what a token has in a step (two dimensions of bf16 or bytes, one of
// f32) a tile of W tokens is [dimensions][W]; the full tile is [dimensions][16].
template <int width, int word_bytes>
void copy_keys(std::int32_t words, const char* const* pieces, char* out) {
    constexpr int entry = width * word_bytes, side = entry == 8 ? 2 : entry == 4 ? 4 : 1, count = tile_tokens / width;
    constexpr std::size_t row = tile_tokens * word_bytes;
    const char* from[count];
    for (int i = 0; i < count; ++i) from[i] = pieces[i];
    for (std::int32_t word = 0; word < words; word += side, out += side * row)
#pragma GCC unroll 16
        for (int i = 0; i < count; i += side)
            transpose<entry>(from + i, std::size_t(word) * entry, out + i * entry, row);
}

template <int word_bytes>
void copy_keys(int width, std::int32_t words, const char* const* pieces, char* out) {
    switch (width) {
        case 8: return copy_keys<8, word_bytes>(words, pieces, out);
        case 4: return copy_keys<4, word_bytes>(words, pieces, out);
        case 2: return copy_keys<2, word_bytes>(words, pieces, out);
        default: return copy_keys<1, word_bytes>(words, pieces, out);
    }
}

// As ChunkTiles, of narrow blocks. Its tiles are those in scratch.
template <class P>
struct ChunkPieces : ChunkTiles<typename P::Element> {
    using Element = typename P::Element;
    static constexpr int tile_steps = tile_tokens / P::per_step;
    int shift;                                    // a tile has 1 << shift pieces
    int key_step;                                 // elements from one step of a column to the next
    bool keys_in_place, values_in_place;          // of the last tile, the values may be in scratch all the same
    const char* pieces[chunk_tokens];             // past the context's end the first again
    const Element* columns[2 * chunk_tiles];      // of keys: halves of tiles
    const Element* steps[chunk_tokens / P::per_step];   // of values
};

// A column of AVX2 is a piece of eight tokens.
#if defined(OCTAVO_PATH_AVX2)
constexpr int column_tokens = 8;
#else
constexpr int column_tokens = 0;
#endif

// Finds the pieces of the first `count` tiles. `copied`: all of them shall be in scratch.
template <KvType type, class P>
void find_pieces(const TileSource& source, std::int32_t chunk, int count, std::int32_t kv_head, char* scratch, bool copied,
                 ChunkPieces<P>& found) {
    using Element = typename P::Element;
    const KvLayout& layout = *source.layout;
    const int width = layout.block_size, shift = __builtin_ctz(unsigned(tile_tokens / width)), all = chunk_tiles << shift;
    const std::int32_t left = source.context - chunk * chunk_tokens, head_dim = layout.head_dim;
    const std::int32_t* blocks = source.blocks + chunk * all;
    const int present = left < chunk_tokens ? (left + width - 1) / width : all;
    for (int i = 0; i < present; ++i) found.pieces[i] = source.head(blocks[i], kv_head);
    for (int i = present; i < all; ++i) found.pieces[i] = found.pieces[0];
    found.count = count;
    found.shift = shift;
    found.keys_in_place = !copied && width == column_tokens;
    found.values_in_place = !copied && width >= P::per_step;
    found.key_step = (found.keys_in_place ? width : tile_tokens) * P::per_step;
    const std::size_t keys_bytes = layout.tile_keys_bytes(), step_elements = std::size_t(head_dim) * P::per_step;
    for (int tile = 0; tile < chunk_tiles; ++tile) {
        const GatheredTile<Element> gathered(scratch + tile * scratch_tile_bytes(head_dim), head_dim);
        found.keys[tile] = gathered.keys;
        found.values[tile] = gathered.values;
        found.key_scales[tile] = gathered.key_scales;
        found.value_scales[tile] = gathered.value_scales;
        for (int i = 0; i < 2; ++i)
            found.columns[2 * tile + i] = found.keys_in_place
                                              ? reinterpret_cast<const Element*>(found.pieces[2 * tile + i])
                                              : gathered.keys + i * (tile_tokens / 2) * P::per_step;
        const bool in_place = found.values_in_place && (P::scaled || left - tile * tile_tokens >= tile_tokens);
        for (int i = 0; i < found.tile_steps; ++i) {
            const int slot = i * P::per_step, in_piece = slot & (width - 1);
            const char* values = found.pieces[(tile << shift) + slot / width] + keys_bytes;
            found.steps[tile * found.tile_steps + i] =
                in_place ? reinterpret_cast<const Element*>(values) + std::size_t(in_piece) * head_dim
                         : gathered.values + i * step_elements;
        }
    }
}

// Keys of a tile, and the scales of all. Of tokens that are not there: any.
template <KvType type, class P>
void gather_keys(const KvLayout& layout, const ChunkPieces<P>& found, int tile) {
    using Element = typename P::Element;
    const int width = layout.block_size;
    const char* const* pieces = found.pieces + (tile << found.shift);
    if (!found.keys_in_place)
        copy_keys<P::per_step * int(sizeof(Element))>(
            width, layout.head_dim / P::per_step, pieces, reinterpret_cast<char*>(const_cast<Element*>(found.keys[tile])));
    if constexpr (P::scaled)
        for (int i = 0; i < tile_tokens / width; ++i) {
            const char* scales = pieces[i] + 2 * layout.tile_keys_bytes();
            std::memcpy(const_cast<float*>(found.key_scales[tile]) + i * width, scales, width * sizeof(float));
            std::memcpy(const_cast<float*>(found.value_scales[tile]) + i * width, scales + width * sizeof(float),
                        width * sizeof(float));
        }
}

// Values of a tile, of which so many tokens are there, unless they are read where they lie.
template <KvType type, class P>
void gather_values(const KvLayout& layout, const ChunkPieces<P>& found, int tile, int tokens) {
    using Element = typename P::Element;
    if (found.steps[tile * found.tile_steps] != found.values[tile]) return;
    const int width = layout.block_size, head_dim = layout.head_dim;
    const std::size_t keys_bytes = layout.tile_keys_bytes();
    const char* const* pieces = found.pieces + (tile << found.shift);
    auto* out = const_cast<Element*>(found.values[tile]);
    if (width < P::per_step)
        for (int i = 0; i < tile_tokens; i += 2)
            interleave(reinterpret_cast<const Element*>(pieces[i] + keys_bytes),
                       reinterpret_cast<const Element*>(pieces[i + 1] + keys_bytes), head_dim,
                       out + std::size_t(i) * head_dim);
    else
        for (int i = 0; i < tile_tokens / width; ++i)
            std::memcpy(out + std::size_t(i * width) * head_dim, pieces[i] + keys_bytes, keys_bytes);
    if (!P::scaled && tokens < tile_tokens) zero_values_from(tokens, head_dim, out);
}

// Of the tiles that nothing comes before.
template <class P>
void fetch_keys(const KvLayout& layout, const ChunkPieces<P>& found) {
    for (int i = 0; i < narrow_tiles_ahead << found.shift; ++i)
        for (std::size_t at = 0; at < layout.tile_keys_bytes(); at += 64) __builtin_prefetch(found.pieces[i] + at);
}

// What is read some tiles after each tile of `found`: of its own from byte `begin` of each piece on, then of `next`.
template <class P>
void find_ahead(const ChunkPieces<P>& found, std::size_t begin, const ChunkPieces<P>& next, std::size_t next_begin,
                const char** out) {
    const int count = found.count << found.shift, ahead = narrow_tiles_ahead << found.shift;
    for (int i = 0; i < count; ++i)
        out[i] = i + ahead < count ? found.pieces[i + ahead] + begin : next.pieces[i + ahead - count] + next_begin;
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
