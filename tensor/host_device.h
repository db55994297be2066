// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks small functions that a device compiler may call too. Empty for host compilers.
#if defined(__CUDACC__)
#define MILLRACE_HD __host__ __device__
#else
#define MILLRACE_HD
#endif
