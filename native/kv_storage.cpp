#include "kv_storage.h"

#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

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

KvStorage::KvStorage(const KvLayout& layout) : layout_(checked(layout)), memory_(layout_.storage_bytes()) {}

void KvStorage::copy_blocks(const std::int32_t* pairs, std::int64_t count) {
    for (std::int64_t i = 0; i < 2 * count; ++i) check_index("block", pairs[i], layout_.num_blocks);
    for (std::int64_t i = 0; i < count; ++i) copy_block(layout_, data(), pairs[2 * i], pairs[2 * i + 1]);
}

void KvStorage::fill(float value) {
    const std::size_t count = nbytes() / layout_.element_bytes();
    if (layout_.type == KvType::bf16) {
        auto* out = static_cast<std::uint16_t*>(data());
        for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint16_t>(bf16_bits(value));
    } else {
        auto* out = static_cast<float*>(data());
        for (std::size_t i = 0; i < count; ++i) out[i] = value;
    }
}

float KvStorage::element(std::size_t head_offset, std::size_t index) const {
    const auto* at = static_cast<const std::byte*>(data()) + head_offset + index * layout_.element_bytes();
    if (layout_.type == KvType::f32) {
        float value;
        std::memcpy(&value, at, sizeof value);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

void KvStorage::read(std::int32_t layer, std::int32_t block, std::int32_t slot, float* keys, float* values) const {
    check_index("layer", layer, layout_.num_layers);
    check_index("block", block, layout_.num_blocks);
    check_index("slot", slot, layout_.block_size);
    for (std::int32_t head = 0; head < layout_.num_kv_heads; ++head) {
        const std::size_t offset =
            layout_.block_offset(layer, block) + head * layout_.head_elements() * layout_.element_bytes();
        for (std::int32_t x = 0; x < layout_.head_dim; ++x) {
            keys[head * layout_.head_dim + x] = element(offset, layout_.key_index(slot, x));
            values[head * layout_.head_dim + x] = element(offset, layout_.value_index(slot, x));
        }
    }
}

}  // namespace octavo
