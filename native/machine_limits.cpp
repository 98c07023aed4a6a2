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
    // As much memory as the weights of a small model, so that caches hold no more of it than of them; timed in windows
    // of a millisecond, so that a neighbour on the processor does not enter the best one.
    constexpr std::int64_t chunk = 1 << 20, window = 16, windows = 16;
    constexpr int passes = 4;
    const std::lock_guard lock(runtime.mutex());
    const HugeMapping memory(chunk * window * windows);
    const auto over_window = [&](std::int64_t first, auto&& body) {
        runtime.pool().parallel_for(window, [&](std::int64_t i, int) { body(memory.data() + (first + i) * chunk); });
    };
    for (std::int64_t w = 0; w < windows; ++w)
        over_window(w * window, [](std::byte* data) { std::memset(data, 1, chunk); });
    double best = 0;
    std::atomic<std::uint64_t> sink{0};
    for (std::int64_t w = 0; w < passes * windows; ++w) {
        const auto start = Clock::now();
        over_window(w % windows * window, [&](std::byte* data) { sink += runtime.path().probe.read(data, chunk); });
        best = std::max(best, static_cast<double>(chunk * window) / seconds_since(start));
    }
    return best * 1e-9;
}

double probe_flops(Runtime& runtime, Arithmetic arithmetic) {
    constexpr std::int64_t rounds = 20000;  // some 100 microseconds
    constexpr int repeats = 100;
    const std::lock_guard lock(runtime.mutex());
    const ProbeKernels& probe = runtime.path().probe;
    const std::int64_t chunks = 8 * runtime.threads();
    double best = 0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        // bf16 weights may be multiplied as float32 too: the better one is the limit.
        const bool as_bf16 = arithmetic == Arithmetic::bf16 && repeat % 2;
        const auto multiply = arithmetic == Arithmetic::int8   ? probe.multiply_int8
                              : arithmetic == Arithmetic::int4 ? probe.multiply_int4
                              : as_bf16                        ? probe.multiply_bf16
                                                               : probe.multiply_f32;
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
