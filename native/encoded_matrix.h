// Rows of stored numbers that somebody else owns, and their decoding.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "decode.h"
#include "thread_pool.h"

namespace octavo {

// Rows of one encoding, contiguous, at any alignment.
struct EncodedPart {
    Encoding encoding;
    const std::byte* data;
    std::int64_t rows;
};

// A matrix [rows][columns] in parts that lie one below another, each in its own encoding. Refers to memory that somebody
// else owns.
class EncodedMatrix {
public:
    // Throws std::invalid_argument where a row is no whole number of blocks, or nothing is there.
    EncodedMatrix(std::vector<EncodedPart> parts, std::int64_t columns);

    std::int64_t rows() const { return rows_; }
    std::int64_t columns() const { return columns_; }
    const std::vector<EncodedPart>& parts() const { return parts_; }
    std::int64_t row_bytes(Encoding encoding) const {
        return columns_ / info_of(encoding).elements * info_of(encoding).bytes;
    }

    struct Row {
        Encoding encoding;
        const std::byte* data;
    };
    Row row(std::int64_t index) const;

private:
    std::vector<EncodedPart> parts_;
    std::int64_t rows_ = 0;
    std::int64_t columns_;
};


// A NaN or an infinity among a model's weights: the file is damaged.
struct NotFinite : std::runtime_error {
    NotFinite(std::int64_t row, std::int64_t column, float value);
    std::int64_t row;
    std::int64_t column;
    float value;
};

// Decodes one row into ``f32`` [columns]; false where a number is not finite.
bool decode_row(const DecodeKernels& kernels, const EncodedMatrix& matrix, std::int64_t row, float* f32);

// Throws NotFinite for the first number of the row that is not finite; there must be one.
[[noreturn]] void report_row(const DecodeKernels& kernels, const EncodedMatrix& matrix, std::int64_t row);

// Keeps the lowest of the rows that were found damaged, by several threads.
class FirstBad {
public:
    void note(std::int64_t row);
    bool found() const { return row_.load() != kNone; }
    std::int64_t row() const { return row_.load(); }

private:
    static constexpr std::int64_t kNone = INT64_MAX;
    std::atomic<std::int64_t> row_{kNone};
};

// The whole matrix to ``out`` [rows][columns] of ``type``, or, where ``out`` is null, nowhere: a check. Throws NotFinite.
void decode_matrix(const DecodeKernels& kernels, ThreadPool& pool, const EncodedMatrix& matrix, ElementType type,
                   void* out);

}  // namespace octavo
