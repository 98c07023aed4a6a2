// Which instruction path a kernel file is being compiled for.
//
// A kernel file (*_kernels.cpp) is compiled once per path with that path's flags. Everything in it lives in the
// namespace OCTAVO_PATH or in an unnamed one inside, and it includes no header that defines inline functions with
// external linkage (most of the C++ library): the linker keeps one copy of such a function, which might be the
// AVX-512 one, and the portable path would then crash on an older machine.
#pragma once

#if !defined(OCTAVO_PATH)
#error "compile kernel files with -DOCTAVO_PATH=<portable|avx2|avx2_vnni|avx512_bf16|avx512_amx>"
#endif

// Exactly one of OCTAVO_PATH_PORTABLE, OCTAVO_PATH_AVX2, OCTAVO_PATH_AVX512_BF16 and (for quantised_kernels.cpp alone)
// OCTAVO_PATH_AVX2_VNNI is defined as well. Kernels that AMX replaces are compiled with OCTAVO_PATH_AVX512_AMX beside
// OCTAVO_PATH_AVX512_BF16.
