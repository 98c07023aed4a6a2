// Bits of floating-point numbers. Included by kernel files only (see path.h).
#pragma once

#include <cstdint>

#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

inline float float_of_bits(std::uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

inline std::uint32_t bits_of_float(float value) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}

// Exact. With the fields in place the exponent is 112 too small, which a product mends for subnormal numbers too;
// infinities and NaN get all of their exponent's bits. No branch, so that loops over it are vectorised.
inline float float_of_half(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
    const float finite = float_of_bits((half & 0x7fffu) << 13) * 0x1p112f;
    const std::uint32_t special = (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return float_of_bits(bits_of_float(finite) | special | sign);
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
