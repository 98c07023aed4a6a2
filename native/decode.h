// Stored numbers to float32 and bf16. The arithmetic of the quantised encodings is that of the ``gguf`` package, operation
// by operation, so that the results are the same bits; a test compares them.
#pragma once

#include <cstdint>

#include "encoding.h"

namespace octavo {

struct DecodeKernels {
    // Blocks of one encoding, at any alignment, to float32.
    void (*to_f32[kEncodings])(const void* blocks, std::int64_t count, float* out);
    // To nearest, ties to even. The values must be finite.
    void (*round_to_bf16)(const float* values, std::uint16_t* out, std::int64_t count);
    bool (*all_finite)(const float* values, std::int64_t count);
    // A row of weights to signed bytes of -127 to 127 with one scale, which is returned; a path may choose it a little larger
    // than the row needs (quantise.h).
    float (*quantise)(const float* values, std::int64_t count, std::int8_t* codes);
};

// One table a path, as for the linear kernels.
namespace portable { extern const DecodeKernels decode_kernels; }
namespace avx2 { extern const DecodeKernels decode_kernels; }
namespace avx512_bf16 { extern const DecodeKernels decode_kernels; }

}  // namespace octavo
