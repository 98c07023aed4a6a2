// Memory in 2 MiB pages, where the system has them, for weights and the key-value pool.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

namespace octavo {

// One mapping, aligned to 2 MiB, zero-filled, and advised to use 2 MiB pages. Pages are taken when first written.
class HugeMapping {
public:
    explicit HugeMapping(std::size_t bytes);
    ~HugeMapping();
    HugeMapping(const HugeMapping&) = delete;
    HugeMapping& operator=(const HugeMapping&) = delete;

    std::byte* data() const { return data_; }
    std::size_t size() const { return bytes_; }

private:
    void* mapping_ = nullptr;
    std::size_t mapped_bytes_ = 0;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// A piece of a mapping; the mapping lives while any piece of it does.
struct Piece {
    std::shared_ptr<HugeMapping> mapping;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
};

// Hands out pieces side by side. One mapping a weight would waste half a huge page on each of hundreds of weights.
class Arena {
public:
    // Aligned to 4 KiB. Zero-filled.
    Piece allocate(std::size_t bytes);

private:
    std::mutex mutex_;
    std::shared_ptr<HugeMapping> current_;
    std::size_t used_ = 0;
};

// Working memory that only grows, 64-byte aligned. Contents do not survive ``reserve``.
class Scratch {
public:
    void* reserve(std::size_t bytes);

private:
    std::unique_ptr<HugeMapping> mapping_;
    std::unique_ptr<std::byte[]> small_;
    std::size_t small_bytes_ = 0;
};

}  // namespace octavo
