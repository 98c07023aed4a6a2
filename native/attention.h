// Paged attention on the CPU: raw pointers in, raw pointers out; no Python, no threads.
//
// One call of the operator, for a ragged batch of prefill chunks and decode rows:
//
//   plan_attention(args, kernels.segment_tokens, threads, plan)   once a step: every layer has the same plan (attention_plan.h)
//   kernels.store_kv(store, token range)           parallel   once a layer, before the items
//   kernels.run_item(args, plan.items[i], ...)     parallel   items are independent
//   kernels.combine(args, plan.combines[i], ...)   parallel   after all items; usually there are none
//
// Exactness. The output of a token depends on its query, the keys and values at positions 0..its own, and the path:
// never on the batch, the plan, the chunking of the prompt, the block size or the block table. The arithmetic of one
// (token, head) is:
//
//   * positions are cut into segments of the path's `segment_tokens`, those into chunks of `chunk_tokens`, those into
//     tiles of `tile_tokens`, all at absolute positions;
//   * a segment is an online softmax over its chunks, in order, which yields (maximum, sum, weighted values);
//   * segments are merged pairwise, in order, whether one item computed them all or several did.
//
// A position after the token's own has probability exactly 0 and so, its values being finite, leaves every number
// unchanged; a slot that holds no token of the row is read as 0 (it may hold NaN). What is read is always what was
// stored, even by the chunk that stored it: rounding does not depend on chunks either.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_layout.h"

namespace octavo {

constexpr std::int32_t chunk_tokens = 128;

// Keys and values of T tokens, float32, to be rounded (to nearest even; bytes with a scale, kv_codes.h) into their slots.
struct StoreArgs {
    KvLayout layout;
    void* storage;                    // layout.storage_bytes(), 64-byte aligned
    std::int32_t layer;
    const float* keys;                // [T] rows of num_kv_heads x head_dim
    const float* values;              // the same
    std::size_t stride;               // floats from one token's row to the next, of keys and of values
    const std::int32_t* positions;    // [T]
    const std::int32_t* token_rows;   // [T] line of the block table
    const std::int32_t* block_table;
    std::size_t table_stride;         // entries from one line to the next
};

struct AttentionArgs {
    KvLayout layout;
    const void* storage;
    std::int32_t layer;
    std::int32_t heads;               // query heads, a multiple of layout.num_kv_heads
    float scale;                      // multiplies the scores
    const float* query;               // [T] rows of heads x head_dim
    std::size_t query_stride;         // floats
    float* out;                       // [T] rows of heads x head_dim
    std::size_t out_stride;           // floats
    const std::int32_t* block_table;
    std::size_t table_stride;         // entries
    const std::int32_t* rows;         // [R] line of the block table
    const std::int32_t* computed;     // [R] position of the first query
    const std::int32_t* scheduled;    // [R] queries, at least 1; they follow one another in query and out
    std::int32_t num_rows;            // R
};

// Some queries of one row, some heads, some segments: the work of one call.
struct AttentionItem {
    std::int32_t table_row;           // line of the block table
    std::int32_t token;               // flat index of the first query
    std::int32_t position;            // of the first query
    std::int32_t queries;
    std::int32_t context;             // tokens of the row that have keys and values: computed + scheduled
    std::int32_t kv_head, kv_head_end;
    std::int32_t segment, segment_end;
    std::int64_t partial;             // first float of its partial results, or -1: writes to out
};

// Merges the partial results of `segments` segments (of one query) into out. Those of an item's heads lie together, the
// segments follow one another, and then come the next heads.
struct AttentionCombine {
    std::int32_t token;
    std::int32_t kv_head, kv_head_end;
    std::int32_t item_heads;          // that an item has; the last one may have fewer
    std::int32_t segments;
    std::int64_t partial;             // of the first segment; the next ones follow
};

// Scratch is attention_scratch_bytes (attention_plan.h) of the calling thread's own, 64-byte aligned; partials are the
// plan's partial_floats, shared by all.
struct AttentionKernels {
    void (*store_kv)(const StoreArgs& args, std::int64_t token_begin, std::int64_t token_end);
    void (*run_item)(const AttentionArgs& args, const AttentionItem& item, float* partials, void* scratch);
    void (*combine)(const AttentionArgs& args, const AttentionCombine& combine, float* partials);
    std::int32_t segment_tokens;
};

// One table a path: attention_kernels.cpp is compiled once for each, with OCTAVO_PATH_PORTABLE, OCTAVO_PATH_AVX2 or
// OCTAVO_PATH_AVX512_BF16 defined and the flags of that instruction set.
namespace portable { extern const AttentionKernels attention_kernels; }
namespace avx2 { extern const AttentionKernels attention_kernels; }
namespace avx512_bf16 { extern const AttentionKernels attention_kernels; }

}  // namespace octavo
