// From blocks to full tiles of 16 tokens, and from tokens to slots. Included by attention_kernels.cpp alone.
#pragma once

#include "attention.h"
#include "attention_lanes.h"
#include "attention_products.h"
#include "attention_workspace.h"

namespace octavo::OCTAVO_PATH {
namespace {

// Where the tiles of one head in one chunk are: in their block, or in scratch.
template <typename Element>
struct ChunkTiles {
    int count;
    const Element* keys[chunk_tiles];
    const Element* values[chunk_tiles];
    const float* key_scales[chunk_tiles];      // of byte types alone
    const float* value_scales[chunk_tiles];
};

// What the tiles of one row are found with.
struct TileSource {
    const KvLayout* layout;
    const char* layer;             // first byte of the layer
    const std::int32_t* blocks;    // the row's line of the block table
    std::int32_t context;          // tokens of the row; slots from there on hold nothing

    // Worked out once an item: a division for each tile showed.
    std::size_t tile_bytes = layout->tile_bytes(), block_bytes = layout->block_bytes();
    int block_shift = __builtin_ctz(unsigned(layout->block_size));

    // The first tile.
    OCTAVO_INLINE const char* head(std::int32_t block, std::int32_t kv_head) const {
        return layer + std::size_t(block) * block_bytes + std::size_t(kv_head) * tile_bytes;
    }
    OCTAVO_INLINE std::int32_t block_of(std::int32_t position) const { return position >> block_shift; }
    OCTAVO_INLINE std::int32_t slot_of(std::int32_t position) const { return position & (layout->block_size - 1); }
};

// A full tile in scratch.
template <typename Element>
struct GatheredTile {
    Element* keys;
    Element* values;
    float* key_scales;
    float* value_scales;

    OCTAVO_INLINE GatheredTile(char* scratch, std::int32_t head_dim) {
        const std::size_t elements = std::size_t(tile_tokens) * head_dim;
        keys = reinterpret_cast<Element*>(scratch);
        values = keys + elements;
        key_scales = reinterpret_cast<float*>(values + elements);
        value_scales = key_scales + tile_tokens;
    }
};

// Sets the values of tokens `count` and later of a full tile to zero. Their probability is zero as well, but they may
// be NaN. (Keys need no such care: a key's lane reaches its own score alone, and that is masked. Nor do bytes: every code
// is a finite number, and a value's scale is masked with its probability.)
inline void zero_values_from(int count, std::int32_t head_dim, float* values) {
    std::memset(values + std::size_t(count) * head_dim, 0, std::size_t(tile_tokens - count) * head_dim * sizeof(float));
}
template <typename Element>
void zero_values_from(int count, std::int32_t head_dim, Element* values) {
    const int whole = (count + 1) / 2 * 2;
    if (whole > count)
        for (std::int32_t x = 0; x < head_dim; ++x) values[std::size_t(count / 2) * 2 * head_dim + 2 * x + 1] = 0;
    std::memset(values + std::size_t(whole) * head_dim, 0,
                std::size_t(tile_tokens - whole) * head_dim * sizeof(Element));
}

// Rows of single tokens into pairs.
template <typename Element>
void interleave(const Element* even, const Element* odd, std::int32_t count, Element* __restrict out) {
    for (std::int32_t x = 0; x < count; ++x) {
        out[2 * x] = even[x];
        out[2 * x + 1] = odd[x];
    }
}

// The first `count` tiles of a chunk; scratch has room for all of a chunk. Entries from there on repeat the first, so
// that fetching them ahead does no harm.
template <KvType type, typename Element = typename Product<type>::Element>
void find_tiles(const TileSource& source, std::int32_t chunk, int count, std::int32_t kv_head, char* scratch,
                ChunkTiles<Element>& tiles) {
    constexpr bool scaled = Product<type>::scaled;
    const KvLayout& layout = *source.layout;
    const std::int32_t head_dim = layout.head_dim;
    const std::size_t tile_size = std::size_t(tile_tokens) * head_dim, heads_bytes = layout.heads_bytes();
    tiles.count = count;
    for (int i = 0; i < count; ++i) {
        const std::int32_t tile = chunk * chunk_tiles + i, begin = tile * tile_tokens;
        const GatheredTile<Element> gathered(scratch + i * scratch_tile_bytes(head_dim), head_dim);
        tiles.keys[i] = gathered.keys;
        tiles.values[i] = gathered.values;
        tiles.key_scales[i] = gathered.key_scales;
        tiles.value_scales[i] = gathered.value_scales;
        const char* head = source.head(source.blocks[source.block_of(begin)], kv_head);
        tiles.keys[i] = reinterpret_cast<const Element*>(head + source.slot_of(begin) / tile_tokens * heads_bytes);
        tiles.values[i] = tiles.keys[i] + tile_size;
        if constexpr (scaled) {
            tiles.key_scales[i] = reinterpret_cast<const float*>(tiles.values[i] + tile_size);
            tiles.value_scales[i] = tiles.key_scales[i] + tile_tokens;
            __builtin_prefetch(tiles.key_scales[i]);
            __builtin_prefetch(tiles.value_scales[i]);
        } else if (source.context - begin < tile_tokens) {
            std::memcpy(gathered.values, tiles.values[i], tile_size * sizeof(Element));
            zero_values_from(source.context - begin, head_dim, gathered.values);
            tiles.values[i] = gathered.values;
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

// What one head of one token is stored as.
template <KvType type>
struct Encoder {
    float scale = 0, inverse = 0;   // of byte types

    OCTAVO_INLINE Encoder(const float* x, std::int32_t count) {
        if constexpr (Product<type>::scaled) {
            const CodeScale found = code_scale<type>(x, count);
            scale = found.scale;
            inverse = found.inverse;
        }
    }
    OCTAVO_INLINE auto operator()(float x) const {
        if constexpr (type == KvType::f32) return x;
        else if constexpr (type == KvType::bf16) return round_bf16(x);
        else return encode<type>(x * inverse);
    }
};

// Where a token's keys and values go in one layer.
template <KvType type>
struct SlotPlace {
    using Element = typename Product<type>::Element;
    static constexpr int per_word = Product<type>::per_step;   // elements of a key that lie together
    char* block;
    std::int32_t slot;
    std::size_t key_step, value_step;   // elements; constant in a tile, so that the index is worked out once

    OCTAVO_INLINE SlotPlace(const StoreArgs& args, std::int64_t token) {
        const KvLayout& layout = args.layout;
        const std::int32_t position = args.positions[token];
        const std::int32_t* blocks = args.block_table + std::size_t(args.token_rows[token]) * args.table_stride;
        block = static_cast<char*>(args.storage) + layout.block_offset(args.layer, blocks[position / layout.block_size]);
        slot = position % layout.block_size;
        key_step = std::size_t(layout.tile_width()) * per_word;
        value_step = (layout.value_offset(slot, 1) - layout.value_offset(slot, 0)) / sizeof(Element);
    }

    // A key is a line for each of its words, and nobody has read those lines lately.
    OCTAVO_INLINE void fetch(const KvLayout& layout) const {
        for (std::int32_t i = 0; i < layout.num_kv_heads; ++i) {
            const char* head = block + i * layout.tile_bytes();
            fetch_run(head + layout.key_offset(slot, 0), key_step * sizeof(Element), layout.head_dim / per_word);
            fetch_run(head + layout.value_offset(slot, 0), value_step * sizeof(Element), layout.head_dim);
        }
    }

private:
    OCTAVO_INLINE static void fetch_run(const char* first, std::size_t step, std::size_t count) {
        const std::size_t end = step * count, stride = step < 64 ? 64 : step;
        for (std::size_t at = 0; at < end; at += stride) __builtin_prefetch(first + at, 0, 2);  // into L2
    }
};

// One token's keys and values of all heads into its slot.
template <KvType type>
void store_token(const StoreArgs& args, std::int64_t token, const SlotPlace<type>& place) {
    using Element = typename Product<type>::Element;
    const KvLayout& layout = args.layout;
    const std::int32_t slot = place.slot, head_dim = layout.head_dim;
    const std::size_t key_step = place.key_step, value_step = place.value_step;
    constexpr int per_word = SlotPlace<type>::per_word;
    for (std::int32_t i = 0; i < layout.num_kv_heads; ++i) {
        char* head = place.block + i * layout.tile_bytes();
        auto* key = reinterpret_cast<Element*>(head + layout.key_offset(slot, 0));
        auto* value = reinterpret_cast<Element*>(head + layout.value_offset(slot, 0));
        const float* k = args.keys + token * args.stride + std::size_t(i) * head_dim;
        const float* v = args.values + token * args.stride + std::size_t(i) * head_dim;
        const Encoder<type> encode_key(k, head_dim), encode_value(v, head_dim);
        for (std::int32_t word = 0; word * per_word < head_dim; ++word)
            for (int x = 0; x < per_word; ++x) key[word * key_step + x] = encode_key(k[word * per_word + x]);
        for (std::int32_t x = 0; x < head_dim; ++x) value[x * value_step] = encode_value(v[x]);
        if constexpr (Product<type>::scaled) {
            std::memcpy(head + layout.key_scale_offset(slot), &encode_key.scale, sizeof(float));
            std::memcpy(head + layout.value_scale_offset(slot), &encode_value.scale, sizeof(float));
        }
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
