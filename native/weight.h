// A linear layer packed for a path, and its product with a step's rows.
#pragma once

#include <cstdint>

#include "linear.h"
#include "memory.h"
#include "runtime.h"

namespace octavo {

enum class ElementType : std::uint8_t { f32, bf16 };

// A row-major matrix [rows][columns] that somebody else owns.
struct MatrixView {
    const void* data;
    std::int64_t rows;
    std::int64_t columns;
    ElementType type;
};

class Weight {
public:
    // Packs (and so copies) ``matrix`` [N, K] and ``bias`` [N], which may be null.
    Weight(Runtime& runtime, MatrixView matrix, const float* bias);

    std::int64_t out_features() const { return out_features_; }
    std::int64_t in_features() const { return in_features_; }
    ElementType type() const { return type_; }
    std::int64_t nbytes() const { return static_cast<std::int64_t>(packed_.bytes); }

    // out [rows][out_stride] = x [rows][x_stride] times the weight, plus bias. ``scratch`` holds the packed rows.
    void multiply(Runtime& runtime, const float* x, std::int64_t x_stride, std::int64_t rows, float* out,
                  std::int64_t out_stride, Scratch& scratch) const;

private:
    std::int64_t panels() const { return (out_features_ + kernels_.panel - 1) / kernels_.panel; }
    std::int64_t padded_in_features() const {
        return (in_features_ + kernels_.group - 1) / kernels_.group * kernels_.group;
    }
    std::int64_t panel_bytes() const;
    void pack_panel(const MatrixView& matrix, std::int64_t panel);

    const LinearKernels& kernels_;
    ElementType type_;
    std::int64_t out_features_;
    std::int64_t in_features_;
    Piece packed_;  // panels, then the bias
    const float* bias_ = nullptr;
};

}  // namespace octavo
