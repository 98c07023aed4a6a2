#include "populator.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace octavo {
namespace {

constexpr std::size_t kSmallPage = 4096;

// A tenth of a core while a step keeps all of them busy, which it would spend on the same pages otherwise, and all of an idle
// one. SCHED_IDLE and a niceness of 19 get so little then that the blocks were needed before they were there.
void yield_to_others() {
#if defined(__linux__)
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);  // there a thread has a niceness of its own
#endif
}

}  // namespace

Populator::Populator(std::byte* memory, std::int64_t regions, std::uint32_t items, std::size_t item_bytes)
    : memory_(memory), regions_(regions), items_(items), item_bytes_(item_bytes), creator_(getpid()) {}

Populator::~Populator() {
    if (!thread_.joinable()) return;
    if (getpid() != creator_) {
        new std::thread(std::move(thread_));  // leaked: there is no thread to join or to detach
        return;
    }
    stopping_.store(true);
    announced_.fetch_add(1);
    announced_.notify_all();
    thread_.join();
}

void Populator::announce(std::uint32_t items) {
    items = std::min(items, items_);
    std::uint32_t before = announced_.load(std::memory_order_relaxed);
    do {
        if (items <= before) return;
    } while (!announced_.compare_exchange_weak(before, items));
    if (!started_.exchange(true)) {
        try {
            thread_ = std::thread([this] { work(); });
        } catch (const std::system_error&) {
            // No thread to be had: pages are taken by whoever writes to them first.
        }
    }
    announced_.notify_one();
}

void Populator::work() {
    yield_to_others();
    for (std::uint32_t done = 0;;) {
        announced_.wait(done);
        const std::uint32_t wanted = announced_.load();
        if (stopping_.load()) return;
        for (std::int64_t region = 0; region < regions_; ++region) {
            std::byte* first = memory_ + region * items_ * item_bytes_;
            if (!touch(first + done * item_bytes_, first + wanted * item_bytes_)) return;
        }
        done = wanted;
    }
}

// A zero is written where there is one, in one instruction, so that nothing is lost that is written there meanwhile.
// madvise(MADV_POPULATE_WRITE) would keep the lock on the address space while it clears a page, and a thread of the lowest
// priority may be kept waiting with it: everybody's malloc would wait for it.
bool Populator::touch(std::byte* begin, std::byte* end) const {
    begin -= reinterpret_cast<std::uintptr_t>(begin) % kSmallPage;
    for (std::byte* page = begin; page < end; page += kSmallPage) {
        if (stopping_.load(std::memory_order_relaxed)) return false;
        auto nothing = std::byte{0};
        std::atomic_ref<std::byte>(*page).compare_exchange_strong(nothing, std::byte{0}, std::memory_order_relaxed);
    }
    return true;
}

}  // namespace octavo
