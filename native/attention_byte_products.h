// How bytes (kv_codes.h) are multiplied: widened in registers, on the way from the pool, to what bf16 is multiplied as.
// Included by attention_products.h alone.
//
// Every code is a bf16 number exactly, so bytes share bf16's arithmetic on each path. The scales are not in it: a key's
// multiplies the finished score, a value's the probability before it is rounded.
#pragma once

#include "attention_lanes.h"
#include "kv_codes.h"

namespace octavo::OCTAVO_PATH {
namespace {

#if defined(OCTAVO_PATH_AVX512_BF16)

// 32 codes to 32 bf16. e4m3's bits move to their places and the exponent's bias is corrected, except for zeros.
template <KvType type>
OCTAVO_INLINE __m512i widen(__m256i codes) {
    if constexpr (type == KvType::fp8) {
        const __m512i wide = _mm512_cvtepi8_epi16(codes);
        const __m512i placed = _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi16(short(0x87f0)));
        const __mmask32 nonzero = _mm512_test_epi16_mask(wide, _mm512_set1_epi16(0x7f));
        return _mm512_mask_add_epi16(placed, nonzero, placed, _mm512_set1_epi16(120 << 7));
    } else {
        const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
        const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
        return (__m512i)_mm512_cvtne2ps_pbh(high, low);
    }
}

template <KvType type>
struct ByteProduct : Product<KvType::bf16> {
    using Element = std::uint8_t;
    static constexpr bool scaled = true;
    OCTAVO_INLINE static Vector load_vector(const Element* p) {
        return {widen<type>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    OCTAVO_INLINE static Vector load_half_vector(const Element* p) {
        return {widen<type>(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
    }
};

#else

#if defined(OCTAVO_PATH_AVX2)

// The code in the top byte of each lane, as a number. e4m3: sign, exponent and mantissa move to float32's places, and
// the product corrects the exponent's bias.
template <KvType type>
OCTAVO_INLINE __m256 widen(__m256i top) {
    if constexpr (type == KvType::int8) return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
    const __m256i placed = _mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32(int(0x87f00000)));
    return _mm256_mul_ps(_mm256_castsi256_ps(placed), _mm256_set1_ps(0x1p120f));
}

// Eight pairs of codes. The even one is the low byte of its pair.
template <KvType type>
struct Pairs {
    __m256i x;
    OCTAVO_INLINE explicit Pairs(const std::uint8_t* p)
        : x(_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))) {}
    OCTAVO_INLINE __m256 even() const { return widen<type>(_mm256_slli_epi32(x, 24)); }
    OCTAVO_INLINE __m256 odd() const { return widen<type>(_mm256_slli_epi32(x, 16)); }
};

#else

template <KvType type>
OCTAVO_INLINE Quad widen(QuadBits top) {
    if constexpr (type == KvType::int8) return __builtin_convertvector(top >> 24, Quad);
    return (Quad)(top >> 4 & std::int32_t(0x87f00000)) * 0x1p120f;
}

template <KvType type>
struct Pairs {
    using QuadPairs = std::uint16_t __attribute__((vector_size(8)));
    QuadWords x;
    OCTAVO_INLINE explicit Pairs(const std::uint8_t* p) {
        QuadPairs pairs;
        std::memcpy(&pairs, p, sizeof pairs);
        x = __builtin_convertvector(pairs, QuadWords);
    }
    OCTAVO_INLINE Quad even() const { return widen<type>((QuadBits)(x << 24)); }
    OCTAVO_INLINE Quad odd() const { return widen<type>((QuadBits)(x << 16)); }
};

#endif

template <KvType type>
struct ByteProduct : Product<KvType::bf16> {
    using Element = std::uint8_t;
    static constexpr bool scaled = true;
    using P = Pairs<type>;
#if defined(OCTAVO_PATH_AVX2)
    template <int part>
    OCTAVO_INLINE static __m256 column(const Element* p, __m256) {
        const P pairs(p);
        return part == 0 ? pairs.even() : pairs.odd();
    }
#else
    OCTAVO_INLINE static Vector load_vector(const Element* p) {
        const P a(p), b(p + 8), c(p + 16), d(p + 24);
        return {{a.even(), b.even(), c.even(), d.even()}, {a.odd(), b.odd(), c.odd(), d.odd()}};
    }
    OCTAVO_INLINE static Vector load_half_vector(const Element* p) {
        const P a(p), b(p + 8);
        return {{a.even(), b.even(), Quad{}, Quad{}}, {a.odd(), b.odd(), Quad{}, Quad{}}};
    }
#endif
};

#endif

// Bytes that were widened before: where many rows read a tile (prefill), widening it once is cheaper.
struct WidenedProduct : Product<KvType::bf16> {
    static constexpr bool scaled = true;
    static constexpr bool pooled = false;
};

// Keys or values of a tile, a multiple of 32 codes; `ahead` is what is read next.
template <KvType type>
void widen_tile(const std::uint8_t* codes, const std::uint8_t* ahead, std::size_t count, std::uint16_t* out) {
    for (std::size_t i = 0; i < count; i += 32) {
        __builtin_prefetch(ahead + i, 0, 2);
#if defined(OCTAVO_PATH_AVX512_BF16)
        _mm512_storeu_si512(out + i, widen<type>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i))));
#else
        for (int j = 0; j < 32; ++j) out[i + j] = std::uint16_t(float_bits(decode<type>(codes[i + j])) >> 16);
#endif
    }
}

template <>
struct Product<KvType::fp8> : ByteProduct<KvType::fp8> {};
template <>
struct Product<KvType::int8> : ByteProduct<KvType::int8> {};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
