// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included before any Highway header: the instruction sets that kernels are built for. One set below SSE4 is enough.
#include <hwy/detect_targets.h>
#undef HWY_DISABLED_TARGETS
#ifndef MILLRACE_LEFT_OUT_TARGETS  // MILLRACE_FEW_INSTRUCTION_SETS: see kernels/CMakeLists.txt
#define MILLRACE_LEFT_OUT_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | MILLRACE_LEFT_OUT_TARGETS)

// Operations of emulated vectors are loops over lanes. Inlined before they are optimized, as those of one instruction are, they take half of the time that it
// takes to compile a large source; a source that defines MILLRACE_LARGE has them optimized first. In other sources a compiler vectorizes some loops only where all is inlined first.
// From 1.0.4 on Highway emulates none on x86, for it has HWY_SSE2.
#include <hwy/base.h>
#if defined(MILLRACE_LARGE) && HWY_ARCH_X86 && !defined(HWY_SSE2)
#undef HWY_API
#define HWY_API static HWY_CONCAT(MILLRACE_OPERATION_, HWY_NAMESPACE) HWY_MAYBE_UNUSED
#define MILLRACE_OPERATION_N_SCALAR HWY_INLINE HWY_FLATTEN
#define MILLRACE_OPERATION_N_EMU128 inline
#define MILLRACE_OPERATION_N_SSSE3 HWY_INLINE HWY_FLATTEN
#define MILLRACE_OPERATION_N_SSE4 HWY_INLINE HWY_FLATTEN
#define MILLRACE_OPERATION_N_AVX2 HWY_INLINE HWY_FLATTEN
#define MILLRACE_OPERATION_N_AVX3 HWY_INLINE HWY_FLATTEN
#define MILLRACE_OPERATION_N_AVX3_DL HWY_INLINE HWY_FLATTEN
#endif
