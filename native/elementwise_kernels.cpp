// The elementwise kernels of one path (compiled once per path, see path.h). Plain loops over 16 lanes: the compiler
// vectorises them for each path's flags, and without contraction the results are the same bits on all of them.
#include "elementwise.h"

#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int kLanes = 16;

float float_of(std::uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

void widen_bf16(const std::uint16_t* source, float* out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = float_of(std::uint32_t{source[i]} << 16);
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

// exp for |x| <= 88, to about 1e-7 relative: 2^n * e^r with n the nearest integer to x / ln 2 and |r| <= ln 2 / 2.
inline float exp_clamped(float x) {
    constexpr float log2_e = 1.44269504f;
    constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;  // their sum is ln 2; n * ln2_high is exact
    constexpr float to_integer = 12582912.0f;                            // 1.5 * 2^23: adding it rounds to an integer
    x = x < -88.0f ? -88.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float shifted = x * log2_e + to_integer;
    const float n = shifted - to_integer;
    const float r = (x - n * ln2_high) - n * ln2_low;
    // The Taylor series to r^7 / 7!: its remainder at |r| = 0.3466 is 5e-9, below a float's rounding.
    float series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    // The low bits of ``shifted`` hold n; into the exponent with it. |n| <= 127, and 127 + 127 is still finite.
    std::uint32_t bits;
    __builtin_memcpy(&bits, &shifted, 4);
    return series * float_of((bits + 127) << 23);
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
