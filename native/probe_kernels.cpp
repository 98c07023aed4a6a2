// The probes of one path (compiled once per path, see path.h).
#include "probe.h"

#include "path.h"

#if defined(OCTAVO_PATH_AVX512_BF16) || defined(OCTAVO_PATH_AVX2)
#include <immintrin.h>
#endif
#if defined(OCTAVO_PATH_AVX512_AMX)
#include "amx_registers.h"
#endif

namespace octavo::OCTAVO_PATH {
namespace {

// Two streams, each line fetched 4 KiB ahead: the fastest way to read that was found.
std::uint64_t read(const void* data, std::int64_t bytes) {
    constexpr int words_of_line = 8;
    const auto* first = static_cast<const std::uint64_t*>(data);
    const auto* second = first + bytes / 16;
    std::uint64_t lanes[2 * words_of_line] = {};
    for (std::int64_t i = 0; i < bytes / 16; i += words_of_line) {
        __builtin_prefetch(first + i + 512);
        __builtin_prefetch(second + i + 512);
        for (int word = 0; word < words_of_line; ++word) {
            lanes[word] += first[i + word];
            lanes[words_of_line + word] += second[i + word];
        }
    }
    std::uint64_t sum = 0;
    for (const std::uint64_t lane : lanes) sum += lane;
    return sum;
}

// Twelve chains hide the latency of the multiply-add everywhere. ``Vector`` is an intrinsic type.
template <class Vector, class Step>
inline void chains(std::int64_t rounds, Vector (&sum)[12], Step step) {
    for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < 12; ++c) sum[c] = step(sum[c]);
    }
}

#if defined(OCTAVO_PATH_AVX512_BF16)

double multiply_f32(std::int64_t rounds, float* sink) {
    __m512 sum[12];
    for (auto& s : sum) s = _mm512_set1_ps(1.0f);
    const __m512 a = _mm512_set1_ps(*sink), b = _mm512_set1_ps(0.5f);
    chains(rounds, sum, [&](__m512 s) __attribute__((always_inline)) { return _mm512_fmadd_ps(a, b, s); });
    for (auto& s : sum) *sink += _mm512_cvtss_f32(s);
    return static_cast<double>(rounds) * 12 * 16 * 2;
}

#if defined(OCTAVO_PATH_AVX512_AMX)
// As the linear layers' kernel uses the registers: every operand twice.
double multiply_bf16(std::int64_t rounds, float*) {
    shape_tiles<2 * kTileRows>();
    for (std::int64_t i = 0; i < rounds; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    release_tiles();
    return static_cast<double>(rounds) * 4 * kTileRows * kTileRows * (kTileRowBytes / 2) * 2;
}
#else
double multiply_bf16(std::int64_t rounds, float* sink) {
    __m512 sum[12];
    for (auto& s : sum) s = _mm512_set1_ps(1.0f);
    const auto a = (__m512bh)_mm512_set1_ps(*sink);
    chains(rounds, sum, [&](__m512 s) __attribute__((always_inline)) { return _mm512_dpbf16_ps(s, a, a); });
    for (auto& s : sum) *sink += _mm512_cvtss_f32(s);
    return static_cast<double>(rounds) * 12 * 32 * 2;
}
#endif

double multiply_int8(std::int64_t rounds, float* sink) {
    __m512i sum[12];
    for (auto& s : sum) s = _mm512_set1_epi32(1);
    const __m512i a = _mm512_set1_epi32(static_cast<int>(*sink));
    chains(rounds, sum, [&](__m512i s) __attribute__((always_inline)) { return _mm512_dpbusd_epi32(s, a, a); });
    for (auto& s : sum) *sink += static_cast<float>(_mm512_cvtsi512_si32(s));
    return static_cast<double>(rounds) * 12 * 64 * 2;
}

double multiply_int4(std::int64_t rounds, float* sink) { return multiply_int8(rounds, sink); }

#elif defined(OCTAVO_PATH_AVX2)

double multiply_f32(std::int64_t rounds, float* sink) {
    __m256 sum[12];
    for (auto& s : sum) s = _mm256_set1_ps(1.0f);
    const __m256 a = _mm256_set1_ps(*sink), b = _mm256_set1_ps(0.5f);
    chains(rounds, sum, [&](__m256 s) __attribute__((always_inline)) { return _mm256_fmadd_ps(a, b, s); });
    for (auto& s : sum) *sink += _mm256_cvtss_f32(s);
    return static_cast<double>(rounds) * 12 * 8 * 2;
}

double multiply_bf16(std::int64_t rounds, float* sink) { return multiply_f32(rounds, sink); }

// As the kernels without AVX-VNNI do it: products to 16 bits, to 32 bits, to the sum. For the compiler ``b`` changes all the
// time, or it would take the product out of the loop; and each sum is taken at once: GCC 12 collects the products of all
// chains first, has no registers for them, and then reaches two thirds of what the machine does.
double multiply_int8(std::int64_t rounds, float* sink) {
    __m256i sum[12];
    for (auto& s : sum) s = _mm256_set1_epi32(1);
    const __m256i a = _mm256_set1_epi32(static_cast<int>(*sink)), ones = _mm256_set1_epi16(1);
    __m256i b = a;
    chains(rounds, sum, [&](__m256i s) __attribute__((always_inline)) {
        s = _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        asm volatile("" : "+x"(s), "+x"(b));
        return s;
    });
    for (auto& s : sum) *sink += static_cast<float>(_mm256_cvtsi256_si32(s));
    return static_cast<double>(rounds) * 12 * 32 * 2;
}

// Products of a byte and four bits are summed at 16 bits.
double multiply_int4(std::int64_t rounds, float* sink) {
    __m256i sum[12];
    for (auto& s : sum) s = _mm256_set1_epi16(1);
    const __m256i a = _mm256_set1_epi32(static_cast<int>(*sink));
    __m256i b = a;
    chains(rounds, sum, [&](__m256i s) __attribute__((always_inline)) {
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(a, b));
        asm volatile("" : "+x"(s), "+x"(b));
        return s;
    });
    for (auto& s : sum) *sink += static_cast<float>(_mm256_cvtsi256_si32(s));
    return static_cast<double>(rounds) * 12 * 32 * 2;
}

#else

double multiply_f32(std::int64_t rounds, float* sink) {
    constexpr int lanes = 64;
    float sum[lanes], factor[lanes];
    for (int i = 0; i < lanes; ++i) sum[i] = factor[i] = *sink;
    for (std::int64_t round = 0; round < rounds; ++round)
        for (int i = 0; i < lanes; ++i) sum[i] = sum[i] * factor[i] + 0.5f;
    for (int i = 0; i < lanes; ++i) *sink += sum[i];
    return static_cast<double>(rounds) * lanes * 2;
}

double multiply_bf16(std::int64_t rounds, float* sink) { return multiply_f32(rounds, sink); }

// At 16 bits, where two products of bytes fit.
double multiply_int8(std::int64_t rounds, float* sink) {
    constexpr int lanes = 64;
    std::int16_t sum[lanes], factor[lanes];
    for (int i = 0; i < lanes; ++i) sum[i] = factor[i] = static_cast<std::int16_t>(*sink);
    for (std::int64_t round = 0; round < rounds; ++round)
        for (int i = 0; i < lanes; ++i) sum[i] = static_cast<std::int16_t>(sum[i] * factor[i] + 3);
    for (int i = 0; i < lanes; ++i) *sink += static_cast<float>(sum[i]);
    return static_cast<double>(rounds) * lanes * 2;
}

double multiply_int4(std::int64_t rounds, float* sink) { return multiply_int8(rounds, sink); }

#endif

}  // namespace

extern const ProbeKernels probe_kernels = {read, multiply_f32, multiply_bf16, multiply_int8, multiply_int4};

}  // namespace octavo::OCTAVO_PATH
