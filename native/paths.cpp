#include "paths.h"

#include "amx.h"
#include "attention.h"

namespace octavo {
namespace {

bool always() { return true; }

#if defined(__x86_64__)
// These builtins also ask whether the operating system saves the wide registers (XCR0).
bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

#if defined(OCTAVO_EMULATE_AVX512)
bool has_avx512_bf16() { return has_avx2(); }
#else
bool has_avx512_bf16() {
    __builtin_cpu_init();
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#endif

// vdpbf16ps does twice the work of a multiply-add on float32. AMD runs it at the same rate; Intel at a quarter, so that
// widening the weights and multiplying float32 is nearly twice as fast there (and does not round x).
const LinearKernels& best_linear_bf16() {
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") ? avx512_bf16::linear_widened_bf16_kernels : avx512_bf16::linear_bf16_kernels;
}

Path avx512_path(const char* name, bool variant, bool (*supported)(), const LinearKernels& linear_bf16,
                 const ProbeKernels& probe) {
    return {name,
            variant,
            supported,
            avx512_bf16::linear_f32_kernels,
            linear_bf16,
            avx512_bf16::quantised_kernels,
            avx512_bf16::decode_kernels,
            avx512_bf16::elementwise_kernels,
            avx512_bf16::sampling_kernels,
            probe,
            avx512_bf16::attention_kernels};
}

Path avx512_bf16_path(const char* name, bool variant, const LinearKernels& linear_bf16) {
    return avx512_path(name, variant, has_avx512_bf16, linear_bf16, avx512_bf16::probe_kernels);
}

#if defined(OCTAVO_AMX)
// Asked once: the answer may start with a question to the system.
bool has_avx512_amx() {
    static const bool has = has_avx512_bf16() && may_use_amx() && multiplies_exactly(avx512_amx::linear_bf16_kernels);
    return has;
}
#endif

// vpdpbusd with 256-bit registers, on processors that have it without AVX-512. Its sums are the same integers.
#if defined(OCTAVO_EMULATE_AVX512)
bool has_avx2_vnni() { return has_avx2(); }
#else
bool has_avx2_vnni() {
    unsigned eax = 7, ebx = 0, ecx = 1, edx = 0;
    asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    constexpr unsigned avx_vnni = 1u << 4;
    return has_avx2() && (eax & avx_vnni) != 0;
}
#endif

Path avx2_path(const char* name, bool variant, bool (*supported)(), const QuantisedKernels& quantised) {
    return {name,
            variant,
            supported,
            avx2::linear_f32_kernels,
            avx2::linear_bf16_kernels,
            quantised,
            avx2::decode_kernels,
            avx2::elementwise_kernels,
            avx2::sampling_kernels,
            avx2::probe_kernels,
            avx2::attention_kernels};
}
#endif

const Path kPaths[] = {
#if defined(OCTAVO_AMX)
    avx512_path("avx512_amx", false, has_avx512_amx, avx512_amx::linear_bf16_kernels, avx512_amx::probe_kernels),
#endif
#if defined(__x86_64__)
    avx512_bf16_path("avx512_bf16", false, best_linear_bf16()),
    avx2_path("avx2", false, has_avx2, has_avx2_vnni() ? avx2_vnni::quantised_kernels : avx2::quantised_kernels),
#endif
    {"portable", false, always, portable::linear_f32_kernels, portable::linear_bf16_kernels,
     portable::quantised_kernels, portable::decode_kernels, portable::elementwise_kernels, portable::sampling_kernels,
     portable::probe_kernels, portable::attention_kernels},
#if defined(__x86_64__)
    avx512_bf16_path("avx512_bf16_dot", true, avx512_bf16::linear_bf16_kernels),
    avx512_bf16_path("avx512_bf16_widened", true, avx512_bf16::linear_widened_bf16_kernels),
    avx2_path("avx2_maddubs", true, has_avx2, avx2::quantised_kernels),
    avx2_path("avx2_vnni", true, has_avx2_vnni, avx2_vnni::quantised_kernels),
#endif
};

}  // namespace

std::span<const Path> all_paths() { return kPaths; }

}  // namespace octavo
