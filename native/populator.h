// Takes memory from the system ahead of its first use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace octavo {

// ``regions`` stretches of memory side by side, each of items that come into use in their order, the same ones in all of
// them. A thread of its own writes to the pages of items that were announced and changes nothing in them. Everything else
// comes first: who is faster than it takes his pages himself, as he would without it.
//
// A step that is the first to write to many pages at once pays for all of them: a page of 2 MiB is cleared in a quarter of
// a millisecond, and a virtual machine that has to ask its host for it may take a hundred times as long.
class Populator {
public:
    Populator(std::byte* memory, std::int64_t regions, std::uint32_t items, std::size_t item_bytes);
    ~Populator();
    Populator(const Populator&) = delete;
    Populator& operator=(const Populator&) = delete;

    // The first ``items`` of each region will be wanted soon. Never waits. Any thread.
    void announce(std::uint32_t items);

private:
    void work();
    // False when it is time to end.
    bool touch(std::byte* begin, std::byte* end) const;

    std::byte* const memory_;
    const std::int64_t regions_;
    const std::uint32_t items_;
    const std::size_t item_bytes_;
    std::atomic<std::uint32_t> announced_{0};  // what the thread waits on
    std::atomic<bool> stopping_{false};
    std::atomic<bool> started_{false};
    long creator_ = 0;  // process id: in a forked child the thread does not exist
    std::thread thread_;
};

}  // namespace octavo
