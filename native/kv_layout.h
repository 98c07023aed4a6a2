// The one description of how keys and values lie in the pool's memory.
//
//   storage   [layer][block][tile][kv head] tile
//   tile      keys of W = min(16, block_size) consecutive slots, then their values, packed for the dot product; then,
//             where elements are bytes (kv_codes.h), a float32 scale for each slot's key and for each slot's value:
//
//             bf16                      f32                 fp8, int8
//   keys      [head_dim/2][W][2]        [head_dim][W]       [head_dim/2][W][2]
//   values    [W/2][head_dim][2]        [W][head_dim]       [W/2][head_dim][2]
//             (W = 1: [head_dim])                           (W = 1: [head_dim])
//   scales                                                  [2][W] float32: of keys, of values
//
// A key lane is a token: one vector instruction advances 16 scores by two (bf16) dimensions. A value pair is two
// consecutive tokens of one dimension: one instruction advances 16 output dimensions by two tokens. Blocks of fewer
// than 16 slots hold the same order cut into narrower tiles: keys are put side by side in runs (attention_pieces.h), values
// are read where they lie.
//
// Scales lie in the block, not in an array beside the pool: whatever copies, spills or counts blocks has them too, and a
// full tile of bytes stays a whole number of cache lines.
//
// Values follow the keys of their tile, not all keys of the block: with blocks of 32 slots and more that was 1.3 times
// as fast as first all keys (decode on Sapphire Rapids; the keys' reader prefetches the values beside them).
//
// Heads lie side by side in a tile's place, not tiles side by side in a head's: past the end of a tile the machine reads on
// by itself, and what comes there is then wanted a turn later, not fetched already. Blocks of 32 tokens and more were 0.8 times
// as fast as blocks of 16 (decode on Zen 3); now blocks of any size from 16 on that follow one another are the same bytes.
//
// Within a layer a block is contiguous with all its heads: neighbouring blocks read as one long run. The layer is the
// outermost index for the same reason; a block first would need one copy instead of num_layers in copy_block (rare),
// and would cut every run at a block's end (each step). Nothing is padded: bytes are exactly what the pool counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace octavo {

enum class KvType : std::uint8_t { f32, bf16, fp8, int8 };

// Tokens of a full tile. Every kernel computes on full tiles whatever the block size, so that the block size cannot
// change a bit of the result.
constexpr std::int32_t tile_tokens = 16;

// Members are forced inline: translation units for different instruction sets include this header, and the linker
// would keep one of several out-of-line copies, perhaps one that this machine cannot run.
#define OCTAVO_INLINE [[gnu::always_inline]] inline

// head_dim is a multiple of 8, block_size a power of two from 1 to 256; the caller checks.
struct KvLayout {
    std::int32_t num_blocks;
    std::int32_t block_size;
    std::int32_t num_layers;
    std::int32_t num_kv_heads;
    std::int32_t head_dim;
    KvType type;

    OCTAVO_INLINE std::size_t element_bytes() const { return type == KvType::f32 ? 4 : type == KvType::bf16 ? 2 : 1; }
    OCTAVO_INLINE bool scaled() const { return element_bytes() == 1; }
    OCTAVO_INLINE std::int32_t tile_width() const { return block_size < tile_tokens ? block_size : tile_tokens; }

    // Bytes of a tile's keys, or of its values; of a tile of one head; of a tile of all heads.
    OCTAVO_INLINE std::size_t tile_keys_bytes() const { return tile_width() * element_bytes() * head_dim; }
    OCTAVO_INLINE std::size_t tile_bytes() const {
        return 2 * (tile_keys_bytes() + (scaled() ? tile_width() * sizeof(float) : 0));
    }
    OCTAVO_INLINE std::size_t heads_bytes() const { return num_kv_heads * tile_bytes(); }
    // Bytes of a block in one layer; the pool's block is num_layers of these.
    OCTAVO_INLINE std::size_t block_bytes() const { return block_size / tile_width() * heads_bytes(); }
    OCTAVO_INLINE std::size_t layer_bytes() const { return num_blocks * block_bytes(); }
    OCTAVO_INLINE std::size_t storage_bytes() const { return num_layers * layer_bytes(); }

    // First byte of a block in one layer, relative to the storage.
    OCTAVO_INLINE std::size_t block_offset(std::int32_t layer, std::int32_t block) const {
        return layer * layer_bytes() + block * block_bytes();
    }

    // First byte of dimension x of the key (value) in a slot, relative to its head's first tile.
    OCTAVO_INLINE std::size_t key_offset(std::int32_t slot, std::int32_t x) const {
        const std::size_t width = tile_width(), lane = slot % width;
        const std::size_t index = type == KvType::f32 ? x * width + lane : (x / 2 * width + lane) * 2 + x % 2;
        return tile_offset(slot) + index * element_bytes();
    }
    OCTAVO_INLINE std::size_t value_offset(std::int32_t slot, std::int32_t x) const {
        const std::size_t width = tile_width(), lane = slot % width;
        const std::size_t index = type == KvType::f32 || width == 1
                                      ? lane * head_dim + x
                                      : lane / 2 * 2 * head_dim + std::size_t(x) * 2 + lane % 2;
        return tile_offset(slot) + tile_keys_bytes() + index * element_bytes();
    }
    // Of the scale of the key (value) in a slot, relative to its head.
    OCTAVO_INLINE std::size_t key_scale_offset(std::int32_t slot) const {
        return tile_offset(slot) + 2 * tile_keys_bytes() + slot % tile_width() * sizeof(float);
    }
    OCTAVO_INLINE std::size_t value_scale_offset(std::int32_t slot) const {
        return key_scale_offset(slot) + tile_width() * sizeof(float);
    }

private:
    OCTAVO_INLINE std::size_t tile_offset(std::int32_t slot) const { return slot / tile_width() * heads_bytes(); }
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
