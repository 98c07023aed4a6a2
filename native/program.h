// A model as a list of operators, replayed for each step's rows.
//
// Recording checks shapes once; ``run`` checks a step's indices and then computes, all without Python. Registers whose
// lifetimes do not overlap share memory, so a step's working set is a few registers and not a model's worth of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention_plan.h"
#include "encoded_matrix.h"
#include "kv_storage.h"
#include "registers.h"
#include "runtime.h"
#include "weight.h"

namespace octavo {

// The rows of one step. R rows of the batch, T tokens, S logit rows.
struct Step {
    const std::int32_t* token_ids;  // [T]
    std::int64_t tokens;
    const std::int32_t* computed;   // [R]
    const std::int32_t* scheduled;  // [R]
    const std::int32_t* rows;       // [R]
    std::int64_t num_rows;
    const std::int32_t* block_table;  // [table_rows][table_stride]
    std::int64_t table_rows;
    std::int64_t table_columns;
    std::int64_t table_stride;
    const std::int32_t* logit_rows;  // [S]
    std::int64_t num_logit_rows;
    float* logits;  // [logits_rows][logits_columns], rows logits_stride apart
    std::int64_t logits_rows;
    std::int64_t logits_columns;
    std::int64_t logits_stride;
};

// Recording throws std::invalid_argument for shapes and indices that do not fit. What is given by pointer is not
// copied and must outlive the program.
class Program {
public:
    Program(std::shared_ptr<Runtime> runtime, std::shared_ptr<KvStorage> kv);

    int add_register(std::int64_t width) { return registers_.add(width); }
    // Rows of the table are decoded as they are wanted, and rounded to ``type``. Throws NotFinite for a damaged number.
    void embed(int out, EncodedMatrix table, ElementType type);
    void rms_norm(int out, int source, const float* weight, std::int64_t width, float eps, std::int64_t column,
                  std::int64_t groups);
    void linear(int out, int source, std::shared_ptr<const Weight> weight);
    void rope(int reg, std::int64_t column, std::int64_t heads, std::int64_t head_dim, const float* cos,
              const float* sin, std::int64_t max_len, std::int64_t half);
    void store_kv(int layer, int source, std::int64_t key_column, std::int64_t value_column);
    void paged_attention(int out, int source, std::int64_t query_column, std::int64_t heads, int layer, float scale);
    void silu_mul(int out, int source);
    void add(int out, int source);
    void gather_rows(int out, int source);

    // Throws std::invalid_argument for a step whose arrays do not fit together; nothing is computed then.
    void run(const Step& step);

    // Rows take blocks in aligned runs of so many (1: one by one): what is announced to the pool's memory follows.
    void expect_runs(std::int64_t blocks);

    void enable_profile(bool on);
    std::vector<std::pair<std::string, double>> profile() const;

private:
    struct Operator {
        const char* name;
        std::function<void(const Step&)> run;
        double seconds = 0;
    };

    void record(const char* name, std::function<void(const Step&)> body) { operators_.push_back({name, std::move(body)}); }
    int next() const { return static_cast<int>(operators_.size()); }
    void check_step(const Step& step) const;
    void check_blocks(const Step& step) const;
    void announce_blocks(const Step& step);
    void check_layer(int layer) const;
    void expand_rows(const Step& step);
    void run_attention(const AttentionArgs& args);
    std::int64_t rows_of(const Step& step, int reg) const;
    void round_row(float* row, std::int64_t width) const;

    std::shared_ptr<Runtime> runtime_;
    std::shared_ptr<KvStorage> kv_;
    Registers registers_;
    std::vector<Operator> operators_;
    std::vector<const Weight*> weights_;  // of the linear layers, in their order
    bool profiling_ = false;

    // What a step must respect.
    std::int64_t vocabulary_ = INT64_MAX;
    std::int64_t max_positions_ = INT64_MAX;
    bool uses_kv_ = false;

    std::int64_t blocks_seen_ = 0;  // of the pool, up to the highest that a step has named
    std::int64_t run_blocks_ = 1;

    // Working memory of a step.
    std::vector<std::int32_t> positions_;   // [T]
    std::vector<std::int32_t> token_rows_;  // [T] line of the block table
    AttentionPlan plan_;
    std::int32_t planned_heads_ = 0;  // 0: not planned in this step
    Scratch packed_rows_;
    Scratch partials_;
    std::vector<Scratch> thread_scratch_;
};

}  // namespace octavo
