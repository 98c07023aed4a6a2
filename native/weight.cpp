#include "weight.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "weight_packing.h"

namespace octavo {
namespace {

const LinearKernels& kernels_of(const Path& path, WeightFormat format) {
    switch (format) {
        case WeightFormat::f32: return path.linear_f32;
        case WeightFormat::bf16: return path.linear_bf16;
        case WeightFormat::int8: return path.quantised.int8;
        case WeightFormat::q4_0: return path.quantised.q4_0;
        case WeightFormat::q4_1: return path.quantised.q4_1;
        case WeightFormat::q8_0: return path.quantised.q8_0;
    }
    return path.linear_f32;
}

bool keeps_blocks(WeightFormat format) { return format >= WeightFormat::q4_0; }

Encoding blocks_of(WeightFormat format) {
    if (format == WeightFormat::q4_0) return Encoding::q4_0;
    return format == WeightFormat::q4_1 ? Encoding::q4_1 : Encoding::q8_0;
}

void check(const EncodedMatrix& matrix, WeightFormat format) {
    if (!keeps_blocks(format)) return;
    for (const EncodedPart& part : matrix.parts())
        if (part.encoding != blocks_of(format))
            throw std::invalid_argument(std::string("a matrix stored as ") + info_of(part.encoding).name +
                                        " cannot be kept in blocks of " + info_of(blocks_of(format)).name);
}

}  // namespace

Weight::Weight(Runtime& runtime, const EncodedMatrix& matrix, WeightFormat format, const float* bias)
    : kernels_(kernels_of(runtime.path(), format)),
      format_(format),
      out_features_(matrix.rows()),
      in_features_(matrix.columns()) {
    check(matrix, format);
    const std::int64_t bias_bytes = bias ? panels() * kernels_.panel * std::int64_t{sizeof(float)} : 0;
    packed_ = runtime.arena().allocate(panels() * panel_bytes() + bias_bytes);
    if (bias) {
        auto* copy = reinterpret_cast<float*>(packed_.data + panels() * panel_bytes());
        std::copy_n(bias, out_features_, copy);
        bias_ = copy;
    }
    FirstBad bad;
    {
        const std::lock_guard lock(runtime.mutex());
        std::vector<PanelPacker> packers(runtime.threads(),
                                         PanelPacker(runtime.path().decode, kernels_, matrix, bad));
        runtime.pool().parallel_for(panels(), [&](std::int64_t panel, int thread) {
            std::byte* out = packed_.data + panel * panel_bytes();
            if (keeps_blocks(format))
                packers[thread].pack_blocks(panel, blocks_of(format), out);
            else if (format == WeightFormat::int8)
                packers[thread].pack_int8(panel, out);
            else
                packers[thread].pack_plain(panel, format == WeightFormat::bf16 ? ElementType::bf16 : ElementType::f32, out);
        });
    }
    if (bad.found()) report_row(runtime.path().decode, matrix, bad.row());
}

void Weight::multiply(Runtime& runtime, const float* x, std::int64_t x_stride, std::int64_t rows, float* out,
                      std::int64_t out_stride, Scratch& scratch) const {
    if (rows == 0) return;
    LinearArgs args{};
    args.x = x;
    args.x_stride = x_stride;
    args.rows = rows;
    args.in_features = in_features_;
    args.packed_x = scratch.reserve(rows * groups() * kernels_.x_group_bytes);
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
