#include "weight.h"

#include <algorithm>
#include <cstring>

namespace octavo {
namespace {

std::int64_t element_bytes(ElementType type) { return type == ElementType::bf16 ? 2 : 4; }

}  // namespace

Weight::Weight(Runtime& runtime, MatrixView matrix, const float* bias)
    : kernels_(matrix.type == ElementType::bf16 ? runtime.path().linear_bf16 : runtime.path().linear_f32),
      type_(matrix.type),
      out_features_(matrix.rows),
      in_features_(matrix.columns) {
    const std::int64_t bias_bytes = bias ? panels() * kernels_.panel * std::int64_t{sizeof(float)} : 0;
    packed_ = runtime.arena().allocate(panels() * panel_bytes() + bias_bytes);
    if (bias) {
        auto* copy = reinterpret_cast<float*>(packed_.data + panels() * panel_bytes());
        std::copy_n(bias, out_features_, copy);
        bias_ = copy;
    }
    const std::lock_guard lock(runtime.mutex());
    runtime.parallel_rows(panels(), panel_bytes(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t panel = begin; panel < end; ++panel) pack_panel(matrix, panel);
    });
}

std::int64_t Weight::panel_bytes() const { return kernels_.panel * padded_in_features() * element_bytes(type_); }

// A transposition of 4-byte words (one float32, or a pair of bf16): packed[word][column] = matrix[column][word]. Runs
// of 64 words keep both the reads of a row and the written square in the nearest cache.
void Weight::pack_panel(const MatrixView& matrix, std::int64_t panel) {
    constexpr std::int64_t run_words = 64;
    const std::int64_t width = kernels_.panel, first = panel * width;
    const std::int64_t columns = std::min(width, out_features_ - first);
    const std::int64_t row_bytes = in_features_ * element_bytes(type_);
    auto* packed = reinterpret_cast<std::uint32_t*>(packed_.data + panel * panel_bytes());
    // The arena's memory is zero, so padding needs no writing; a word that straddles the end of a row is completed here.
    for (std::int64_t byte = 0; byte < row_bytes; byte += run_words * 4) {
        const std::int64_t bytes = std::min(run_words * 4, row_bytes - byte);
        for (std::int64_t column = 0; column < columns; ++column) {
            std::uint32_t words[run_words];
            words[(bytes - 1) / 4] = 0;
            std::memcpy(words, static_cast<const std::byte*>(matrix.data) + (first + column) * row_bytes + byte, bytes);
            std::uint32_t* out = packed + byte / 4 * width + column;
            for (std::int64_t word = 0; word < (bytes + 3) / 4; ++word) out[word * width] = words[word];
        }
    }
}

void Weight::multiply(Runtime& runtime, const float* x, std::int64_t x_stride, std::int64_t rows, float* out,
                      std::int64_t out_stride, Scratch& scratch) const {
    if (rows == 0) return;
    LinearArgs args{};
    args.x = x;
    args.x_stride = x_stride;
    args.rows = rows;
    args.in_features = in_features_;
    args.packed_x = scratch.reserve(rows * padded_in_features() * kernels_.element_size);
    args.weight = packed_.data;
    args.bias = bias_;
    args.out = out;
    args.out_stride = out_stride;
    args.out_features = out_features_;

    const std::int64_t row_blocks = (rows + kernels_.max_rows - 1) / kernels_.max_rows;
    runtime.parallel_rows(row_blocks, rows / row_blocks * in_features_, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block) kernels_.pack_rows(args, block);
    });

    // Chunks small enough that the last one delays little and large enough to stream well.
    constexpr std::int64_t chunk_bytes = 512 << 10;
    const std::int64_t unit = rows <= kernels_.few_rows ? kernels_.few_rows_panels : 1;
    const std::int64_t units = (panels() + unit - 1) / unit;
    const std::int64_t wanted = std::max<std::int64_t>(8 * runtime.threads(), panels() * panel_bytes() / chunk_bytes);
    const std::int64_t chunks = runtime.threads() == 1 ? 1 : std::min(units, wanted);
    runtime.pool().parallel_for(chunks, [&](std::int64_t chunk, int) {
        const std::int64_t begin = units * chunk / chunks * unit, end = units * (chunk + 1) / chunks * unit;
        kernels_.multiply(args, begin, std::min(end, panels()));
    });
}

}  // namespace octavo
