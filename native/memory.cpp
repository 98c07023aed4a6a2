#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace octavo {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSmallPage = 4096;
constexpr std::size_t kArenaMapping = std::size_t{64} << 20;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

HugeMapping::HugeMapping(std::size_t bytes) : bytes_(bytes) {
    const std::size_t useful = round_up(std::max<std::size_t>(bytes, 1), kHugePage);
    mapped_bytes_ = useful + kHugePage;  // room to align
    mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = reinterpret_cast<std::byte*>(round_up(address, kHugePage));
#if defined(MADV_HUGEPAGE)
    madvise(data_, useful, MADV_HUGEPAGE);  // advice: small pages work too, 5 to 15 % slower
#endif
}

HugeMapping::~HugeMapping() { munmap(mapping_, mapped_bytes_); }

Piece Arena::allocate(std::size_t bytes) {
    const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), kSmallPage);
    const std::lock_guard lock(mutex_);
    if (size >= kArenaMapping / 2) {
        auto own = std::make_shared<HugeMapping>(size);
        return {own, own->data(), bytes};
    }
    if (!current_ || used_ + size > current_->size()) {
        current_ = std::make_shared<HugeMapping>(kArenaMapping);
        used_ = 0;
    }
    Piece piece{current_, current_->data() + used_, bytes};
    used_ += size;
    return piece;
}

void* Scratch::reserve(std::size_t bytes) {
    constexpr std::size_t line = 64;
    if (bytes < kHugePage / 2 && !mapping_) {
        if (bytes > small_bytes_) {
            small_bytes_ = std::max(bytes, 2 * small_bytes_);
            small_ = std::make_unique<std::byte[]>(small_bytes_ + line);
        }
        return reinterpret_cast<void*>(round_up(reinterpret_cast<std::uintptr_t>(small_.get()), line));
    }
    if (!mapping_ || bytes > mapping_->size()) mapping_ = std::make_unique<HugeMapping>(bytes + bytes / 4);
    return mapping_->data();
}

}  // namespace octavo
