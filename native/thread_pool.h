// A private pool of threads with dynamic claiming of chunks.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace octavo {

// The caller works too, and waits only for chunks that a worker has claimed: a worker that the system has not
// scheduled delays nobody. (An OpenMP team waits for every member; with one busy neighbour that cost up to 50 times
// as much. It would also collide with a second OpenMP runtime in the process.)
//
// One caller at a time (the owner's lock). Chunks may run in any order on any thread, so a result must not depend on
// which thread ran what. After a fork the child has no workers and the caller does everything itself.
class ThreadPool {
public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(chunk, thread) for 0 <= chunk < chunks and returns when all are done. ``thread`` (0 is the caller) names
    // whoever runs it, for scratch memory. ``body`` must not throw.
    template <class Body>
    void parallel_for(std::int64_t chunks, Body&& body) {
        using Plain = std::remove_reference_t<Body>;
        run(chunks,
            [](void* self, std::int64_t chunk, int thread) { (*static_cast<Plain*>(self))(chunk, thread); },
            const_cast<void*>(static_cast<const void*>(&body)));
    }

private:
    using Function = void (*)(void*, std::int64_t, int);

    void run(std::int64_t chunks, Function function, void* argument);
    void work_on(std::uint32_t epoch, int thread);
    void worker(int thread);
    std::uint32_t wait_for_epoch_after(std::uint32_t seen);

    // Epoch in the high half, next unclaimed chunk in the low half: a claim by a worker that slept through an epoch
    // fails, since the whole word has changed.
    alignas(64) std::atomic<std::uint64_t> claim_{0};
    alignas(64) std::atomic<std::uint32_t> done_{0};
    // Bumped to start a round; what sleeping workers wait on.
    alignas(64) std::atomic<std::uint32_t> epoch_{0};
    alignas(64) std::atomic<std::uint32_t> chunks_{0};
    std::atomic<Function> function_{nullptr};
    std::atomic<void*> argument_{nullptr};
    std::atomic<bool> stopping_{false};
    long creator_ = 0;  // process id: in a forked child the workers do not exist and must not be joined
    std::vector<std::thread> workers_;
};

}  // namespace octavo
