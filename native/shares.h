// Work that lies in a row, cut into one share a thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace octavo {

// A thread takes runs from the front of its own share, so that what it fetches ahead is what it takes next; and when that is
// done, from the back of the others', so that nobody waits for a thread that is slow or has not begun. Runs get shorter
// towards a share's end: the last one decides how long the others wait.
class Shares {
public:
    explicit Shares(int threads) : shares_(threads) {}

    struct Run {
        std::int64_t begin = 0, end = 0;
        bool followed = false;  // by the same thread's next run, in all likelihood
        bool empty() const { return begin == end; }
    };

    // All of 0..units anew, in runs of at most ``longest``. Nobody may be taking, and whoever takes next must have been
    // told so (ThreadPool::parallel_for does).
    void cut(std::int64_t units, std::int64_t longest) {
        longest_ = static_cast<std::uint32_t>(std::max<std::int64_t>(1, longest));
        for (int i = 0; i < count(); ++i)
            shares_[i].left.store(word(first(i, units), first(i + 1, units)), std::memory_order_relaxed);
    }

    // Empty when everything is taken.
    Run take(int thread) {
        for (int i = 0; i < count(); ++i) {
            const int owner = thread + i < count() ? thread + i : thread + i - count();
            const Run run = take_from(shares_[owner].left, i == 0);
            if (!run.empty()) return run;
        }
        return {};
    }

private:
    struct alignas(64) Share {
        std::atomic<std::uint64_t> left{0};  // the first unit that is not taken, and in the low half the one behind the last
    };

    std::int64_t first(int thread, std::int64_t units) const { return units * thread / count(); }
    int count() const { return static_cast<int>(shares_.size()); }

    static std::uint64_t word(std::int64_t begin, std::int64_t end) {
        return static_cast<std::uint64_t>(begin) << 32 | static_cast<std::uint64_t>(end);
    }

    Run take_from(std::atomic<std::uint64_t>& left, bool own) const {
        std::uint64_t state = left.load(std::memory_order_relaxed);
        for (;;) {
            const auto begin = static_cast<std::uint32_t>(state >> 32), end = static_cast<std::uint32_t>(state);
            if (begin == end) return {};
            const std::uint32_t length = std::min(longest_, (end - begin + 3) / 4);
            const std::uint32_t cut = own ? begin + length : end - length;
            if (left.compare_exchange_weak(state, own ? word(cut, end) : word(begin, cut), std::memory_order_relaxed))
                return own ? Run{begin, cut, cut != end} : Run{cut, end, false};
        }
    }

    std::vector<Share> shares_;
    std::uint32_t longest_ = 1;
};

}  // namespace octavo
