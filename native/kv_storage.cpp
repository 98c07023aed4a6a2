#include "kv_storage.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kv_codes.h"

namespace octavo {
namespace {

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

const KvLayout& checked(const KvLayout& layout) {
    require(layout.num_blocks >= 1, "num_blocks is " + std::to_string(layout.num_blocks) + "; it must be at least 1");
    require(layout.num_layers >= 1, "num_layers is " + std::to_string(layout.num_layers) + "; it must be at least 1");
    require(layout.num_kv_heads >= 1,
            "num_kv_heads is " + std::to_string(layout.num_kv_heads) + "; it must be at least 1");
    require(layout.head_dim >= 8 && layout.head_dim % 8 == 0,
            "head_dim is " + std::to_string(layout.head_dim) + "; it must be a multiple of 8");
    const bool power = layout.block_size >= 1 && std::has_single_bit(static_cast<unsigned>(layout.block_size));
    require(power && layout.block_size <= 256,
            "block_size is " + std::to_string(layout.block_size) + "; it must be a power of two from 1 to 256");
    return layout;
}

std::uint32_t bf16_bits(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (value != value) return bits >> 16 | 0x40;  // stays a NaN
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

void check_index(const char* name, std::int32_t index, std::int32_t count) {
    require(index >= 0 && index < count, std::string(name) + " is " + std::to_string(index) + "; there are " +
                                             std::to_string(count));
}

}  // namespace

KvStorage::KvStorage(const KvLayout& layout)
    : layout_(checked(layout)),
      memory_(layout_.storage_bytes()),
      populator_(memory_.data(), layout_.num_layers, static_cast<std::uint32_t>(layout_.num_blocks), layout_.block_bytes()) {}

void KvStorage::announce(std::int64_t blocks) {
    populator_.announce(static_cast<std::uint32_t>(std::clamp<std::int64_t>(blocks, 0, layout_.num_blocks)));
}

void KvStorage::copy_blocks(const std::int32_t* pairs, std::int64_t count) {
    for (std::int64_t i = 0; i < 2 * count; ++i) check_index("block", pairs[i], layout_.num_blocks);
    for (std::int64_t i = 0; i < count; ++i) copy_block(layout_, data(), pairs[2 * i], pairs[2 * i + 1]);
}

void KvStorage::fill(float value) {
    if (layout_.scaled()) {
        const int one = layout_.type == KvType::fp8 ? 0x38 : 0x01;  // the code of 1
        const std::size_t codes = 2 * layout_.tile_keys_bytes(), tile = layout_.tile_bytes();
        for (auto *at = static_cast<std::byte*>(data()), *end = at + nbytes(); at != end; at += tile) {
            std::memset(at, one, codes);
            for (std::size_t i = codes; i < tile; i += sizeof value) std::memcpy(at + i, &value, sizeof value);
        }
    } else if (layout_.type == KvType::bf16) {
        auto* out = static_cast<std::uint16_t*>(data());
        std::fill(out, out + nbytes() / 2, static_cast<std::uint16_t>(bf16_bits(value)));
    } else {
        auto* out = static_cast<float*>(data());
        std::fill(out, out + nbytes() / 4, value);
    }
}

float KvStorage::element(const std::byte* head, std::size_t offset, std::size_t scale_offset) const {
    std::uint16_t bits = 0;
    float value = 0;
    switch (layout_.type) {
        case KvType::f32: std::memcpy(&value, head + offset, sizeof value); return value;
        case KvType::bf16:
            std::memcpy(&bits, head + offset, sizeof bits);
            return std::bit_cast<float>(std::uint32_t{bits} << 16);
        default: break;
    }
    std::memcpy(&value, head + scale_offset, sizeof value);
    const auto code = static_cast<std::uint8_t>(head[offset]);
    return value * (layout_.type == KvType::fp8 ? decode<KvType::fp8>(code) : decode<KvType::int8>(code));
}

void KvStorage::read(std::int32_t layer, std::int32_t block, std::int32_t slot, float* keys, float* values) const {
    check_index("layer", layer, layout_.num_layers);
    check_index("block", block, layout_.num_blocks);
    check_index("slot", slot, layout_.block_size);
    const auto* first = static_cast<const std::byte*>(data()) + layout_.block_offset(layer, block);
    for (std::int32_t i = 0; i < layout_.num_kv_heads; ++i) {
        const std::byte* head = first + i * layout_.tile_bytes();
        for (std::int32_t x = 0; x < layout_.head_dim; ++x) {
            keys[i * layout_.head_dim + x] = element(head, layout_.key_offset(slot, x), layout_.key_scale_offset(slot));
            values[i * layout_.head_dim + x] =
                element(head, layout_.value_offset(slot, x), layout_.value_scale_offset(slot));
        }
    }
}

}  // namespace octavo
