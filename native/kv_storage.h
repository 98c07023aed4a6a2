// The pool's memory: the blocks that the memory manager counts. Layout: kv_layout.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_layout.h"
#include "memory.h"
#include "populator.h"

namespace octavo {

class KvStorage {
public:
    // Throws std::invalid_argument for sizes that the kernels do not support. Memory is taken when first written.
    explicit KvStorage(const KvLayout& layout);

    const KvLayout& layout() const { return layout_; }
    void* data() const { return memory_.data(); }
    std::size_t nbytes() const { return layout_.storage_bytes(); }

    // The first ``blocks`` of the pool will be wanted soon: their memory is taken in the background. Never waits.
    void announce(std::int64_t blocks);

    // (source, destination) pairs, in order. Throws std::invalid_argument for a block that does not exist.
    void copy_blocks(const std::int32_t* pairs, std::int64_t count);
    // Every element of every slot; of a byte type exactly, through its scale.
    void fill(float value);
    // keys and values: [num_kv_heads][head_dim] of one slot.
    void read(std::int32_t layer, std::int32_t block, std::int32_t slot, float* keys, float* values) const;

private:
    float element(const std::byte* head, std::size_t offset, std::size_t scale_offset) const;

    KvLayout layout_;
    HugeMapping memory_;
    Populator populator_;  // behind the memory: it ends first
};

}  // namespace octavo
