// An instruction path, a thread pool and the memory of the weights packed for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"
#include "paths.h"
#include "shares.h"
#include "thread_pool.h"

namespace octavo {

// Names of the paths this machine can run, best first; with ``variants``, also those for tests and measurements.
std::vector<std::string> available_paths(bool variants = false);

class Runtime {
public:
    // Throws std::invalid_argument for a path that does not exist or that this machine cannot run.
    Runtime(const std::string& path, int threads);

    const Path& path() const { return path_; }
    int threads() const { return pool_.threads(); }
    Arena& arena() { return arena_; }
    ThreadPool& pool() { return pool_; }
    Shares& shares() { return shares_; }
    // Whoever uses the pool or the shares holds this: two programs may share a runtime and be run from two Python threads.
    std::mutex& mutex() { return mutex_; }

    // Calls body(begin, end) over pieces of 0..rows. Rows of so many elements that a piece is not worth a thread's
    // wake-up stay with the caller.
    template <class Body>
    void parallel_rows(std::int64_t rows, std::int64_t row_elements, Body&& body) {
        constexpr std::int64_t piece_elements = 16384;  // a few microseconds
        const std::int64_t piece = std::max<std::int64_t>(1, piece_elements / std::max<std::int64_t>(1, row_elements));
        pool_.parallel_for((rows + piece - 1) / piece, [&](std::int64_t chunk, int) {
            body(chunk * piece, std::min(rows, (chunk + 1) * piece));
        });
    }

private:
    const Path& path_;
    ThreadPool pool_;
    Shares shares_;
    Arena arena_;
    std::mutex mutex_;
};

}  // namespace octavo
