// Packed linear layers: out[m][n] = sum over k of x[m][k] * weight[n][k], plus bias[n].
//
// Layout. A *panel* is ``panel`` consecutive outputs (columns of ``out``); a *group* is a run of one row's inputs that the
// kernel takes together. N is padded to whole panels and K to whole groups, with zeros.
//   weight: the panels one after another, each its groups and then ``weight_panel_bytes``:
//     bf16      [K / 2][panel][2]     (pairs of k side by side: what vdpbf16ps multiplies)
//     f32       [K][panel]
//     int8      [K / i][panel][i] bytes, i = ``interleaved`` of k side by side; then a float32 scale an output
//     q8_0      a group: [32 / i][panel][i] bytes, then a float16 scale an output
//     q4_0      a group: [16 / i][panel][i] bytes, of 2 i of k the first i low and the others high; then float16 scales
//     q4_1      the same, and then float16 minima
//   x, in row blocks (``row_blocks``): [K / group][rows of the block][group]; quantised, with a scale behind it
//   (for bytes on AVX2 every four codes as four magnitudes and four signs)
// Keeping a row's group together makes packing x a conversion and not a transposition, and all addresses inside a
// group are constants to the kernel.
//
// Order of accumulation, the promise on which bit-exactness rests: one accumulator an output element, over all of K
// from first to last, in every kernel of a path, whatever the number of rows. More parallelism for few rows comes
// from more panels side by side, never from splitting K.
//
// Quantised weights multiply quantised rows: x is rounded to signed bytes with a scale a group (32 elements, int8 64; one
// scale a row would let a few large activations swallow the others). Sums of products of codes are integers and exact,
// whatever the instructions; what follows is float32.
#pragma once

#include <cstdint>

namespace octavo {

struct LinearArgs {
    const float* x;  // [rows][x_stride]
    std::int64_t x_stride;
    std::int64_t rows;
    std::int64_t in_features;
    void* packed_x;  // 64-byte aligned
    const void* weight;
    const float* bias;  // padded to whole panels, or null
    float* out;         // [rows][out_stride]
    std::int64_t out_stride;
    std::int64_t out_features;
};

struct LinearKernels {
    std::int64_t panel;               // columns
    std::int64_t group;               // elements of K
    std::int64_t x_group_bytes;       // of packed x, a row and group
    std::int64_t weight_group_bytes;  // of packed weights, a panel and group
    std::int64_t weight_panel_bytes;  // of packed weights, a panel, behind its groups
    std::int64_t lone_rows;           // up to so many rows are one row block ...
    std::int64_t max_rows;            // ... and more are cut into blocks of at most so many
    std::int64_t few_rows;            // up to so many rows ...
    std::int64_t few_rows_panels;     // ... panels are taken so many at a time
    std::int64_t interleaved;         // elements of K side by side
    std::uint8_t code_flip;           // 8-bit codes are stored xor this: 0x80 turns signed into unsigned, 128 higher

    // Packs one row block.
    void (*pack_rows)(const LinearArgs& args, std::int64_t block);
    // Multiplies all rows with the panels [begin, end). Panels are independent. ``then`` is what this thread will read
    // after them, of this or another weight: its beginning is fetched meanwhile.
    void (*multiply)(const LinearArgs& args, std::int64_t begin, std::int64_t end, const void* then);
};

// They are of nearly equal size.
constexpr std::int64_t row_blocks(std::int64_t rows, std::int64_t lone_rows, std::int64_t max_rows) {
    return rows <= lone_rows ? 1 : (rows + max_rows - 1) / max_rows;
}

// The four formats of quantised weights.
struct QuantisedKernels {
    LinearKernels int8, q4_0, q4_1, q8_0;
};

// One set a path: linear_kernels.cpp and quantised_kernels.cpp are compiled once for each (path.h).
namespace portable {
extern const LinearKernels linear_f32_kernels, linear_bf16_kernels;
extern const QuantisedKernels quantised_kernels;
}  // namespace portable
namespace avx2 {
extern const LinearKernels linear_f32_kernels, linear_bf16_kernels;
extern const QuantisedKernels quantised_kernels;
}  // namespace avx2
namespace avx2_vnni { extern const QuantisedKernels quantised_kernels; }  // processors with AVX-VNNI and no AVX-512
namespace avx512_bf16 {
extern const LinearKernels linear_f32_kernels, linear_bf16_kernels;
extern const LinearKernels linear_widened_bf16_kernels;  // multiply-adds on float32 instead of vdpbf16ps
extern const QuantisedKernels quantised_kernels;
}  // namespace avx512_bf16
namespace avx512_amx { extern const LinearKernels linear_bf16_kernels; }

}  // namespace octavo
