#include "amx.h"

#include <bit>
#include <vector>

#include "memory.h"

#if !defined(OCTAVO_EMULATE_AVX512)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {

#if defined(OCTAVO_EMULATE_AVX512)
bool may_use_amx() { return true; }
#elif defined(__linux__)
bool may_use_amx() {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    __builtin_cpu_init();
    // As for the wide registers, these builtins ask XCR0 too.
    return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
           syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#else
bool may_use_amx() { return false; }
#endif

// The kernel was written and tested where AMX is emulated. Should a machine disagree, it does without.
bool multiplies_exactly(const LinearKernels& kernels) {
    constexpr std::int64_t rows = 19, outputs = 40, inputs = 70;
    const std::int64_t groups = (inputs + kernels.group - 1) / kernels.group;
    const std::int64_t panels = (outputs + kernels.panel - 1) / kernels.panel;
    const auto x_at = [](std::int64_t row, std::int64_t k) { return float((row * 5 + k * 3) % 17 - 8); };
    const auto weight_at = [](std::int64_t n, std::int64_t k) { return float((n * 7 + k * 11) % 13 - 6); };
    std::vector<float> x(rows * inputs), out(rows * outputs);
    for (std::int64_t i = 0; i < rows * inputs; ++i) x[i] = x_at(i / inputs, i % inputs);

    Scratch packed_x, packed_weight;
    const std::int64_t panel_bytes = groups * kernels.weight_group_bytes, panel_words = panel_bytes / 2;
    auto* weight = static_cast<std::uint16_t*>(packed_weight.reserve(panels * panel_bytes));
    for (std::int64_t i = 0; i < panels * panel_words; ++i) {
        const std::int64_t n = i / panel_words * kernels.panel + i / 2 % kernels.panel;
        const std::int64_t k = i % panel_words / (2 * kernels.panel) * 2 + i % 2;
        const float value = n < outputs && k < inputs ? weight_at(n, k) : 0.0f;
        weight[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    }
    const LinearArgs args{x.data(), inputs, rows, inputs, packed_x.reserve(rows * groups * kernels.x_group_bytes), weight,
                          nullptr, out.data(), outputs, outputs};
    const std::int64_t blocks = row_blocks(rows, kernels.lone_rows, kernels.max_rows);
    for (std::int64_t block = 0; block < blocks; ++block) kernels.pack_rows(args, block);
    kernels.multiply(args, 0, panels, weight);
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t n = 0; n < outputs; ++n) {
            float sum = 0;
            for (std::int64_t k = 0; k < inputs; ++k) sum += x_at(row, k) * weight_at(n, k);
            if (out[row * outputs + n] != sum) return false;
        }
    return true;
}

}  // namespace octavo
