#include "encoded_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace octavo {

EncodedMatrix::EncodedMatrix(std::vector<EncodedPart> parts, std::int64_t columns)
    : parts_(std::move(parts)), columns_(columns) {
    if (columns < 1) throw std::invalid_argument("a matrix of " + std::to_string(columns) + " columns is empty");
    for (const EncodedPart& part : parts_) {
        const EncodingInfo& info = info_of(part.encoding);
        if (columns % info.elements != 0)
            throw std::invalid_argument("rows of " + std::to_string(columns) + " elements; " + info.name +
                                        " takes a multiple of " + std::to_string(info.elements));
        rows_ += part.rows;
    }
    if (rows_ < 1 || rows_ > INT32_MAX)
        throw std::invalid_argument("a matrix of " + std::to_string(rows_) + " rows is empty or too large");
}

EncodedMatrix::Row EncodedMatrix::row(std::int64_t index) const {
    for (const EncodedPart& part : parts_) {
        if (index < part.rows) return {part.encoding, part.data + index * row_bytes(part.encoding)};
        index -= part.rows;
    }
    return {};
}

NotFinite::NotFinite(std::int64_t bad_row, std::int64_t bad_column, float bad_value)
    : std::runtime_error("a weight holds " + std::to_string(bad_value) + " at row " + std::to_string(bad_row) +
                         ", column " + std::to_string(bad_column)),
      row(bad_row),
      column(bad_column),
      value(bad_value) {}

bool decode_row(const DecodeKernels& kernels, const EncodedMatrix& matrix, std::int64_t row, float* f32) {
    const EncodedMatrix::Row stored = matrix.row(row);
    const std::int64_t blocks = matrix.columns() / info_of(stored.encoding).elements;
    kernels.to_f32[static_cast<int>(stored.encoding)](stored.data, blocks, f32);
    return kernels.all_finite(f32, matrix.columns());
}

void report_row(const DecodeKernels& kernels, const EncodedMatrix& matrix, std::int64_t row) {
    std::vector<float> values(matrix.columns());
    decode_row(kernels, matrix, row, values.data());
    std::int64_t column = 0;
    while (std::isfinite(values[column])) ++column;
    throw NotFinite(row, column, values[column]);
}

void FirstBad::note(std::int64_t row) {
    std::int64_t lowest = row_.load();
    while (row < lowest && !row_.compare_exchange_weak(lowest, row)) {
    }
}

void decode_matrix(const DecodeKernels& kernels, ThreadPool& pool, const EncodedMatrix& matrix, ElementType type,
                   void* out) {
    constexpr std::int64_t piece_elements = 1 << 16;
    const std::int64_t columns = matrix.columns(), rows = matrix.rows();
    const std::int64_t piece = std::max<std::int64_t>(1, piece_elements / columns);
    std::vector<std::vector<float>> scratch(pool.threads(), std::vector<float>(columns));
    FirstBad bad;
    pool.parallel_for((rows + piece - 1) / piece, [&](std::int64_t chunk, int thread) {
        for (std::int64_t row = chunk * piece; row < std::min(rows, (chunk + 1) * piece); ++row) {
            const bool direct = out != nullptr && type == ElementType::f32;
            float* values = direct ? static_cast<float*>(out) + row * columns : scratch[thread].data();
            if (!decode_row(kernels, matrix, row, values)) bad.note(row);
            if (out != nullptr && type == ElementType::bf16)
                kernels.round_to_bf16(values, static_cast<std::uint16_t*>(out) + row * columns, columns);
        }
    });
    if (bad.found()) report_row(kernels, matrix, bad.row());
}

}  // namespace octavo
