// How the numbers of a weight lie in a model's file.
#pragma once

#include <cstdint>

namespace octavo {

// What a weight is decoded to, and what a plain weight is packed as.
enum class ElementType : std::uint8_t { f32, bf16 };

enum class Encoding : std::uint8_t { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };
constexpr int kEncodings = 11;

// A row is a run of blocks of so many elements in so many bytes. Names are those of GGUF.
struct EncodingInfo {
    const char* name;
    std::int64_t elements;
    std::int64_t bytes;
};

constexpr EncodingInfo kEncodingInfo[kEncodings] = {
    {"F32", 1, 4},    {"F16", 1, 2},    {"BF16", 1, 2},    {"Q4_0", 32, 18},   {"Q4_1", 32, 20},   {"Q5_0", 32, 22},
    {"Q5_1", 32, 24}, {"Q8_0", 32, 34}, {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210},
};

constexpr const EncodingInfo& info_of(Encoding encoding) { return kEncodingInfo[static_cast<int>(encoding)]; }

}  // namespace octavo
