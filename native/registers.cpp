#include "registers.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

namespace octavo {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& what) {
    throw std::invalid_argument(std::string(name) + ": " + what);
}

}  // namespace

int Registers::add(std::int64_t width) {
    if (width < 1) refuse("register", "width is " + std::to_string(width) + "; it must be at least 1");
    registers_.push_back({width});
    assigned_ = false;
    return static_cast<int>(registers_.size()) - 1;
}

const Registers::Register& Registers::get(const char* name, int reg) const {
    if (reg < 0 || reg >= static_cast<int>(registers_.size()))
        refuse(name, "register " + std::to_string(reg) + " does not exist; there are " +
                         std::to_string(registers_.size()));
    return registers_[reg];
}

Registers::Register& Registers::get(const char* name, int reg) {
    return const_cast<Register&>(static_cast<const Registers*>(this)->get(name, reg));
}

void Registers::read(const char* name, int at, int reg) {
    Register& source = get(name, reg);
    if (source.first < 0) refuse(name, "register " + std::to_string(reg) + " is read before anything writes it");
    source.last = at;
    assigned_ = false;
}

void Registers::read(const char* name, int at, int reg, Rows rows) {
    read(name, at, reg);
    if (get(name, reg).rows != rows)
        refuse(name, "register " + std::to_string(reg) + " holds " +
                         (rows == Rows::tokens ? "logit rows, not tokens" : "tokens, not logit rows"));
}

void Registers::write_whole(const char* name, int at, int reg, Rows rows, bool any_stride) {
    Register& out = get(name, reg);
    if (out.first >= 0 && out.rows != rows)
        refuse(name, "register " + std::to_string(reg) + " already has another kind of rows (tokens or logit rows)");
    if (out.first < 0) out.first = at;
    out.rows = rows;
    out.last = at;
    out.any_stride = any_stride;
    last_written_ = reg;
    assigned_ = false;
}

void Registers::update(const char* name, int at, int reg, Rows rows) {
    read(name, at, reg, rows);
    last_written_ = reg;
}

// Walks the operators once. A register gets the free place whose width fits best (the narrowest that is wide enough,
// else the widest, which then grows), and gives it back after its last use. An operator's inputs are given back after
// its outputs are placed, so they never share.
void Registers::assign_places(int operators) {
    place_widths_.clear();
    for (Register& reg : registers_) reg.place = -1;
    direct_ = registers_[last_written_].first == operators - 1 && registers_[last_written_].any_stride;
    std::vector<int> by_first(registers_.size());
    std::iota(by_first.begin(), by_first.end(), 0);
    std::erase_if(by_first, [&](int reg) {
        return registers_[reg].first < 0 || (direct_ && reg == last_written_);
    });
    std::stable_sort(by_first.begin(), by_first.end(),
                     [&](int a, int b) { return registers_[a].first < registers_[b].first; });
    std::vector<int> busy_until;  // of each place: last operator that uses it
    for (const int index : by_first) {
        Register& reg = registers_[index];
        int best = -1;
        for (int place = 0; place < static_cast<int>(place_widths_.size()); ++place) {
            if (busy_until[place] >= reg.first) continue;
            const std::int64_t width = place_widths_[place], best_width = best < 0 ? 0 : place_widths_[best];
            const bool fits = width >= reg.width, best_fits = best_width >= reg.width;
            if (best < 0 || (fits && (!best_fits || width < best_width)) || (!fits && !best_fits && width > best_width))
                best = place;
        }
        if (best < 0) {
            best = static_cast<int>(place_widths_.size());
            place_widths_.push_back(0);
            busy_until.push_back(-1);
        }
        place_widths_[best] = std::max(place_widths_[best], reg.width);
        busy_until[best] = reg.last;
        reg.place = best;
    }
    assigned_ = true;
}

void Registers::prepare(std::int64_t token_rows, std::int64_t logit_rows, float* result, std::int64_t result_stride,
                        int operators) {
    if (!assigned_) assign_places(operators);
    result_stride_ = result_stride;
    const std::int64_t rows = std::max(token_rows, logit_rows);
    std::vector<std::int64_t> offsets;
    std::int64_t floats = 0;
    for (const std::int64_t width : place_widths_) {
        offsets.push_back(floats);
        floats += (rows * width + 15) / 16 * 16;
    }
    auto* base = static_cast<float*>(memory_.reserve(floats * sizeof(float)));
    addresses_.assign(registers_.size(), nullptr);
    for (std::size_t reg = 0; reg < registers_.size(); ++reg)
        if (registers_[reg].place >= 0) addresses_[reg] = base + offsets[registers_[reg].place];
    if (direct_) addresses_[last_written_] = result;
}

void Registers::finish(std::int64_t rows, float* result, std::int64_t result_stride) const {
    if (direct_) return;
    const std::int64_t row_floats = width(last_written_);
    for (std::int64_t row = 0; row < rows; ++row)
        std::memcpy(result + row * result_stride, addresses_[last_written_] + row * row_floats, row_floats * sizeof(float));
}

}  // namespace octavo
