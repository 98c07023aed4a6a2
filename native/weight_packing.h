// From rows as they are stored to panels as kernels read them (linear.h has the layouts).
#pragma once

#include <cstdint>
#include <vector>

#include "encoded_matrix.h"
#include "linear.h"

namespace octavo {

// Packs panels of one matrix; one packer a thread. The target memory is zero, so padding is not written.
class PanelPacker {
public:
    PanelPacker(const DecodeKernels& decode, const LinearKernels& kernels, const EncodedMatrix& matrix, FirstBad& bad)
        : decode_(decode), kernels_(kernels), matrix_(matrix), bad_(bad) {}

    void pack_plain(std::int64_t panel, ElementType type, std::byte* out);
    void pack_int8(std::int64_t panel, std::byte* out);
    // The file's own blocks: every part is in ``encoding``, one of Q4_0, Q4_1 and Q8_0.
    void pack_blocks(std::int64_t panel, Encoding encoding, std::byte* out);

private:
    std::int64_t first_row(std::int64_t panel) const { return panel * kernels_.panel; }
    std::int64_t columns_of(std::int64_t panel) const;
    const std::byte* row_as(std::int64_t row, ElementType type, std::byte* scratch);

    const DecodeKernels& decode_;
    const LinearKernels& kernels_;
    const EncodedMatrix& matrix_;
    FirstBad& bad_;
    std::vector<float> values_;      // a row
    std::vector<std::byte> rows_;    // a panel's rows as they are wanted
};

}  // namespace octavo
