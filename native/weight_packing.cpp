#include "weight_packing.h"

#include <algorithm>
#include <cstring>

namespace octavo {

std::int64_t PanelPacker::columns_of(std::int64_t panel) const {
    return std::min(kernels_.panel, matrix_.rows() - first_row(panel));
}

// A row in ``type``: where it lies if it is stored so, decoded into ``scratch`` otherwise.
const std::byte* PanelPacker::row_as(std::int64_t row, ElementType type, std::byte* scratch) {
    const EncodedMatrix::Row stored = matrix_.row(row);
    if (stored.encoding == (type == ElementType::bf16 ? Encoding::bf16 : Encoding::f32)) return stored.data;
    float* values = reinterpret_cast<float*>(scratch);
    if (type == ElementType::bf16) {
        values_.resize(matrix_.columns());
        values = values_.data();
    }
    if (!decode_row(decode_, matrix_, row, values)) bad_.note(row);
    if (type == ElementType::bf16)
        decode_.round_to_bf16(values, reinterpret_cast<std::uint16_t*>(scratch), matrix_.columns());
    return scratch;
}

// A transposition of 4-byte words (one float32, or a pair of bf16): packed[word][column] = matrix[column][word]. Runs
// of 64 words keep both the reads of a row and the written square in the nearest cache.
void PanelPacker::pack_plain(std::int64_t panel, ElementType type, std::byte* out) {
    constexpr std::int64_t run_words = 64;
    const std::int64_t width = kernels_.panel, columns = columns_of(panel);
    const std::int64_t row_bytes = matrix_.columns() * (type == ElementType::bf16 ? 2 : 4);
    const std::int64_t row_room = (row_bytes + 63) / 64 * 64;
    rows_.resize(width * row_room);
    const std::byte* rows[64];
    for (std::int64_t column = 0; column < columns; ++column)
        rows[column] = row_as(first_row(panel) + column, type, rows_.data() + column * row_room);
    auto* packed = reinterpret_cast<std::uint32_t*>(out);
    // A word that straddles the end of a row is completed with zeros here.
    for (std::int64_t byte = 0; byte < row_bytes; byte += run_words * 4) {
        const std::int64_t bytes = std::min(run_words * 4, row_bytes - byte);
        for (std::int64_t column = 0; column < columns; ++column) {
            std::uint32_t words[run_words];
            words[(bytes - 1) / 4] = 0;
            std::memcpy(words, rows[column] + byte, bytes);
            std::uint32_t* to = packed + byte / 4 * width + column;
            for (std::int64_t word = 0; word < (bytes + 3) / 4; ++word) to[word * width] = words[word];
        }
    }
}

void PanelPacker::pack_int8(std::int64_t panel, std::byte* out) {
    const std::int64_t width = kernels_.panel, side = kernels_.interleaved, count = matrix_.columns();
    const std::int64_t room = (count + side - 1) / side * side;
    values_.resize(count);
    rows_.assign(room, std::byte{0});
    auto* scales = reinterpret_cast<float*>(out + (count + kernels_.group - 1) / kernels_.group * kernels_.weight_group_bytes);
    for (std::int64_t column = 0; column < columns_of(panel); ++column) {
        const std::int64_t row = first_row(panel) + column;
        if (!decode_row(decode_, matrix_, row, values_.data())) bad_.note(row);
        auto* codes = reinterpret_cast<std::uint8_t*>(rows_.data());
        scales[column] = decode_.quantise(values_.data(), count, reinterpret_cast<std::int8_t*>(codes));
        for (std::int64_t k = 0; k < count; ++k) codes[k] ^= kernels_.code_flip;
        for (std::int64_t k = 0; k < room; k += side)
            std::memcpy(out + k * width + column * side, codes + k, side);
    }
}

void PanelPacker::pack_blocks(std::int64_t panel, Encoding encoding, std::byte* out) {
    const EncodingInfo& info = info_of(encoding);
    const bool four_bits = encoding != Encoding::q8_0, has_minimum = encoding == Encoding::q4_1;
    const std::int64_t width = kernels_.panel, side = kernels_.interleaved, halves = has_minimum ? 2 : 1;
    const std::int64_t code_bytes = four_bits ? 16 : 32, blocks = matrix_.columns() / info.elements;
    for (std::int64_t column = 0; column < columns_of(panel); ++column) {
        const std::int64_t row = first_row(panel) + column;
        const auto* from = reinterpret_cast<const std::uint8_t*>(matrix_.row(row).data);
        auto* to = reinterpret_cast<std::uint8_t*>(out);
        for (std::int64_t block = 0; block < blocks; ++block, from += info.bytes, to += kernels_.weight_group_bytes) {
            for (std::int64_t half = 0; half < halves; ++half) {
                std::uint16_t bits;
                std::memcpy(&bits, from + 2 * half, 2);
                if ((bits & 0x7c00) == 0x7c00) bad_.note(row);
                std::memcpy(to + (code_bytes + 2 * half) * width + 2 * column, &bits, 2);
            }
            std::uint8_t codes[32];
            const std::uint8_t* stored = from + 2 * halves;
            for (int i = 0; i < 16 && four_bits; ++i) {
                codes[i] = stored[i] & 0x0f;
                codes[i + 16] = stored[i] >> 4;
            }
            for (int i = 0; i < 32 && !four_bits; ++i) codes[i] = stored[i] ^ kernels_.code_flip;
            for (std::int64_t k = 0; k < code_bytes; k += side) {
                std::uint8_t* bytes = to + k * width + column * side;
                for (std::int64_t i = 0; i < side; ++i)
                    bytes[i] = static_cast<std::uint8_t>(
                        four_bits ? codes[2 * k + i] | codes[2 * k + side + i] << 4 : codes[k + i]);
            }
        }
    }
}

}  // namespace octavo
