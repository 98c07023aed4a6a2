// The decoders of one path (compiled once per path, see path.h). Plain loops, vectorised by the compiler for each path's
// flags; the products and sums are in the order of the ``gguf`` package and never fused.
#include "decode.h"

#include "halves.h"
#include "path.h"
#include "quantise.h"

namespace octavo::OCTAVO_PATH {
namespace {

typedef std::uint8_t Byte;

template <class T>
inline T load(const Byte* from) {
    T value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

struct F32 {
    static constexpr int elements = 1, bytes = 4;
    static void decode(const Byte* block, float* out) { *out = load<float>(block); }
};

struct F16 {
    static constexpr int elements = 1, bytes = 2;
    static void decode(const Byte* block, float* out) { *out = float_of_half(load<std::uint16_t>(block)); }
};

struct BF16 {
    static constexpr int elements = 1, bytes = 2;
    static void decode(const Byte* block, float* out) {
        *out = float_of_bits(std::uint32_t{load<std::uint16_t>(block)} << 16);
    }
};

// Blocks of 32: byte i holds element i in its low half and element i + 16 in its high half.
inline void nibbles(const Byte* codes, Byte (&out)[32]) {
    for (int i = 0; i < 16; ++i) {
        out[i] = codes[i] & 0x0f;
        out[i + 16] = codes[i] >> 4;
    }
}

// The same, with a fifth bit from ``high`` (element i's is bit i).
inline void fives(const Byte* high, const Byte* codes, Byte (&out)[32]) {
    nibbles(codes, out);
    const auto bits = load<std::uint32_t>(high);
    for (int i = 0; i < 32; ++i) out[i] |= static_cast<Byte>((bits >> i & 1) << 4);
}

inline void scaled(float d, int offset, const Byte (&codes)[32], float* out) {
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(codes[i] - offset);
}

inline void scaled_and_moved(float d, float m, const Byte (&codes)[32], float* out) {
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(codes[i]) + m;
}

inline float half_at(const Byte* from) { return float_of_half(load<std::uint16_t>(from)); }

struct Q4_0 {
    static constexpr int elements = 32, bytes = 18;
    static void decode(const Byte* block, float* out) {
        Byte codes[32];
        nibbles(block + 2, codes);
        scaled(half_at(block), 8, codes, out);
    }
};

struct Q4_1 {
    static constexpr int elements = 32, bytes = 20;
    static void decode(const Byte* block, float* out) {
        Byte codes[32];
        nibbles(block + 4, codes);
        scaled_and_moved(half_at(block), half_at(block + 2), codes, out);
    }
};

struct Q5_0 {
    static constexpr int elements = 32, bytes = 22;
    static void decode(const Byte* block, float* out) {
        Byte codes[32];
        fives(block + 2, block + 6, codes);
        scaled(half_at(block), 16, codes, out);
    }
};

struct Q5_1 {
    static constexpr int elements = 32, bytes = 24;
    static void decode(const Byte* block, float* out) {
        Byte codes[32];
        fives(block + 4, block + 8, codes);
        scaled_and_moved(half_at(block), half_at(block + 2), codes, out);
    }
};

struct Q8_0 {
    static constexpr int elements = 32, bytes = 34;
    static void decode(const Byte* block, float* out) {
        const float d = half_at(block);
        for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * d;
    }
};

// The scales and minima of the eight groups of 32 in a block of 256, six bits each in twelve bytes.
inline void six_bits(const Byte* packed, Byte (&scale)[8], Byte (&minimum)[8]) {
    for (int i = 0; i < 4; ++i) {
        const Byte d = packed[i], m = packed[4 + i], both = packed[8 + i];
        scale[i] = d & 0x3f;
        scale[4 + i] = static_cast<Byte>((both & 0x0f) | (d >> 2 & 0x30));
        minimum[i] = m & 0x3f;
        minimum[4 + i] = static_cast<Byte>(both >> 4 | (m >> 2 & 0x30));
    }
}

// Groups 2 c and 2 c + 1 are the low and the high halves of the c-th 32 bytes; ``high`` adds a fifth bit where there is one.
inline void decode_k(const Byte* block, const Byte* codes, const Byte* high, float* out) {
    const float d = half_at(block), least = half_at(block + 2);
    Byte scale[8], minimum[8];
    six_bits(block + 4, scale, minimum);
    for (int group = 0; group < 8; ++group) {
        const float step = d * static_cast<float>(scale[group]), start = least * static_cast<float>(minimum[group]);
        for (int i = 0; i < 32; ++i) {
            int code = codes[group / 2 * 32 + i] >> group % 2 * 4 & 0x0f;
            if (high) code |= (high[i] >> group & 1) << 4;
            out[group * 32 + i] = step * static_cast<float>(code) - start;
        }
    }
}

struct Q4_K {
    static constexpr int elements = 256, bytes = 144;
    static void decode(const Byte* block, float* out) { decode_k(block, block + 16, nullptr, out); }
};

struct Q5_K {
    static constexpr int elements = 256, bytes = 176;
    static void decode(const Byte* block, float* out) { decode_k(block, block + 48, block + 16, out); }
};

struct Q6_K {
    static constexpr int elements = 256, bytes = 210;
    static void decode(const Byte* block, float* out) {
        const Byte *low = block, *high = block + 128;
        const auto* scales = reinterpret_cast<const std::int8_t*>(block + 192);
        const float d = half_at(block + 208);
        for (int group = 0; group < 8; ++group) {
            const int half = group / 4, part = group % 4;
            for (int i = 0; i < 32; ++i) {
                const int four = low[half * 64 + part % 2 * 32 + i] >> part / 2 * 4 & 0x0f;
                const int two = high[half * 32 + i] >> 2 * part & 3;
                const float step = d * static_cast<float>(scales[group * 2 + i / 16]);
                out[group * 32 + i] = step * static_cast<float>((four | two << 4) - 32);
            }
        }
    }
};

template <class Format>
void to_f32(const void* blocks, std::int64_t count, float* out) {
    const auto* from = static_cast<const Byte*>(blocks);
    for (std::int64_t i = 0; i < count; ++i) Format::decode(from + i * Format::bytes, out + i * Format::elements);
}

// Adding half of the last kept bit, less one where that bit is 0, and cutting is rounding to nearest, ties to even.
void round_to_bf16(const float* values, std::uint16_t* out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t bits = bits_of_float(values[i]);
        out[i] = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

bool all_finite(const float* values, std::int64_t count) {
    constexpr std::uint32_t exponent = 0x7f800000;
    std::uint32_t bad = 0;
    for (std::int64_t i = 0; i < count; ++i) bad |= (bits_of_float(values[i]) & exponent) == exponent;
    return bad == 0;
}

float quantise(const float* values, std::int64_t count, std::int8_t* codes) {
    Quantised result;
    const float factor = reciprocal(largest_weight_bits(values, count), result);
    quantise_run(values, count, factor, codes);
    return result.scale;
}

}  // namespace

extern const DecodeKernels decode_kernels = {
    {to_f32<F32>, to_f32<F16>, to_f32<BF16>, to_f32<Q4_0>, to_f32<Q4_1>, to_f32<Q5_0>, to_f32<Q5_1>, to_f32<Q8_0>,
     to_f32<Q4_K>, to_f32<Q5_K>, to_f32<Q6_K>},
    round_to_bf16,
    all_finite,
    quantise,
};

}  // namespace octavo::OCTAVO_PATH
