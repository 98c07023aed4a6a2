// The pool's memory: the blocks that the memory manager counts. Layout: kv_layout.h.
#pragma once

#include <cstdint>

#include "kv_layout.h"
#include "memory.h"

namespace octavo {

class KvStorage {
public:
    // Throws std::invalid_argument for sizes that the kernels do not support. Memory is taken when first written.
    explicit KvStorage(const KvLayout& layout);

    const KvLayout& layout() const { return layout_; }
    void* data() const { return memory_.data(); }
    std::size_t nbytes() const { return layout_.storage_bytes(); }

    // (source, destination) pairs, in order. Throws std::invalid_argument for a block that does not exist.
    void copy_blocks(const std::int32_t* pairs, std::int64_t count);
    void fill(float value);
    // keys and values: [num_kv_heads][head_dim] of one slot.
    void read(std::int32_t layer, std::int32_t block, std::int32_t slot, float* keys, float* values) const;

private:
    float element(std::size_t head_offset, std::size_t index) const;

    KvLayout layout_;
    HugeMapping memory_;
};

}  // namespace octavo
