#include <algorithm>
#include <chrono>
#include <cstring>

#include "machine_limits.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

double probe_bandwidth(Runtime& runtime) {
    constexpr std::int64_t chunk = 1 << 20, chunks = 256;  // as much as the weights of a small model
    constexpr int repeats = 8;
    const std::lock_guard lock(runtime.mutex());
    const HugeMapping memory(chunk * chunks);
    runtime.pool().parallel_for(chunks, [&](std::int64_t i, int) { std::memset(memory.data() + i * chunk, 1, chunk); });
    double best = 0;
    std::atomic<std::uint64_t> sink{0};
    for (int repeat = 0; repeat < repeats; ++repeat) {
        const auto start = Clock::now();
        runtime.pool().parallel_for(chunks, [&](std::int64_t i, int) {
            sink += runtime.path().probe.read(memory.data() + i * chunk, chunk);
        });
        best = std::max(best, static_cast<double>(chunk * chunks) / seconds_since(start));
    }
    return best * 1e-9;
}

double probe_flops(Runtime& runtime, ElementType type) {
    constexpr std::int64_t rounds = 20000;  // some 100 microseconds
    constexpr int repeats = 20;
    const std::lock_guard lock(runtime.mutex());
    const auto multiply =
        type == ElementType::bf16 ? runtime.path().probe.multiply_bf16 : runtime.path().probe.multiply_f32;
    const std::int64_t chunks = 8 * runtime.threads();
    double best = 0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        std::atomic<std::int64_t> operations{0};
        const auto start = Clock::now();
        runtime.pool().parallel_for(chunks, [&](std::int64_t, int) {
            float sink = 0.0f;
            operations += static_cast<std::int64_t>(multiply(rounds, &sink));
        });
        best = std::max(best, static_cast<double>(operations) / seconds_since(start));
    }
    return best * 1e-9;
}

}  // namespace octavo
