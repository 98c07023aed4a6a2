// Registers of 8 outputs x 4 codes. With AVX-VNNI (a path of its own, see paths.cpp) vpdpbusd multiplies them; without,
// vpmaddubsw does, which saturates sums of two products at 16 bits.
#pragma once

#include <immintrin.h>

#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

struct Lanes {
    static constexpr int width = 8;
    static constexpr int panel = 16;
    using Words = __m256i;
    using Floats = __m256;

    static Words load(const char* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
    static Words low(Words bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f)); }
    static Words high(Words bytes) { return low(_mm256_srli_epi16(bytes, 4)); }

    static Floats zero() { return _mm256_setzero_ps(); }
    static Floats all(float value) { return _mm256_set1_ps(value); }
    static Floats floats(const char* from) { return _mm256_loadu_ps(reinterpret_cast<const float*>(from)); }
    static Floats halves(const char* from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    static Floats to_floats(Words words) { return _mm256_cvtepi32_ps(words); }
    static Floats product(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats sum(Floats a, Floats b) { return _mm256_add_ps(a, b); }
    static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    static void store(Floats value, float* out, std::int64_t left) {
        if (left >= 8) {
            _mm256_storeu_ps(out, value);
            return;
        }
        alignas(32) float lanes[8];
        _mm256_store_ps(lanes, value);
        for (int i = 0; i < left; ++i) out[i] = lanes[i];
    }

#if defined(OCTAVO_PATH_AVX2_VNNI)
    static constexpr bool unsigned_codes = true;
    static constexpr bool few_registers = false;

    struct Bytes {
        using Sum = __m256i;
        static constexpr int quads = 1, words = 1, rows = 3;
        static Sum start(std::int32_t correction) { return _mm256_set1_epi32(correction); }
        static Sum add(Sum sum, const Words (&weights)[1], const std::int32_t (&x)[1]) {
            return _mm256_dpbusd_avx_epi32(sum, weights[0], _mm256_set1_epi32(x[0]));
        }
        static Words finish(Sum sum, std::int32_t) { return sum; }
    };
    using RoundedBytes = Bytes;
    using Nibbles = Bytes;
#else
    static constexpr bool unsigned_codes = false;
    static constexpr bool few_registers = true;

    // Left to itself GCC collects products before it adds them, and has no registers for them.
    static __m256i now(__m256i sum) {
        asm volatile("" : "+x"(sum));
        return sum;
    }

    // Signed weights: |x| as unsigned times w, w with its bits flipped where x is negative. Flipped it is -w - 1, so |x|
    // is missing then, for all outputs alike: a row's |x| of that kind are what its sums start from. |x| <= 127, and flipped
    // or not a w is of -128 to 127: two products are -32,512 at least and do not saturate.
    static __m256i pairs(Words weights, std::int32_t magnitude, std::int32_t sign) {
        return _mm256_maddubs_epi16(_mm256_set1_epi32(magnitude), _mm256_xor_si256(weights, _mm256_set1_epi32(sign)));
    }

    struct Bytes {
        using Sum = __m256i;
        static constexpr int quads = 1;
        static constexpr int words = 2;  // magnitudes, and -1 where a code is negative
        static constexpr int rows = 4;   // eight sums in the sixteen registers: they and the products have to fit
        static void hold(Words& weights) { weights = now(weights); }  // in a register
        static Sum start(std::int32_t correction) { return _mm256_set1_epi32(correction); }
        static Sum add(Sum sum, const Words (&weights)[1], const std::int32_t (&x)[2]) {
            const __m256i products = pairs(weights[0], x[0], x[1]);
            return now(_mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1))));
        }
        static Words finish(Sum sum, std::int32_t) { return sum; }
    };

    // Weights that were rounded here: two quads of k before products are widened. The magnitudes of the four codes that
    // meet in a lane are 254 in all at most (quantise.h), 258 if all are flipped, and 258 x 127 is 32,766.
    struct RoundedBytes : Bytes {
        static constexpr int quads = 2;
        static Sum add(Sum sum, const Words (&weights)[2], const std::int32_t (&x)[4]) {
            const __m256i both = _mm256_add_epi16(pairs(weights[0], x[0], x[1]), pairs(weights[1], x[2], x[3]));
            return now(_mm256_add_epi32(sum, _mm256_madd_epi16(both, _mm256_set1_epi16(1))));
        }
    };

    // Codes of four bits: the sixteen products that one 16-bit lane sees in a block of 32 are 30,480 at most.
    struct Nibbles {
        using Sum = __m256i;
        static constexpr int quads = 1, words = 1;
        static constexpr int rows = 6;  // twelve sums
        static Sum start(std::int32_t) { return _mm256_setzero_si256(); }
        static Sum add(Sum sum, const Words (&weights)[1], const std::int32_t (&x)[1]) {
            return now(_mm256_add_epi16(sum, _mm256_maddubs_epi16(weights[0], _mm256_set1_epi32(x[0]))));
        }
        static Words finish(Sum sum, std::int32_t correction) {
            return _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), _mm256_set1_epi32(correction));
        }
    };
#endif
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
