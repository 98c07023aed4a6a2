// The registers of a program: who holds activations when, and where they lie.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"

namespace octavo {

// Operators declare what they read and write while they are recorded; the lifetimes follow. Registers whose lifetimes do
// not overlap share one *place* in memory.
class Registers {
public:
    enum class Rows : std::uint8_t { tokens, logits };

    int add(std::int64_t width);

    // Declarations of the operator ``at`` (recording order). All throw std::invalid_argument, naming the operator, for
    // a register that does not exist, that is read before it is written, or that changes its kind of rows.
    void read(const char* name, int at, int reg);
    void read(const char* name, int at, int reg, Rows rows);
    // ``any_stride``: the operator asks ``stride`` how far apart the rows of ``reg`` lie.
    void write_whole(const char* name, int at, int reg, Rows rows, bool any_stride = false);
    // Some columns only: the others must have been written before.
    void update(const char* name, int at, int reg, Rows rows);

    std::int64_t width(const char* name, int reg) const { return get(name, reg).width; }
    Rows rows(const char* name, int reg) const { return get(name, reg).rows; }

    // The register written last, or -1.
    int last_written() const { return last_written_; }

    // Lays out memory for so many rows. ``result``, of rows so many floats apart, is where the last register's content is
    // wanted: if the last operator writes all of that register at any stride, straight there; finish() copies otherwise.
    void prepare(std::int64_t token_rows, std::int64_t logit_rows, float* result, std::int64_t result_stride,
                 int operators);
    void finish(std::int64_t rows, float* result, std::int64_t result_stride) const;
    float* data(int reg) const { return addresses_[reg]; }
    std::int64_t width(int reg) const { return registers_[reg].width; }
    std::int64_t stride(int reg) const {
        return direct_ && reg == last_written_ ? result_stride_ : registers_[reg].width;
    }
    Rows kind(int reg) const { return registers_[reg].rows; }

private:
    struct Register {
        std::int64_t width;
        Rows rows = Rows::tokens;
        int first = -1;  // operator that writes it first
        int last = -1;   // operator that uses it last
        int place = -1;
        bool any_stride = false;  // its last writer takes it
    };

    const Register& get(const char* name, int reg) const;
    Register& get(const char* name, int reg);
    void assign_places(int operators);

    std::vector<Register> registers_;
    int last_written_ = -1;
    bool assigned_ = false;
    bool direct_ = false;  // the last operator writes all of the last register: straight into the result
    std::int64_t result_stride_ = 0;
    std::vector<std::int64_t> place_widths_;
    Scratch memory_;
    std::vector<float*> addresses_;
};

}  // namespace octavo
