// The elementwise kernels of one path (compiled once per path, see path.h). Plain loops over 16 lanes: the compiler
// vectorises them for each path's flags, and without contraction the results are the same bits on all of them.
#include "elementwise.h"

#include "exponential.h"
#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int kLanes = 16;

void widen_bf16(const std::uint16_t* source, float* out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = float_of_bits(std::uint32_t{source[i]} << 16);
}

float sum_of_squares(const float* x, std::int64_t count) {
    float lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
    for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += x[i] * x[i];
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

void rms_norm(const float* source, const float* weight, float eps, float* out, std::int64_t width) {
    const float mean = sum_of_squares(source, width) / static_cast<float>(width);
    const float scale = 1.0f / __builtin_sqrtf(mean + eps);
    for (std::int64_t i = 0; i < width; ++i) out[i] = source[i] * scale * weight[i];
}

void rope(float* __restrict x, const float* __restrict cos, const float* __restrict sin, std::int64_t half) {
    for (std::int64_t i = 0; i < half; ++i) {
        const float first = x[i], second = x[i + half];
        x[i] = first * cos[i] - second * sin[i];
        x[i + half] = second * cos[i] + first * sin[i];
    }
}

void silu_mul(const float* __restrict gate, const float* __restrict up, float* __restrict out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = gate[i] / (1.0f + exp_clamped(-gate[i])) * up[i];
}

void add(float* __restrict out, const float* __restrict source, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out[i] += source[i];
}

}  // namespace

extern const ElementwiseKernels elementwise_kernels = {widen_bf16, rms_norm, rope, silu_mul, add};

}  // namespace octavo::OCTAVO_PATH
