#include "thread_pool.h"

#include <unistd.h>

#include <cassert>
#include <chrono>
#include <limits>

namespace octavo {
namespace {

// Longer than the gap between two operators of a step, shorter than anyone would notice on an idle machine.
constexpr std::chrono::microseconds kSpin{50};

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : creator_(getpid()) {
    assert(threads >= 1);
    workers_.reserve(threads - 1);
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
    if (getpid() != creator_) {
        new std::vector<std::thread>(std::move(workers_));  // leaked: there is no thread to join or to detach
        return;
    }
    stopping_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (auto& thread : workers_) thread.join();
}

void ThreadPool::run(std::int64_t chunks, Function function, void* argument) {
    if (chunks <= 1 || workers_.empty()) {
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) function(argument, chunk, 0);
        return;
    }
    assert(chunks < std::numeric_limits<std::uint32_t>::max());
    const std::uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
    // A late worker of the last round may read the fields below while they change. It acquires them, so once it sees
    // a new one it sees this word too, and its claim fails. The word names the new epoch with no chunk left, so that
    // nobody claims before all is in place.
    claim_.store(std::uint64_t{epoch} << 32 | 0xffffffffu, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    function_.store(function, std::memory_order_relaxed);
    argument_.store(argument, std::memory_order_relaxed);
    chunks_.store(static_cast<std::uint32_t>(chunks), std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    claim_.store(std::uint64_t{epoch} << 32, std::memory_order_release);
    epoch_.store(epoch);
    epoch_.notify_all();

    work_on(epoch, 0);
    // Only chunks that a worker is in the middle of are missing now.
    for (int spins = 0; done_.load(std::memory_order_acquire) < static_cast<std::uint32_t>(chunks); ++spins) {
        pause();
        if (spins > 2000) std::this_thread::yield();
    }
}

void ThreadPool::work_on(std::uint32_t epoch, int thread) {
    std::uint64_t state = claim_.load(std::memory_order_acquire);
    for (;;) {
        const auto next = static_cast<std::uint32_t>(state);
        if (static_cast<std::uint32_t>(state >> 32) != epoch) return;
        const Function function = function_.load(std::memory_order_acquire);
        void* const argument = argument_.load(std::memory_order_acquire);
        if (next >= chunks_.load(std::memory_order_acquire)) return;
        if (!claim_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
        function(argument, next, thread);
        done_.fetch_add(1, std::memory_order_release);
        state = claim_.load(std::memory_order_acquire);
    }
}

void ThreadPool::worker(int thread) {
    std::uint32_t seen = 0;
    for (;;) {
        seen = wait_for_epoch_after(seen);
        if (stopping_.load()) return;
        work_on(seen, thread);
    }
}

std::uint32_t ThreadPool::wait_for_epoch_after(std::uint32_t seen) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    for (int spins = 1;; ++spins) {
        const std::uint32_t epoch = epoch_.load(std::memory_order_acquire);
        if (epoch != seen) return epoch;
        pause();
        if (spins % 64 == 0 && std::chrono::steady_clock::now() > deadline) epoch_.wait(seen);
    }
}

}  // namespace octavo
