// Whether AMX may be used, beyond the instructions of its kernels' path.
#pragma once

#include "linear.h"

namespace octavo {

// Whether processor and system have AMX with bf16, and let this process use its registers. Linux wants to be asked for
// them; from then on they are this process's and its children's.
bool may_use_amx();

// Whether ``kernels`` (bf16) multiply a matrix of small whole numbers exactly, ragged panels, groups and rows included.
bool multiplies_exactly(const LinearKernels& kernels);

}  // namespace octavo
