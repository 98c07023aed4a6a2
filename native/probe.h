// The limits of this machine, measured by the simplest loop that reaches them. Speeds are judged as ratios to these.
#pragma once

#include <cstdint>

namespace octavo {

struct ProbeKernels {
    // Reads ``bytes`` (a multiple of 128) once; the result only keeps the compiler from dropping the loads.
    std::uint64_t (*read)(const void* data, std::int64_t bytes);
    // Multiply-adds on registers alone; returns the operations done.
    double (*multiply_f32)(std::int64_t rounds, float* sink);
    double (*multiply_bf16)(std::int64_t rounds, float* sink);
    double (*multiply_int8)(std::int64_t rounds, float* sink);  // products of bytes, summed as int32
    double (*multiply_int4)(std::int64_t rounds, float* sink);  // one factor of four bits: where sums may be narrower
};

// One table a path, as for the linear kernels.
namespace portable { extern const ProbeKernels probe_kernels; }
namespace avx2 { extern const ProbeKernels probe_kernels; }
namespace avx512_bf16 { extern const ProbeKernels probe_kernels; }
namespace avx512_amx { extern const ProbeKernels probe_kernels; }

}  // namespace octavo
