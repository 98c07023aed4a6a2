// The next token of a row of logits. What is kept and drawn is defined in src/octavo/execution/sampler.py, steps 4 to 6.
#pragma once

#include <cstdint>

namespace octavo {

struct SamplingKernels {
    // Highest of each 64 values, NaN passed over.
    void (*block_highest)(const float* values, std::int64_t count, float* out);
    bool (*has_nan)(const float* values, std::int64_t count);
    // out = (values - highest) / temperature
    void (*scale)(const float* values, float highest, float temperature, float* out, std::int64_t count);
    // exp(values), and 0 below -80: a random number has 53 bits and could not tell such a token from an impossible one.
    void (*exponentials)(const float* values, float* out, std::int64_t count);
    // In float64, in one order.
    double (*sum)(const float* values, std::int64_t count);
};

constexpr std::int64_t kSamplingBlock = 64;

// One table a path, as for the linear kernels.
namespace portable { extern const SamplingKernels sampling_kernels; }
namespace avx2 { extern const SamplingKernels sampling_kernels; }
namespace avx512_bf16 { extern const SamplingKernels sampling_kernels; }

}  // namespace octavo
