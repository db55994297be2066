// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included before any Highway header: the instruction sets that kernels are built for. One set below SSE4 is enough.
#include <hwy/detect_targets.h>
#undef HWY_DISABLED_TARGETS
#ifndef MILLRACE_LEFT_OUT_TARGETS  // MILLRACE_FEW_INSTRUCTION_SETS: see kernels/CMakeLists.txt
#define MILLRACE_LEFT_OUT_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | MILLRACE_LEFT_OUT_TARGETS)
