// Recording a program: each operator checks its shapes, declares what it reads and writes, and leaves a closure.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "program.h"

namespace octavo {
namespace {

using Rows = Registers::Rows;

[[noreturn]] void refuse(const char* name, const std::string& what) {
    throw std::invalid_argument(std::string(name) + ": " + what);
}

void check_columns(const char* name, const char* what, std::int64_t column, std::int64_t count, std::int64_t width) {
    if (column < 0 || count < 1 || column + count > width)
        refuse(name, std::string(what) + " are columns " + std::to_string(column) + " to " +
                         std::to_string(column + count) + " of a register of width " + std::to_string(width));
}

void check_width(const char* name, const char* what, std::int64_t width, std::int64_t expected) {
    if (width != expected)
        refuse(name, std::string(what) + " has width " + std::to_string(width) + "; it must be " +
                         std::to_string(expected));
}

}  // namespace

Program::Program(std::shared_ptr<Runtime> runtime, std::shared_ptr<KvStorage> kv)
    : runtime_(std::move(runtime)), kv_(std::move(kv)) {}

void Program::check_layer(int layer) const {
    if (layer < 0 || layer >= kv_->layout().num_layers)
        refuse("layer", std::to_string(layer) + " does not exist; the pool has " +
                            std::to_string(kv_->layout().num_layers));
}

void Program::embed(int out, EncodedMatrix table, ElementType type) {
    check_width("embed", "out", registers_.width("embed", out), table.columns());
    registers_.write_whole("embed", next(), out, Rows::tokens);
    vocabulary_ = std::min(vocabulary_, table.rows());
    const Encoding plain = type == ElementType::bf16 ? Encoding::bf16 : Encoding::f32;
    const auto stored_plain = [plain](const EncodedPart& part) { return part.encoding == plain; };
    if (!std::all_of(table.parts().begin(), table.parts().end(), stored_plain)) {
        const std::lock_guard lock(runtime_->mutex());
        decode_matrix(runtime_->path().decode, runtime_->pool(), table, type, nullptr);
    }
    record("embed", [this, out, type, table = std::move(table)](const Step& step) {
        const std::int64_t width = table.columns();
        float* to = registers_.data(out);
        runtime_->parallel_rows(step.tokens, width, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t t = begin; t < end; ++t) {
                decode_row(runtime_->path().decode, table, step.token_ids[t], to + t * width);
                if (type == ElementType::bf16) round_row(to + t * width, width);
            }
        });
    });
}

// To bf16 and back.
void Program::round_row(float* row, std::int64_t width) const {
    constexpr std::int64_t run = 512;
    std::uint16_t rounded[run];
    for (std::int64_t i = 0; i < width; i += run) {
        const std::int64_t count = std::min(run, width - i);
        runtime_->path().decode.round_to_bf16(row + i, rounded, count);
        runtime_->path().elementwise.widen_bf16(rounded, row + i, count);
    }
}

void Program::rms_norm(int out, int source, const float* weight, std::int64_t width, float eps, std::int64_t column,
                       std::int64_t groups) {
    const std::int64_t source_width = registers_.width("rms_norm", source);
    check_columns("rms_norm", "the groups", column, width * groups, source_width);
    check_width("rms_norm", "out", registers_.width("rms_norm", out), source_width);
    registers_.read("rms_norm", next(), source);
    const Rows rows = registers_.rows("rms_norm", source);
    if (out == source || width * groups != source_width)
        registers_.update("rms_norm", next(), out, rows);
    else
        registers_.write_whole("rms_norm", next(), out, rows);
    record("rms_norm", [=, this](const Step& step) {
        const float* from = registers_.data(source) + column;
        float* to = registers_.data(out) + column;
        runtime_->parallel_rows(rows_of(step, source), width * groups, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row)
                for (std::int64_t group = 0; group < groups; ++group) {
                    const std::int64_t at = row * source_width + group * width;
                    runtime_->path().elementwise.rms_norm(from + at, weight, eps, to + at, width);
                }
        });
    });
}

void Program::linear(int out, int source, std::shared_ptr<const Weight> weight) {
    check_width("linear", "source", registers_.width("linear", source), weight->in_features());
    check_width("linear", "out", registers_.width("linear", out), weight->out_features());
    if (out == source) refuse("linear", "out and source are the same register");
    registers_.read("linear", next(), source);
    registers_.write_whole("linear", next(), out, registers_.rows("linear", source), true);
    const std::size_t place = weights_.size();
    weights_.push_back(weight.get());
    record("linear", [this, out, source, weight, place](const Step& step) {
        weight->multiply(*runtime_, registers_.data(source), weight->in_features(), rows_of(step, source),
                         registers_.data(out), registers_.stride(out), packed_rows_,
                         place + 1 < weights_.size() ? weights_[place + 1] : nullptr);
    });
}

void Program::rope(int reg, std::int64_t column, std::int64_t heads, std::int64_t head_dim, const float* cos,
                   const float* sin, std::int64_t max_len, std::int64_t half) {
    const std::int64_t width = registers_.width("rope", reg);
    check_columns("rope", "the heads", column, heads * head_dim, width);
    if (2 * half > head_dim)
        refuse("rope", "cos and sin turn " + std::to_string(2 * half) + " columns of heads of " +
                           std::to_string(head_dim));
    registers_.update("rope", next(), reg, Rows::tokens);
    max_positions_ = std::min(max_positions_, max_len);
    record("rope", [=, this](const Step& step) {
        float* data = registers_.data(reg) + column;
        runtime_->parallel_rows(step.tokens, heads * head_dim, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t t = begin; t < end; ++t)
                for (std::int64_t head = 0; head < heads; ++head)
                    runtime_->path().elementwise.rope(data + t * width + head * head_dim, cos + positions_[t] * half,
                                                      sin + positions_[t] * half, half);
        });
    });
}

void Program::store_kv(int layer, int source, std::int64_t key_column, std::int64_t value_column) {
    check_layer(layer);
    const KvLayout& layout = kv_->layout();
    const std::int64_t width = registers_.width("store_kv", source);
    const std::int64_t columns = std::int64_t{layout.num_kv_heads} * layout.head_dim;
    check_columns("store_kv", "the keys", key_column, columns, width);
    check_columns("store_kv", "the values", value_column, columns, width);
    registers_.read("store_kv", next(), source, Rows::tokens);
    uses_kv_ = true;
    record("store_kv", [=, this](const Step& step) {
        StoreArgs args{};
        args.layout = kv_->layout();
        args.storage = kv_->data();
        args.layer = layer;
        args.keys = registers_.data(source) + key_column;
        args.values = registers_.data(source) + value_column;
        args.stride = width;
        args.positions = positions_.data();
        args.token_rows = token_rows_.data();
        args.block_table = step.block_table;
        args.table_stride = step.table_stride;
        // A key's stores are a line apart: each takes as long as several of any other operator's elements.
        runtime_->parallel_rows(step.tokens, 4 * 2 * columns, [&](std::int64_t begin, std::int64_t end) {
            runtime_->path().attention.store_kv(args, begin, end);
        });
    });
}

void Program::paged_attention(int out, int source, std::int64_t query_column, std::int64_t heads, int layer,
                              float scale) {
    check_layer(layer);
    const KvLayout& layout = kv_->layout();
    const std::int64_t width = registers_.width("paged_attention", source), columns = heads * layout.head_dim;
    check_columns("paged_attention", "the queries", query_column, columns, width);
    check_width("paged_attention", "out", registers_.width("paged_attention", out), columns);
    if (heads % layout.num_kv_heads != 0)
        refuse("paged_attention", std::to_string(heads) + " heads are not a multiple of the pool's " +
                                      std::to_string(layout.num_kv_heads));
    if (out == source) refuse("paged_attention", "out and source are the same register");
    registers_.read("paged_attention", next(), source, Rows::tokens);
    registers_.write_whole("paged_attention", next(), out, Rows::tokens);
    uses_kv_ = true;
    record("paged_attention", [=, this](const Step& step) {
        AttentionArgs args{};
        args.layout = kv_->layout();
        args.storage = kv_->data();
        args.layer = layer;
        args.heads = static_cast<std::int32_t>(heads);
        args.scale = scale;
        args.query = registers_.data(source) + query_column;
        args.query_stride = width;
        args.out = registers_.data(out);
        args.out_stride = columns;
        args.block_table = step.block_table;
        args.table_stride = step.table_stride;
        args.rows = step.rows;
        args.computed = step.computed;
        args.scheduled = step.scheduled;
        args.num_rows = static_cast<std::int32_t>(step.num_rows);
        run_attention(args);
    });
}

void Program::silu_mul(int out, int source) {
    const std::int64_t width = registers_.width("silu_mul", out);
    check_width("silu_mul", "source", registers_.width("silu_mul", source), 2 * width);
    registers_.read("silu_mul", next(), source);
    registers_.write_whole("silu_mul", next(), out, registers_.rows("silu_mul", source));
    record("silu_mul", [=, this](const Step& step) {
        runtime_->parallel_rows(rows_of(step, source), 2 * width, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
                const float* gate = registers_.data(source) + row * 2 * width;
                runtime_->path().elementwise.silu_mul(gate, gate + width, registers_.data(out) + row * width, width);
            }
        });
    });
}

void Program::add(int out, int source) {
    const std::int64_t width = registers_.width("add", out);
    check_width("add", "source", registers_.width("add", source), width);
    if (out == source) refuse("add", "out and source are the same register");
    registers_.read("add", next(), source);
    registers_.update("add", next(), out, registers_.rows("add", source));
    record("add", [=, this](const Step& step) {
        runtime_->parallel_rows(rows_of(step, out), width, [&](std::int64_t begin, std::int64_t end) {
            runtime_->path().elementwise.add(registers_.data(out) + begin * width,
                                             registers_.data(source) + begin * width, (end - begin) * width);
        });
    });
}

void Program::gather_rows(int out, int source) {
    const std::int64_t width = registers_.width("gather_rows", out);
    check_width("gather_rows", "source", registers_.width("gather_rows", source), width);
    if (out == source) refuse("gather_rows", "out and source are the same register");
    registers_.read("gather_rows", next(), source, Rows::tokens);
    registers_.write_whole("gather_rows", next(), out, Rows::logits);
    record("gather_rows", [=, this](const Step& step) {
        for (std::int64_t s = 0; s < step.num_logit_rows; ++s)
            std::memcpy(registers_.data(out) + s * width, registers_.data(source) + step.logit_rows[s] * width,
                        width * sizeof(float));
    });
}

}  // namespace octavo
