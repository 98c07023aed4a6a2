// The one description of how keys and values lie in the pool's memory.
//
//   storage   [layer][block][kv head][tile] tile
//   tile      keys of W = min(16, block_size) consecutive slots, then their values, packed for the dot product:
//
//             bf16                      f32
//   keys      [head_dim/2][W][2]        [head_dim][W]
//   values    [W/2][head_dim][2]        [W][head_dim]
//             (W = 1: [head_dim])
//
// A key lane is a token: one vector instruction advances 16 scores by two (bf16) dimensions. A value pair is two
// consecutive tokens of one dimension: one instruction advances 16 output dimensions by two tokens. Blocks of fewer
// than 16 slots hold the same order cut into narrower tiles, so that gathering them into a full tile copies runs.
//
// Values follow the keys of their tile, not all keys of the block: with blocks of 32 slots and more that was 1.3 times
// as fast as first all keys (decode on Sapphire Rapids; the keys' reader prefetches the values beside them).
//
// Within a layer a block is contiguous with all its heads: neighbouring blocks read as one long run. The layer is the
// outermost index for the same reason; a block first would need one copy instead of num_layers in copy_block (rare),
// and would cut every run at a block's end (each step). Nothing is padded: bytes are exactly what the pool counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace octavo {

enum class KvType : std::uint8_t { f32, bf16 };

// Tokens of a full tile. Every kernel computes on full tiles whatever the block size, so that the block size cannot
// change a bit of the result.
constexpr std::int32_t tile_tokens = 16;

// Members are forced inline: translation units for different instruction sets include this header, and the linker
// would keep one of several out-of-line copies, perhaps one that this machine cannot run.
#define OCTAVO_INLINE [[gnu::always_inline]] inline

// head_dim is a multiple of 8, block_size a power of two from 1 to 256; the caller checks. Indices count elements.
struct KvLayout {
    std::int32_t num_blocks;
    std::int32_t block_size;
    std::int32_t num_layers;
    std::int32_t num_kv_heads;
    std::int32_t head_dim;
    KvType type;

    OCTAVO_INLINE std::size_t element_bytes() const { return type == KvType::bf16 ? 2 : 4; }
    OCTAVO_INLINE std::int32_t tile_width() const { return block_size < tile_tokens ? block_size : tile_tokens; }

    // Elements of a tile's keys, or of its values.
    OCTAVO_INLINE std::size_t tile_elements() const { return std::size_t(tile_width()) * head_dim; }
    // Elements of one head of a block, keys and values.
    OCTAVO_INLINE std::size_t head_elements() const { return 2 * std::size_t(block_size) * head_dim; }
    // Bytes of a block in one layer; the pool's block is num_layers of these.
    OCTAVO_INLINE std::size_t block_bytes() const { return num_kv_heads * head_elements() * element_bytes(); }
    OCTAVO_INLINE std::size_t layer_bytes() const { return num_blocks * block_bytes(); }
    OCTAVO_INLINE std::size_t storage_bytes() const { return num_layers * layer_bytes(); }

    // First byte of a block in one layer, relative to the storage.
    OCTAVO_INLINE std::size_t block_offset(std::int32_t layer, std::int32_t block) const {
        return layer * layer_bytes() + block * block_bytes();
    }

    // Element of dimension x of the key in a slot, relative to its head.
    OCTAVO_INLINE std::size_t key_index(std::int32_t slot, std::int32_t x) const {
        const std::size_t width = tile_width(), lane = slot % width, tile = slot / width * 2 * tile_elements();
        return type == KvType::bf16 ? tile + (x / 2) * width * 2 + lane * 2 + x % 2 : tile + x * width + lane;
    }
    OCTAVO_INLINE std::size_t value_index(std::int32_t slot, std::int32_t x) const {
        const std::size_t width = tile_width(), lane = slot % width;
        const std::size_t values = slot / width * 2 * tile_elements() + tile_elements();
        if (type == KvType::f32 || width == 1) return values + lane * head_dim + x;
        return values + lane / 2 * 2 * head_dim + std::size_t(x) * 2 + lane % 2;
    }
};

// Copies one block of every layer; onto itself, it does nothing.
OCTAVO_INLINE void copy_block(const KvLayout& layout, void* storage, std::int32_t source, std::int32_t destination) {
    if (source == destination) return;
    char* bytes = static_cast<char*>(storage);
    for (std::int32_t layer = 0; layer < layout.num_layers; ++layer)
        std::memcpy(bytes + layout.block_offset(layer, destination), bytes + layout.block_offset(layer, source),
                    layout.block_bytes());
}

}  // namespace octavo
