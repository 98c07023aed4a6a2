// exp on float32, the same bits on every path. Included by kernel files only (see path.h).
#pragma once

#include "halves.h"
#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

// Without a branch. Of two ternary operators in a row GCC makes jumps over the rest of ``exp_clamped`` and then leaves
// loops around it scalar: seven times slower.
inline float select(bool condition, float yes, float no) {
    const std::uint32_t mask = -static_cast<std::uint32_t>(condition);
    return float_of_bits((bits_of_float(yes) & mask) | (bits_of_float(no) & ~mask));
}

// exp for |x| <= 88, to about 1e-7 relative: 2^n * e^r with n the nearest integer to x / ln 2 and |r| <= ln 2 / 2.
inline float exp_clamped(float x) {
    constexpr float log2_e = 1.44269504f;
    constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;  // their sum is ln 2; n * ln2_high is exact
    constexpr float to_integer = 12582912.0f;                            // 1.5 * 2^23: adding it rounds to an integer
    x = select(x < -88.0f, -88.0f, x);
    x = select(x > 88.0f, 88.0f, x);
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
    return series * float_of_bits((bits_of_float(shifted) + 127) << 23);
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
