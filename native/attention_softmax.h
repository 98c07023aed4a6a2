// Online softmax of rows, the segments it is cut into, and how they are merged. Included by attention_kernels.cpp alone.
#pragma once

#include "attention.h"
#include "attention_lanes.h"
#include "attention_workspace.h"

namespace octavo::OCTAVO_PATH {
namespace {

// Short segments spread one row's context over threads; long ones have fewer merges.
#if defined(OCTAVO_PATH_AVX2)
constexpr std::int32_t segment_tokens = 256;
#else
constexpr std::int32_t segment_tokens = 1024;
#endif
constexpr std::int32_t segment_chunks = segment_tokens / chunk_tokens;

// Online softmax of some rows: what has been seen so far.
struct SoftmaxState {
    float* acc;       // [rows][acc_stride] values times e^(score - maximum)
    float* maximum;   // [rows] of the scores
    float* sum;       // [rows] of e^(score - maximum)
};

OCTAVO_INLINE void reset(const SoftmaxState& state, int rows, int stride) {
    std::memset(state.acc, 0, std::size_t(rows) * stride * sizeof(float));
    for (int row = 0; row < rows; ++row) {
        state.maximum[row] = -__builtin_inff();
        state.sum[row] = 0;
    }
}

// Adds rows [begin, end) of a later segment to what the earlier ones gave, the exponentials of sixteen at a time.
void merge_rows(const SoftmaxState& total, const SoftmaxState& segment, int begin, int end, int stride) {
    for (int first = begin; first < end; first += lane_count) {
        const int count = end - first < lane_count ? end - first : lane_count;
        float keep[lane_count] = {}, take[lane_count] = {};
        for (int i = 0; i < count; ++i) {
            const float a = total.maximum[first + i], b = segment.maximum[first + i], maximum = a > b ? a : b;
            keep[i] = a - maximum;
            take[i] = b - maximum;
            total.maximum[first + i] = maximum;
        }
        store(keep, exp(load(keep)));
        store(take, exp(load(take)));
        for (int i = 0; i < count; ++i) {
            const int row = first + i;
            total.sum[row] = total.sum[row] * keep[i] + segment.sum[row] * take[i];
            float* into = total.acc + std::size_t(row) * stride;
            const float* from = segment.acc + std::size_t(row) * stride;
            for (int x = 0; x < stride; x += lane_count)
                store(into + x, fma(broadcast(take[i]), load(from + x), mul(broadcast(keep[i]), load(into + x))));
        }
    }
}

OCTAVO_INLINE void write_row(const SoftmaxState& state, int row, int stride, int head_dim, float* out) {
    const float inverse = 1.0f / state.sum[row];
    const float* acc = state.acc + std::size_t(row) * stride;
    for (int x = 0; x < head_dim; ++x) out[x] = acc[x] * inverse;
}

OCTAVO_INLINE SoftmaxState partial_state(float* partial, int rows, int stride) {
    float* maximum = partial + std::size_t(rows) * stride;
    return {partial, maximum, maximum + rows};
}

void combine(const AttentionArgs& args, const AttentionCombine& work, float* partials) {
    const int head_dim = args.layout.head_dim, stride = acc_stride(head_dim);
    const int group = args.heads / args.layout.num_kv_heads;
    float* partial = partials + work.partial;
    float* out = args.out + work.token * args.out_stride + std::size_t(work.kv_head) * group * head_dim;
    for (std::int32_t head = work.kv_head; head < work.kv_head_end; head += work.item_heads) {
        const int left = work.kv_head_end - head, rows = (left < work.item_heads ? left : work.item_heads) * group;
        const SoftmaxState total = partial_state(partial, rows, stride);
        for (std::int32_t segment = 0; segment < work.segments; ++segment, partial += partial_floats(rows, head_dim))
            if (segment > 0) merge_rows(total, partial_state(partial, rows, stride), 0, rows, stride);
        for (int row = 0; row < rows; ++row, out += head_dim) write_row(total, row, stride, head_dim, out);
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_PATH
