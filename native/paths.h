// The instruction paths, each one struct of function tables. A new path (SVE) is one more entry in paths.cpp.
#pragma once

#include <span>

#include "decode.h"
#include "elementwise.h"
#include "linear.h"
#include "probe.h"
#include "sampling.h"

namespace octavo {

struct AttentionKernels;  // attention.h

struct Path {
    const char* name;
    bool variant;  // a choice inside another path, named for tests and measurements only
    bool (*supported)();
    const LinearKernels& linear_f32;
    const LinearKernels& linear_bf16;
    const QuantisedKernels& quantised;
    const DecodeKernels& decode;
    const ElementwiseKernels& elementwise;
    const SamplingKernels& sampling;
    const ProbeKernels& probe;
    const AttentionKernels& attention;
};

// Compiled in, best first and variants last, whether or not this machine can run them.
std::span<const Path> all_paths();

}  // namespace octavo
