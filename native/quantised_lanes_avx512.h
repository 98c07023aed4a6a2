// Registers of 16 outputs x 4 codes, multiplied by vpdpbusd: unsigned weights, signed rows.
#pragma once

#include <immintrin.h>

#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

struct Lanes {
    static constexpr int width = 16;
    static constexpr int panel = 32;
    static constexpr bool unsigned_codes = true;
    static constexpr bool few_registers = false;

    using Words = __m512i;
    using Floats = __m512;

    static Words load(const char* from) { return _mm512_loadu_si512(from); }
    static Words low(Words bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(0x0f)); }
    static Words high(Words bytes) { return low(_mm512_srli_epi16(bytes, 4)); }

    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats all(float value) { return _mm512_set1_ps(value); }
    static Floats floats(const char* from) { return _mm512_loadu_ps(from); }
    static Floats halves(const char* from) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    static Floats to_floats(Words words) { return _mm512_cvtepi32_ps(words); }
    static Floats product(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats sum(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static void store(Floats value, float* out, std::int64_t left) {
        _mm512_mask_storeu_ps(out, left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1), value);
    }

    // Sums of products of codes: ``start``, an ``add`` for every four k (``quads`` times as many), ``finish``. A row's four
    // codes lie in so many ``words``; a tile has at most so many ``rows``.
    struct Bytes {
        using Sum = __m512i;
        static constexpr int quads = 1, words = 1;
        static constexpr int rows = 6;  // two accumulators an output, codes and float32, of 32 registers
        static Sum start(std::int32_t correction) { return _mm512_set1_epi32(correction); }
        static Sum add(Sum sum, const Words (&weights)[1], const std::int32_t (&x)[1]) {
            return _mm512_dpbusd_epi32(sum, weights[0], _mm512_set1_epi32(x[0]));
        }
        static Words finish(Sum sum, std::int32_t) { return sum; }
    };
    using RoundedBytes = Bytes;
    using Nibbles = Bytes;
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
