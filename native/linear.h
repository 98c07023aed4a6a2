// Packed linear layers: out[m][n] = sum over k of x[m][k] * weight[n][k], plus bias[n].
//
// Layout. A *panel* is ``panel`` consecutive outputs (columns of ``out``); a *group* is 64 bytes of one row's inputs
// as the kernel wants them (32 bf16 or 16 float32). N is padded to whole panels and K to whole groups, with zeros.
//   weight, bf16:    [N / panel][K / 2][panel][2]     (pairs of k side by side: what vdpbf16ps multiplies)
//   weight, f32:     [N / panel][K][panel]
//   x, in row blocks of at most ``max_rows`` rows:  [K / group][rows of the block][group]
// Keeping a row's group together makes packing x a conversion and not a transposition, and all addresses inside a
// group are constants to the kernel.
//
// Order of accumulation, the promise on which bit-exactness rests: one accumulator an output element, over all of K
// from first to last, in every kernel of a path, whatever the number of rows. More parallelism for few rows comes
// from more panels side by side, never from splitting K.
#pragma once

#include <cstdint>

namespace octavo {

struct LinearArgs {
    const float* x;  // [rows][x_stride]
    std::int64_t x_stride;
    std::int64_t rows;
    std::int64_t in_features;
    void* packed_x;  // rows * padded K elements, 64-byte aligned
    const void* weight;
    const float* bias;  // padded to whole panels, or null
    float* out;         // [rows][out_stride]
    std::int64_t out_stride;
    std::int64_t out_features;
};

struct LinearKernels {
    std::int64_t panel;         // columns
    std::int64_t group;         // elements of K
    std::int64_t element_size;  // bytes of a packed element of x
    std::int64_t max_rows;      // rows of a row block
    std::int64_t few_rows;         // up to so many rows ...
    std::int64_t few_rows_panels;  // ... panels are taken so many at a time

    // Packs one row block. There are ceil(rows / max_rows) of nearly equal size.
    void (*pack_rows)(const LinearArgs& args, std::int64_t block);
    // Multiplies all rows with the panels [begin, end). Panels are independent.
    void (*multiply)(const LinearArgs& args, std::int64_t begin, std::int64_t end);
};

// One pair a path: linear_kernels.cpp is compiled once for each (path.h).
namespace portable { extern const LinearKernels linear_f32_kernels, linear_bf16_kernels; }
namespace avx2 { extern const LinearKernels linear_f32_kernels, linear_bf16_kernels; }
namespace avx512_bf16 {
extern const LinearKernels linear_f32_kernels, linear_bf16_kernels;
extern const LinearKernels linear_widened_bf16_kernels;  // multiply-adds on float32 instead of vdpbf16ps
}  // namespace avx512_bf16

}  // namespace octavo
