// What this machine can do at best, in the same process and moment as what is compared with it: the memory bandwidth of
// a shared host moves by a factor of two.
#pragma once

#include <cstdint>

#include "runtime.h"

namespace octavo {

// GB/s of all threads reading 256 MiB in sequence; the best millisecond of 4 passes.
double probe_bandwidth(Runtime& runtime);

// What a weight is multiplied in: quantised weights as bytes, or as codes of four bits with bytes.
enum class Arithmetic : std::uint8_t { f32, bf16, int8, int4 };

// GFLOP/s of the path's fastest multiply-add, all threads, on registers alone; the best of 100 tries.
double probe_flops(Runtime& runtime, Arithmetic arithmetic);

}  // namespace octavo
