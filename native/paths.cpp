#include "paths.h"

#include "attention.h"

namespace octavo {
namespace {

bool always() { return true; }

#if defined(__x86_64__)
// These builtins also ask whether the operating system saves the wide registers (XCR0).
bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512_bf16() {
    __builtin_cpu_init();
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16");
}
#endif

const Path kPaths[] = {
#if defined(__x86_64__)
    {"avx512_bf16", has_avx512_bf16, avx512_bf16::linear_f32_kernels, avx512_bf16::linear_bf16_kernels,
     avx512_bf16::elementwise_kernels, avx512_bf16::probe_kernels, avx512_bf16::attention_kernels},
    {"avx2", has_avx2, avx2::linear_f32_kernels, avx2::linear_bf16_kernels, avx2::elementwise_kernels,
     avx2::probe_kernels, avx2::attention_kernels},
#endif
    {"portable", always, portable::linear_f32_kernels, portable::linear_bf16_kernels, portable::elementwise_kernels,
     portable::probe_kernels, portable::attention_kernels},
};

}  // namespace

std::span<const Path> all_paths() { return kPaths; }

}  // namespace octavo
