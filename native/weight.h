// A linear layer packed for a path, and its product with a step's rows.
#pragma once

#include <cstdint>

#include "encoded_matrix.h"
#include "linear.h"
#include "memory.h"
#include "runtime.h"

namespace octavo {

// How a weight is kept. int8 is rounded from its numbers, with a scale an output; q4_0, q4_1 and q8_0 keep the blocks of a
// file in that encoding.
enum class WeightFormat : std::uint8_t { f32, bf16, int8, q4_0, q4_1, q8_0 };

class Weight {
public:
    // Packs (and so copies) ``matrix`` [N, K] and ``bias`` [N], which may be null. Throws std::invalid_argument for a
    // format that the matrix cannot be kept in, NotFinite for a damaged number.
    Weight(Runtime& runtime, const EncodedMatrix& matrix, WeightFormat format, const float* bias);

    std::int64_t out_features() const { return out_features_; }
    std::int64_t in_features() const { return in_features_; }
    WeightFormat format() const { return format_; }
    std::int64_t nbytes() const { return static_cast<std::int64_t>(packed_.bytes); }

    // out [rows][out_stride] = x [rows][x_stride] times the weight, plus bias. ``scratch`` holds the packed rows. ``next``
    // will be multiplied next, or null: the beginning of each thread's share of it is fetched at the end.
    void multiply(Runtime& runtime, const float* x, std::int64_t x_stride, std::int64_t rows, float* out,
                  std::int64_t out_stride, Scratch& scratch, const Weight* next) const;

private:
    bool packs_apart(std::int64_t rows, std::int64_t packed_bytes, int threads) const;
    std::int64_t units_of(std::int64_t rows) const;  // panels taken at a time
    const std::byte* share_of(int thread, int threads, std::int64_t rows) const;  // where it begins
    std::int64_t panels() const { return (out_features_ + kernels_.panel - 1) / kernels_.panel; }
    std::int64_t groups() const { return (in_features_ + kernels_.group - 1) / kernels_.group; }
    std::int64_t panel_bytes() const {
        return groups() * kernels_.weight_group_bytes + kernels_.weight_panel_bytes;
    }

    const LinearKernels& kernels_;
    WeightFormat format_;
    std::int64_t out_features_;
    std::int64_t in_features_;
    Piece packed_;  // panels, then the bias
    const float* bias_ = nullptr;
};

}  // namespace octavo
