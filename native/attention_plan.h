// Cuts the attention of a step into items for threads. Apart from attention.h because the kernels' translation units
// must not meet the C++ library (path.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention.h"

namespace octavo {

struct AttentionPlan {
    std::vector<AttentionItem> items;
    std::vector<AttentionCombine> combines;
    std::size_t partial_floats = 0;   // room that run_item and combine share
};

// Replaces the plan. Reads layout, heads, rows, computed and scheduled of args; never query, out or storage, so that
// the plan serves every layer with the same numbers of heads. The result's bits do not depend on it. `segment_tokens` is
// the kernels' own.
void plan_attention(const AttentionArgs& args, std::int32_t segment_tokens, std::int32_t threads, AttentionPlan& plan);

// Bytes of scratch that each thread brings to run_item, 64-byte aligned.
std::size_t attention_scratch_bytes(const KvLayout& layout, std::int32_t heads);

}  // namespace octavo
