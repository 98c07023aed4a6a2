// The AVX-512 intrinsics that kernels use (and AVX-VNNI's and AMX's), written in AVX2, to test those paths on a machine without them:
// -DOCTAVO_EMULATE_AVX512=ON includes this file before their kernels (CMakeLists.txt). Slow, and never shipped.
//
// The names are those of <immintrin.h>, in the kernels' namespace, where a call finds them first. One that is missing here
// does not compile: the header's own needs instructions that are turned off.
//
// Written from Intel's manual. What the real instructions do and tests could depend on is kept: bf16 arithmetic flushes
// subnormal numbers, masked loads and stores leave other lanes' memory alone, aligned ones insist on it, and reductions
// pair lanes in the order of GCC's header.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "path.h"

// What is called instead of inlined saves the compiler minutes: tiles of 14 rows took it eight.
#if defined(__SANITIZE_ADDRESS__)
#define OCTAVO_EMULATED [[gnu::noinline]] inline
#else
#define OCTAVO_EMULATED [[gnu::always_inline]] inline
#endif
#define OCTAVO_CALLED [[gnu::noinline]] inline

namespace octavo::OCTAVO_PATH {
namespace {

using FewWords = std::uint32_t __attribute__((vector_size(32), may_alias));

// vpdpbusd: bytes of a are unsigned, those of b signed; four products are added to each sum, which wraps.
template <class SignedWords, class Words>
OCTAVO_EMULATED Words add_quads(Words sum, Words a, Words b) {
    for (int left = 24; left >= 0; left -= 8) sum += (a << left >> 24) * (Words)((SignedWords)(b << left) >> 24);
    return sum;
}

#if defined(OCTAVO_PATH_AVX512_BF16)

// Unsigned, because instructions wrap.
using Words = std::uint32_t __attribute__((vector_size(64), may_alias));
using Halfwords = std::uint16_t __attribute__((vector_size(64), may_alias));
using SignedWords = std::int32_t __attribute__((vector_size(64), may_alias));
using SignedHalfwords = std::int16_t __attribute__((vector_size(64), may_alias));
using FewHalfwords = std::uint16_t __attribute__((vector_size(32), may_alias));
using FewSignedBytes = std::int8_t __attribute__((vector_size(32), may_alias));
using FewerSignedBytes = std::int8_t __attribute__((vector_size(16), may_alias));

// Loads and stores.

template <class Vector>
OCTAVO_EMULATED Vector load_bytes(const void* from) {
    Vector x;
    __builtin_memcpy(&x, from, sizeof x);
    return x;
}
OCTAVO_EMULATED const void* aligned(const void* address) {
    if (reinterpret_cast<std::uintptr_t>(address) % 64) __builtin_trap();
    return address;
}
template <class Vector, class Lane>
OCTAVO_EMULATED Vector load_lanes(std::uint32_t mask, const void* from) {
    Vector x = {};
    for (unsigned i = 0; i < sizeof x / sizeof(Lane); ++i) {
        Lane lane;
        if (!(mask >> i & 1)) continue;
        __builtin_memcpy(&lane, static_cast<const char*>(from) + i * sizeof lane, sizeof lane);
        x[i] = lane;
    }
    return x;
}

OCTAVO_EMULATED __m512 _mm512_loadu_ps(const void* from) { return load_bytes<__m512>(from); }
OCTAVO_EMULATED __m512 _mm512_load_ps(const void* from) { return load_bytes<__m512>(aligned(from)); }
OCTAVO_EMULATED __m512i _mm512_loadu_si512(const void* from) { return load_bytes<__m512i>(from); }
OCTAVO_EMULATED __m512i _mm512_load_si512(const void* from) { return load_bytes<__m512i>(aligned(from)); }
OCTAVO_CALLED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* from) {
    return load_lanes<__m512, float>(mask, from);
}
OCTAVO_CALLED __m512i _mm512_maskz_loadu_epi32(__mmask16 mask, const void* from) {
    return (__m512i)load_lanes<Words, std::uint32_t>(mask, from);
}
OCTAVO_CALLED __m512i _mm512_maskz_loadu_epi16(__mmask32 mask, const void* from) {
    return (__m512i)load_lanes<Halfwords, std::uint16_t>(mask, from);
}
OCTAVO_EMULATED void _mm512_storeu_ps(void* to, __m512 x) { __builtin_memcpy(to, &x, sizeof x); }
OCTAVO_EMULATED void _mm512_storeu_si512(void* to, __m512i x) { __builtin_memcpy(to, &x, sizeof x); }
OCTAVO_EMULATED void _mm512_store_ps(void* to, __m512 x) { aligned(to), _mm512_storeu_ps(to, x); }
OCTAVO_EMULATED void _mm512_store_si512(void* to, __m512i x) { aligned(to), _mm512_storeu_si512(to, x); }
OCTAVO_CALLED void _mm512_mask_storeu_ps(void* to, __mmask16 mask, __m512 x) {
    for (int i = 0; i < 16; ++i) {
        const float lane = x[i];
        if (mask >> i & 1) __builtin_memcpy(static_cast<char*>(to) + i * sizeof lane, &lane, sizeof lane);
    }
}

// Constants and casts.

OCTAVO_EMULATED __m512 _mm512_setzero_ps() { return __m512{}; }
OCTAVO_EMULATED __m512 _mm512_set1_ps(float x) { return x - __m512{}; }
OCTAVO_EMULATED __m512i _mm512_set1_epi32(int x) { return (__m512i)(Words{} + std::uint32_t(x)); }
OCTAVO_EMULATED __m512i _mm512_set1_epi16(short x) { return (__m512i)(Halfwords{} + std::uint16_t(x)); }
OCTAVO_EMULATED __m512i _mm512_set1_epi8(char x) { return _mm512_set1_epi16(short(0x0101 * std::uint8_t(x))); }
OCTAVO_EMULATED __m512i _mm512_castps_si512(__m512 x) { return (__m512i)x; }
OCTAVO_EMULATED __m512 _mm512_castsi512_ps(__m512i x) { return (__m512)x; }
OCTAVO_EMULATED float _mm512_cvtss_f32(__m512 x) { return x[0]; }
OCTAVO_EMULATED int _mm512_cvtsi512_si32(__m512i x) { return int(((Words)x)[0]); }

// Two halves, each with AVX2's instruction.

OCTAVO_EMULATED __m256 half(__m512 x, int i) { return load_bytes<__m256>(reinterpret_cast<char*>(&x) + 32 * i); }
OCTAVO_EMULATED __m512 both(__m256 low, __m256 high) {
    const __m256 halves[2] = {low, high};
    return load_bytes<__m512>(halves);
}

OCTAVO_CALLED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    return both(_mm256_fmadd_ps(half(a, 0), half(b, 0), half(c, 0)),
                _mm256_fmadd_ps(half(a, 1), half(b, 1), half(c, 1)));
}
OCTAVO_CALLED __m512 _mm512_maskz_max_ps(__mmask16 mask, __m512 a, __m512 b) {
    const __m512 x = both(_mm256_max_ps(half(a, 0), half(b, 0)), _mm256_max_ps(half(a, 1), half(b, 1)));
    return load_lanes<__m512, float>(mask, &x);
}
OCTAVO_CALLED __m512 _mm512_cvtph_ps(__m256i x) {
    return both(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
OCTAVO_CALLED float _mm512_reduce_max_ps(__m512 x) {
    const __m256 eight = _mm256_max_ps(half(x, 1), half(x, 0));
    const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    const __m128 two = _mm_max_ps(four, _mm_shuffle_ps(four, four, 0x4e));
    return _mm_max_ps(two, _mm_shuffle_ps(two, two, 0x11))[0];
}
OCTAVO_CALLED float _mm512_reduce_add_ps(__m512 x) {
    const __m256 eight = half(x, 1) + half(x, 0);
    const __m128 four = _mm256_extractf128_ps(eight, 1) + _mm256_castps256_ps128(eight);
    const __m128 two = four + _mm_shuffle_ps(four, four, 0x4e);
    return two[0] + two[1];
}

// Lane by lane.

OCTAVO_EMULATED __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
OCTAVO_EMULATED __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
OCTAVO_EMULATED __m512i _mm512_add_epi32(__m512i a, __m512i b) { return (__m512i)((Words)a + (Words)b); }
OCTAVO_EMULATED __m512i _mm512_and_si512(__m512i a, __m512i b) { return (__m512i)((Words)a & (Words)b); }
OCTAVO_EMULATED __m512i _mm512_slli_epi32(__m512i x, unsigned count) { return (__m512i)((Words)x << count); }
OCTAVO_EMULATED __m512i _mm512_slli_epi16(__m512i x, int count) { return (__m512i)((Halfwords)x << count); }
OCTAVO_EMULATED __m512i _mm512_srli_epi16(__m512i x, int count) { return (__m512i)((Halfwords)x >> count); }
OCTAVO_CALLED __m512i _mm512_maskz_slli_epi32(__mmask16 mask, __m512i x, unsigned count) {
    const __m512i shifted = _mm512_slli_epi32(x, count);
    return (__m512i)load_lanes<Words, std::uint32_t>(mask, &shifted);
}
OCTAVO_CALLED __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 unset, __m512 set) {
    for (int i = 0; i < 16; ++i) unset[i] = mask >> i & 1 ? set[i] : unset[i];
    return unset;
}
OCTAVO_CALLED __m512i _mm512_mask_add_epi16(__m512i unset, __mmask32 mask, __m512i a, __m512i b) {
    const Halfwords sum = (Halfwords)a + (Halfwords)b;
    auto x = (Halfwords)unset;
    for (int i = 0; i < 32; ++i) x[i] = mask >> i & 1 ? sum[i] : x[i];
    return (__m512i)x;
}
OCTAVO_CALLED __mmask32 _mm512_test_epi16_mask(__m512i a, __m512i b) {
    const Halfwords common = (Halfwords)a & (Halfwords)b;
    __mmask32 mask = 0;
    for (int i = 0; i < 32; ++i) mask |= __mmask32(common[i] != 0) << i;
    return mask;
}
OCTAVO_EMULATED __m512 _mm512_cvtepi32_ps(__m512i x) { return __builtin_convertvector((SignedWords)x, __m512); }
OCTAVO_CALLED __m512i _mm512_cvtepi8_epi32(__m128i x) {
    return (__m512i)__builtin_convertvector((FewerSignedBytes)x, SignedWords);
}
OCTAVO_CALLED __m512i _mm512_cvtepi8_epi16(__m256i x) {
    return (__m512i)__builtin_convertvector((FewSignedBytes)x, SignedHalfwords);
}
OCTAVO_CALLED __m512i _mm512_cvtepu16_epi32(__m256i x) {
    return (__m512i)__builtin_convertvector((FewHalfwords)x, Words);
}

// bf16: subnormal numbers count as zeros, and become zeros of their sign.

OCTAVO_EMULATED Words flushed(Words x) { return x & ((Words)((x & 0x7f800000) != 0) | 0x80000000); }

OCTAVO_CALLED __m256i _mm512_cvtneps_pbh(__m512 x) {
    const Words bits = flushed((Words)x);
    const Words nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    return (__m256i)__builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? nan : nearest, FewHalfwords);
}
OCTAVO_EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
    const __m256i halves[2] = {_mm512_cvtneps_pbh(low), _mm512_cvtneps_pbh(high)};
    return (__m512bh)load_bytes<__m512i>(halves);
}
// The manual adds the odd product first, each with one rounding.
OCTAVO_CALLED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    const auto step = [](Words x, Words y, __m512 total) __attribute__((always_inline)) {
        return (__m512)flushed((Words)_mm512_fmadd_ps((__m512)flushed(x), (__m512)flushed(y), total));
    };
    const __m512 odd = step((Words)a & 0xffff0000, (Words)b & 0xffff0000, (__m512)flushed((Words)sum));
    return step((Words)a << 16, (Words)b << 16, odd);
}

OCTAVO_CALLED __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
    return (__m512i)add_quads<SignedWords>((Words)sum, (Words)a, (Words)b);
}

#if defined(OCTAVO_PATH_AVX512_AMX)
// AMX. GCC's own are macros.
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps

struct TileRegister {
    int rows, row_bytes;  // 0 before shapes are loaded
    alignas(64) char data[16][64];
};
thread_local TileRegister tile_registers[8];

inline void trap_unless(bool allowed) {
    if (!allowed) __builtin_trap();
}
inline void _tile_release() { __builtin_memset(tile_registers, 0, sizeof tile_registers); }
OCTAVO_CALLED void _tile_loadconfig(const void* config) {
    const auto* bytes = static_cast<const unsigned char*>(config);
    _tile_release();
    for (int i = 0; i < 16; ++i) {
        const int row_bytes = bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8, rows = bytes[48 + i];
        trap_unless(bytes[0] == 1 && bytes[1] == 0 && rows <= 16 && row_bytes <= 64 && (i < 8 || rows + row_bytes == 0));
        if (i < 8) tile_registers[i].rows = rows, tile_registers[i].row_bytes = row_bytes;
    }
}
OCTAVO_CALLED void _tile_zero(int tile) {
    trap_unless(tile_registers[tile].rows > 0);
    __builtin_memset(tile_registers[tile].data, 0, sizeof tile_registers[tile].data);
}
OCTAVO_CALLED void _tile_loadd(int tile, const void* from, std::int64_t stride) {
    TileRegister& to = tile_registers[tile];
    _tile_zero(tile);
    for (int row = 0; row < to.rows; ++row)
        __builtin_memcpy(to.data[row], static_cast<const char*>(from) + row * stride, to.row_bytes);
}
OCTAVO_CALLED void _tile_stored(int tile, void* to, std::int64_t stride) {
    const TileRegister& from = tile_registers[tile];
    trap_unless(from.rows > 0);
    for (int row = 0; row < from.rows; ++row)
        __builtin_memcpy(static_cast<char*>(to) + row * stride, from.data[row], from.row_bytes);
}
// A row at a time: even and odd products in sums of their own, in order; then both together, and to the accumulator.
OCTAVO_CALLED void _tile_dpbf16ps(int sums, int left, int right) {
    TileRegister &c = tile_registers[sums], &a = tile_registers[left], &b = tile_registers[right];
    trap_unless(c.rows > 0 && c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows);
    for (int row = 0; row < c.rows; ++row) {
        __m512 even = {}, odd = {};
        for (int pair = 0; pair < b.rows; ++pair) {
            const auto y = load_bytes<Words>(b.data[pair]);
            const Words x = Words{} + load_bytes<std::uint32_t>(a.data[row] + 4 * pair);
            const auto step = [](Words p, Words q, __m512 total) __attribute__((always_inline)) {
                return (__m512)flushed((Words)_mm512_fmadd_ps((__m512)flushed(p), (__m512)flushed(q), total));
            };
            even = step(x << 16, y << 16, even);
            odd = step(x & 0xffff0000, y & 0xffff0000, odd);
        }
        const __m512 both_sums = (__m512)flushed((Words)(even + odd));
        const auto total = (__m512)flushed((Words)(load_bytes<__m512>(c.data[row]) + both_sums));
        __builtin_memcpy(c.data[row], &total, sizeof total);
    }
}
#endif

#elif defined(OCTAVO_PATH_AVX2_VNNI)

OCTAVO_CALLED __m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) {
    using SignedWords = std::int32_t __attribute__((vector_size(32), may_alias));
    return (__m256i)add_quads<SignedWords>((FewWords)sum, (FewWords)a, (FewWords)b);
}

#endif

}  // namespace
}  // namespace octavo::OCTAVO_PATH
