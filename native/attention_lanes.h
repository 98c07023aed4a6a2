// Sixteen floats, on each instruction path. Included by attention_kernels.cpp alone.
//
// Every function is element by element or reduces in one fixed order, so results depend on the path but not on where a
// compiler puts things. fma is one rounding where the path has the instruction, two in the portable path.
#pragma once

#include <cstdint>
#include <cstring>

#include "kv_layout.h"
#include "path.h"

#if !defined(OCTAVO_PATH_PORTABLE)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_PATH {
namespace {

constexpr int lane_count = 16;

#if defined(OCTAVO_PATH_AVX512_BF16)

struct Lanes {
    __m512 v;
};

OCTAVO_INLINE Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_INLINE Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_INLINE Lanes load_half(const float* p) { return {_mm512_maskz_loadu_ps(0xff, p)}; }
OCTAVO_INLINE void store(float* p, Lanes x) { _mm512_storeu_ps(p, x.v); }
OCTAVO_INLINE Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// b where either is NaN. (Masks of all lanes, here and below, compile to nothing; without them gcc 12 warns of an
// undefined operand inside its own header.)
OCTAVO_INLINE Lanes max(Lanes a, Lanes b) { return {_mm512_maskz_max_ps(0xffff, a.v, b.v)}; }
// The first n lanes of x, the rest from other; any n.
OCTAVO_INLINE Lanes first(int n, Lanes x, Lanes other) {
    const __mmask16 mask = n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1;
    return {_mm512_mask_blend_ps(mask, other.v, x.v)};
}
// x * 2^n for the integer n that was added to `shift` = 1.5 * 2^23 to give `shifted`.
OCTAVO_INLINE Lanes scale_by_power(Lanes x, Lanes shifted) {
    const __m512i power = _mm512_maskz_slli_epi32(0xffff, _mm512_castps_si512(shifted.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), power))};
}

#elif defined(OCTAVO_PATH_AVX2)

struct Lanes {
    __m256 a, b;
};

OCTAVO_INLINE Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OCTAVO_INLINE Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE Lanes load_half(const float* p) { return {_mm256_loadu_ps(p), _mm256_setzero_ps()}; }
OCTAVO_INLINE void store(float* p, Lanes x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
OCTAVO_INLINE Lanes add(Lanes x, Lanes y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
OCTAVO_INLINE Lanes mul(Lanes x, Lanes y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
OCTAVO_INLINE Lanes fma(Lanes x, Lanes y, Lanes z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
OCTAVO_INLINE Lanes max(Lanes x, Lanes y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
OCTAVO_INLINE Lanes first(int n, Lanes x, Lanes other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
    const __m256i high = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane);
    return {_mm256_blendv_ps(other.a, x.a, _mm256_castsi256_ps(low)),
            _mm256_blendv_ps(other.b, x.b, _mm256_castsi256_ps(high))};
}
OCTAVO_INLINE __m256 scale_by_power(__m256 x, __m256 shifted) {
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), power));
}
OCTAVO_INLINE Lanes scale_by_power(Lanes x, Lanes shifted) {
    return {scale_by_power(x.a, shifted.a), scale_by_power(x.b, shifted.b)};
}

#else

// Vectors of 16 bytes are native to every 64-bit machine; gcc and clang split nothing and warn of nothing.
using Quad = float __attribute__((vector_size(16)));
using QuadBits = std::int32_t __attribute__((vector_size(16)));
using QuadWords = std::uint32_t __attribute__((vector_size(16)));  // arithmetic on bits may wrap

struct Lanes {
    Quad a, b, c, d;
};

OCTAVO_INLINE Quad load_quad(const float* p) {
    Quad x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
OCTAVO_INLINE Lanes broadcast(float x) {
    const Quad q = {x, x, x, x};
    return {q, q, q, q};
}
OCTAVO_INLINE Lanes load(const float* p) {
    return {load_quad(p), load_quad(p + 4), load_quad(p + 8), load_quad(p + 12)};
}
OCTAVO_INLINE Lanes load_half(const float* p) { return {load_quad(p), load_quad(p + 4), Quad{}, Quad{}}; }
OCTAVO_INLINE void store(float* p, Lanes x) {
    std::memcpy(p, &x.a, sizeof x.a);
    std::memcpy(p + 4, &x.b, sizeof x.b);
    std::memcpy(p + 8, &x.c, sizeof x.c);
    std::memcpy(p + 12, &x.d, sizeof x.d);
}
OCTAVO_INLINE Lanes add(Lanes x, Lanes y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
OCTAVO_INLINE Lanes mul(Lanes x, Lanes y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
OCTAVO_INLINE Lanes fma(Lanes x, Lanes y, Lanes z) { return add(mul(x, y), z); }
OCTAVO_INLINE Quad select(QuadBits mask, Quad x, Quad y) {
    return (Quad)((mask & (QuadBits)x) | (~mask & (QuadBits)y));
}
OCTAVO_INLINE Lanes max(Lanes x, Lanes y) {
    return {select(x.a > y.a, x.a, y.a), select(x.b > y.b, x.b, y.b), select(x.c > y.c, x.c, y.c),
            select(x.d > y.d, x.d, y.d)};
}
OCTAVO_INLINE Quad first(int n, Quad x, Quad other) {
    const QuadBits lane = {0, 1, 2, 3}, count = {n, n, n, n};
    return select(count > lane, x, other);
}
OCTAVO_INLINE Lanes first(int n, Lanes x, Lanes other) {
    return {first(n, x.a, other.a), first(n - 4, x.b, other.b), first(n - 8, x.c, other.c),
            first(n - 12, x.d, other.d)};
}
OCTAVO_INLINE Quad scale_by_power(Quad x, Quad shifted) {
    return (Quad)((QuadWords)x + ((QuadWords)shifted << 23));
}
OCTAVO_INLINE Lanes scale_by_power(Lanes x, Lanes shifted) {
    return {scale_by_power(x.a, shifted.a), scale_by_power(x.b, shifted.b), scale_by_power(x.c, shifted.c),
            scale_by_power(x.d, shifted.d)};
}

#endif

// Reductions pair lane i with i + 8, then i + 4, i + 2, i + 1.
#if defined(OCTAVO_PATH_AVX512_BF16)

OCTAVO_INLINE float reduce_max(Lanes x) { return _mm512_reduce_max_ps(x.v); }
OCTAVO_INLINE float reduce_add(Lanes x) { return _mm512_reduce_add_ps(x.v); }

#elif defined(OCTAVO_PATH_AVX2)

OCTAVO_INLINE float reduce_max(Lanes x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
OCTAVO_INLINE float reduce_add(Lanes x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#else

OCTAVO_INLINE float reduce_max(Lanes x) {
    float lane[lane_count];
    store(lane, x);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
    return lane[0];
}
OCTAVO_INLINE float reduce_add(Lanes x) {
    float lane[lane_count];
    store(lane, x);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] = lane[i] + lane[i + width];
    return lane[0];
}

#endif

// e^x for x <= 0, relative error below 1e-6; exactly 1 for 0; below -87 it stays at e^-87 (the caller masks). A NaN
// stays one.
//
// n = round(x / ln 2), then e^(x - n ln 2) by its Taylor series to the sixth power (its remainder is 1.2e-7 at
// ln(2)/2). ln 2 is subtracted in two parts, of which the first has so few bits that n times it is exact.
OCTAVO_INLINE Lanes exp(Lanes x) {
    x = max(broadcast(-87.0f), x);
    const Lanes shift = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Lanes shifted = fma(x, broadcast(1.44269504f), shift);
    const Lanes n = add(shifted, broadcast(-12582912.0f));
    Lanes r = fma(n, broadcast(-0.693359375f), x);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Lanes series = broadcast(1.0f / 720);
    series = fma(series, r, broadcast(1.0f / 120));
    series = fma(series, r, broadcast(1.0f / 24));
    series = fma(series, r, broadcast(1.0f / 6));
    series = fma(series, r, broadcast(1.0f / 2));
    series = fma(series, r, broadcast(1.0f));
    series = fma(series, r, broadcast(1.0f));
    return scale_by_power(series, shifted);
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
