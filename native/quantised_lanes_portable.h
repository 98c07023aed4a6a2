// Registers of 4 outputs x 4 codes in the compilers' own vectors, which every machine has. Products are taken at 16 bits,
// where two of them fit: |w| <= 128 and |x| <= 127 make 32,512 at most.
#pragma once

#include "halves.h"
#include "path.h"

namespace octavo::OCTAVO_PATH {
namespace {

struct Lanes {
    static constexpr int width = 4;
    static constexpr int panel = 8;
    static constexpr bool unsigned_codes = false;
    static constexpr bool few_registers = false;

    typedef std::int32_t Words __attribute__((vector_size(16)));
    typedef std::int16_t Shorts __attribute__((vector_size(16)));
    typedef float Floats __attribute__((vector_size(16)));

    template <class Vector>
    static Vector read(const char* from) {
        Vector value;
        __builtin_memcpy(&value, from, sizeof value);
        return value;
    }

    static Words load(const char* from) { return read<Words>(from); }
    static Words low(Words bytes) { return bytes & 0x0f0f0f0f; }
    static Words high(Words bytes) { return bytes >> 4 & 0x0f0f0f0f; }

    static Floats zero() { return Floats{}; }
    static Floats all(float value) { return Floats{value, value, value, value}; }
    static Floats floats(const char* from) { return read<Floats>(from); }
    static Floats halves(const char* from) {
        Floats result;
        for (int i = 0; i < 4; ++i) {
            std::uint16_t half;
            __builtin_memcpy(&half, from + 2 * i, 2);
            result[i] = float_of_half(half);
        }
        return result;
    }
    static Floats to_floats(Words words) { return __builtin_convertvector(words, Floats); }
    static Floats product(Floats a, Floats b) { return a * b; }
    static Floats sum(Floats a, Floats b) { return a + b; }
    static Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
    static void store(Floats value, float* out, std::int64_t left) {
        for (int i = 0; i < 4 && i < left; ++i) out[i] = value[i];
    }

    // The even and the odd bytes of a word apart, sign and all.
    static Shorts even(Words words) { return (Shorts)((Shorts)words << 8) >> 8; }
    static Shorts odd(Words words) { return (Shorts)words >> 8; }

    struct Bytes {
        using Sum = Words;
        static constexpr int quads = 1, words = 1, rows = 2;
        static Sum start(std::int32_t correction) { return Words{correction, correction, correction, correction}; }
        static Sum add(Sum sum, const Words (&weights)[1], const std::int32_t (&x)[1]) {
            const Words rows{x[0], x[0], x[0], x[0]};
            const Words pairs = (Words)(even(weights[0]) * even(rows) + odd(weights[0]) * odd(rows));
            return sum + (pairs << 16 >> 16) + (pairs >> 16);
        }
        static Words finish(Sum sum, std::int32_t) { return sum; }
    };
    using RoundedBytes = Bytes;
    using Nibbles = Bytes;
};

}  // namespace
}  // namespace octavo::OCTAVO_PATH
