// Rounding of float32 to signed bytes with one scale. Included by kernel files only (see path.h).
#pragma once

#include <cstdint>

#include "halves.h"
#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

struct Quantised {
    float scale;        // a code's worth: largest magnitude / 127; NaN where a value is not finite
    std::int32_t sum;   // of the codes
};

inline std::uint32_t largest_magnitude_bits(const float* x, std::int64_t count) {
    std::int32_t largest = 0;  // as integers, the bits of magnitudes are in the order of the magnitudes, NaN above all
    for (std::int64_t i = 0; i < count; ++i) {
        const auto bits = static_cast<std::int32_t>(bits_of_float(x[i]) & 0x7fffffffu);
        largest = bits > largest ? bits : largest;
    }
    return static_cast<std::uint32_t>(largest);
}

// What a row of weights is rounded by. The AVX2 kernel sums products of two quads of k at 16 bits (quantised_lanes_avx2.h),
// so the four codes that meet in a lane may be 254 in all: with 252 of them before rounding they are. Such a scale is 1.07
// times the plain one for a row like a model's. (A row with numbers above 1.7e38 becomes NaN.)
inline std::uint32_t largest_weight_bits(const float* weights, std::int64_t count) {
    const std::uint32_t largest = largest_magnitude_bits(weights, count);
#if defined(OCTAVO_PATH_AVX2)
    float most = 0.0f;
    for (std::int64_t k = 0; k < count; k += 8) {
        float lanes[2] = {};
        for (std::int64_t i = k; i < k + 8 && i < count; ++i)
            lanes[i / 2 % 2] += float_of_bits(bits_of_float(weights[i]) & 0x7fffffffu);
        for (const float lane : lanes) most = lane > most ? lane : most;
    }
    const std::uint32_t wanted = bits_of_float(most * (127.0f / 252.0f));
    return largest > wanted ? largest : wanted;
#else
    return largest;
#endif
}

// What ``quantise_run`` multiplies by, and the scale. Values below 2^-100 count as zero: the reciprocal must stay finite.
inline float reciprocal(std::uint32_t magnitude_bits, Quantised& result) {
    constexpr std::uint32_t infinity = 0x7f800000u;
    const float magnitude = float_of_bits(magnitude_bits);
    result = {magnitude_bits >= infinity ? float_of_bits(0x7fc00000u) : magnitude / 127.0f, 0};
    if (magnitude_bits >= infinity || magnitude < 0x1p-100f) return 0.0f;
    return 127.0f / magnitude;
}

// To the nearest code, ties to even: adding 1.5 x 2^23 leaves the integer in the low bits. A NaN or an infinity leaves
// any code; its scale is NaN.
inline std::int32_t quantise_run(const float* x, std::int64_t count, float factor, std::int8_t* codes) {
    constexpr float to_integer = 12582912.0f;
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const auto code = static_cast<std::int8_t>(bits_of_float(x[i] * factor + to_integer));
        codes[i] = code;
        sum += code;
    }
    return sum;
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
