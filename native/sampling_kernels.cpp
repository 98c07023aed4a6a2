// The sampling kernels of one path (compiled once per path, see path.h): plain loops over 16 lanes.
#include "sampling.h"

#include "exponential.h"
#include "path.h"

#if defined(OCTAVO_PATH_AVX512_BF16) || defined(OCTAVO_PATH_AVX2)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int kLanes = 16;

#if defined(OCTAVO_PATH_AVX2)
// The instruction passes over NaN in its first operand alone.
inline float highest_of_block(const float* values) {
    __m256 highest = _mm256_set1_ps(-__builtin_inff());
    for (int i = 0; i < kSamplingBlock; i += 8) highest = _mm256_max_ps(_mm256_loadu_ps(values + i), highest);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(highest), _mm256_extractf128_ps(highest, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
#endif

// NaN is passed over.
inline float highest_of(const float* values, std::int64_t count) {
    float lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = -__builtin_inff();
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane)
            lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    for (int lane = 0; lane < kLanes && i < count; ++i, ++lane)
        lanes[lane] = values[i] > lanes[lane] ? values[i] : lanes[lane];
#if defined(OCTAVO_PATH_AVX512_BF16)
    return _mm512_reduce_max_ps(_mm512_loadu_ps(lanes));  // the loop below took most of the time
#else
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane)
            lanes[lane] = lanes[lane + width] > lanes[lane] ? lanes[lane + width] : lanes[lane];
    return lanes[0];
#endif
}

bool has_nan(const float* values, std::int64_t count) {
    std::uint32_t found = 0;
    for (std::int64_t i = 0; i < count; ++i) found |= (bits_of_float(values[i]) & 0x7fffffffu) > 0x7f800000u;
    return found != 0;
}

void block_highest(const float* values, std::int64_t count, float* out) {
    std::int64_t i = 0;
#if defined(OCTAVO_PATH_AVX2)
    for (; i + kSamplingBlock <= count; i += kSamplingBlock) *out++ = highest_of_block(values + i);
#else
    for (; i + kSamplingBlock <= count; i += kSamplingBlock) *out++ = highest_of(values + i, kSamplingBlock);
#endif
    if (i < count) *out = highest_of(values + i, count - i);
}

void scale(const float* values, float highest, float temperature, float* out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = (values[i] - highest) / temperature;
}

void exponentials(const float* values, float* out, std::int64_t count) {
    constexpr float faintest = -80.0f;
    for (std::int64_t i = 0; i < count; ++i) {
        const float likelihood = exp_clamped(values[i]);
        out[i] = values[i] >= faintest ? likelihood : 0.0f;
    }
}

double sum(const float* values, std::int64_t count) {
    double lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(values[i + lane]);
    for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += static_cast<double>(values[i]);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

}  // namespace

extern const SamplingKernels sampling_kernels = {block_highest, has_nan, scale, exponentials, sum};

}  // namespace octavo::OCTAVO_PATH
