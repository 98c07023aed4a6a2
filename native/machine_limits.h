// What this machine can do at best, in the same process and moment as what is compared with it: the memory bandwidth of
// a shared host moves by a factor of two.
#pragma once

#include "runtime.h"
#include "weight.h"

namespace octavo {

// GB/s of all threads reading 256 MiB in sequence; the best millisecond of 4 passes.
double probe_bandwidth(Runtime& runtime);

// GFLOP/s of the path's fastest multiply-add for a weight type, all threads, on registers alone; the best of 100 tries.
double probe_flops(Runtime& runtime, ElementType type);

}  // namespace octavo
