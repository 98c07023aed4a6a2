// Groups of rows to codes, for every path with AVX2. Written out: from plain loops GCC 12 made what took half as
// long again, and packing was a fiftieth of a whole step with 64 rows. Included by kernel files only (see path.h).
#pragma once

#include <immintrin.h>

#include "quantise.h"

namespace octavo::OCTAVO_PATH {
namespace {

inline std::uint32_t largest_of_eights(const float* x, int count) {
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < count; i += 8) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
        most = _mm256_max_epi32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(half));
}

inline __m256i codes_of_32(const float* x, __m256 factor) {
    __m256i words[4];
    for (int i = 0; i < 4; ++i)
        words[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor));  // to nearest, ties to even
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(words[0], words[1]), _mm256_packs_epi32(words[2], words[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

inline std::int32_t sum_of_bytes(__m256i sums) {
    const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return _mm_cvtsi128_si32(half) + _mm_extract_epi32(half, 2);
}

// Codes, or (two ``Words`` for four codes) their magnitudes and then -1 where a code is negative. Returns what an output's
// sum starts from: see ``Scale``.
template <int Words, int Group, std::int32_t Offset>
inline std::int32_t round_group(const float* x, std::int64_t count, char* to, Quantised& q) {
    static_assert(Group % 32 == 0);
    float padded[Group];
    if (count < Group) {
        for (int i = 0; i < Group; ++i) padded[i] = i < count ? x[i] : 0.0f;
        x = padded;
    }
    const __m256 factor = _mm256_set1_ps(reciprocal(largest_of_eights(x, Group), q));
    const __m256i zero = _mm256_setzero_si256();
    __m256i sums = zero;
    for (int i = 0; i < Group; i += 32) {
        const __m256i codes = codes_of_32(x + i, factor);
        auto* out = reinterpret_cast<__m256i*>(to + i * Words);
        if (Words == 1) {
            _mm256_storeu_si256(out, codes);
            sums = _mm256_add_epi64(sums, _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), zero));
        } else {
            const __m256i magnitudes = _mm256_abs_epi8(codes), signs = _mm256_cmpgt_epi8(zero, codes);
            const __m256i low = _mm256_unpacklo_epi32(magnitudes, signs), high = _mm256_unpackhi_epi32(magnitudes, signs);
            _mm256_storeu_si256(out, _mm256_permute2x128_si256(low, high, 0x20));
            _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(low, high, 0x31));
            sums = _mm256_add_epi64(sums, _mm256_sad_epu8(_mm256_and_si256(magnitudes, signs), zero));
        }
    }
    const std::int32_t sum = sum_of_bytes(sums);
    if (Words > 1) return sum;
    q.sum = sum - 128 * Group;
    return -Offset * q.sum;
}


}  // namespace
}  // namespace octavo::OCTAVO_PATH
