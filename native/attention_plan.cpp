#include "attention_plan.h"

#include <algorithm>

#include "attention_workspace.h"

namespace octavo {

namespace {

// Items a thread gets when work is cut finer for its sake: enough that the last ones end at nearly the same time.
constexpr std::int64_t items_per_thread = 8;

// Below this many (token, kv head) pairs a cut costs more than it gives.
constexpr std::int64_t cost_floor = 512;

// Tokens of an item that has some of its row's segments, where segments are shorter.
constexpr std::int32_t split_tokens = 1024;

// (Row, segment) pairs below which a combine is not worth a thread's attention: heads are then combined together.
constexpr std::int32_t combine_floor = 64;

class Planner {
public:
    Planner(const AttentionArgs& args, std::int32_t segment_tokens, std::int32_t threads, AttentionPlan& plan)
        : args_(args), plan_(plan), segment_tokens_(segment_tokens), kv_heads_(args.layout.num_kv_heads), group_(args.heads / kv_heads_),
          queries_max_(item_queries(group_)) {
        std::int64_t cost = 0;
        for (std::int32_t i = 0; i < args.num_rows; ++i)
            for (std::int32_t begin = 0; begin < args.scheduled[i]; begin += queries_max_)
                cost += kv_heads_ * head_cost(i, begin, queries_at(i, begin));
        cost_most_ = threads == 1 ? cost : std::max(std::min<std::int64_t>(cost_floor, segment_tokens), cost / (threads * items_per_thread));
    }

    void make() {
        plan_.items.clear();
        plan_.combines.clear();
        plan_.partial_floats = 0;
        // Long items first: a thread that claims one last would be waited for.
        for (const bool prefill : {true, false}) {
            std::int32_t token = 0;
            for (std::int32_t i = 0; i < args_.num_rows; token += args_.scheduled[i++])
                if ((args_.scheduled[i] > 1) == prefill) add_row(i, token);
        }
    }

private:
    std::int32_t queries_at(std::int32_t i, std::int32_t begin) const {
        return std::min(queries_max_, args_.scheduled[i] - begin);
    }

    // Tokens read for one kv head, more when the arithmetic takes longer than reading.
    std::int64_t head_cost(std::int32_t i, std::int32_t begin, std::int32_t queries) const {
        return head_cost_of(args_.computed[i] + begin + queries, queries);
    }
    std::int64_t head_cost_of(std::int32_t tokens, std::int32_t queries) const {
        return tokens * std::int64_t(1 + queries * group_ / 8);
    }

    void add_row(std::int32_t i, std::int32_t token) {
        const std::int32_t scheduled = args_.scheduled[i];
        for (std::int32_t begin = (scheduled - 1) / queries_max_ * queries_max_; begin >= 0; begin -= queries_max_) {
            AttentionItem item{};
            item.table_row = args_.rows[i];
            item.token = token + begin;
            item.position = args_.computed[i] + begin;
            item.queries = queries_at(i, begin);
            item.context = args_.computed[i] + scheduled;
            item.segment_end = (item.position + item.queries - 1) / segment_tokens_ + 1;
            item.partial = -1;
            add_heads(item, head_cost(i, begin, item.queries));
        }
    }

    void add_heads(AttentionItem item, std::int64_t cost) {
        const bool cut = item.queries == 1 && item.segment_end > 1 && cost > cost_most_;
        const std::int64_t fit = std::clamp(item_rows_max(args_.heads) / (item.queries * group_), 1, kv_heads_);
        // A long context is cut between segments before it is cut between heads: the heads of a block lie side by side.
        const std::int64_t least = cut ? head_cost_of(segment_tokens_, 1) : cost;
        const auto heads = static_cast<std::int32_t>(std::clamp<std::int64_t>(cost_most_ / least, 1, fit));
        for (std::int32_t head = 0; head < kv_heads_; head = item.kv_head_end) {
            item.kv_head = head;
            item.kv_head_end = std::min(head + heads, kv_heads_);
            if (cut)
                add_segments(item, heads);
            else
                plan_.items.push_back(item);
        }
    }

    // Items of some segments each, and the merge afterwards that an item of all segments does by itself.
    void add_segments(AttentionItem item, std::int32_t heads) {
        const std::int32_t segments = item.segment_end;
        const std::int64_t fit = cost_most_ / (heads * head_cost_of(segment_tokens_, 1));
        const auto step = static_cast<std::int32_t>(std::clamp<std::int64_t>(fit, 1, std::max(1, split_tokens / segment_tokens_)));
        const std::int64_t floats = partial_floats((item.kv_head_end - item.kv_head) * group_, args_.layout.head_dim);
        const auto first = static_cast<std::int64_t>(plan_.partial_floats);
        add_combine(item, heads, segments, first);
        for (std::int32_t segment = 0; segment < segments; segment = item.segment_end) {
            item.segment = segment;
            item.segment_end = std::min(segment + step, segments);
            item.partial = first + segment * floats;
            plan_.items.push_back(item);
        }
        plan_.partial_floats += segments * floats;
    }

    void add_combine(const AttentionItem& item, std::int32_t heads, std::int32_t segments, std::int64_t partial) {
        const bool together = segment_tokens_ < split_tokens && item.kv_head > 0 &&
                              item.kv_head_end * group_ * segments <= combine_floor;
        if (together)
            plan_.combines.back().kv_head_end = item.kv_head_end;
        else
            plan_.combines.push_back({item.token, item.kv_head, item.kv_head_end, heads, segments, partial});
    }

    const AttentionArgs& args_;
    AttentionPlan& plan_;
    const std::int32_t segment_tokens_, kv_heads_, group_, queries_max_;
    std::int64_t cost_most_;   // of one item, where it can be cut
};

}  // namespace

void plan_attention(const AttentionArgs& args, std::int32_t segment_tokens, std::int32_t threads, AttentionPlan& plan) {
    Planner(args, segment_tokens, threads, plan).make();
}

std::size_t attention_scratch_bytes(const KvLayout& layout, std::int32_t heads) {
    return ScratchMap(heads, layout.head_dim).bytes;
}

}  // namespace octavo
