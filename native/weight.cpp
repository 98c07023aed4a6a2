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

// Runs of panels small enough that the last one delays little and large enough to stream well.
constexpr std::int64_t kRunBytes = 512 << 10;

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
                      std::int64_t out_stride, Scratch& scratch, const Weight* next) const {
    if (rows == 0) return;
    LinearArgs args{};
    args.x = x;
    args.x_stride = x_stride;
    args.rows = rows;
    args.in_features = in_features_;
    args.weight = packed_.data;
    args.bias = bias_;
    args.out = out;
    args.out_stride = out_stride;
    args.out_features = out_features_;

    const std::int64_t packed_bytes = (rows * groups() * kernels_.x_group_bytes + 63) / 64 * 64;
    const bool apart = packs_apart(rows, packed_bytes, runtime.threads());
    auto* packed = static_cast<std::byte*>(scratch.reserve(packed_bytes * (apart ? runtime.threads() : 1)));
    args.packed_x = packed;
    const std::int64_t blocks = row_blocks(rows, kernels_.lone_rows, kernels_.max_rows);
    if (!apart)
        runtime.pool().parallel_for(blocks, [&](std::int64_t block, int) { kernels_.pack_rows(args, block); });

    Shares& shares = runtime.shares();
    const std::int64_t unit = units_of(rows);
    shares.cut((panels() + unit - 1) / unit, kRunBytes / (unit * panel_bytes()));
    runtime.pool().parallel_for(runtime.threads(), [&](std::int64_t, int thread) {
        Shares::Run run = shares.take(thread);
        if (run.empty()) return;
        LinearArgs mine = args;
        if (apart) {
            mine.packed_x = packed + thread * packed_bytes;
            for (std::int64_t block = 0; block < blocks; ++block) kernels_.pack_rows(mine, block);
        }
        for (; !run.empty(); run = shares.take(thread)) {
            const std::int64_t end = std::min(run.end * unit, panels());
            const std::byte* then = packed_.data + (run.followed ? end : run.begin * unit) * panel_bytes();
            if (!run.followed && next) then = next->share_of(thread, runtime.threads(), rows);
            kernels_.multiply(mine, run.begin * unit, end, then);
        }
    });
}

// Where a thread packs the rows for itself, it neither waits for others nor takes what they packed out of their caches. With
// two threads that was faster than to share the work up to 256 rows. It has to be little beside a thread's part of the
// products, and the rows must fit the thread's own cache.
bool Weight::packs_apart(std::int64_t rows, std::int64_t packed_bytes, int threads) const {
    constexpr std::int64_t little_elements = 16384;  // a few microseconds: not worth a thread's wake-up
    constexpr std::int64_t outputs_a_thread = 256, cache_bytes = 1 << 20;
    return rows * in_features_ <= little_elements ||
           (out_features_ >= outputs_a_thread * threads && packed_bytes <= cache_bytes);
}

std::int64_t Weight::units_of(std::int64_t rows) const {
    return rows <= kernels_.few_rows ? kernels_.few_rows_panels : 1;
}

const std::byte* Weight::share_of(int thread, int threads, std::int64_t rows) const {
    const std::int64_t unit = units_of(rows), units = (panels() + unit - 1) / unit;
    return packed_.data + units * thread / threads * unit * panel_bytes();
}

}  // namespace octavo
