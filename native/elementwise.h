// The operators between the matrix products, one row at a time.
//
// Every reduction runs over 16 lanes in a fixed order and nothing is contracted to a fused multiply-add, so a row's
// result depends on the row alone, and is the same on every path.
#pragma once

#include <cstdint>

namespace octavo {

struct ElementwiseKernels {
    void (*widen_bf16)(const std::uint16_t* source, float* out, std::int64_t count);
    // out = source / sqrt(mean(source^2) + eps) * weight; out may be source.
    void (*rms_norm)(const float* source, const float* weight, float eps, float* out, std::int64_t width);
    // Rotates x[i] and x[i + half] by the angle i, for i < half.
    void (*rope)(float* x, const float* cos, const float* sin, std::int64_t half);
    // out = gate / (1 + exp(-gate)) * up
    void (*silu_mul)(const float* gate, const float* up, float* out, std::int64_t count);
    void (*add)(float* out, const float* source, std::int64_t count);
};

// One table a path, as for the linear kernels.
namespace portable { extern const ElementwiseKernels elementwise_kernels; }
namespace avx2 { extern const ElementwiseKernels elementwise_kernels; }
namespace avx512_bf16 { extern const ElementwiseKernels elementwise_kernels; }

}  // namespace octavo
