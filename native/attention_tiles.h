// From blocks to full tiles of 16 tokens, and from tokens to slots. Included by attention_kernels.cpp alone.
#pragma once

#include "attention.h"
#include "attention_lanes.h"
#include "attention_products.h"

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int chunk_tiles = chunk_tokens / tile_tokens;

// Where the tiles of one head in one chunk are: in their block, or gathered in scratch.
template <typename Element>
struct ChunkTiles {
    int count;
    const Element* keys[chunk_tiles];
    const Element* values[chunk_tiles];
};

// What the tiles of one row are found with.
template <typename Element>
struct TileSource {
    const KvLayout* layout;
    const Element* layer;          // first element of the layer
    const std::int32_t* blocks;    // the row's line of the block table
    std::int32_t context;          // tokens of the row; slots from there on hold nothing

    OCTAVO_INLINE const Element* head(std::int32_t block, std::int32_t kv_head) const {
        const std::size_t head_elements = layout->head_elements();
        return layer + (std::size_t(block) * layout->num_kv_heads + kv_head) * head_elements;
    }
};

// Narrow tiles of keys, side by side. In units of 4 bytes (two dimensions of bf16, one of f32) a tile of W tokens is
// [dimensions][W]; the full tile is [dimensions][16].
template <int width>
void gather_keys(std::int32_t words, const char* const* sources, int count, char* out) {
    for (std::int32_t word = 0; word < words; ++word)
        for (int i = 0; i < count; ++i)
            std::memcpy(out + (std::size_t(word) * tile_tokens + i * width) * 4,
                        sources[i] + std::size_t(word) * width * 4, width * 4);
}

inline void gather_keys(int width, std::int32_t words, const char* const* sources, int count, char* out) {
    switch (width) {
        case 8: return gather_keys<8>(words, sources, count, out);
        case 4: return gather_keys<4>(words, sources, count, out);
        case 2: return gather_keys<2>(words, sources, count, out);
        default: return gather_keys<1>(words, sources, count, out);
    }
}

// Sets the values of tokens `count` and later of a full tile to zero. Their probability is zero as well, but they may
// be NaN. (Keys need no such care: a key's lane reaches its own score alone, and that is masked.)
inline void zero_values_from(int count, std::int32_t head_dim, float* values) {
    std::memset(values + std::size_t(count) * head_dim, 0, std::size_t(tile_tokens - count) * head_dim * sizeof(float));
}
inline void zero_values_from(int count, std::int32_t head_dim, std::uint16_t* values) {
    const int whole = (count + 1) / 2 * 2;
    if (whole > count)
        for (std::int32_t x = 0; x < head_dim; ++x) values[std::size_t(count / 2) * 2 * head_dim + 2 * x + 1] = 0;
    std::memset(values + std::size_t(whole) * head_dim, 0, std::size_t(tile_tokens - whole) * head_dim * 2);
}

// Rows of single tokens into pairs.
inline void interleave(const std::uint16_t* even, const std::uint16_t* odd, std::int32_t count, std::uint16_t* out) {
    for (std::int32_t x = 0; x < count; ++x) {
        out[2 * x] = even[x];
        out[2 * x + 1] = odd[x];
    }
}
inline void interleave(const float*, const float*, std::int32_t, float*) {}  // f32 has no pairs

// A tile from 16 / block_size blocks, of which those that begin before the context's end exist.
template <typename Element>
void gather_tile(const TileSource<Element>& source, std::int32_t tile, std::int32_t kv_head, Element* keys,
                 Element* values) {
    const KvLayout& layout = *source.layout;
    const int width = layout.block_size;
    const std::int32_t begin = tile * tile_tokens, head_dim = layout.head_dim;
    const int tokens = source.context - begin < tile_tokens ? source.context - begin : tile_tokens;
    const int count = (tokens + width - 1) / width;
    const std::size_t narrow = layout.tile_elements();
    const char* sources[tile_tokens];
    for (int i = 0; i < count; ++i) {
        const Element* head = source.head(source.blocks[begin / width + i], kv_head);
        sources[i] = reinterpret_cast<const char*>(head);
        if (sizeof(Element) == 4 || width > 1)
            std::memcpy(values + i * narrow, head + narrow, narrow * sizeof(Element));
    }
    if (sizeof(Element) == 2 && width == 1)
        for (int i = 0; i < count; i += 2) {
            const Element* even = reinterpret_cast<const Element*>(sources[i]) + narrow;
            const Element* odd = i + 1 < count ? reinterpret_cast<const Element*>(sources[i + 1]) + narrow : even;
            interleave(even, odd, head_dim, values + std::size_t(i) * head_dim);
        }
    if (tokens < tile_tokens) {
        std::memset(keys, 0, std::size_t(tile_tokens) * head_dim * sizeof(Element));
        zero_values_from(tokens, head_dim, values);
    }
    gather_keys(width, std::int32_t(head_dim * sizeof(Element) / 4), sources, count, reinterpret_cast<char*>(keys));
}

// The first `count` tiles of a chunk; scratch has room for all of a chunk. Entries from there on repeat the first, so
// that fetching them ahead does no harm.
template <typename Element>
void find_tiles(const TileSource<Element>& source, std::int32_t chunk, int count, std::int32_t kv_head,
                Element* scratch, ChunkTiles<Element>& tiles) {
    const KvLayout& layout = *source.layout;
    const std::int32_t block_size = layout.block_size;
    const std::size_t tile_size = std::size_t(tile_tokens) * layout.head_dim;
    tiles.count = count;
    for (int i = 0; i < count; ++i) {
        const std::int32_t tile = chunk * chunk_tiles + i, begin = tile * tile_tokens;
        Element* keys = scratch + 2 * i * tile_size;
        Element* values = keys + tile_size;
        tiles.keys[i] = keys;
        tiles.values[i] = values;
        if (block_size < tile_tokens) {
            gather_tile(source, tile, kv_head, keys, values);
            continue;
        }
        const Element* head = source.head(source.blocks[begin / block_size], kv_head);
        tiles.keys[i] = head + begin % block_size / tile_tokens * 2 * tile_size;
        tiles.values[i] = tiles.keys[i] + tile_size;
        if (source.context - begin < tile_tokens) {
            std::memcpy(values, tiles.values[i], tile_size * sizeof(Element));
            zero_values_from(source.context - begin, layout.head_dim, values);
            tiles.values[i] = values;
        }
    }
    for (int i = count; i < chunk_tiles; ++i) {
        tiles.keys[i] = tiles.keys[0];
        tiles.values[i] = tiles.values[0];
    }
}

// Nearest even; a NaN stays one.
OCTAVO_INLINE std::uint16_t round_bf16(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return std::uint16_t(bits >> 16 | 0x40);
    return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
OCTAVO_INLINE void convert(float x, std::uint16_t& out) { out = round_bf16(x); }
OCTAVO_INLINE void convert(float x, float& out) { out = x; }

// One token's keys and values of all heads into its slot. Steps between a token's elements are constant in a tile, so
// the index is worked out once.
template <typename Element>
void store_token(const StoreArgs& args, std::int64_t token) {
    const KvLayout& layout = args.layout;
    const std::int32_t position = args.positions[token];
    const std::int32_t block =
        args.block_table[std::size_t(args.token_rows[token]) * args.table_stride + position / layout.block_size];
    const std::int32_t slot = position % layout.block_size;
    const std::size_t key = layout.key_index(slot, 0), value = layout.value_index(slot, 0);
    const std::size_t value_step = layout.value_index(slot, 1) - value;
    constexpr int per_word = 4 / sizeof(Element);
    const std::size_t key_step = std::size_t(layout.tile_width()) * per_word;
    Element* block_data = reinterpret_cast<Element*>(static_cast<char*>(args.storage) +
                                                     layout.block_offset(args.layer, block));
    for (std::int32_t head = 0; head < layout.num_kv_heads; ++head) {
        Element* data = block_data + head * layout.head_elements();
        const float* k = args.keys + token * args.stride + std::size_t(head) * layout.head_dim;
        const float* v = args.values + token * args.stride + std::size_t(head) * layout.head_dim;
        for (std::int32_t word = 0; word * per_word < layout.head_dim; ++word)
            for (int i = 0; i < per_word; ++i) convert(k[word * per_word + i], data[key + word * key_step + i]);
        for (std::int32_t x = 0; x < layout.head_dim; ++x) convert(v[x], data[value + x * value_step]);
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
