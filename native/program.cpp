// Running a program. Recording is in program_record.cpp.
#include "program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace octavo {
namespace {

// A second and more of decoding: time enough to take memory in the gaps between steps.
constexpr std::int64_t kStepsAhead = 32;

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument("run: " + message);
}

}  // namespace

std::int64_t Program::rows_of(const Step& step, int reg) const {
    return registers_.kind(reg) == Registers::Rows::logits ? step.num_logit_rows : step.tokens;
}

void Program::run(const Step& step) {
    check_step(step);
    const int last = registers_.last_written();
    if (step.tokens == 0) return;
    const std::lock_guard lock(runtime_->mutex());
    if (uses_kv_) announce_blocks(step);
    expand_rows(step);
    planned_heads_ = 0;
    registers_.prepare(step.tokens, step.num_logit_rows, step.logits, step.logits_stride,
                       static_cast<int>(operators_.size()));
    for (Operator& op : operators_) {
        if (!profiling_) {
            op.run(step);
            continue;
        }
        const auto start = std::chrono::steady_clock::now();
        op.run(step);
        op.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    registers_.finish(rows_of(step, last), step.logits, step.logits_stride);
}

// Everything that indexes memory is checked here, once a step, so that a scheduler's bug is an error with a number in it
// and not a corrupted pool.
void Program::check_step(const Step& step) const {
    require(!operators_.empty(), "the program has no operators");
    std::int64_t tokens = 0;
    for (std::int64_t r = 0; r < step.num_rows; ++r) {
        const std::int64_t begin = step.computed[r], count = step.scheduled[r];
        require(begin >= 0 && count >= 1,
                "row " + std::to_string(r) + " has computed " + std::to_string(begin) + " and scheduled " +
                    std::to_string(count) + "; they must be at least 0 and 1");
        require(begin + count <= max_positions_, "row " + std::to_string(r) + " reaches position " +
                                                     std::to_string(begin + count - 1) + "; the rotary table has " +
                                                     std::to_string(max_positions_));
        require(step.rows[r] >= 0 && step.rows[r] < step.table_rows,
                "rows[" + std::to_string(r) + "] is " + std::to_string(step.rows[r]) + "; the block table has " +
                    std::to_string(step.table_rows) + " lines");
        tokens += count;
    }
    require(tokens == step.tokens, "token_ids has " + std::to_string(step.tokens) + " tokens; scheduled adds up to " +
                                       std::to_string(tokens));
    for (std::int64_t t = 0; t < step.tokens; ++t)
        require(step.token_ids[t] >= 0 && step.token_ids[t] < vocabulary_,
                "token_ids[" + std::to_string(t) + "] is " + std::to_string(step.token_ids[t]) +
                    "; the vocabulary has " + std::to_string(vocabulary_));
    for (std::int64_t s = 0; s < step.num_logit_rows; ++s)
        require(step.logit_rows[s] >= 0 && step.logit_rows[s] < step.tokens,
                "logit_rows[" + std::to_string(s) + "] is " + std::to_string(step.logit_rows[s]) + "; the step has " +
                    std::to_string(step.tokens) + " tokens");
    const int last = registers_.last_written();
    const std::int64_t rows = rows_of(step, last), columns = registers_.width(last);
    require(step.logits_rows == rows && (step.logits_columns == columns || rows == 0),
            "logits is [" + std::to_string(step.logits_rows) + ", " + std::to_string(step.logits_columns) +
                "]; the last register is [" + std::to_string(rows) + ", " + std::to_string(columns) + "]");
    if (uses_kv_) check_blocks(step);
}

void Program::check_blocks(const Step& step) const {
    const KvLayout& layout = kv_->layout();
    for (std::int64_t r = 0; r < step.num_rows; ++r) {
        const std::int64_t context = std::int64_t{step.computed[r]} + step.scheduled[r];
        const std::int64_t blocks = (context + layout.block_size - 1) / layout.block_size;
        require(blocks <= step.table_columns, "row " + std::to_string(r) + " needs " + std::to_string(blocks) +
                                                  " blocks; the block table has " +
                                                  std::to_string(step.table_columns) + " columns");
        const std::int32_t* table = step.block_table + step.rows[r] * step.table_stride;
        std::int32_t low = 0, high = 0;
        for (std::int64_t b = 0; b < blocks; ++b) {
            low = std::min(low, table[b]);
            high = std::max(high, table[b]);
        }
        require(low >= 0 && high < layout.num_blocks,
                "row " + std::to_string(r) + " names block " + std::to_string(low < 0 ? low : high) +
                    "; the pool has " + std::to_string(layout.num_blocks));
    }
}

// Rows that decode take fresh blocks together, and a fresh block is new memory in every layer. No more is announced than
// these rows will take if they go on: a server that does little stays small.
void Program::announce_blocks(const Step& step) {
    const std::int64_t size = kv_->layout().block_size, run = size * run_blocks_;
    const auto count = [](std::int64_t tokens, std::int64_t each) { return (tokens + each - 1) / each; };
    std::int64_t runs_soon = 0;
    for (std::int64_t r = 0; r < step.num_rows; ++r) {
        const std::int64_t context = std::int64_t{step.computed[r]} + step.scheduled[r];
        const std::int32_t* table = step.block_table + step.rows[r] * step.table_stride;
        blocks_seen_ = std::max(blocks_seen_, 1 + std::int64_t{*std::max_element(table, table + count(context, size))});
        runs_soon += count(context + kStepsAhead, run) - count(context, run);
    }
    kv_->announce((count(blocks_seen_, run_blocks_) + runs_soon) * run_blocks_);
}

void Program::expect_runs(std::int64_t blocks) {
    if (blocks < 1) throw std::invalid_argument("a run is " + std::to_string(blocks) + " blocks; it must be at least 1");
    run_blocks_ = blocks;
}

void Program::expand_rows(const Step& step) {
    positions_.resize(step.tokens);
    token_rows_.resize(step.tokens);
    std::int64_t token = 0;
    for (std::int64_t r = 0; r < step.num_rows; ++r)
        for (std::int32_t i = 0; i < step.scheduled[r]; ++i, ++token) {
            positions_[token] = step.computed[r] + i;
            token_rows_[token] = step.rows[r];
        }
}

void Program::run_attention(const AttentionArgs& args) {
    ThreadPool& pool = runtime_->pool();
    const AttentionKernels& kernels = runtime_->path().attention;
    const std::size_t scratch_bytes = attention_scratch_bytes(args.layout, args.heads);
    if (planned_heads_ != args.heads) {
        plan_attention(args, kernels.segment_tokens, pool.threads(), plan_);
        planned_heads_ = args.heads;
        thread_scratch_.resize(pool.threads());
        for (Scratch& scratch : thread_scratch_) scratch.reserve(scratch_bytes);
    }
    auto* partials = static_cast<float*>(partials_.reserve(plan_.partial_floats * sizeof(float)));
    pool.parallel_for(static_cast<std::int64_t>(plan_.items.size()), [&](std::int64_t item, int thread) {
        kernels.run_item(args, plan_.items[item], partials, thread_scratch_[thread].reserve(scratch_bytes));
    });
    pool.parallel_for(static_cast<std::int64_t>(plan_.combines.size()), [&](std::int64_t combine, int) {
        kernels.combine(args, plan_.combines[combine], partials);
    });
}

void Program::enable_profile(bool on) {
    profiling_ = on;
    if (on)
        for (Operator& op : operators_) op.seconds = 0;
}

std::vector<std::pair<std::string, double>> Program::profile() const {
    std::vector<std::pair<std::string, double>> result;
    for (const Operator& op : operators_) result.emplace_back(op.name, op.seconds);
    return result;
}

}  // namespace octavo
