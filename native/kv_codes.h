// Keys and values as bytes: what a code means, and how one head of one token becomes codes and a scale.
//
//   value = decode(code) * scale        scale: float32, one for a token's key in a head, one for its value
//
//   int8   two's complement, -127..127; scale = largest magnitude / 127
//   fp8    e4m3 (1 sign, 4 exponent, 3 mantissa bits, bias 7, largest 448); scale = largest magnitude / 448. Subnormal
//          codes are never written: what is nearer to the smallest normal number, 2^-6, than to 0 becomes that. It costs
//          2^-7 / 448 of the head's largest magnitude, and spares every reader a case (and some a microcode assist).
//
// A head of zeros, or of numbers so small that their scale were not a normal float, has scale 0: it reads as zeros. One
// that holds a NaN or an infinity has scale NaN: it reads as NaN throughout. Every code, written or not, decodes to a
// finite number; what an empty slot can poison is its scale alone.
#pragma once

#include <cstdint>
#include <cstring>

#include "kv_layout.h"

namespace octavo {

OCTAVO_INLINE std::uint32_t float_bits(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

OCTAVO_INLINE float float_of(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

template <KvType type>
constexpr float code_max = type == KvType::fp8 ? 448.0f : 127.0f;

// What encodes a head: codes are encode(x * inverse).
struct CodeScale {
    float scale, inverse;
};

// Of `count` floats. Magnitudes are compared as bits, among which infinities and NaNs are the largest.
template <KvType type>
OCTAVO_INLINE CodeScale code_scale(const float* x, std::int32_t count) {
    std::uint32_t most = 0;
    for (std::int32_t i = 0; i < count; ++i) {
        const std::uint32_t magnitude = float_bits(x[i]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    if (most >= 0x7f800000) return {__builtin_nanf(""), 0.0f};
    const float magnitude = float_of(most), scale = magnitude / code_max<type>;
    if (scale < 0x1p-126f) return {0.0f, 0.0f};
    return {scale, code_max<type> / magnitude};
}

// Nearest, ties to even. Without branches, so that a loop of it is vectorised.
template <KvType type>
OCTAVO_INLINE std::uint8_t encode(float x) {
    if constexpr (type == KvType::int8) {
        return std::uint8_t(float_bits(x + 12582912.0f));  // 1.5 * 2^23: the integer is in the low bits
    } else {
        const std::uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffff;
        const std::uint32_t rounded = (magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
        const std::uint32_t most = 0x7e, smallest = 0x08, bias = 120 << 3;
        const std::uint32_t normal = rounded - bias > most ? most : rounded - bias;
        const std::uint32_t small = magnitude > 0x3c000000 ? smallest : 0;  // beyond 2^-7
        const std::uint32_t code = rounded < bias + smallest ? small : normal;
        return std::uint8_t(code | (bits >> 31 << 7));
    }
}

template <KvType type>
OCTAVO_INLINE float decode(std::uint8_t code) {
    if constexpr (type == KvType::int8) return float(std::int8_t(code));
    else return float_of(std::uint32_t(code & 0x80) << 24 | std::uint32_t(code & 0x7f) << 20) * 0x1p120f;
}

}  // namespace octavo
